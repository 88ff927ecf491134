"""Nodes in somebody's hands, and the layouts of which the operator finds that they have them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from testbed.drivers.example import Settings, draw
from tests.unit import amd, example, nvidia

from gpupartition.api.v1alpha1 import DriverSpec, PolicySpec
from gpupartition.backends import BACKENDS
from gpupartition.backends.adopted import layouts_of
from gpupartition.domain.adoption import touched, unfit, why_not
from gpupartition.domain.backend import Cluster, NodeFacts

Words = dict[str, Any]
ALL = {"match": {"all": True}}


def of(layouts: Sequence[Mapping[str, Any]]) -> PolicySpec:
    selector = {"matchLabels": {"a": "b"}}
    return PolicySpec.model_validate({"driver": "d", "nodeSelector": selector, "layouts": list(layouts)})


def adopted(driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> list[Words]:
    """The layouts, without their names, of which the operator finds that the node has them."""
    backend = BACKENDS[driver.type]
    seen, layouts = backend.observe(driver, facts, cluster), layouts_of(driver, facts, cluster)
    assert unfit(seen) == ""
    wanted = backend.compile(driver, of(layouts), facts, cluster)
    assert why_not(wanted, seen) == touched(wanted, seen) == ""
    names = [each["name"] for each in layouts]
    assert sorted(set(names)) == sorted(names)
    return [{key: value for key, value in each.items() if key != "name"} for each in layouts]


def example_node(gpus: int, parts: int, *, shared: bool = False) -> tuple[NodeFacts, Cluster]:
    """A node whose driver was told so by hand, in the template of its DaemonSet."""
    told = {"NUM_DEVICES": gpus, "GPU_PARTITIONS": parts, "GPU_ALLOW_MULTIPLE_ALLOCATIONS": str(shared).lower()}
    template = example.with_env(*({"name": name, "value": str(value)} for name, value in told.items()))
    contents = draw(Settings(node="n1", devices=gpus, partitions=parts, shared=shared))
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": len(contents)}
    common = {"driver": "gpu.example.com", "nodeName": "n1", "pool": pool}
    slices = [{"metadata": {"name": f"s{n}"}, "spec": {**common, **content}} for n, content in enumerate(contents)]
    sets, revisions = [example.daemon_set(template=template)], [example.revision(template=template)]
    facts = NodeFacts(node=example.node(), pods=[example.pod()], slices=slices)
    return facts, Cluster(daemon_sets=sets, controller_revisions=revisions)


def mig_cluster(**entries: Any) -> Cluster:
    """NVIDIA's software, and a file with these entries, which somebody else wrote."""
    text = yaml.safe_dump({"version": "v1", "mig-configs": {"all-disabled": DISABLED, **entries}})
    meta = {"namespace": "gpu-operator", "name": "gpp-mig", "uid": "u", "resourceVersion": "1"}
    return nvidia.installed({"metadata": meta, "data": {"config.yaml": text}})


def amd_cluster(**profiles: Any) -> Cluster:
    """AMD's software, and a file with these profiles, which somebody else wrote."""
    text = json.dumps({"gpu-config-profiles": profiles})
    meta = {"namespace": "kube-amd-gpu", "name": "gpp-amd", "uid": "u", "resourceVersion": "1"}
    return amd.installed({"metadata": meta, "data": {"config.json": text}})


DISABLED = [{"devices": "all", "mig-enabled": False}]
