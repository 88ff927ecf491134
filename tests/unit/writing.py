"""What is written for one node in a turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tests.unit.worlds import FORMER_STEP, NODE, UID

from gpupartition import names
from gpupartition.api.v1alpha1 import DriverSpec, NodeStateStatus
from gpupartition.backends.example import ExampleDriver
from gpupartition.domain.backend import NodeFacts
from gpupartition.domain.effects import Effect
from gpupartition.domain.world import World
from gpupartition.domain.writes import Subject, effects

DRIVER: Final = DriverSpec.model_validate(
    {"type": "ExampleDriver", "exampleDriver": {"daemonSet": {"namespace": "gpus", "name": "base"}, "gpusPerNode": 1}}
)
INERT: Final = {
    "metadata": {"name": "gpp-node-a-x", "uid": "rule-1", "resourceVersion": "5"},
    "spec": {"taint": {"effect": "None"}},
}
RULE: Final = {**INERT, "spec": {"taint": {"effect": "NoSchedule"}}}


def subject(
    *, label: str | None = None, step: str = FORMER_STEP, rule: Any = RULE, there: bool = True, **more: Any
) -> Subject:
    labels = {names.LAYOUT: label} if label else {}
    meta = {"name": NODE, "uid": UID, "resourceVersion": "7", "labels": labels, "annotations": {names.STEP: step}}
    return Subject(
        node_name=NODE,
        node_uid=UID,
        driver=DRIVER,
        driver_name="gpu.example.com",
        backend=ExampleDriver(),
        facts=NodeFacts(node={"metadata": meta}) if there else None,
        rule=rule,
        **more,
    )


def written(state: NodeStateStatus, turn: World, about: Subject) -> Sequence[Effect]:
    return list(effects(state, turn, about))
