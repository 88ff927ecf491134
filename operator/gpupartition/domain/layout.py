"""Layouts on GPUs: which layout is for which GPU, what cannot be, and the pool that comes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpupartition.api.v1alpha1 import Layout, Sharing, SharingCapacity, SharingMode
from gpupartition.domain import quantity
from gpupartition.domain.counters import Piece
from gpupartition.domain.cuts import cut
from gpupartition.domain.gpus import Gpu
from gpupartition.domain.pool import MAX_RECORD, Device, Pool
from gpupartition.domain.problem import Problem, Refused
from gpupartition.domain.products import Product, means
from gpupartition.domain.tabled import memory_mode

MAX_NAME: Final = 63  # a device's name is a DNS label
MAX_TEXT: Final = 64  # bytes of an attribute: resource/v1 DeviceAttributeMaxValueLength


def compile_pool(gpus: Sequence[Gpu], layouts: Sequence[Layout]) -> Pool:
    """The pool of these GPUs: one counter set and some devices for each, in the order of their numbers. Raises Refused with all problems."""
    problems: list[Problem] = []
    devices: list[Device] = []
    pieces: dict[tuple[int, int], Sequence[Piece]] = {}  # equal GPUs of one layout are cut alike
    for gpu in gpus:
        number = next((n for n, layout in enumerate(layouts) if means(layout.match, product_of(gpu), gpu.index)), None)
        if number is None:
            problems.append(_unmatched(gpu))
            continue
        at, layout = f"spec.layouts[{number}]", layouts[number]
        if (number, gpu.group) not in pieces:
            try:
                pieces[number, gpu.group] = cut(gpu, layout, at)
                problems += _sharing_problems(pieces[number, gpu.group], layout.sharing, f"{at}.sharing")
            except Refused as refused:
                problems += refused.problems
                pieces[number, gpu.group] = ()
        if not problems:
            devices += [_device(gpu, piece, layout.sharing) for piece in pieces[number, gpu.group]]
    pool = Pool(devices=tuple(devices), counters={counter_set(gpu): gpu.counters for gpu in gpus})
    problems += [] if problems else _pool_problems(pool)
    if problems:
        raise Refused(*_once(problems))
    return pool


def product_of(gpu: Gpu) -> Product:
    """What the GPU is called, by what it is sold as and by the model that a table knows."""
    return Product.of(gpu.product, gpu.model)


def counter_set(gpu: Gpu) -> str:
    """Name of the GPU's counter set."""
    return f"gpu-{gpu.index}"


def _device(gpu: Gpu, piece: Piece, sharing: Sharing) -> Device:
    shared = sharing.mode is SharingMode.SHARED
    return Device(
        name=f"gpu-{gpu.index}-{piece.name}",
        capacity=piece.capacity,
        costs={counter_set(gpu): piece.costs},
        shared=shared,
        attributes={
            "index": {"int": gpu.index},
            "productName": {"string": gpu.product},
            "profile": {"string": piece.profile},
            **gpu.attributes,
            **piece.attributes,
        },
        request_policy={
            name: _policy(asked) for name, asked in sharing.capacity.items() if shared and name in piece.capacity
        },
    )


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


def _pool_problems(pool: Pool) -> Iterator[Problem]:
    """What is wrong with the pool as a whole."""
    modes = {mode: device.name for device in reversed(pool.devices) if (mode := memory_mode(device))}
    if len(modes) > 1:
        needs = " and ".join(f"{device} needs {mode}" for mode, device in sorted(modes.items()))
        yield Problem(
            reason="MemoryModesDiffer",
            at="spec.layouts",
            why=f"{needs}, and a node has one memory mode",
            fix="use one for all its GPUs; a GPU in one piece is in NPS1, so beside other modes write offerWhole: false",
        )
    yield from too_much(pool)


def too_much(pool: Pool) -> Iterator[Problem]:
    """What is too long: a device's name or product for the API, the pool for a node's record."""
    too_long = next((d for d in pool.devices if len(d.name) > MAX_NAME), None)
    if too_long is not None:
        profile = too_long.attributes["profile"]["string"]
        yield Problem(
            reason="ProfileNameTooLong",
            at="spec.layouts",
            why=f"the device {too_long.name} would have a name of more than {MAX_NAME} characters",
            fix=f"rename the profile {profile} in the driver's inventory: lower-case letters and digits take one character each",
        )
    products = dict.fromkeys(product for d in pool.devices if (product := d.text("productName")))
    for product in (each for each in products if len(each.encode()) > MAX_TEXT):
        yield Problem(
            reason="ProductTooLong",
            at="spec.layouts",
            why=f"the product {product} has {len(product.encode())} bytes, and a device can have {MAX_TEXT}",
            fix="write it shorter in the driver's inventory: letters and digits of ASCII take one byte each",
        )
    if len(pool.to_json()) > MAX_RECORD:
        whose = f"group {pool.group}" if pool.group else "a node"
        yield Problem(
            reason="TooManyDevices",
            at="spec.layouts",
            why=f"{whose} would publish {len(pool.devices)} devices, more than a node's record can hold",
            fix=f"offer fewer profiles or fewer parts{', or make smaller groups' if pool.group else ''}",
        )


def _sharing_problems(pieces: Iterable[Piece], sharing: Sharing, at: str) -> Iterator[Problem]:
    for piece in {p.profile: p for p in pieces}.values():
        for name, asked in sharing.capacity.items() if sharing.mode is SharingMode.SHARED else ():
            yield from _capacity_problems(piece, name, asked, f"{at}.capacity[{name}]")


def _capacity_problems(piece: Piece, name: str, asked: SharingCapacity, at: str) -> Iterator[Problem]:
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
