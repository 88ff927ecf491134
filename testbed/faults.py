"""What a simulated driver does wrong, as its node's annotation asks, and what its pod and its pool then look like.

The annotation `testbed.gpupartition.dev/fault` holds switches separated by commas: `name[=argument][@partitions=N]`. It is read live: a
switch that is taken away heals. `@partitions=N` (or `@devices=N`) limits a switch to one layout, so that a new layout fails while the old
one, rolled back to, works:

    never-ready@partitions=2,loses-slices-after=5

| switch                     | the pod                              | the pool                                               |
|----------------------------|--------------------------------------|--------------------------------------------------------|
| `slow-start=SECONDS`       | waits as ContainerCreating, then fine | untouched until then                                  |
| `never-ready`              | runs, is never Ready                 | published                                              |
| `crash-loop`               | CrashLoopBackOff, restarts counted   | untouched; nobody is connected, so the kubelet wipes it |
| `wrong-layout[=missing]`   | Ready                                | published without its last device                      |
| `wrong-layout=parts`       | Ready                                | published with one part more per GPU                   |
| `wrong-layout=gpu`         | Ready                                | published without its last GPU                         |
| `publishes-nothing`        | Ready                                | untouched, not even looked after                       |
| `loses-slices-after=SECONDS` | Ready                              | published; deleted so long after the start, not restored |
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from testbed.drivers.example import draw

if TYPE_CHECKING:
    from testbed.drivers.example import Settings

ANNOTATION: Final = "testbed.gpupartition.dev/fault"

SWITCH: Final = re.compile(r"(?P<name>[a-z-]+)(?:=(?P<argument>[\w.]+))?(?:@(?P<key>\w+)=(?P<value>\d+))?")
ARGUMENTS: Final = {
    # switch              argument's form            given when there is none (None: there must be one)
    "slow-start": (r"\d+(\.\d+)?", None),
    "never-ready": (r"", ""),
    "crash-loop": (r"", ""),
    "wrong-layout": (r"missing|parts|gpu", "missing"),
    "publishes-nothing": (r"", ""),
    "loses-slices-after": (r"\d+(\.\d+)?", None),
}

FIRST_BACK_OFF: Final = 10.0  # seconds; the kubelet's own: 10, 20, 40, … up to five minutes
LONGEST_BACK_OFF: Final = 300.0


class BadFaultError(ValueError):
    """The annotation cannot be read; the message says what to write."""


class Running(Enum):
    """How the kubelet reports the driver's container."""

    CREATING = "ContainerCreating"
    READY = "Ready"
    NOT_READY = "NotReady"
    CRASHING = "CrashLoopBackOff"

    @property
    def connected(self) -> bool:
        """Whether the driver's process lives and is registered with the kubelet."""
        return self in {Running.READY, Running.NOT_READY}


@dataclass(frozen=True, slots=True)
class Fault:
    """One switch, for every layout or, with `only`, for the one in which that setting has that number."""

    name: str
    argument: str = ""
    only: tuple[str, int] | None = None

    def hits(self, settings: Settings) -> bool:
        """Whether the driver with these settings is meant."""
        return self.only is None or getattr(settings, self.only[0]) == self.only[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What is to be seen of a driver now; `again` is the number of seconds after which it changes by itself.

    `slices` are the contents that its pool is kept at: none at all when the slices are lost, None when nobody looks after them.
    """

    running: Running
    slices: tuple[dict[str, Any], ...] | None = None
    restarts: int = 0
    again: float | None = None
    message: str = ""


def parse(annotation: str) -> list[Fault]:
    """Read the annotation; raises BadFaultError that names the switch and what it could be."""
    return [_switch(text.strip()) for text in annotation.split(",") if text.strip()]


def behave(settings: Settings, faults: list[Fault], age: float) -> Behaviour:
    """What the driver of these settings does `age` seconds after its pod came to the node."""
    active = {fault.name: fault.argument for fault in faults if fault.hits(settings)}
    if (wait := float(active.get("slow-start", 0)) - age) > 0:
        return Behaviour(running=Running.CREATING, again=wait)
    if "crash-loop" in active:
        return crash(age, "the fault switch crash-loop is on")
    left = float(active.get("loses-slices-after", math.inf)) - age
    slices = tuple(_drawn(settings, active.get("wrong-layout"))) if left > 0 else ()
    return Behaviour(
        running=Running.NOT_READY if "never-ready" in active else Running.READY,
        slices=None if "publishes-nothing" in active else slices,
        again=left if 0 < left < math.inf else None,
    )


def crash(age: float, message: str) -> Behaviour:
    """A container that exits as soon as it starts, `age` seconds after its first start."""
    restarts, pause, ends = 1, FIRST_BACK_OFF, FIRST_BACK_OFF
    while ends <= age:
        restarts, pause = restarts + 1, min(2 * pause, LONGEST_BACK_OFF)
        ends += pause
    return Behaviour(running=Running.CRASHING, restarts=restarts, again=ends - age, message=message)


def _drawn(settings: Settings, how: str | None) -> list[dict[str, Any]]:
    if how == "parts":
        return draw(replace(settings, partitions=settings.partitions + 1))
    if how == "gpu":
        return draw(replace(settings, devices=settings.devices - 1))
    slices = draw(settings)
    if how == "missing":
        slices[-1] = {"devices": slices[-1]["devices"][:-1]}
    return slices


def _switch(text: str) -> Fault:
    found = SWITCH.fullmatch(text)
    if not found or found["name"] not in ARGUMENTS:
        raise BadFaultError(
            f"{text!r} is no fault switch: write name[=argument][@partitions=N], name one of {', '.join(ARGUMENTS)}"
        )
    form, default = ARGUMENTS[found["name"]]
    argument = default if found["argument"] is None else found["argument"]
    if argument is None or (argument != default and not re.fullmatch(form, argument)):
        raise BadFaultError(f"{text!r}: {found['name']} takes {_form(form)}")
    if found["key"] not in {None, "partitions", "devices"}:
        raise BadFaultError(f"{text!r}: a switch can be limited by @partitions=N or @devices=N, not by @{found['key']}")
    only = (found["key"], int(found["value"])) if found["key"] else None
    return Fault(found["name"], argument, only)


def _form(form: str) -> str:
    return {"": "no argument", "missing|parts|gpu": "=missing, =parts or =gpu"}.get(form, "=SECONDS")
