"""`gpupartition diff POLICY|-f FILE`: what a file says otherwise than the cluster, in devices too. Reads the cluster and writes nothing."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import unified_diff
from typing import TYPE_CHECKING, Any, Final

from gpupartition.cli.forms import NAMES, forms
from gpupartition.cli.options import OK, USAGE, Unusable, add_cluster, add_files, add_output, complain, describe
from gpupartition.cli.paint import Line, Span, line
from gpupartition.cli.targets import DRIVER, POLICY

if TYPE_CHECKING:
    from gpupartition.cli.cluster import Answer
    from gpupartition.cli.documents import Document
    from gpupartition.domain.plan_summary import Moved
    from gpupartition.kube import Client, Object
    from gpupartition.settings import Settings

ABOUT: Final = """
With a file: what it says otherwise than the policies and drivers in the cluster, defaults filled in on both sides, and how many devices of each
profile the nodes would have by the one and by the other, once nothing is in the way. With a name: what the nodes of a policy publish now, and
what it wants. It only reads; in which order nodes change, and who is in the way, plan tells.
"""
EXAMPLES: Final = """
examples:
  %(prog)s -f policy.yaml                 a file against the cluster
  kustomize build . | %(prog)s -f -       from stdin
  %(prog)s inference                      a policy against its nodes

exit codes: as those of kubectl diff: 0 nothing differs; 1 something does; 2 it could not be told (the message says why), or wrong usage
"""
DIFFERENT: Final = 1
_KINDS: Final = {"GpuPartitionPolicy": POLICY, "GpuPartitionDriver": DRIVER}
_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs about one object. `written`: lines of a unified diff; `devices` by profile, of `nodes` nodes; `says`: a plan's sentence."""

    kind: str
    name: str
    written: Sequence[str] = ()
    devices: Sequence[Moved] = ()
    nodes: int = 0
    says: str = ""
    differs: bool = False


def add_to(parser: argparse.ArgumentParser) -> None:
    """Give the command its options."""
    describe(parser, ABOUT, EXAMPLES)
    parser.add_argument("name", nargs="*", metavar="POLICY", help="a policy in the cluster, against its nodes")
    add_files(parser)
    add_output(parser, NAMES)
    add_cluster(parser)


async def run(options: argparse.Namespace, settings: Settings) -> int:
    """Compare, print, and return the exit code."""
    from gpupartition.cli.cluster import answer
    from gpupartition.cli.documents import read

    if bool(options.name) == bool(options.filename):
        complain("name policies, or a file with -f")
        return USAGE
    different: list[bool] = []

    async def ask(client: Client) -> Answer:
        found = await compare(client, settings, documents, options.name)
        different.append(any(each.differs for each in found))
        return FORMS[options.output](found), ()

    try:
        documents = read(options.filename)
        code = await answer(options, "difference", ask)
    except Unusable as unusable:
        code = complain(*unusable.lines)
    return USAGE if code != OK else DIFFERENT if any(different) else OK


async def compare(
    client: Client, settings: Settings, documents: Sequence[Document], names: Sequence[str]
) -> list[Difference]:
    """What differs about each of these. Raises Unusable and ApiError."""
    from gpupartition.cli.planned import plans_for
    from gpupartition.domain.plan_summary import devices, moved, sentence
    from gpupartition.kinds import DRIVERS, POLICIES

    bodies = {
        kind: {body["metadata"]["name"]: body for body in (await client.list(of)).items}
        for kind, of in (("GpuPartitionPolicy", POLICIES), ("GpuPartitionDriver", DRIVERS))
    }
    written = {(d.kind, d.name): _unified(d, bodies[d.kind].get(d.name)) for d in documents}
    then = {plan.policy: plan for plan in await plans_for(client, settings, documents, names)}
    there = [name for name in then if name in bodies["GpuPartitionPolicy"]] if documents else []
    now = {plan.policy: plan for plan in await plans_for(client, settings, names=there)} if there else {}
    found = [
        Difference(kind=kind, name=name, written=lines, differs=bool(lines))
        for (kind, name), lines in written.items()
        if kind == "GpuPartitionDriver"
    ]
    for name, plan in then.items():
        before = (each.once_free for each in now[name].pools) if name in now else (each.now for each in plan.pools)
        counts = moved(devices(before), devices(each.once_free for each in plan.pools))
        lines = written.get(("GpuPartitionPolicy", name), [])
        found.append(
            Difference(
                kind="GpuPartitionPolicy",
                name=name,
                written=lines,
                devices=counts,
                nodes=len(plan.pools),
                says=sentence(plan),
                differs=bool(lines)
                or any(m.before != m.after for m in counts)
                or (not documents and plan.changing > 0),
            )
        )
    return found


