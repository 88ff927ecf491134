"""What a simulated driver does wrong, as its node's annotation asks, and what its pod and its pool then look like.

The annotation `testbed.gpupartition.dev/fault` holds switches separated by commas: `name[=argument][@partitions=N]`. It is read live: a
switch that is taken away heals. `@partitions=N` (or `@devices=N`) limits a switch to one layout of the example driver, and `@config=KEY` to one
value of the label nvidia.com/mig.config or dcm.amd.com/gpu-config-profile, so that a new layout fails while the old one, rolled back to, works:

    never-ready@partitions=2,loses-slices-after=5
    apply-fails@config=all-1g.10gb

| switch of any driver       | the pod                              | the pool                                               |
|----------------------------|--------------------------------------|--------------------------------------------------------|
| `slow-start=SECONDS`       | waits as ContainerCreating, then fine | untouched until then                                  |
| `never-ready`              | runs, is never Ready                 | published                                              |
| `crash-loop`               | CrashLoopBackOff, restarts counted   | untouched; nobody is connected, so the kubelet wipes it |
| `wrong-layout[=missing]`   | Ready                                | published without its last device                      |
| `wrong-layout=parts`       | Ready                                | published with one part more per GPU (example driver)  |
| `wrong-layout=gpu`         | Ready                                | published without its last GPU (example driver)        |
| `publishes-nothing`        | Ready                                | untouched, not even looked after                       |
| `late-slices=SECONDS`      | Ready                                | untouched until so long after the start                |
| `loses-slices-after=SECONDS` | Ready                              | published; deleted so long after the start, not restored |

| switch of NVIDIA's         | what it does                                                                                          |
|----------------------------|-------------------------------------------------------------------------------------------------------|
| `shows-whole`              | the plugin announces cut GPUs as a whole too                                                          |
| `other-names`              | another release of the driver: 7g.79gb instead of 7g.80gb, a little less memory                       |
| `stale-mount`              | mig-manager's copy of the ConfigMap never changes while its pod lives                                 |
| `apply-fails[=cleared]`    | the first GPU that is to change loses its instances, then mig-manager fails                           |
| `apply-fails=partly`       | the first GPU is changed, the next one refuses                                                        |
| `slow-apply=SECONDS`       | mig-manager works so much longer                                                                      |
| `late-state=SECONDS`       | it writes success or failed so long after it is done                                                  |
| `wrong-state=success`      | it does nothing and says success                                                                      |
| `wrong-state=failed`       | it does everything and says failed                                                                    |
| `wedged[=before]`          | it stays in pending with all labels paused, having done nothing                                       |
| `wedged=after`             | the same, having done everything                                                                      |
| `leaves-paused`            | it says how it went, and leaves the labels paused                                                     |
| `in-use=GPU`               | a process that is no pod has this GPU open                                                            |
| `no-reset`                 | GPUs cannot be reset, as on some clouds' machines: only a reboot brings a pending mode                |
| `gpu-dies=GPU`             | this GPU is lost as soon as its turn comes, until the node is rebooted                                |
| `gpu-gone=GPU`             | this GPU has fallen off the bus: no program finds it, and NVML counts without it                      |

| switch of AMD's            | what it does                                                                                          |
|----------------------------|-------------------------------------------------------------------------------------------------------|
| `auto-partition`           | the plugin announces what it would with its feature gate AutoPartition                                |
| `newer-dcm`                | a later Device Config Manager: writes in-progress first; who has no number gets all GPUs that are left |
| `gpu-fails=GPU`            | this GPU refuses every change, and the others are changed                                             |
| `stale-mount`, `slow-apply`, `late-state`, `in-use`, `gpu-gone` | as above                                                         |
| `wrong-state=success`      | it does nothing and says success                                                                      |
| `wrong-state=failed`       | it does everything and says failure                                                                   |
| `wedged[=before]`          | it does nothing and says nothing                                                                      |
| `wedged=after`             | it does everything and says nothing                                                                   |
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from testbed.drivers.example import draw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from testbed.drivers.example import Settings

Content = dict[str, Any]
"""What one slice holds."""

ANNOTATION: Final = "testbed.gpupartition.dev/fault"

SWITCH: Final = re.compile(r"(?P<name>[a-z-]+)(?:=(?P<argument>[\w.]+))?(?:@(?P<key>\w+)=(?P<value>[\w.-]+))?")
SECONDS: Final = r"\d+(\.\d+)?"
FORMS: Final = {"": "no argument", SECONDS: "=SECONDS", r"\d+": "=GPU"}
LIMITS: Final = {"partitions": r"\d+", "devices": r"\d+", "config": r"[\w.-]+"}
ARGUMENTS: Final = {
    # switch              argument's form            given when there is none (None: there must be one)
    "slow-start": (SECONDS, None),
    "never-ready": ("", ""),
    "crash-loop": ("", ""),
    "wrong-layout": ("missing|parts|gpu", "missing"),
    "publishes-nothing": ("", ""),
    "late-slices": (SECONDS, None),
    "loses-slices-after": (SECONDS, None),
    "shows-whole": ("", ""),
    "other-names": ("", ""),
    "stale-mount": ("", ""),
    "apply-fails": ("cleared|partly", "cleared"),
    "slow-apply": (SECONDS, None),
    "late-state": (SECONDS, None),
    "wrong-state": ("success|failed", None),
    "wedged": ("before|after", "before"),
    "leaves-paused": ("", ""),
    "in-use": (r"\d+", None),
    "no-reset": ("", ""),
    "gpu-dies": (r"\d+", None),
    "gpu-gone": (r"\d+", None),
    "auto-partition": ("", ""),
    "newer-dcm": ("", ""),
    "gpu-fails": (r"\d+", None),
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
    """One switch, for every layout or, with `only`, for the one in which that setting has that value."""

    name: str
    argument: str = ""
    only: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What is to be seen of a driver now; `again` is the number of seconds after which it changes by itself.

    `slices` are the contents that its pool is kept at: none at all when the slices are lost, None when nobody looks after them.
    """

    running: Running
    slices: tuple[Content, ...] | None = None
    restarts: int = 0
    again: float | None = None
    message: str = ""


