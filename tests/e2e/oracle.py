"""Kubernetes' own allocator, asked about cases, and how small a case can be made on which it and ours differ."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from testbed.build import ORACLE, Builder
from testbed.progress import Progress
from tests.properties.allocations import Case, as_asked, ours, theirs

if TYPE_CHECKING:
    from pathlib import Path


async def built() -> Path:
    """The program, built where it is not there yet."""
    builder = Builder.here(Progress(None))
    return (await builder.tools([ORACLE]))[ORACLE.name]


def answers(oracle: Path, cases: Sequence[Case], *, times: int = 1) -> list[dict[str, Any]]:
    """What it says of each case."""
    lines = "".join(f"{json.dumps(as_asked(case, times=times))}\n" for case in cases)
    said = subprocess.run([oracle], input=lines, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in said.stdout.splitlines()]
    assert len(found) == len(cases), said.stderr
    return found


def differences(oracle: Path, cases: Sequence[Case]) -> list[tuple[Case, object, object]]:
    """The cases on which the two differ, with what each says: theirs, ours."""
    both = ((case, theirs(answer), _ours(case)) for case, answer in zip(cases, answers(oracle, cases), strict=True))
    return [(case, said, own) for case, said, own in both if said != own]


def _ours(case: Case) -> object:
    try:
        return ours(case)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is not what Kubernetes says
        return repr(error)


def shrunk(oracle: Path, case: Case) -> Case:
    """The case without all that can be left out of it so that the two still differ, and in the same way."""
    ((_, *both),) = differences(oracle, [case])
    while True:
        smaller = differences(oracle, list(_smaller(case)))
        alike = [each for each, *said in smaller if list(map(type, said)) == list(map(type, both)) and _sane(said)]
        if not alike:
            return case
        case = min(alike, key=lambda each: len(json.dumps(each)))


def _sane(said: Sequence[object]) -> bool:
    return "panic" not in str(said) and "Error" not in str(said)


def _smaller(case: Case) -> Iterator[Case]:
    for *path, last in _places(case):
        copy = deepcopy(case)
        inside: Any = copy
        for step in path:
            inside = inside[step]
        del inside[last]
        yield copy


_MAPS: Final = {"attributes", "capacity", "labels", "consumedCapacity"}
_OPTIONAL: Final = _MAPS | {
    "taints",
    "tolerations",
    "selectors",
    "constraints",
    "consumesCounters",
    "requestPolicy",
    "adminAccess",
    "bindsToNode",
}
_WHOLE: Final = {"validValues", "nodeSelectorTerms", "values", "bindingConditions", "bindingFailureConditions"}


def _places(value: Any, path: tuple[Any, ...] = ("",)) -> Iterator[tuple[Any, ...]]:
    """Where something can be left out so that the rest could still be objects of an API server."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        in_list = isinstance(value, list) and path[-1] not in _WHOLE
        if in_list or key in _OPTIONAL or path[-1] in _MAPS:
            yield (*path[1:], key)
        yield from _places(each, (*path, key))
