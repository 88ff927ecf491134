"""AMD's modes: Device Config Manager sets those of a node as a label tells it, and AMD's DRA driver publishes what it finds at its start.

A layout's config is a profile `gpp-<fingerprint>` of the manager's config file, in a ConfigMap that the operator owns; the label
`dcm.amd.com/gpu-config-profile` assigns it. It answers by a second label, which stands until the next answer, and is never taken for the truth:
what counts is what is published. A failure is not its last word: it tries again each minute, for half an hour.

A profile says how many GPUs the node has, so that one dying makes it useless: then another one is made, for those that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, Literal

from gpupartition.api.v1alpha1 import DriverSpec, PolicySpec
from gpupartition.backends.amd_gpus import (
    Cuts,
    Gpus,
    as_it_is,
    cuts_now,
    disturbed,
    expected,
    gpus_on,
    published,
    there_of,
)
from gpupartition.backends.amd_limits import cuts_for, installation_problems, no_inventory, node_problems, product_of
from gpupartition.backends.by_label import PREFIX, ByLabel, Software, fingerprint_of
from gpupartition.backends.dcm import document, key_of, meaning, modes_of, profile, text
from gpupartition.backends.installed import no_table, tables_in, with_tables
from gpupartition.backends.node_label import label_of, step_of
from gpupartition.backends.plugin_pods import plugin_pod, why_not_ready
from gpupartition.domain.amd_modes import WHOLE, AmdModel
from gpupartition.domain.backend import Cluster, Config, NodeFacts, Observation
from gpupartition.domain.objects import Object
from gpupartition.domain.others import writer
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Problem, Refused
from gpupartition.domain.products import nothing_cut, unmatched
from gpupartition.tables import amd

DRIVER_NAME: Final = "gpu.amd.com"
PROFILE: Final = "dcm.amd.com/gpu-config-profile"
STATE: Final = "dcm.amd.com/gpu-config-profile-state"
SUCCESS: Final = "success"
FAILURE: Final = "failure"


class AmdDcm(ByLabel):
    """Backend of the driver type AmdDcm."""

    label = PROFILE
    state = STATE
    publishes_as = DRIVER_NAME

    def software(self, driver: DriverSpec) -> Software:
        """Device Config Manager and AMD's DRA driver."""
        return _software(driver)

    def applying(self, driver: DriverSpec) -> Literal["applying_dcm"]:  # noqa: ARG002
        """As long as it takes to load the kernel's driver anew, and to try a few times."""
        return "applying_dcm"

    def preflight(self, driver: DriverSpec, cluster: Cluster) -> Sequence[Problem]:
        """Whether the manager and the DRA driver are there, wired to each other by what we write, and alone."""
        return [*installation_problems(_software(driver), cluster), *known_products(driver, cluster)[1]]

    def depends(self, driver: DriverSpec, node: Object, look: Callable[[], NodeFacts]) -> tuple[Any, ...]:  # noqa: ARG002
        """Its GPUs, their modes, and who else cuts or offers them."""
        facts = look()
        on = _Node.read(facts)
        problems = tuple(node_problems(node, facts.pool(facts.name)))
        done = _done(facts) if on.there != on.gpus else None
        return on.gpus, on.there, done, on.cuts, problems, "" if on.gpus else facts.name

    def compile(self, driver: DriverSpec, policy: PolicySpec, facts: NodeFacts, cluster: Cluster) -> Config:
        """A profile that gives the node's GPUs the modes of the first layout that matches each. Raises Refused."""
        on, problems = _Node.read(facts), list(node_problems(facts.node, facts.pool(facts.name)))
        gpus, there = on.gpus, on.there
        if not gpus and not problems:
            problems.append(no_inventory(facts.node))
        if problems:
            raise Refused(*problems)
        models, _ = known_products(driver, cluster)
        cuts = cuts_for(policy.layouts, gpus, on.cuts, models)
        untold = {""} if all(cut is None or cut.mode == WHOLE for cut in cuts) else set()
        if there != gpus and _done(facts) in untold | {key_of(profile(cuts))}:
            there = gpus  # it was done before a GPU died: what works is left alone
        products = {product_of(gpu, models) for gpu in gpus}
        if not any(cut for gpu, cut in zip(gpus, cuts, strict=True) if gpu in there):
            raise Refused(nothing_cut(policy.layouts, products))
        return replace(
            _config(driver, gpus, cuts, there),
            products=frozenset(map(str, products)),
            unmatched=unmatched(policy.layouts, products),
        )

    def way_back(self, driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> Config:
        """The assignment that the node has, or a profile for what it publishes, where that assignment means something else.

        Raises Refused (NoWayBack) where nothing usable is published, or in modes that cannot be set again.
        """
        on = _Node.read(facts)
        seen, gpus = on.seen, on.there
        cuts = cuts_now(gpus, seen)
        if not seen.usable or not any(cuts):
            raise Refused(
                _no_way_back(facts.name, seen.problem or "none of its devices says in which modes its GPU is")
            )
        value, content = label_of(facts.node, PROFILE), self.assigned_entry(driver, facts, cluster)
        modes = modes_of(content, len(gpus)) if content is not None else None
        if value is not None and modes is not None:
            kept = tuple(cut if mode is not None else None for cut, mode in zip(cuts, modes, strict=True))
            if [cut.mode if cut is not None else None for cut in kept] == list(modes):
                found = _fingerprint(value, content, gpus)
                return _software(driver).config(found, value, content, as_it_is(gpus, kept, seen))
        odd = next((cut.mode.told for cut in cuts if cut is not None and not cut.mode.settable), "")
        if odd:
            raise Refused(_no_way_back(facts.name, f"Device Config Manager does not know {odd}, in which some GPU is"))
        return replace(_config(driver, gpus, cuts, gpus), pool=as_it_is(gpus, cuts, seen))

    def observe(self, driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> Observation:
        """Ready when the manager has done what the label says and the DRA driver's pod is Ready and alone."""
        has = _software(driver)
        value, state = label_of(facts.node, PROFILE), label_of(facts.node, STATE)
        done = state == SUCCESS or (value is None and state is None)
        complaint = why_not_ready(has.plugin, facts, None, cluster) if done else _complaint(state)
        return Observation(
            assignment=value,
            step=step_of(facts.node),
            running=self._running(driver, facts, cluster) if state != FAILURE else "",
            ready=not complaint,
            complaint=complaint,
            pool=published(facts.pool(facts.name)),
            plugin=plugin_pod(has.plugin, facts, None),
            writer=writer(facts.node, PROFILE),
            acknowledged=done,
            restarts=True,
            failed=self._hopeless(driver, facts, cluster) if state == FAILURE else "",
        )

    def disturbs(self, now: Pool, then: Pool) -> frozenset[str]:
        """The GPUs whose modes change; the whole node where its memory mode does, or where GPUs are to differ."""
        return disturbed(now, then)

    def _running(self, driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> str:
        """The profile that is assigned. Where none ever was, it is as if that were which says what somebody did by hand."""
        on, value = _Node.read(facts), label_of(facts.node, PROFILE)
        if not value:
            return _by_hand(facts, on)
        return _fingerprint(value, self.assigned_entry(driver, facts, cluster), on.there)

    def _hopeless(self, driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> str:
        """Why trying again will not help: there is no such profile, or it says that the node has more or fewer GPUs than it publishes."""
        value, content = label_of(facts.node, PROFILE) or "", self.assigned_entry(driver, facts, cluster)
        if content is None:  # one of ours is about to be put back, or is not seen yet
            return "" if value.startswith(PREFIX) else f"Device Config Manager has no profile {value}"
        pool = published(facts.pool(facts.name))
        gpus = gpus_on(pool)
        if not gpus or not pool.usable or modes_of(content, len(gpus)) is not None:
            return ""
        return f"Device Config Manager refuses the profile {value}, which was made for another number of GPUs than {len(gpus)}"


def _software(driver: DriverSpec) -> Software:
    spec = driver.amd_dcm
    if spec is None:
        raise AssertionError(f"driver of type {driver.type} has no spec.amdDcm: {driver}")
    return Software(
        agent=spec.config_manager,
        plugin=spec.plugin,
        file=document(spec.config_manager.namespace, spec.config),
        tables=spec.tables.name if spec.tables is not None else "",
    )


def known_products(driver: DriverSpec, cluster: Cluster) -> tuple[Sequence[AmdModel], Sequence[Problem]]:
    """What is known of products, and what is wrong with what a ConfigMap adds to it."""
    has = _software(driver)
    if not has.tables:
        return amd.builtin(), ()
    where = f"ConfigMap {has.agent.namespace}/{has.tables}"
    found = cluster.config_map(has.agent.namespace, has.tables)
    if found is None:
        return amd.builtin(), (no_table(where, "spec.amdDcm.tables"),)
    return _with_own(tables_in(found), where)


@lru_cache(maxsize=16)
def _with_own(text: str, where: str) -> tuple[Sequence[AmdModel], Sequence[Problem]]:
    return with_tables(text, where, amd.parse, amd.builtin())


@dataclass(frozen=True, slots=True)
class _Node:
    """What a node publishes, its GPUs on record, those of them that are there, and how all are cut."""

    seen: Pool
    gpus: Gpus
    there: Gpus
    cuts: Cuts

    @classmethod
    def read(cls, facts: NodeFacts) -> _Node:
        seen = published(facts.pool(facts.name))
        gpus = gpus_on(seen, facts.known)
        return cls(seen, gpus, there_of(gpus, seen, facts.known), cuts_now(gpus, seen, facts.known))


def _done(facts: NodeFacts) -> str | None:
    """The profile that the manager says it has carried out, "" where it was never told one; None where it does not say so."""
    value, state = label_of(facts.node, PROFILE), label_of(facts.node, STATE)
    return "" if value is None and state is None else value if state == SUCCESS else None


def _config(driver: DriverSpec, gpus: Gpus, cuts: Cuts, there: Gpus) -> Config:
    content = profile(tuple(cut for gpu, cut in zip(gpus, cuts, strict=True) if gpu in there))
    key = key_of(content)
    return _software(driver).config(key.removeprefix(PREFIX), key, content, expected(gpus, cuts, there))


def _fingerprint(value: str, content: Any, gpus: Gpus) -> str:
    return fingerprint_of(value, content, text, lambda theirs: meaning(theirs, len(gpus)))


def _by_hand(facts: NodeFacts, on: _Node) -> str:
    """The modes of a node that the manager was never told anything of; "" where they are not known.

    One that carries a step has lost its label, and with it what the manager would do when it starts: nothing is missing only where that is
    what GPUs are like without it.
    """
    cuts = cuts_now(on.there, on.seen)
    whole = all(cut is None or cut.mode == WHOLE for cut in cuts)
    if not any(cuts) or (step_of(facts.node) and not whole):
        return ""
    return text(profile(cuts))


def _no_way_back(node: str, why: str) -> Problem:
    return Problem(
        reason="NoWayBack",
        at=f"node {node}",
        why=f"it cannot be told how to bring its GPUs back: {why}",
        fix="see what its DRA driver publishes, or annotate the node with gpupartition.dev/accept-no-rollback",
    )


def _complaint(state: str | None) -> str:
    """What the manager's answer means; its reasons stand in events of its pod."""
    if state is None:
        return "Device Config Manager has not answered yet"
    if state == FAILURE:
        return (
            f"Device Config Manager failed ({STATE}: {FAILURE}), perhaps on some GPUs only; the events of its pod say why, such as a program "
            "that keeps a GPU open, and it tries again each minute"
        )
    return f"Device Config Manager is at work ({STATE}: {state})"
