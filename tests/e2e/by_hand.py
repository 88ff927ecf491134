"""What administrators do with a driver themselves, and whether anything was written that is not the operator's own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.e2e.rollout import driver_pod

from gpupartition.kube import PODS

if TYPE_CHECKING:
    from tests.e2e.harness import BaseDriver, Cluster

OURS = ("gpupartition", "events")


def foreign(written: list[str]) -> list[str]:
    """What was written to objects that are not the operator's own."""
    return [each for each in written if not each.split()[1].startswith(OURS)]


async def retemplate(cluster: Cluster, base: BaseDriver, **container: object) -> None:
    """Change the driver's container in the base's template; with OnDelete no pod changes by that."""
    body = {"spec": {"template": {"spec": {"containers": [{"name": "plugin", **container}]}}}}
    where = ("daemonset", base.daemon_set, "-n", base.namespace)
    await cluster.kubectl("patch", *where, "--type=strategic", "-p", json.dumps(body))


async def restart_by_hand(cluster: Cluster, base: BaseDriver, node: str) -> None:
    """Delete the driver's pod, as an administrator does, so that it starts anew from the base's template."""
    pod = await driver_pod(cluster, base, node)
    await cluster.client.delete(PODS, pod["metadata"]["name"], namespace=base.namespace)
