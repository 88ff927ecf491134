"""Inventories and layouts to try."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from tests.unit.published import Server, config, driver

from gpupartition.domain.backend import Config
from gpupartition.domain.problem import Refused
from gpupartition.tables import mig

PROFILE_NAMES = st.text(alphabet="abg123.+-_G", min_size=1, max_size=8)


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Any]:
    """Equal GPUs of some Gi with up to three profiles, whose placements take memory and perhaps slices."""
    memory = draw(st.integers(1, 96))
    slices = draw(st.integers(0, 4))
    counters = {"memory": f"{memory}Gi"} | {f"slice-{n}": "1" for n in range(slices)}
    profiles = []
    for name in draw(st.lists(PROFILE_NAMES, max_size=3, unique=True)):
        size = draw(st.integers(1, memory))
        taken = st.sets(st.integers(0, slices - 1)) if slices else st.just(set[int]())
        places = draw(st.lists(taken, min_size=1, max_size=5))
        costs = [{"memory": f"{size}Gi"} | {f"slice-{n}": "1" for n in place} for place in places]
        placements = [{"counters": cost} for cost in costs]
        profiles.append({"name": name, "capacity": {"memory": f"{size}Gi"}, "placements": placements})
    return {
        "count": draw(st.integers(1, 10)),
        "product": draw(st.sampled_from(["H100", "A100", "L4"])),
        "memory": f"{memory}Gi",
        "counters": counters,
        "profiles": profiles,
    }


TABLED = [("NVIDIA A30", 24), ("NVIDIA H100 80GB HBM3", 80), ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 96)]


@st.composite
def tabled(draw: st.DrawFn) -> dict[str, Any]:
    """Equal GPUs of which a table tells counters and profiles; an inventory may say that they have less memory."""
    product, memory = draw(st.sampled_from(TABLED))
    memory = draw(st.sampled_from([memory, memory // 2 + 1, 2 * memory]))
    return {"count": draw(st.integers(1, 3)), "product": product, "memory": f"{memory}Gi"}


def profiles_of(group: Mapping[str, Any]) -> list[str]:
    known = next((m.profiles for m in mig.builtin() if group["product"] in m.products), ())
    return [p.name for p in known] or [p["name"] for p in group["profiles"]]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """An inventory, and layouts of which the last one matches all."""
    inventory = draw(st.lists(groups() | tabled(), min_size=1, max_size=2))
    names = sorted({name for group in inventory for name in profiles_of(group)})
    return inventory, [
        *draw(st.lists(layouts(names, st.builds(dict, indexes=st.lists(st.integers(0, 9), min_size=1))), max_size=2)),
        draw(layouts(names, st.just({"all": True}))),
    ]


@st.composite
def layouts(draw: st.DrawFn, names: list[str], match: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    kinds = ["Whole", "Equal", "Choices", "Profiles"] if names else ["Whole", "Equal"]
    kind = draw(st.sampled_from(kinds))
    cut: dict[str, Any] = {"type": kind, "match": draw(match)}
    if kind == "Equal":
        cut["equal"] = {"parts": draw(st.integers(2, 12)), "offerWhole": draw(st.booleans())}
    if kind == "Choices":
        chosen = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        cut["choices"] = {"profiles": chosen, "offerWhole": draw(st.booleans())}
    if kind == "Profiles":
        chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
        cut["profiles"] = [{"name": name, "count": draw(st.integers(1, 3))} for name in chosen]
    if draw(st.booleans()):
        cut["sharing"] = {"mode": "Shared"}
    return cut


def accepted(world: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> tuple[Server, Config]:
    """The world's driver and config; worlds that are refused are not looked at."""
    inventory, some = world
    server = Server(driver(*inventory))
    try:
        return server, config(*some, of=server.driver)
    except Refused:
        assume(False)
        raise


LAW = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow]
)
