"""Builders for pools that the operator publishes itself, and a server that keeps the slices of one node."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from tests.unit.vendor import policy

from gpupartition.api.v1alpha1 import Assigned, DriverSpec, DriverType
from gpupartition.backends import BACKENDS
from gpupartition.backends.slices import slice_name
from gpupartition.domain.backend import Cluster, Config, NodeFacts, Observation
from gpupartition.domain.effects import CreateSlice, DeleteSlice, Effect, PutSlice

BACKEND = BACKENDS[DriverType.PUBLISH]
H100 = {"count": 2, "product": "H100", "memory": "80Gi"}


def driver(*groups: Mapping[str, Any], **inventory: Any) -> DriverSpec:
    spec = {"driverName": "gpu.example.org", "inventory": inventory or {"gpus": groups or [H100]}}
    return DriverSpec.model_validate({"type": "Publish", "publish": spec})


def layout(kind: str = "Whole", **more: Any) -> dict[str, Any]:
    return {"name": "l", "match": {"all": True}, "type": kind, **more}


def equal(parts: int, **more: Any) -> dict[str, Any]:
    return layout("Equal", equal={"parts": parts, **more})


def choices(*profiles: str, **more: Any) -> dict[str, Any]:
    return layout("Choices", choices={"profiles": profiles, **more})


def node(**labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "n1", "uid": "uid-n1", "resourceVersion": "7", "labels": labels}}


def config(*layouts: Mapping[str, Any], of: DriverSpec | None = None, on: Mapping[str, Any] | None = None) -> Config:
    return BACKEND.compile(of or driver(), policy(*layouts), NodeFacts(node=on or node()), Cluster())


class Server:
    """The slices of one node as an API server keeps them: versions and UIDs are checked, and every state is seen by somebody."""

    def __init__(self, of: DriverSpec | None = None) -> None:
        self.driver = of or driver()
        self.slices: dict[str, dict[str, Any]] = {}
        self.version = 0

    @property
    def facts(self) -> NodeFacts:
        return NodeFacts(node=node(), slices=[copy.deepcopy(s) for s in self.slices.values()])

    def observe(self) -> Observation:
        return BACKEND.observe(self.driver, self.facts, Cluster())

    def write(self, effect: Effect) -> None:
        self.version += 1
        match effect:
            case CreateSlice(body=body):
                assert body["metadata"]["name"] not in self.slices
                self.store(body, uid=f"uid-{self.version}")
            case PutSlice(body=body):
                assert (
                    self.slices[body["metadata"]["name"]]["metadata"]["resourceVersion"]
                    == body["metadata"]["resourceVersion"]
                )
                self.store(body, uid=body["metadata"]["uid"])
            case DeleteSlice(name=name, uid=uid, resource_version=version):
                metadata = self.slices.pop(name)["metadata"]
                assert (metadata["uid"], metadata["resourceVersion"]) == (uid, version)
            case _:
                raise AssertionError(effect)

    def store(self, body: Mapping[str, Any], uid: str) -> None:
        kept = copy.deepcopy(dict(body))
        kept["metadata"] |= {"uid": uid, "resourceVersion": str(self.version)}
        self.slices[kept["metadata"]["name"]] = kept

    def assign(self, to: Assigned, step: str, generation: int = 1) -> Iterator[Effect]:
        while (effect := BACKEND.assign(self.driver, self.facts, to, step, generation)) is not None:
            self.write(effect)
            yield effect

    def repair(self, current: Assigned, step: str | None = None, generation: int = 1) -> Iterator[Effect]:
        while (effect := BACKEND.repair(self.driver, self.facts, current, step, generation)) is not None:
            self.write(effect)
            yield effect

    @property
    def anchor(self) -> dict[str, Any]:
        return self.slices[slice_name("gpu.example.org", "n1", 0)]
