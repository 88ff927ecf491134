"""Writes of workers that were stopped just before them, and every order in which they can come."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from tests.unit.published import node

from gpupartition.domain.backend import NodeFacts
from gpupartition.domain.effects import CreateSlice, DeleteSlice, Effect, PutSlice

State = TypeVar("State", bound=Hashable)

RECORD: Final = "the record"

Slices = tuple[tuple[str, str], ...]
"""The slices of a node by name, as text."""


class Late(NamedTuple):
    """What a stopped worker is going to write: a slice (None: delete it), or the record."""

    name: str
    body: str | None
    creates: bool = False


def write_of(effect: Effect) -> Late:
    """The write of a slice."""
    match effect:
        case CreateSlice(body=body):
            return Late(body["metadata"]["name"], kept(body), creates=True)
        case PutSlice(body=body):
            return Late(body["metadata"]["name"], kept(body))
        case DeleteSlice(name=name):
            return Late(name, None)
    raise AssertionError(f"nobody expected {effect}")


def kept(body: Mapping[str, Any]) -> str:
    """A slice as it is kept; who may write it by its version is told by those who are late."""
    return json.dumps({**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": "1"}}, sort_keys=True)


def facts(there: Slices) -> NodeFacts:
    """The node with these slices."""
    return NodeFacts(node=node(), slices=[json.loads(body) for _, body in there])


def written(there: Slices, waiting: Iterable[Late], write: Late) -> tuple[Slices, tuple[Late, ...]]:
    """The slices after a write, and those who can still write: whoever goes by what he found finds another version, or nothing, or something.

    A write that comes too late itself changes nothing.
    """
    after, others = dict(there), tuple(waiting)
    if write.creates == (write.name in after):
        return there, others
    if write.body is None:
        del after[write.name]
    else:
        after[write.name] = write.body
    return tuple(sorted(after.items())), tuple(w for w in others if w.name != write.name or w.creates)


def wiped(waiting: Iterable[Late]) -> tuple[Late, ...]:
    """Of the late writes those that still can be once all slices are gone: none that would replace or delete one."""
    return tuple(w for w in waiting if w.name == RECORD or w.creates)


def explore(
    first: State, steps: Callable[[State], Iterable[tuple[str, State]]], broken: Callable[[State], str]
) -> tuple[str, Iterable[State]]:
    """What is broken in some state that can be reached, and how; "" when nothing is. And all states."""
    came: dict[State, tuple[State | None, str]] = {first: (None, "")}
    waiting = [first]
    for seen in waiting:
        found = broken(seen)
        if found:
            return "\n".join([*_story(came, seen), found]), ()
        for what, after in steps(seen):
            if after not in came:
                came[after] = (seen, what)
                waiting.append(after)
    return "", came


def _story(came: Mapping[State, tuple[State | None, str]], seen: State | None) -> list[str]:
    told: list[str] = []
    while seen is not None:
        seen, what = came[seen]
        told.append(what)
    return told[::-1]
