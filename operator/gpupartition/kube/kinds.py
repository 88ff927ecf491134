"""The resources of the API that we speak of, by the names that appear in URLs and in RBAC rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource of the API, for example ``Kind("resource.k8s.io/v1", "resourceslices", namespaced=False)``."""

    api_version: str
    plural: str
    namespaced: bool = True

    def __str__(self) -> str:
        """Name it as ``kubectl`` does: ``pods``, ``resourceslices.resource.k8s.io``."""
        group, slash, _ = self.api_version.rpartition("/")
        return f"{self.plural}.{group}" if slash else self.plural

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """URL path of the collection, of one object, or of one of its subresources.

        Raises ValueError for a namespace where there can be none, and for a named object without the one it needs.
        """
        if namespace and not self.namespaced:
            raise ValueError(
                f"{self} are cluster-scoped: ask for {name or 'them'} without a namespace (got {namespace!r})"
            )
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self} live in namespaces: say in which one {name!r} is")
        root = "/apis" if "/" in self.api_version else "/api"
        place = ("namespaces", namespace) if namespace else ()
        return "/".join(part for part in (root, self.api_version, *place, self.plural, name, subresource) if part)


CONFIG_MAPS: Final = Kind("v1", "configmaps")
EVENTS: Final = Kind("v1", "events")
NAMESPACES: Final = Kind("v1", "namespaces", namespaced=False)
NODES: Final = Kind("v1", "nodes", namespaced=False)
PODS: Final = Kind("v1", "pods")
SERVICE_ACCOUNTS: Final = Kind("v1", "serviceaccounts")

CONTROLLER_REVISIONS: Final = Kind("apps/v1", "controllerrevisions")
DAEMON_SETS: Final = Kind("apps/v1", "daemonsets")
DEPLOYMENTS: Final = Kind("apps/v1", "deployments")

LEASES: Final = Kind("coordination.k8s.io/v1", "leases")
POD_DISRUPTION_BUDGETS: Final = Kind("policy/v1", "poddisruptionbudgets")

CLUSTER_ROLES: Final = Kind("rbac.authorization.k8s.io/v1", "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDINGS: Final = Kind("rbac.authorization.k8s.io/v1", "clusterrolebindings", namespaced=False)
ROLES: Final = Kind("rbac.authorization.k8s.io/v1", "roles")
ROLE_BINDINGS: Final = Kind("rbac.authorization.k8s.io/v1", "rolebindings")

CRDS: Final = Kind("apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False)

DEVICE_CLASSES: Final = Kind("resource.k8s.io/v1", "deviceclasses", namespaced=False)
RESOURCE_CLAIMS: Final = Kind("resource.k8s.io/v1", "resourceclaims")
RESOURCE_CLAIM_TEMPLATES: Final = Kind("resource.k8s.io/v1", "resourceclaimtemplates")
RESOURCE_SLICES: Final = Kind("resource.k8s.io/v1", "resourceslices", namespaced=False)
DEVICE_TAINT_RULES: Final = Kind("resource.k8s.io/v1", "devicetaintrules", namespaced=False)
