"""Small clusters and what pods ask of them, by chance: what the allocator is tested with, alone and beside Kubernetes' own.

A case is what both read: the API's own objects. Nearly all are such as the API server accepts; those that it would not accept are there
because the allocator has a rule for them. Searches stay small, as both are exhaustive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from random import Random
from typing import Any, Final

from gpupartition.domain.allocator.allocate import Allocator
from gpupartition.domain.allocator.pools import Features
from gpupartition.domain.allocator.shares import Held, amount_of
from gpupartition.domain.allocator.wanted import GivenUp

Case = dict[str, Any]
Body = dict[str, Any]

MOST: Final = 6
"""Devices that the claims of one pod ask for: more of them, and a search may take minutes, on both sides."""

GPU, NIC = "gpu.example.com", "nic.example.com"
LABELS: Final = {"zone": "a", "rank": "2"}

SELECTORS: Final = (
    f'device.driver == "{GPU}"',
    f'device.attributes["{GPU}"].?model.orValue("") == "big"',
    f'has(device.attributes["{GPU}"].index) && device.attributes["{GPU}"].index % 2 == 0',
    f'device.attributes["{GPU}"].?full.orValue(false)',
    f'device.capacity["{GPU}"].?memory.hasValue() && device.capacity["{GPU}"].memory.isGreaterThan(quantity("3"))',
    f'cel.bind(own, device.attributes["{GPU}"], has(own.numa) && own.numa != 1)',
    f'!("{NIC}" in device.attributes) || device.attributes["{NIC}"].numa == 0',
    'device.attributes[device.driver].?version.orValue(semver("0.1.0")).isGreaterThan(semver("1.0.0-rc.1"))',
    "!device.allowMultipleAllocations",
    f'device.attributes["{GPU}"].exists(name, name == "model") ? device.attributes["{GPU}"].model in ["big", "mid"] : true',
    f'device.attributes["{GPU}"].model != "small"',  # an error of devices that have no model
)
ATTRIBUTES: Final = (
    f"{GPU}/model",
    f"{GPU}/numa",
    f"{NIC}/numa",
    "pcie.example.org/root",
    f"{GPU}/full",
    f"{GPU}/absent",
    f"{GPU}/version",
)


def case(random: Random) -> Case:
    """One cluster and one pod."""
    return crowd(random) if random.random() < 0.06 else cluster(random)


def features(random: Random) -> Features:
    """Those of 1.37, and now and then others, but never so few that 1.37 takes its variant `stable`, which has no order of pools."""
    if random.random() < 0.8:
        return Features()
    some = Features(**{name: random.random() < 0.7 for name in asdict(Features())})
    fewest = not (some.consumable_capacity or some.fractional_capacity_range)
    return replace(some, binding_conditions=True) if fewest else some


def cluster(random: Random) -> Case:
    """Some pools of one or two drivers, and claims that they may or may not satisfy."""
    sharing = random.random() < 0.4
    slices: list[Body] = []
    for number in range(random.randint(1, 3)):
        slices += pool(
            random,
            random.choice((GPU, GPU, NIC)),
            f"pool-{number % 2 if random.random() < 0.1 else number}",
            sharing=sharing,
        )
    random.shuffle(slices)
    for number, body in enumerate(slices):  # in whatever order they are listed, and named
        body["metadata"] = {"name": f"slice-{random.randint(0, 9)}-{number}"}
    names = [(s["spec"]["driver"], s["spec"]["pool"]["name"], d) for s in slices for d in s["spec"].get("devices", ())]
    return {
        "features": asdict(features(random)),
        "node": {"metadata": {"name": "n1", "labels": LABELS}},
        "slices": slices,
        "classes": classes(random),
        "allocated": [holder(random, number, *random.choice(names)) for number in range(random.randint(0, 3))]
        if names
        else [],
        "claims": claims(random, sharing=sharing),
    }


def claims(random: Random, *, sharing: bool) -> list[Body]:
    """Of one pod: so few devices that every combination can be tried."""
    some = [claim(random, number, sharing=sharing) for number in range(random.choice((1, 1, 1, 2, 2, 3)))]
    while len(some) > 1 and sum(_most(each["spec"]["devices"]["requests"]) for each in some) > MOST:
        some.pop()
    return some


def _most(requests: Sequence[Body]) -> int:
    asked = [request.get("firstAvailable") or [request["exactly"]] for request in requests]
    return sum(max(each.get("count", 1) for each in several) for several in asked)


def crowd(random: Random) -> Case:
    """More devices than anyone asks for, and claims near the most that they may have."""
    several = [
        [
            {"deviceClassName": "any", "count": random.choice((1, 8, 15, 16, 17, 24, 32, 33))}
            for _ in range(random.choice((1, 1, 2, 3)))
        ]
        for _ in range(random.randint(1, 5))
    ]
    cut = random.randint(0, len(several))
    devices = [{"name": f"d{number}"} for number in range(128)]
    spec = {"driver": GPU, "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "nodeName": "n1"}
    return {
        "features": asdict(Features()),
        "node": {"metadata": {"name": "n1"}},
        "slices": [{"metadata": {"name": "s"}, "spec": {**spec, "devices": devices}}],
        "classes": [{"metadata": {"name": "any"}, "spec": {}}],
        "allocated": [],
        "claims": [
            {
                "metadata": {"name": f"c{number}", "namespace": "default"},
                "spec": {"devices": {"requests": _requests(some)}},
            }
            for number, some in enumerate((several[:cut], several[cut:]))
        ],
    }


def _requests(several: Sequence[Sequence[Body]]) -> list[Body]:
    return [_one(f"r{number}", some, {"allocationMode": "ExactCount"}) for number, some in enumerate(several)]


def _one(name: str, several: Sequence[Body], defaults: Body) -> Body:
    if len(several) == 1:
        return {"name": name, "exactly": {**defaults, **several[0]}}
    return {"name": name, "firstAvailable": [{**defaults, **each, "name": f"a{n}"} for n, each in enumerate(several)]}


def place(random: Random) -> Body:
    """From where a slice or a device can be used."""
    selector = {"nodeSelectorTerms": [{"matchExpressions": [expression(random) for _ in range(random.randint(1, 2))]}]}
    fields = {
        "nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [random.choice(("n1", "n2"))]}]}
        ]
    }
    return random.choice(
        (
            {"nodeName": "n1"},
            {"nodeName": "n1"},
            {"nodeName": "n2"},
            {"allNodes": True},
            {"nodeSelector": selector},
            {"nodeSelector": fields},
        )
    )


def expression(random: Random) -> Body:
    """A requirement of node labels."""
    key, operator = (
        random.choice(("zone", "rank", "none")),
        random.choice(("In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")),
    )
    values = {
        "In": ["a", "2"],
        "NotIn": ["b", "2"],
        "Gt": [str(random.randint(1, 2))],
        "Lt": [str(random.randint(2, 3))],
    }
    return {"key": key, "operator": operator, **({"values": values[operator]} if operator in values else {})}


def pool(random: Random, driver: str, name: str, *, sharing: bool) -> list[Body]:
    """The slices of one pool: whole and sound, but for what drivers and half-done updates do now and then."""
    chance = random.random
    where = {"nodeName": "n1"} if chance() < 0.7 else place(random)
    apart = chance() < 0.12
    several_nodes = not apart and chance() < 0.15
    counted = several_nodes or chance() < 0.55
    sets = {
        f"gpu-{n}": {"memory": str(random.randint(2, 8)), "slices": str(random.randint(1, 7))}
        for n in range(random.randint(1, 3))
    }
    number, slices = 0, []
    for _ in range(random.choice((1, 1, 2, 3))):
        devices = []
        for _ in range(random.choice((0, 2, 3, 4, 6))):
            number += 0 if chance() < 0.005 else 1
            devices.append(
                device(random, driver, f"d{number}", sets if counted else {}, sharing=sharing)
                | (place(random) if apart else {})
            )
        own = where if chance() < 0.9 or "nodeName" in where else place(random)
        own = {"nodeName": random.choice(("n1", "n1", "n2"))} if several_nodes else own
        slices.append({"spec": {"devices": devices, **({"perDeviceNodeSelection": True} if apart else own)}})
    if counted:
        shared = [{"name": n, "counters": {c: {"value": v} for c, v in values.items()}} for n, values in sets.items()]
        cut = random.randint(0, len(shared)) if chance() < 0.2 else 0
        spread = (
            {"nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [expression(random)]}]}} if apart else where
        )
        spread = {"allNodes": True} if several_nodes else spread
        slices += [{"spec": {"sharedCounters": part, **spread}} for part in (shared[:cut], shared[cut:]) if part]
    generation = random.randint(1, 2)
    for body in slices:
        count = len(slices) + (random.choice((-1, 1)) if chance() < 0.008 else 0)
        body["spec"] |= {
            "driver": driver,
            "pool": {"name": name, "generation": generation, "resourceSliceCount": max(1, count)},
        }
    if chance() < 0.08:  # left over from before an update, or the first of what is coming
        other = {**slices[0]["spec"], "pool": {**slices[0]["spec"]["pool"], "generation": random.randint(0, 3)}}
        if chance() < 0.5 and "nodeName" in other:
            other["nodeName"] = "n2"
        slices.append({"spec": other})
    return slices


def device(random: Random, driver: str, name: str, sets: Mapping[str, Any], *, sharing: bool) -> Body:
    """One device, with some of all that a device can have."""
    chance = random.random
    body: Body = {"name": name, "attributes": {}, "capacity": {}}
    offered: list[tuple[str, Body]] = [
        ("model", {"string": random.choice(("big", "mid", "small"))}),
        ("index", {"int": random.randint(0, 3)}),
        ("numa", {"int": random.randint(0, 1)}),
        ("full", {"bool": chance() < 0.5}),
        ("version", {"version": random.choice(("1.0.0", "1.0.0-rc.1", "2.10.3", "1.0.0+build"))}),
        ("pcie.example.org/root", {"string": random.choice("ab")}),
        *(
            [(f"{NIC}/numa", {"int": random.randint(0, 1)})] if driver != NIC else []
        ),  # which would be the same name twice
    ]
    body["attributes"] = {key: value for key, value in offered if chance() < 0.8}
    shared = chance() < (0.6 if sharing else 0.05)
    if shared:
        body["allowMultipleAllocations"] = True
    if chance() < 0.7:
        body["capacity"]["memory"] = capacity(random, shared=shared)
    if chance() < 0.2:
        body["capacity"]["example.org/lanes"] = capacity(random, shared=shared)
    if sets and chance() < 0.85:
        drawn = random.sample(sorted(sets), random.choice((1, 1, 1, min(2, len(sets)))))
        body["consumesCounters"] = [
            {
                "counterSet": each,
                "counters": {"memory": {"value": random.choice(("0", "1", "1", "2", "3", "1500m"))}, **_maybe(random)},
            }
            for each in drawn
        ]
        if chance() < 0.004:
            body["consumesCounters"][0]["counterSet"] = "unknown"
        if chance() < 0.002:
            body["consumesCounters"][0]["compatibilityGroups"] = ["mig"]
    if chance() < 0.12:
        body["taints"] = [taint(random) for _ in range(random.choice((1, 1, 2)))]
    if chance() < 0.04:
        body |= {"bindingConditions": ["ready"], "bindingFailureConditions": ["broken"]}
    if chance() < 0.04:
        body["bindsToNode"] = True
    return body


def _maybe(random: Random) -> Body:
    return {"slices": {"value": str(random.randint(1, 2))}} if random.random() < 0.5 else {}


def capacity(random: Random, *, shared: bool) -> Body:
    """How much of something, and to those who share it in which amounts."""
    if not shared or random.random() < 0.3:
        return {"value": random.choice(("1", "2", "4", "4Gi", "2500m"))}
    least, step, steps = random.choice(((1, 1, 3), (1, 2, 2), (2, 1, 4), (0, 3, 2)))
    most = least + step * steps
    policies: list[Body] = [
        {"default": str(least), "validRange": {"min": str(least), "step": str(step), "max": str(most)}},
        {"default": str(least + step), "validRange": {"min": str(least), "step": str(step)}},
        {"default": str(least), "validRange": {"min": str(least)}},
        {"default": "500m", "validRange": {"min": "500m", "step": "250m", "max": "4"}},
        {"default": "2", "validValues": ["1", "2", "4"]},
        {"default": "1"},
    ]
    return {"value": str(max(most, 4) + random.randint(0, 4)), "requestPolicy": random.choice(policies)}


def taint(random: Random) -> Body:
    """For some, or for nobody."""
    effect = random.choice(("NoSchedule", "NoSchedule", "NoExecute", "None"))
    return {"key": random.choice(("layout", "dead")), "value": random.choice(("", "x")), "effect": effect}


def toleration(random: Random) -> Body:
    """Of some taints, or of all."""
    body = random.choice(
        (
            {"key": "layout", "operator": "Exists"},
            {"operator": "Exists"},
            {"key": "dead", "operator": "Equal", "value": "x"},
        )
    )
    return dict(body) | random.choice(({}, {}, {"effect": "NoSchedule"}, {"effect": "NoExecute"}))


def classes(random: Random) -> list[Body]:
    """Those that claims name."""
    chosen = [{"cel": {"expression": random.choice(SELECTORS[:10])}} for _ in range(random.choice((0, 1, 1, 2)))]
    return [
        {"metadata": {"name": "any"}, "spec": {}},
        {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": SELECTORS[0]}}]}},
        {"metadata": {"name": "chosen"}, "spec": {"selectors": chosen}},
    ]


def claim(random: Random, number: int, *, sharing: bool) -> Body:
    """A claim with requests, alternatives and constraints."""
    chance = random.random
    requests = []
    for which in range(random.choice((1, 1, 2, 2, 3))):
        several = [request(random, sharing=sharing, admin=True)]
        if chance() < 0.25:
            several = [request(random, sharing=sharing, admin=False) for _ in range(random.randint(2, 3))]
        requests.append(_one(f"r{which}", several, {}))
    while len(requests) > 1 and _most(requests) > MOST:
        requests.pop()
    about = [
        *(r["name"] for r in requests),
        *(f"{r['name']}/{s['name']}" for r in requests for s in r.get("firstAvailable", ())),
    ]
    constraints = [
        {random.choice(("matchAttribute", "matchAttribute", "distinctAttribute")): random.choice(ATTRIBUTES)}
        | ({"requests": random.sample(about, random.randint(1, len(about)))} if chance() < 0.4 else {})
        for _ in range(random.choice((0, 0, 0, 0, 1, 2)))
    ]
    return {
        "metadata": {"name": f"c{number}", "namespace": "default"},
        "spec": {"devices": {"requests": requests, "constraints": constraints}},
    }


def request(random: Random, *, sharing: bool, admin: bool) -> Body:
    """So many devices of a class, or all of them."""
    chance = random.random
    body: Body = {"deviceClassName": random.choice(("any", "any", "gpu", "gpu", "chosen"))}
    if chance() < 0.002:
        body["deviceClassName"] = "unknown"
    body |= (
        {"allocationMode": "All"}
        if chance() < 0.08
        else {"allocationMode": "ExactCount", "count": random.choice((1, 1, 1, 2, 2, 3))}
    )
    if chance() < 0.3:
        chosen = random.choices(SELECTORS, weights=[6] * (len(SELECTORS) - 1) + [1], k=random.choice((1, 1, 2)))
        body["selectors"] = [{"cel": {"expression": each}} for each in chosen]
    if admin and chance() < 0.08:
        body["adminAccess"] = chance() < 0.8
    if chance() < 0.2:
        body["tolerations"] = [toleration(random) for _ in range(random.choice((1, 1, 2)))]
    if chance() < (0.4 if sharing else 0.08):
        amount = random.choice(("1", "2", "3", "1500m", "700m", "4", "5", "7", "1Gi"))
        body["capacity"] = {
            "requests": {random.choice(("memory", "memory", "memory", "example.org/lanes", f"{GPU}/memory")): amount}
        }
        if chance() < 0.01:
            body["capacity"]["requests"]["memory"] = random.choice(("9223372036854775807", "100u"))
    return body


def holder(random: Random, number: int, driver: str, pool_name: str, held: Body) -> Body:
    """A claim that has the device already."""
    result: Body = {"request": "r", "driver": driver, "pool": pool_name, "device": held["name"]}
    if random.random() < 0.05:
        result["device"] = "gone"
    if random.random() < 0.1:
        result["adminAccess"] = True
    elif held.get("allowMultipleAllocations") or random.random() < 0.05:
        result["shareID"] = f"00000000-0000-0000-0000-{number:012}"
        amounts = {name: random.choice(("0", "1", "2")) for name in held["capacity"]}
        result |= {"consumedCapacity": amounts} if amounts and random.random() < 0.9 else {}
    return {
        "metadata": {"name": f"held-{number}", "namespace": "default"},
        "spec": {},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


# What both make of a case, so that it can be compared.

_TROUBLES: Final = (  # what Kubernetes says, what we say
    ("currently being updated", "currently being updated"),
    ("currently invalid", "currently invalid"),
    ("CEL ", "asked of device"),
    ("exceeds the claim limit", "and a claim may have"),
    ("could not retrieve device class", "there is no DeviceClass"),
    ("constraint would not be satisfied", "do not agree with a constraint"),
    ("cannot be represented", "counted in steps"),
    ("DRAPrioritizedList feature is disabled", "it has alternatives"),
    ("DRAConsumableCapacity feature is disabled", "it has a capacity"),
    ("admin access is requested", "admin access is off"),
    ("invalid resource pools were encountered", "no room, and invalid pools"),
)


def ours(case: Case) -> Any:
    """What our allocator says."""
    which = Features(**case["features"])
    held = Held.read(case["allocated"], consumable_capacity=which.consumable_capacity)
    try:
        answer = Allocator(case["slices"], case["classes"], held, which).allocate(case["node"], case["claims"])
    except GivenUp as error:
        return _trouble(str(error), 1)
    if answer.claims is None:
        return "no room, and invalid pools" if answer.invalid else None
    return [
        (
            [(r.request, *r.id, r.admin, _amounts(r.consumed), r.consumed is not None) for r in claim.results],
            claim.node_selector,
        )
        for claim in answer.claims
    ]


def theirs(answer: Mapping[str, Any]) -> Any:
    """What Kubernetes' allocator has said."""
    if answer.get("error"):
        return _trouble(answer["error"], 0)
    if answer["allocations"] is None:
        return None
    return [
        (
            [
                (
                    *(r[key] for key in ("request", "driver", "pool", "device")),
                    bool(r.get("adminAccess")),
                    _amounts({name: amount_of(value) for name, value in r.get("consumedCapacity", {}).items()}),
                    "shareID" in r,
                )
                for r in allocation["devices"].get("results") or ()
            ],
            allocation.get("nodeSelector"),
        )
        for allocation in answer["allocations"]
    ]


def _amounts(consumed: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    return sorted((name, str(amount)) for name, amount in (consumed or {}).items())


def _trouble(text: str, whose: int) -> str:
    return next((pair[1] for pair in _TROUBLES if pair[whose] in text), text)


def as_asked(case: Case, *, times: int = 1) -> Body:
    """The case as the oracle reads it: features by their names in Go."""
    go = {
        "admin_access": "AdminAccess",
        "binding_conditions": "DeviceBindingAndStatus",
        "consumable_capacity": "ConsumableCapacity",
        "device_taints": "DeviceTaints",
        "fractional_capacity_range": "FractionalCapacityRange",
        "partitionable_devices": "PartitionableDevices",
        "prioritized_list": "PrioritizedList",
    }
    return {**case, "features": {go[name]: on for name, on in case["features"].items()}, "times": times}
