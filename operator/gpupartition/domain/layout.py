"""Layouts on GPUs: which layout is for which GPU, what cannot be, and the pool that comes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpupartition.api.v1alpha1 import Layout, LayoutType, Match, Sharing, SharingCapacity, SharingMode
from gpupartition.domain import counters, quantity
from gpupartition.domain.backend import Problem, Refused
from gpupartition.domain.counters import Piece
from gpupartition.domain.gpus import Gpu, plain_product
from gpupartition.domain.pool import Device, Pool

MAX_PIECES: Final = 256  # devices of one GPU; hardware knows some 20, and the order of search compares each with each
MAX_NAME: Final = 63  # a device's name is a DNS label
MAX_RECORD: Final = 262_144  # characters of a pool in a node's record


def compile_pool(gpus: Sequence[Gpu], layouts: Sequence[Layout]) -> Pool:
    """The pool of these GPUs: one counter set and some devices for each, in the order of their numbers. Raises Refused with all problems."""
    problems: list[Problem] = []
    devices: list[Device] = []
    for gpu in gpus:
        number = next((n for n, layout in enumerate(layouts) if matches(layout.match, gpu)), None)
        if number is None:
            problems.append(_unmatched(gpu))
            continue
        at, layout = f"spec.layouts[{number}]", layouts[number]
        found = list(_problems(gpu, layout, at))
        problems += found
        if not found:
            pieces = _pieces(gpu, layout)
            problems += _piece_problems(gpu, layout, pieces, at)
            devices += [_device(gpu, piece, layout.sharing) for piece in pieces if not problems]
    pool = Pool(devices=tuple(devices), counters={counter_set(gpu): gpu.counters for gpu in gpus})
    if not problems and len(pool.to_json()) > MAX_RECORD:
        problems.append(
            Problem(
                reason="TooManyDevices",
                at="spec.layouts",
                why=f"a node would publish {len(devices)} devices, more than its record can hold",
                fix="offer fewer profiles or fewer parts",
            )
        )
    if problems:
        raise Refused(*_once(problems))
    return pool


def matches(match: Match, gpu: Gpu) -> bool:
    """Whether a layout is for this GPU: all, or both lists hold (an empty list restricts nothing)."""
    if match.all:
        return True
    products = {plain_product(p) for p in match.products}
    return (not products or gpu.product in products) and (not match.indexes or gpu.index in match.indexes)


def counter_set(gpu: Gpu) -> str:
    """Name of the GPU's counter set."""
    return f"gpu-{gpu.index}"


def _pieces(gpu: Gpu, layout: Layout) -> list[Piece]:
    if layout.equal is not None:
        cut, offer_whole = counters.equal_parts(gpu, layout.equal.parts), layout.equal.offer_whole
    elif layout.choices is not None:
        wanted = [gpu.partitions[name] for name in layout.choices.profiles]
        cut, offer_whole = counters.choices(gpu, wanted), layout.choices.offer_whole
    else:
        cut, offer_whole = [], True
    return [*cut, counters.whole(gpu)] if offer_whole else cut


def _device(gpu: Gpu, piece: Piece, sharing: Sharing) -> Device:
    shared = sharing.mode is SharingMode.SHARED
    return Device(
        name=_name(gpu, piece),
        capacity=piece.capacity,
        costs={counter_set(gpu): piece.costs},
        shared=shared,
        attributes={
            "index": {"int": gpu.index},
            "productName": {"string": gpu.product},
            "profile": {"string": piece.profile},
        },
        request_policy={
            name: _policy(asked) for name, asked in sharing.capacity.items() if shared and name in piece.capacity
        },
    )


def _name(gpu: Gpu, piece: Piece) -> str:
    return f"gpu-{gpu.index}-{piece.name}"


def _policy(asked: SharingCapacity) -> dict[str, Any]:
    values = _values(asked)
    bounds = {name: quantity.render(values[name]) for name in ("min", "max", "step") if name in values}
    policy: dict[str, Any] = {"default": quantity.render(values["default"])}
    return policy | ({"validRange": bounds} if bounds else {})


def _values(asked: SharingCapacity) -> dict[str, int]:
    given = {"default": asked.default, "min": asked.min, "max": asked.max, "step": asked.step}
    return {name: quantity.parse(text) for name, text in given.items() if text is not None}


# ----------------------------------------------------------------------------------------------------------------- what is refused


def _once(problems: Iterable[Problem]) -> Iterable[Problem]:
    """Twelve equal GPUs have one problem, not twelve: it is told of the first."""
    first: dict[tuple[str, str, str], Problem] = {}
    for problem in problems:
        first.setdefault((problem.reason, problem.at, problem.fix), problem)
    return first.values()


def _unmatched(gpu: Gpu) -> Problem:
    return Problem(
        reason="GpuUnmatched",
        at="spec.layouts",
        why=f"no layout matches GPU {gpu.index} ({gpu.product}), and this operator publishes every GPU of the node",
        fix="add a last layout with match: {all: true}, such as {name: rest, match: {all: true}, type: Whole}",
    )


