"""Plans from a cluster as it is, with documents laid over it as applying them would."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import ValidationError

from gpupartition.cli.documents import Document, whole
from gpupartition.cli.options import Unusable
from gpupartition.cli.targets import must_be_there
from gpupartition.controller.caches import Caches
from gpupartition.controller.declared import Policy
from gpupartition.controller.intent import Intents
from gpupartition.controller.ledger import Ledger
from gpupartition.controller.occupants import Occupants
from gpupartition.controller.planner import Planner
from gpupartition.controller.probe import Probe
from gpupartition.controller.records import DRIVERS, POLICIES
from gpupartition.controller.refusals import Refusals
from gpupartition.controller.scope import Absence, Scope, Standings, read_scope
from gpupartition.controller.stopwatch import Stopwatch
from gpupartition.controller.trimmed import trim, trim_claim
from gpupartition.controller.world import Reader
from gpupartition.domain.admission import Admission
from gpupartition.domain.plan import Plan
from gpupartition.domain.problem import Problem, Refused, Turn
from gpupartition.kube import Client, Object
from gpupartition.kube.pauses import unhurried
from gpupartition.kube.reflector import key_of
from gpupartition.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What was foreseen, and all that it was read from: `claims` are all of the cluster, with or without devices."""

    plans: Sequence[Plan]
    scopes: Sequence[Scope]
    caches: Caches
    claims: Sequence[Object]


async def plans_for(
    client: Client, settings: Settings, documents: Sequence[Document] = (), names: Sequence[str] = ()
) -> list[Plan]:
    """Plans for the policies of these documents and names; for all when there are neither. Raises Unusable and ApiError."""
    with unhurried():
        return list((await planned_for(client, settings, documents, names)).plans)


async def planned_for(
    client: Client, settings: Settings, documents: Sequence[Document], names: Sequence[str]
) -> Planned:
    """The same, with what it was read from."""
    policies = {b["metadata"]["name"]: b for b in (await client.list(POLICIES)).items}
    drivers = {b["metadata"]["name"]: b for b in (await client.list(DRIVERS)).items}
    changed = {kind: [d for d in documents if d.kind == kind] for kind in ("GpuPartitionPolicy", "GpuPartitionDriver")}
    _lay_over(policies, changed["GpuPartitionPolicy"], fixed="driver")
    _lay_over(drivers, changed["GpuPartitionDriver"], fixed="type")
    asked = _asked(policies, documents, names)
    claims: dict[str, Object] = {}

    def kept(body: Object) -> Object | None:
        claims[key_of(body)] = trim(body)
        return trim_claim(body)

    caches, intents = await copied(client, settings, claim=kept)
    absence = Absence(noticed=settings.limits.not_ready, ignored=settings.ignore_not_ready)
    watches = Stopwatch()
    ledger = Ledger(client, caches, Standings(caches, absence), watches, settings.limits.first_looks)
    reader = Reader(client, caches, intents, watches, settings.limits)
    occupants = Occupants(client, Refusals(), namespace=settings.namespace)
    planner = Planner(caches, reader, ledger, absence=absence, occupants=occupants)
    shared = {policies[name]["spec"]["driver"] for name in asked}
    named = {*names, *(d.name for d in documents)}
    scopes: list[Scope] = []
    without: list[Plan] = []
    for name, body in sorted(policies.items()):
        if name in asked or (body["spec"].get("driver") in shared and _moves(body)):
            try:
                scopes.append(await _scope(body, drivers, policies, caches=caches, intents=intents))
            except Unusable as cannot:  # one mistake does not take everybody's plan away
                if not named.isdisjoint({name, body["spec"].get("driver")}):
                    raise
                if name not in asked:
                    continue
                why = "; ".join(cannot.lines)
                without.append(
                    Plan(policy=name, driver=body["spec"].get("driver", ""), nodes=(), stop=Admission(), refused=why)
                )
    plans = [*(plan for plan in await planner.of(scopes) if plan.policy in asked), *without]
    plans.sort(key=lambda plan: plan.policy)
    return Planned(plans=plans, scopes=scopes, caches=caches, claims=list(claims.values()))


async def copied(
    client: Client, settings: Settings, *, claim: Callable[[Object], Object | None] | None = None
) -> tuple[Caches, Intents]:
    """What the operator would know of the cluster, read once, and what it makes of drivers and policies. Raises ApiError.

    `claim`: what is kept of a claim, if not who has what.
    """
    caches = Caches(client, namespace=settings.namespace, on_node=lambda _: None, on_all=lambda: None, claim=claim)
    await caches.read()
    return caches, Intents(caches, Probe(client, dry_runs=False), operates=False)