def _unified(document: Document, present: Object | None) -> list[str]:
    """The lines in which a document differs from what the cluster has, as applying it would; none where it does not."""
    about = _short(document.kind, document.name)
    before = _told(present, document.body) if present is not None else []
    after = _told(document.body, document.body)
    return list(unified_diff(before, after, f"{about} (cluster)", f"{about} ({document.at})", lineterm="", n=2))


def _told(body: Object, asked: Object) -> list[str]:
    """What is compared of an object: its spec with all defaults, and of labels and annotations those that the file names.

    Raises Unusable for a spec that this release cannot read: another one's CRDs have let it in.
    """
    import yaml
    from pydantic import ValidationError

    from gpupartition.cli.documents import whole
    from gpupartition.controller.declared import invalid

    try:
        spec = whole(asked["kind"], body["spec"])
    except ValidationError as error:
        about = f"{asked['kind']} {asked['metadata']['name']}, as it is in the cluster"
        raise Unusable(*(f"{about}: {problem}" for problem in invalid(error))) from error
    meta = {
        part: {key: value for key, value in sorted((body["metadata"].get(part) or {}).items()) if key in named}
        for part in ("labels", "annotations")
        if (named := asked["metadata"].get(part))
    }
    return str(
        yaml.safe_dump({"metadata": meta, "spec": spec} if meta else {"spec": spec}, sort_keys=False)
    ).splitlines()


# ------------------------------------------------------------------------------------------------------------------------- forms


def pictured(found: Sequence[Difference], _: datetime) -> Iterator[Line]:
    """For people: as diff says it, and the devices below."""
    for number, each in enumerate(found):
        if number:
            yield ()
        if not each.differs:
            yield line(Span(_short(each.kind, each.name), "bold"), ": nothing differs")
            continue
        for text in each.written:
            head = text.startswith(("+++", "---"))
            yield line(Span(text, "bold" if head else _STYLES.get(text[:1], "")))
        if each.kind == "GpuPartitionPolicy":
            yield from _devices(each)


def _devices(each: Difference) -> Iterator[Line]:
    yield line(
        Span(
            f"@@ {each.name}: devices of {each.nodes} node{'s' if each.nodes != 1 else ''}, once nothing is in the way @@",
            "cyan",
        )
    )
    wide = max((len(str(n)) for m in each.devices for n in (m.before, m.after)), default=1)
    for m in each.devices:
        if m.before == m.after:
            yield line(f" {m.before:>{wide}} {m.profile}")
            continue
        yield from (line(Span(f"-{m.before:>{wide}} {m.profile}", "red")),) if m.before else ()
        yield from (line(Span(f"+{m.after:>{wide}} {m.profile}", "green")),) if m.after else ()
    yield line(Span(each.says, "dim"))


def as_data(found: Sequence[Difference]) -> Mapping[str, Any]:
    """Everything, in names that stay."""
    return {
        "objects": [
            {
                "name": _name(each),
                "differs": each.differs,
                "written": list(each.written),
                "nodes": each.nodes,
                "devices": [{"profile": m.profile, "before": m.before, "after": m.after} for m in each.devices],
                "summary": each.says,
            }
            for each in found
        ]
    }


def names(found: Sequence[Difference]) -> list[str]:
    """Those that differ, as kubectl takes them."""
    return [_name(each) for each in found if each.differs]


def _name(each: Difference) -> str:
    return f"{_KINDS[each.kind]}/{each.name}"


def _short(kind: str, name: str) -> str:
    return f"{kind.lower()}/{name}"


FORMS: Final = forms(picture=pictured, data=as_data, names=names)
