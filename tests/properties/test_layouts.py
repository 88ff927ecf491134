"""Laws of layouts: whatever is accepted fits the API, sells nothing twice, and is never half there."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tests.properties.layouts import LAW, PROFILE_NAMES, accepted, worlds
from tests.unit.example import AS_SENT, as_the_server_gives_it_back
from tests.unit.published import BACKEND, Server, config, driver, node

from gpupartition.backends.plugin_template import whole_fingerprint
from gpupartition.domain import fingerprint, quantity
from gpupartition.domain.backend import Config
from gpupartition.domain.counters import slug
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Refused

GI = 1024**3
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@LAW
@given(worlds())
def test_every_accepted_layout_fits_the_limits_of_the_api(
    world: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    server, wanted = accepted(world)
    list(server.assign(wanted.assigned(), "step"))
    assert len(wanted.pool.to_json()) <= 262_144
    for each in server.slices.values():
        assert DNS_SUBDOMAIN.fullmatch(each["metadata"]["name"])
        spec = each["spec"]
        assert not ("devices" in spec and "sharedCounters" in spec)
        assert 1 <= len(spec.get("devices", spec.get("sharedCounters"))) <= (64 if "devices" in spec else 8)
        for counter_set in spec.get("sharedCounters", ()):
            assert DNS_LABEL.fullmatch(counter_set["name"])
            assert 1 <= len(counter_set["counters"]) <= 32
        for device in spec.get("devices", ()):
            assert DNS_LABEL.fullmatch(device["name"])
            assert len(device["consumesCounters"]) <= 2
            assert all(1 <= len(c["counters"]) <= 32 for c in device["consumesCounters"])
            assert len(device["attributes"]) + len(device["capacity"]) <= 32
            texts = [a["string"] for a in device["attributes"].values() if "string" in a]
            assert all(len(text.encode()) <= 64 for text in texts)


@LAW
@given(worlds())
def test_every_device_has_a_name_of_its_own_and_every_reference_leads_somewhere(
    world: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    server, wanted = accepted(world)
    list(server.assign(wanted.assigned(), "step"))
    seen = server.observe()
    assert seen.pool.problem == ""
    assert seen.pool.equals(wanted.pool)
    assert seen.running == wanted.fingerprint == wanted.assignment == seen.assignment


@LAW
@given(worlds(), st.randoms(use_true_random=False))
def test_whatever_is_allocated_together_a_gpu_is_never_sold_twice(
    world: tuple[list[dict[str, Any]], list[dict[str, Any]]], chance: random.Random
) -> None:
    _, wanted = accepted(world)
    pool = wanted.pool
    order = list(pool.devices)
    chance.shuffle(order)
    left = {name: dict(amounts) for name, amounts in pool.counters.items()}
    sold = dict.fromkeys(pool.counters, 0)
    for device in order:
        ((gpu, costs),) = device.costs.items()
        if all(left[gpu][name] >= cost for name, cost in costs.items()):
            for name, cost in costs.items():
                left[gpu][name] -= cost
            sold[gpu] += device.capacity["memory"]
    assert all(sold[gpu] <= amounts["memory"] for gpu, amounts in pool.counters.items())
    assert all(amount >= 0 for amounts in left.values() for amount in amounts.values())


@LAW
@given(worlds())
def test_a_whole_gpu_and_a_part_of_it_are_never_both_allocatable(
    world: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    _, wanted = accepted(world)
    for whole in (d for d in wanted.pool.devices if d.name.endswith("-full")):
        ((gpu, everything),) = whole.costs.items()
        assert everything == wanted.pool.counters[gpu]
        assert all(max(d.costs[gpu].values()) > 0 for d in wanted.pool.devices if gpu in d.costs)


@LAW
@given(worlds())
def test_all_exact_partitions_of_a_gpu_can_be_allocated_at_once(
    world: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    inventory, some = world
    exact = [{**each, "match": {"all": True}} for each in some if each["type"] == "Profiles"][:1]
    assume(exact)
    _, wanted = accepted((inventory, exact))
    for gpu, amounts in wanted.pool.counters.items():
        costs = [d.costs[gpu] for d in wanted.pool.devices if gpu in d.costs]
        assert len(costs) == sum(each["count"] for each in exact[0]["profiles"])
        assert all(sum(cost.get(name, 0) for cost in costs) <= amount for name, amount in amounts.items())


@given(st.sets(PROFILE_NAMES, min_size=2, max_size=20))
def test_different_profiles_never_share_a_name(names: set[str]) -> None:
    assert len({slug(name) for name in names}) == len(names)
    assert all(DNS_LABEL.fullmatch(f"gpu-0-{slug(name)}-0") for name in names)


LABELS = {"count": "gpu/count", "product": "gpu/product", "memory": "gpu/memory"}
LABEL_VALUES = st.from_regex(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", fullmatch=True)
COUNTS = st.from_regex(r"[0-9]{1,63}", fullmatch=True)
SIZES = st.from_regex(r"[0-9]{1,20}(\.[0-9]{1,38})?([KMGTPE]i|[numkMGTPE]|[eE]-?[0-9]{1,2})?", fullmatch=True)


@given(LABEL_VALUES | COUNTS | st.just("8"), LABEL_VALUES | st.just("H100"), LABEL_VALUES | COUNTS | SIZES)
@example("1", "H100", "80.000000000000000000000000000000Gi")
@example("1", "H100", "9223372036854775807")
def test_whatever_the_labels_of_a_node_say_is_an_inventory_or_is_refused(count: str, product: str, memory: str) -> None:
    labels = {"gpu/count": count, "gpu/product": product, "gpu/memory": memory}
    whole = [{"match": {"all": True}, "type": "Whole"}]
    try:
        wanted = config(*whole, of=driver(nodeLabels=LABELS), on=node(**labels))
    except Refused:
        return
    assert len(wanted.pool.devices) == int(count)
    size = int(memory) * 1024**2 if memory.isdigit() else quantity.parse(memory)
    assert all(0 < device.capacity["memory"] <= size for device in wanted.pool.devices)


# ----------------------------------------------------------------------------------------------------- never half there, seen by all

SEVERAL = [
    driver({"count": count, "product": "H100", "memory": "80Gi"}, {"count": 1, "product": "L4", "memory": "24Gi"})
    for count in (1, 9)
]


@st.composite
def plans(draw: st.DrawFn) -> list[tuple[int, int, int, str]]:
    """Attempts one after the other: parts (0: whole, 1: nothing), generation asked for, writes before a crash, what happens then."""
    attempt = st.tuples(
        st.sampled_from([0, 1, 2, 3, 7]),
        st.integers(0, 3),
        st.integers(0, 8),
        st.sampled_from(["", "", "", "wipe", "lose", "edit", "cancel"]),
    )
    return draw(st.lists(attempt, min_size=1, max_size=6))


def layout_of(parts: int, of: Any) -> Config:
    match parts:
        case 1:
            return Config(fingerprint="", assignment=None, pool=Pool())
        case 0:
            return config({"match": {"all": True}, "type": "Whole"}, of=of)
        case _:
            return config({"match": {"all": True}, "type": "Equal", "equal": {"parts": parts}}, of=of)


def mishap(server: Server, what: str, chance: random.Random) -> None:
    names = sorted(server.slices)
    if what == "wipe":
        server.slices.clear()
    elif what == "lose" and names:
        del server.slices[chance.choice(names)]
    elif what == "edit" and names:
        server.slices[chance.choice(names)]["spec"]["pool"]["generation"] += chance.choice([-1, 0, 5])
    elif what == "cancel":
        effect = BACKEND.cancel(server.driver, server.facts, f"cancelled-{server.version}")
        assert effect is not None
        server.write(effect)


@settings(LAW, max_examples=60)
@given(st.sampled_from(SEVERAL), plans(), st.randoms(use_true_random=False))
def test_at_every_instant_the_pool_is_the_old_one_or_the_new_one_or_unusable(
    of: Any, plan: list[tuple[int, int, int, str]], chance: random.Random
) -> None:
    server = Server(of)
    for number, (parts, generation, writes, then) in enumerate(plan):
        old, wanted = server.observe().pool, layout_of(parts, of)
        unfinished = server.assign(wanted.assigned(), f"step-{number}", generation)
        for _ in zip(range(writes), unfinished, strict=False):
            now = server.observe().pool
            assert not now.usable or now.equals(old) or now.equals(wanted.pool)
        mishap(server, then, chance)
    last = layout_of(plan[-1][0], of)
    list(server.assign(last.assigned(), "the last step"))
    seen = server.observe()
    assert (seen.ready, seen.step, seen.assignment) == (True, "the last step", last.assignment)
    assert seen.pool.equals(last.pool)


@settings(LAW, max_examples=60)
@given(st.sampled_from(SEVERAL), plans(), st.randoms(use_true_random=False))
def test_whatever_happened_to_a_node_at_rest_repair_restores_it_and_then_rests(
    of: Any, plan: list[tuple[int, int, int, str]], chance: random.Random
) -> None:
    server = Server(of)
    wanted = layout_of(plan[0][0], of)
    list(server.assign(wanted.assigned(), "step"))
    for *_, then in plan:
        mishap(server, then, chance)
    repaired = sum(1 for _ in server.repair(wanted.assigned()))
    assert repaired <= 2 * (len(server.slices) + 4), "no write is made in vain"
    assert server.observe().pool.equals(wanted.pool)
    assert BACKEND.repair(server.driver, server.facts, wanted.assigned(), None, 1) is None


# -------------------------------------------------------------------------------------------------------------------- fingerprints


def spellings(gi: int) -> st.SearchStrategy[str]:
    exact = gi * GI
    return st.sampled_from([f"{gi}Gi", f"{gi * 1024}Mi", f"{gi * 1024**2}Ki", str(exact), f"{exact}000m", f"{gi}.0Gi"])


@given(st.data(), st.integers(1, 80))
def test_a_layout_keeps_its_fingerprint_however_memory_is_spelt(data: st.DataObject, gi: int) -> None:
    def spelt(memory: str) -> str:
        of = driver({"count": 1, "product": "H100", "memory": memory})
        return config({"match": {"all": True}, "type": "Equal", "equal": {"parts": 2}}, of=of).fingerprint

    assert spelt(data.draw(spellings(gi))) == spelt(data.draw(spellings(gi)))


@given(st.randoms(use_true_random=False))
def test_a_template_keeps_its_fingerprint_whichever_defaults_are_filled_in(chance: random.Random) -> None:
    sent, given_back = copy.deepcopy(AS_SENT), as_the_server_gives_it_back()
    assert whole_fingerprint(_between(sent, given_back, chance)) == whole_fingerprint(AS_SENT)


def _between(sent: Any, given_back: Any, chance: random.Random) -> Any:
    """What was sent with some of what the server fills in, and the fields of every map in another order."""
    if isinstance(given_back, Mapping):
        merged = {
            name: _between(sent[name], value, chance) if name in sent else value
            for name, value in given_back.items()
            if name in sent or chance.random() < 0.5
        }
        return dict(chance.sample(list(merged.items()), len(merged)))
    if isinstance(given_back, list):
        return [_between(one, other, chance) for one, other in zip(sent, given_back, strict=True)]
    return chance.choice([sent, given_back])


@pytest.mark.parametrize("swap", [(0, 1), (1, 2)])
def test_the_order_of_devices_is_part_of_a_fingerprint(swap: tuple[int, int]) -> None:
    pool = layout_of(2, SEVERAL[0]).pool
    devices = list(pool.devices)
    one, other = swap
    devices[one], devices[other] = devices[other], devices[one]
    changed = Pool(devices=tuple(devices), counters=pool.counters)
    assert fingerprint.of_pool(changed) != fingerprint.of_pool(pool)