def parse(annotation: str) -> list[Fault]:
    """Read the annotation; raises BadFaultError that names the switch and what it could be."""
    return [_switch(text.strip()) for text in annotation.split(",") if text.strip()]


def active(faults: Iterable[Fault], **settings: object) -> dict[str, str]:
    """The arguments, by name, of the switches that mean a driver with these settings."""
    is_meant = (fault.only is None or str(settings.get(fault.only[0])) == fault.only[1] for fault in faults)
    return {fault.name: fault.argument for fault, meant in zip(faults, is_meant, strict=True) if meant}


def behave(settings: Settings, faults: list[Fault], age: float) -> Behaviour:
    """What the example driver of these settings does `age` seconds after its pod came to the node."""
    on = active(faults, partitions=settings.partitions, devices=settings.devices)
    return shown(on, age, lambda: _drawn(settings, on.get("wrong-layout")))


def shown(on: Mapping[str, str], age: float, draw: Callable[[], Iterable[Content]]) -> Behaviour:
    """What a driver does that would publish what `draw` gives; it is asked only when the driver runs."""
    if (wait := float(on.get("slow-start", 0)) - age) > 0:
        return Behaviour(running=Running.CREATING, again=wait)
    if "crash-loop" in on:
        return crash(age, "the fault switch crash-loop is on")
    left = float(on.get("loses-slices-after", math.inf)) - age
    late = float(on.get("late-slices", 0)) - age
    slices = tuple(draw()) if left > 0 else ()
    return Behaviour(
        running=Running.NOT_READY if "never-ready" in on else Running.READY,
        slices=None if "publishes-nothing" in on or late > 0 else slices,
        again=min((wait for wait in (left, late) if 0 < wait < math.inf), default=None),
    )


def crash(age: float, message: str) -> Behaviour:
    """A container that exits as soon as it starts, `age` seconds after its first start."""
    restarts, pause, ends = 1, FIRST_BACK_OFF, FIRST_BACK_OFF
    while ends <= age:
        restarts, pause = restarts + 1, min(2 * pause, LONGEST_BACK_OFF)
        ends += pause
    return Behaviour(running=Running.CRASHING, restarts=restarts, again=ends - age, message=message)


def _drawn(settings: Settings, how: str | None) -> list[Content]:
    if how == "parts":
        return draw(replace(settings, partitions=settings.partitions + 1))
    if how == "gpu":
        return draw(replace(settings, devices=settings.devices - 1))
    slices = draw(settings)
    return without_last(slices) if how == "missing" else slices


def without_last(slices: list[Content]) -> list[Content]:
    """The same pool without its last device."""
    return [*slices[:-1], {"devices": slices[-1]["devices"][:-1]}]


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
    key, value = found["key"], found["value"]
    if key and not re.fullmatch(LIMITS.get(key, "(?!)"), value):
        raise BadFaultError(
            f"{text!r}: a switch can be limited by @partitions=N, @devices=N or @config=KEY, not by @{key}={value}"
        )
    return Fault(found["name"], argument, (key, value) if key else None)


def _form(form: str) -> str:
    *first, last = form.split("|")
    return FORMS.get(form) or f"={', ='.join(first)} or ={last}"
