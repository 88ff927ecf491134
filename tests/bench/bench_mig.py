"""How long it takes to tell whether a layout fits on a GPU: the slowest of all layouts of all GPUs of the table.

Nothing is remembered from one layout to the next but what is known of the GPU itself. Asked are all layouts that fit, and all that are one
partition more than one that fits: further ones are refused by sums alone.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Final

from tests.bench.figures import Figure

from gpupartition.domain import mig_layouts
from gpupartition.domain.mig_layouts import nearest, place, told, why_not
from gpupartition.tables.mig import builtin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpupartition.domain.mig import GpuModel
    from gpupartition.domain.mig_layouts import Counts

ROUNDS: Final = 5
BOUND: Final = 1.0  # ms: 5,000 nodes with 8 GPUs that all differ are asked about within a minute
NEAREST_BOUND: Final = 20.0  # ms: only a refusal is worth it, and equal GPUs share one


def measure() -> list[Figure]:
    """Milliseconds for the slowest layout that fits, the slowest that does not, with its reason, and the slowest look for others."""
    fits: list[tuple[float, str]] = []
    fails: list[tuple[float, str]] = []
    instead: list[tuple[float, str]] = []
    for model in builtin():
        place(model, {})
        for counts in _asked(model):
            where = f"{told(counts)} on {model.name}"
            took, found = _best(lambda counts=counts, model=model: (place(model, counts), why_not(model, counts))[0])  # type: ignore[misc]
            (fails if found is None else fits).append((took, where))
        took, _ = _best(lambda model=model: nearest(model, {p.name: 9 for p in model.profiles}))  # type: ignore[misc]
        instead.append((took, model.name))
    return [
        _figure("layout that fits", fits, BOUND),
        _figure("layout that does not fit", fails, BOUND),
        _figure("what fits instead", instead, NEAREST_BOUND),
    ]


def _asked(model: GpuModel) -> Iterator[Counts]:
    names = [p.name for p in model.profiles]
    for vector in mig_layouts._all_counts(model):
        yield dict(zip(names, vector, strict=True))
        for k in range(len(names)):
            yield dict(zip(names, (*vector[:k], vector[k] + 1, *vector[k + 1 :]), strict=True))


def _best(ask: Callable[[], object]) -> tuple[float, object]:
    """Milliseconds of CPU, with the searches forgotten each time."""
    took = []
    answer: object = None
    gc.disable()
    for _ in range(ROUNDS):
        mig_layouts._packed.cache_clear()
        mig_layouts._all_counts.cache_clear()
        begun = time.process_time_ns()
        answer = ask()
        took.append((time.process_time_ns() - begun) / 1e6)
    gc.enable()
    return min(took), answer


def _figure(name: str, measured: list[tuple[float, str]], bound: float) -> Figure:
    slowest, where = max(measured)
    how = f"slowest of {len(measured)}, best of {ROUNDS} each: {where}"
    return Figure(name=f"MIG: {name}", value=round(slowest, 3), unit="ms CPU", bound=bound, how=how, rounds=[slowest])
