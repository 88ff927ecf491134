"""How long our allocator takes for a pod with 64 claims and a node with 64 devices, beside Kubernetes' own on the same objects.

Each time anew, as for each pod: ours reads the objects, asks the selectors and searches; theirs has the objects read and the expressions
compiled. Both run on one core, one after the other in turn; the ratio is of the best of some rounds.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import Final

from tests.bench.figures import Figure
from tests.e2e.oracle import answers, built
from tests.properties.allocations import GPU, Body, Case, ours, theirs

from gpupartition.domain.allocator import selectors
from gpupartition.domain.allocator.pools import Features

GPUS, PARTITIONS, CLAIMS = 8, 8, 64
ROUNDS: Final = 5
TIMES: Final = 5  # of each round, so that theirs is long enough to be measured
BOUND: Final = 20.0  # times as long: a plan asks for thousands of pods, and must stay within seconds

SELECTOR: Final = f'device.attributes["{GPU}"].?partition.orValue(-1) >= 0 && device.capacity["{GPU}"].memory.isGreaterThan(quantity("1Gi"))'


def measure() -> list[Figure]:
    """The ratio, and both times."""
    oracle, case = asyncio.run(built()), crowded()
    rounds: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        (answer,) = answers(oracle, [case], times=TIMES)
        begun = time.process_time()
        for _ in range(TIMES):
            selectors.selects.cache_clear()
            selectors._alike.cache_clear()  # theirs asks each device anew too
            own = ours(case)
        rounds.append(((time.process_time() - begun) / TIMES, answer["seconds"]))
        assert own == theirs(answer)
        assert len(own) == CLAIMS
    mine, go = (min(each) * 1000 for each in zip(*rounds, strict=True))
    how = f"{GPUS * PARTITIONS} devices, {CLAIMS} claims, 2 selectors each; best of {ROUNDS}"
    told = [[round(a * 1000, 2), round(b * 1000, 2)] for a, b in rounds]
    return [
        Figure(
            name="allocator, beside Kubernetes'",
            value=round(mine / go, 2),
            unit="times",
            bound=BOUND,
            how=how,
            rounds=told,
        ),
        Figure(name="allocator", value=round(mine, 1), unit="ms CPU", how=how),
        Figure(name="Kubernetes' allocator", value=round(go, 1), unit="ms", how=how),
    ]


def crowded() -> Case:
    """A node whose GPUs are cut to pieces, and a pod that wants them all."""
    spec: Body = {"driver": GPU, "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 2}, "nodeName": "n1"}
    sets = [{"name": f"gpu-{gpu}", "counters": {"memory": {"value": "80Gi"}}} for gpu in range(GPUS)]
    devices = [
        {
            "name": f"gpu-{gpu}-partition-{part}",
            "attributes": {"index": {"int": gpu}, "partition": {"int": part}, "uuid": {"string": f"gpu-{gpu}"}},
            "capacity": {"memory": {"value": "10Gi"}},
            "consumesCounters": [{"counterSet": f"gpu-{gpu}", "counters": {"memory": {"value": "10Gi"}}}],
        }
        for gpu in range(GPUS)
        for part in range(PARTITIONS)
    ]
    request = {
        "deviceClassName": "gpu",
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": [{"cel": {"expression": SELECTOR}}],
    }
    return {
        "features": asdict(Features()),
        "node": {"metadata": {"name": "n1"}},
        "slices": [
            {"metadata": {"name": "s0"}, "spec": {**spec, "sharedCounters": sets}},
            {"metadata": {"name": "s1"}, "spec": {**spec, "devices": devices}},
        ],
        "classes": [
            {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{GPU}"'}}]}}
        ],
        "allocated": [],
        "claims": [
            {
                "metadata": {"name": f"c{number}", "namespace": "default"},
                "spec": {"devices": {"requests": [{"name": "r", "exactly": request}]}},
            }
            for number in range(CLAIMS)
        ],
    }