TAKEN_AT_ITS_WORD: Final = frozenset({"EvictionForbidden", "RightsMissing", "FeatureGateOff"})
"""What only the operator can find out, because it is about its own account, or takes a dry run."""


_REFUSALS: Final = frozenset({("Accepted", "False"), ("Stalled", "True")})


def _as_told(scope: Scope) -> Scope:
    """With what the operator says of the very same spec, where that cannot be seen from here."""
    policy = scope.policy
    refused = (each for each in policy.status.conditions if (each.type, each.status) in _REFUSALS)
    told = next(refused, None)
    if told is None or told.reason not in TAKEN_AT_ITS_WORD or told.observed_generation != policy.generation:
        return scope
    at, _, rest = told.message.partition(": ")
    why, _, fix = rest.partition("; ")
    problem = Problem(reason=told.reason, at=at, why=why, fix=fix, turn=Turn.CLUSTER)
    return replace(scope, problems=(*scope.problems, problem))


def _moves(body: Object) -> bool:
    """Whether a policy that nobody asked about takes nodes of its own, and so a part of the driver's budget."""
    return body["spec"].get("mode", "Enforce") == "Enforce" and "deletionTimestamp" not in body["metadata"]


def _lay_over(bodies: dict[str, Object], documents: Sequence[Document], *, fixed: str) -> None:
    """Put what the documents say in the place of what the cluster has, as applying them would. Raises Unusable."""
    mistakes = []
    for document in documents:
        present, spec = bodies.get(document.name), document.body["spec"]
        if present is None:
            # Each has a UID of its own: by it layouts are remembered.
            meta = {**document.body["metadata"], "uid": f"planned {document.name}"}
            bodies[document.name] = {**document.body, "metadata": meta}
            continue
        meta = present["metadata"]
        if present["spec"].get(fixed) != spec.get(fixed):
            mistakes.append(
                f"{document.at}: {document.kind} {document.name}: spec.{fixed}: {spec.get(fixed)} instead of {present['spec'].get(fixed)} "
                "cannot be applied, because it is immutable; give the new one another name"
            )
        notes = {**meta.get("annotations", {}), **(document.body["metadata"].get("annotations") or {})}
        generation = meta.get("generation", 0) + (0 if _same(document.kind, present["spec"], spec) else 1)
        changed = {**meta, "annotations": notes, "generation": generation}
        bodies[document.name] = {**present, "metadata": changed, "spec": spec}
    if mistakes:
        raise Unusable(*mistakes)


def _same(kind: str, before: Object, after: Object) -> bool:
    """Whether they are one spec to an API server, so that what was said of the former still holds."""
    try:
        return whole(kind, before) == whole(kind, after)
    except ValidationError:
        return before == after


def _asked(policies: Mapping[str, Object], documents: Sequence[Document], names: Sequence[str]) -> set[str]:
    """The policies to show. Raises Unusable for one that is nowhere."""
    must_be_there(names, policies, hint="; or name a file with -f")
    written = {d.name for d in documents if d.kind == "GpuPartitionPolicy"}
    if written or names:
        return written | set(names)
    changed = {d.name for d in documents}  # drivers alone: whoever uses them
    found = {n for n, body in policies.items() if not changed or body["spec"].get("driver") in changed}
    if not found:
        raise Unusable("there is no GpuPartitionPolicy to plan for", hint="; name a file with -f")
    return found


async def _scope(
    body: Object, drivers: Mapping[str, Object], policies: dict[str, Object], *, caches: Caches, intents: Intents
) -> Scope:
    policy = Policy.read(body)
    if policy.spec is None:
        raise Unusable(*(f"GpuPartitionPolicy {policy.name}: {problem}" for problem in policy.problems))
    name = body["spec"].get("driver", "")
    if name not in drivers:
        known = ", ".join(sorted(drivers)) or "none"
        raise Unusable(
            f"GpuPartitionPolicy {policy.name}: spec.driver: there is no GpuPartitionDriver {name} (there are: {known}); "
            "add it to the files, or create it first"
        )
    try:
        driver = await intents.driver(drivers[name])
    except Refused as refused:
        raise Unusable(*(f"GpuPartitionDriver {name}: {problem}" for problem in refused.problems)) from refused
    return _as_told(
        await read_scope(body, policy, driver, drivers[name], caches=caches, intents=intents, policies=policies)
    )
