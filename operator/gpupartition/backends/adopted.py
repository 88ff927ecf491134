"""What a node has now, in the words of a policy: the layouts that are compiled into just that.

Nothing is read from devices that a backend does not read itself: what it would go back to is what is told here, and whoever uses the layouts
compiles them again and compares.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from gpupartition.api.v1alpha1 import DriverSpec, DriverType, PolicySpec
from gpupartition.backends import BACKENDS, amd_dcm, amd_gpus, dcm, mig_parted, nvidia_gpus, nvidia_mig
from gpupartition.backends.amd_limits import product_of
from gpupartition.backends.example_limits import published
from gpupartition.backends.plugin_template import Settings
from gpupartition.domain.adoption import LeftOut, free
from gpupartition.domain.amd_modes import WHOLE, Mode
from gpupartition.domain.backend import Cluster, Config, NodeFacts
from gpupartition.domain.counters import FULL
from gpupartition.domain.groups import HOSTNAME
from gpupartition.domain.pool import Device, Pool
from gpupartition.domain.problem import Refused
from gpupartition.domain.products import Product

Words = dict[str, Any]
"""A layout as a policy has it, without its name and what it is for."""

ALL: Final = {"all": True}
IN_ONE_PIECE: Final[Words] = {"type": "Whole"}
AS_IT_IS: Final[Words] = {"type": "Keep"}
_EQUAL: Final = re.compile(r"^1of(?P<parts>\d+)$")
_NO_NAME: Final = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Share:
    """One GPU of a node: its number there, how it may be called, and how it is cut."""

    number: int
    product: Product
    words: Words


def layouts_of(driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> list[Words]:
    """The layouts of a policy for this node alone. Raises LeftOut when no words say it, Refused when nothing can be known."""
    back = BACKENDS[driver.type].way_back(driver, facts, cluster)
    return _SAID[driver.type](driver, back, facts, cluster)


# ------------------------------------------------------------------------------------------------------------------- what to say


def told(shares: Sequence[Share]) -> list[Words]:
    """Layouts that cut each of these GPUs so: one for all where all are alike, else by product where that tells them apart, else by number."""
    alike: dict[str, list[Share]] = {}
    for share in shares:
        alike.setdefault(json.dumps(share.words, sort_keys=True), []).append(share)
    names = {text: sorted({share.product.name for share in same}) for text, same in alike.items()}
    foreign = {text: [name for other in names if other != text for name in names[other]] for text in names}
    by_product = not any(
        share.product.is_called(name) for text, same in alike.items() for share in same for name in foreign[text]
    )
    layouts = []
    for text, same in alike.items():
        match: Words = {"products": names[text]} if by_product else {"indexes": sorted(s.number for s in same)}
        layouts.append({"match": match if len(alike) > 1 else dict(ALL), **same[0].words})
    return named(layouts)


def named(layouts: Sequence[Words]) -> list[Words]:
    """The same layouts with names that say what they do."""
    used: set[str] = set()
    return [
        {"name": free(_NO_NAME.sub("-", _name(each).lower()).strip("-") or "layout", used), **each} for each in layouts
    ]


def _name(layout: Words) -> str:
    if "equal" in layout:
        return f"parts-{layout['equal']['parts']}"
    if "mode" in layout:
        return f"{layout['mode']['compute']}-{layout['mode']['memory']}"
    if "profiles" in layout:
        return "-".join(f"{each.get('count', 1)}x{each['name']}" for each in layout["profiles"])
    return "-".join(layout["choices"]["profiles"]) if "choices" in layout else str(layout["type"])


# --------------------------------------------------------------------------------------------------------------- driver by driver


def _example(driver: DriverSpec, back: Config, facts: NodeFacts, cluster: Cluster) -> list[Words]:  # noqa: ARG001
    pool, gpus = back.pool, len(back.pool.gpus)
    says = driver.example_driver.gpus_per_node if driver.example_driver is not None else gpus
    if gpus != says:
        raise LeftOut(f"it publishes {gpus} GPUs, and its driver has gpusPerNode: {says}; make them the same")
    parts = len(pool.devices) // gpus - 1 if pool.counters and gpus else 0
    shared = any(device.shared for device in pool.devices)
    if parts == 1 or not published(Settings(gpus=gpus, parts=parts, shared=shared)).equals(pool):
        raise LeftOut("no layout makes this driver publish what it publishes")
    words: Words = {"type": "Equal", "equal": {"parts": parts}} if parts else dict(IN_ONE_PIECE)
    return named([{"match": dict(ALL), **words, **({"sharing": {"mode": "Shared"}} if shared else {})}])


def _mig(driver: DriverSpec, back: Config, facts: NodeFacts, cluster: Cluster) -> list[Words]:
    gpus = nvidia_gpus.gpus_on(facts.node, facts.pool(facts.name), facts.known)
    table = nvidia_mig.known_products(driver, cluster)
    cuts = mig_parted.cuts_of(_entry(driver, back, cluster), gpus, table) or (None,) * len(gpus)
    by_name = {gpu.name: cut for gpu, cut in zip(gpus, cuts, strict=True)}
    shares = []
    for number, gpu in nvidia_gpus.numbers(gpus).items():
        cut = by_name[gpu.name]
        if cut is not None and cut.enabled and not cut.counts:
            raise LeftOut(
                f"the MIG mode of GPU {number} is on and it has no partition, so nobody publishes it; "
                "give it partitions, or switch its MIG mode off",
            )
        counted = [{"name": name, "count": count} for name, count in cut.counts] if cut is not None else []
        words = AS_IT_IS if cut is None else {"type": "Profiles", "profiles": counted} if counted else IN_ONE_PIECE
        shares.append(Share(number, table.product(gpu.product), dict(words)))
    return told(shares)


def _amd(driver: DriverSpec, back: Config, facts: NodeFacts, cluster: Cluster) -> list[Words]:
    gpus = amd_gpus.gpus_on(amd_gpus.published(facts.pool(facts.name)), facts.known)
    modes = dcm.modes_of(_entry(driver, back, cluster), len(gpus)) or (None,) * len(gpus)
    models, _ = amd_dcm.known_products(driver, cluster)
    pairs = zip(gpus, modes, strict=True)
    return told([Share(n, product_of(gpu, models), _mode(mode)) for n, (gpu, mode) in enumerate(pairs)])


def _mode(mode: Mode | None) -> Words:
    if mode is None or mode == WHOLE:
        return dict(AS_IT_IS if mode is None else IN_ONE_PIECE)
    return {"type": "Mode", "mode": {"compute": mode.compute, "memory": mode.memory}}


def _entry(driver: DriverSpec, back: Config, cluster: Cluster) -> Any:
    """What the config under the assigned name says, or what would be written there; None where it cannot be read."""
    for body in back.objects:
        return body["content"]
    (file,) = BACKENDS[driver.type].documents(driver)
    return file.content(cluster.config_map(file.namespace, file.name), back.assignment)


def _publish(driver: DriverSpec, back: Config, facts: NodeFacts, cluster: Cluster) -> list[Words]:
    # A profile that is called like one of AMD's modes is one, unless somebody has called a profile of his own so.
    told_so = [told(list(_published(back.pool, modes=modes))) for modes in (True, False)]
    if not told_so[0]:
        raise LeftOut("its devices do not say of which GPU they are")
    return next((each for each in told_so if _means(each, back.pool, driver, facts, cluster)), told_so[0])


def _means(layouts: Sequence[Words], pool: Pool, driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> bool:
    selector = {"matchLabels": {HOSTNAME: "any"}}
    try:
        policy = PolicySpec.model_validate({"driver": "any", "nodeSelector": selector, "layouts": layouts})
        return BACKENDS[driver.type].compile(driver, policy, facts, cluster).pool.equals(pool)
    except (ValidationError, Refused):
        return False


def _published(pool: Pool, *, modes: bool) -> Iterator[Share]:
    by_gpu: dict[int, list[Device]] = {}
    for device in pool.devices:
        if "index" in device.attributes:
            by_gpu.setdefault(device.attributes["index"]["int"], []).append(device)
    for number, devices in by_gpu.items():
        words = _pieces([d.text("profile") for d in devices], modes=modes, exact=_fit(devices, pool))
        yield Share(number, Product(devices[0].text("productName")), words | _sharing(devices))


def _fit(devices: Sequence[Device], pool: Pool) -> bool:
    """Whether all of them can be had at once."""
    taken: Counter[tuple[str, str]] = Counter()
    for device in devices:
        for where, amounts in device.costs.items():
            taken.update({(where, name): amount for name, amount in amounts.items()})
    return all(amount <= pool.counters.get(where, {}).get(name, 0) for (where, name), amount in taken.items())


def _pieces(profiles: Sequence[str], *, modes: bool, exact: bool) -> Words:
    cut = list(dict.fromkeys(p for p in profiles if p != FULL))
    if not cut:
        return dict(IN_ONE_PIECE)
    equal, mode = _EQUAL.match(cut[0]), Mode.read(cut[0])
    whole = {} if FULL in profiles else {"offerWhole": False}
    if equal is not None and len(cut) == 1:
        return {"type": "Equal", "equal": {"parts": int(equal["parts"]), **whole}}
    if modes and exact and mode is not None:
        return _mode(mode)
    if exact:
        return {"type": "Profiles", "profiles": [{"name": name, "count": profiles.count(name)} for name in cut]}
    return {"type": "Choices", "choices": {"profiles": cut, **whole}}


def _sharing(devices: Sequence[Device]) -> Words:
    if not devices[0].shared:
        return {}
    asked: dict[str, Any] = {}
    for device in devices:
        for name, policy in device.request_policy.items():
            asked[name] = {"default": policy.get("default"), **policy.get("validRange", {})}
    return {"sharing": {"mode": "Shared", **({"capacity": asked} if asked else {})}}


_SAID: Final[Mapping[DriverType, Callable[[DriverSpec, Config, NodeFacts, Cluster], list[Words]]]] = {
    DriverType.EXAMPLE_DRIVER: _example,
    DriverType.NVIDIA_MIG: _mig,
    DriverType.AMD_DCM: _amd,
    DriverType.PUBLISH: _publish,
}
