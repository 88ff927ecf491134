"""What users run: Deployments whose pods have devices, and budgets that keep them from being evicted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.e2e.harness import eventually

from gpupartition.kube import PODS, RESOURCE_CLAIM_TEMPLATES, Kind

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster
    from tests.e2e.rollout import Site

    from gpupartition.kube import Object

DEPLOYMENTS: Final = Kind("apps/v1", "deployments")
PDBS: Final = Kind("policy/v1", "poddisruptionbudgets")
APART: Final = {
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 100,
                "podAffinityTerm": {
                    "labelSelector": {"matchLabels": {"app": "web"}},
                    "topologyKey": "kubernetes.io/hostname",
                },
            }
        ]
    }
}


async def web(
    cluster: Cluster, where: Site, *, name: str = "web", replicas: int = 1, node: str = "", **more: Any
) -> None:
    """A Deployment whose pods each claim one device; waits until they run. `more`: annotations, volumes, labels, claim."""
    claim = more.get("claim", "")
    if not claim:
        exactly = {"deviceClassName": where.base.driver}
        template = {
            "apiVersion": RESOURCE_CLAIM_TEMPLATES.api_version,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": name, "namespace": where.user},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
        }
        await cluster.client.create(RESOURCE_CLAIM_TEMPLATES, template)
    labels = {"app": name, **more.get("labels", {})}
    selector = {"kubernetes.io/hostname": node} if node else {"pool": where.base.pool}
    spec = {
        "containers": [{"name": "main", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}],
        "resourceClaims": [
            {"name": "gpu", "resourceClaimName": claim} if claim else {"name": "gpu", "resourceClaimTemplateName": name}
        ],
        "nodeSelector": selector,
        "affinity": APART,
        "volumes": more.get("volumes", []),
    }
    body = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": where.user},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels, "annotations": more.get("annotations", {})}, "spec": spec},
        },
    }
    await cluster.create(DEPLOYMENTS, body)
    await eventually(lambda: running(cluster, where, name, replicas))


async def running(cluster: Cluster, where: Site, name: str = "web", replicas: int = 1) -> list[Object]:
    """The pods of a Deployment, as long as all of them run."""
    pods = (await cluster.client.list(PODS, namespace=where.user, label_selector=f"app={name}")).items
    living = [p for p in pods if "deletionTimestamp" not in p["metadata"] and p["status"].get("phase") == "Running"]
    assert len(living) == replicas, [p["status"] for p in pods]
    return living


async def budget(cluster: Cluster, where: Site, name: str, app: str = "web") -> None:
    """Allow no pod of an app to be missing; waits until the budget is in force."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
    body = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}
    body["metadata"] = {"name": name, "namespace": where.user}
    await cluster.create(PDBS, body)

    async def counted() -> bool:
        found = await cluster.client.get(PDBS, name, namespace=where.user)
        return bool(found.get("status", {}).get("currentHealthy") == 1)

    await eventually(counted)