def _problems(gpu: Gpu, layout: Layout, at: str) -> Iterator[Problem]:
    """What is wrong before the GPU is cut."""
    if layout.type in (LayoutType.PROFILES, LayoutType.MODE, LayoutType.KEEP):
        yield Problem(
            reason="LayoutTypeUnsupported",
            at=f"{at}.type",
            why=f"this driver does not publish {layout.type}",
            fix="use Choices, which offers every placement of some profiles, or Whole, or Equal",
        )
    if layout.equal is not None and layout.equal.parts > counters.most_parts(gpu):
        most = counters.most_parts(gpu)
        yield Problem(
            reason="TooManyParts",
            at=f"{at}.equal.parts",
            why=f"a counter of GPU {gpu.index} ({gpu.product}) is {most}, and {layout.equal.parts} parts would take nothing from it",
            fix=f"use at most {most} parts" if most > 1 else "use type Whole",
        )
    if layout.choices is not None:
        yield from _choice_problems(gpu, layout.choices.profiles, f"{at}.choices.profiles")


def _choice_problems(gpu: Gpu, profiles: Sequence[str], at: str) -> Iterator[Problem]:
    known = sorted(gpu.partitions)
    for number, profile in enumerate(profiles):
        if profile not in gpu.partitions:
            yield Problem(
                reason="UnknownProfile",
                at=f"{at}[{number}]",
                why=f"the inventory has no profile {profile} for {gpu.product} (GPU {gpu.index})",
                fix=f"use one of {', '.join(known)}"
                if known
                else "add profiles to the driver's spec.publish.inventory.gpus",
            )
    pieces = sum(len(gpu.partitions[p].placements) for p in profiles if p in gpu.partitions)
    if pieces > MAX_PIECES:
        yield Problem(
            reason="TooManyDevices",
            at=at,
            why=f"{pieces} placements on one GPU are more than {MAX_PIECES}",
            fix="offer fewer profiles",
        )


def _piece_problems(gpu: Gpu, layout: Layout, pieces: Iterable[Piece], at: str) -> Iterator[Problem]:
    for piece in {p.profile: p for p in pieces}.values():
        if len(_name(gpu, piece)) > MAX_NAME:
            yield Problem(
                reason="ProfileNameTooLong",
                at=f"{at}.choices.profiles",
                why=f"the device {_name(gpu, piece)} would have a name of more than {MAX_NAME} characters",
                fix=f"rename the profile {piece.profile} in the driver's inventory: lower-case letters and digits take one character each",
            )
        if layout.sharing.mode is SharingMode.SHARED:
            for name, asked in layout.sharing.capacity.items():
                yield from _sharing_problems(piece, name, asked, f"{at}.sharing.capacity[{name}]")


def _sharing_problems(piece: Piece, name: str, asked: SharingCapacity, at: str) -> Iterator[Problem]:
    """The API's rules for a request policy (pkg/apis/resource/validation, 1.35 to 1.37), for devices of one profile."""

    def problem(field: str, why: str, fix: str) -> Problem:
        return Problem(reason="SharingInvalid", at=f"{at}{field}", why=why, fix=fix)

    if name not in piece.capacity:
        known = ", ".join(sorted(piece.capacity)) or "no capacity"
        yield problem("", f"devices of profile {piece.profile} have no capacity {name}", f"they have {known}")
        return
    try:
        values = _values(asked)
    except ValueError as error:
        why, _, fix = str(error).partition("; ")
        yield problem("", why, fix)
        return
    if "default" not in values:
        yield problem(".default", "is missing", "write what a claim gets that does not ask, at least min")
        return
    if "min" not in values and {"max", "step"} & set(values):
        yield problem(".min", "is missing", "write min too: max and step count from it")
        return
    for field, broken, why in _broken(values, piece.capacity[name], piece.profile):
        if broken:
            yield problem(field, why, "change one of the two")


def _broken(values: Mapping[str, int], size: int, profile: str) -> Iterator[tuple[str, bool, str]]:
    """Field, whether its rule is broken, and the rule as it is broken."""
    text = {name: quantity.render(value) for name, value in values.items()}
    has = f"a device of profile {profile} has {quantity.render(size)}"
    least, most, step = values.get("min", 0), values.get("max", size), values.get("step")
    for name in ("default", "min", "max"):
        if name in values:
            yield f".{name}", values[name] > size, f"{text[name]} is too much: {has}"
    yield ".default", values["default"] < least, f"{text['default']} is less than min"
    yield ".default", values["default"] > most, f"{text['default']} is more than max"
    yield ".max", least > most, "is less than min"
    if step is None:
        return
    yield ".step", step < 1, "is not more than 0"
    yield ".step", least + step > size, f"min and one step of {text['step']} are too much: {has}"
    for name in ("default", "max"):
        if step > 0 and name in values:
            whole_steps = (values[name] - least) % step == 0
            yield f".{name}", not whole_steps, f"{text[name]} is not min and a whole number of steps of {text['step']}"
