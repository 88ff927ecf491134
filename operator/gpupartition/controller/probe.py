"""What this API server can do, asked before anything depends on it: a feature that is off drops fields without a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gpupartition.api.v1alpha1 import Drain, DrainMode, DriverSpec, OnTimeout
from gpupartition.backends import probe as slices
from gpupartition.domain.backend import Problem, Turn
from gpupartition.kube import DEVICE_TAINT_RULES, RESOURCE_SLICES, ApiError, Client, NotFound

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

# What evictions take beyond the base role, and the component of the manifests that grants it.
EVICT: Final[Mapping[str, Mapping[str, str]]] = {
    "create pods/eviction": {"resource": "pods", "subresource": "eviction", "verb": "create"},
    "list poddisruptionbudgets": {"group": "policy", "resource": "poddisruptionbudgets", "verb": "list"},
}
FORCE_DELETE: Final[Mapping[str, Mapping[str, str]]] = {"delete pods": {"resource": "pods", "verb": "delete"}}


class Probe:
    """Asks each question once and remembers the answer; a server that is upgraded restarts its clients' watches, and us if it must."""

    def __init__(self, client: Client, *, dry_runs: bool = True) -> None:
        """Without `dry_runs` nothing is asked that takes a right to write."""
        self._client = client
        self._dry_runs = dry_runs
        self._taint_rules: Sequence[Problem] | None = None
        self._dropped: dict[str, Sequence[str]] = {}
        self._granted: set[str] = set()

    async def taint_rules(self) -> Sequence[Problem]:
        """Whether new claims can be kept off a node's devices (DeviceTaintRule, resource.k8s.io/v1, Kubernetes 1.37)."""
        if self._taint_rules is None:
            try:
                served = await self._client.raw("GET", f"/apis/{DEVICE_TAINT_RULES.api_version}")
            except NotFound:
                served = {"resources": []}
            found = any(r["name"] == DEVICE_TAINT_RULES.plural for r in served["resources"])
            problem = Problem(
                reason="QuiesceUnavailable",
                at="cluster",
                why=f"the API server does not serve {DEVICE_TAINT_RULES}, so new claims cannot be kept off a node",
                fix="use Kubernetes 1.37 or later with the feature gate DRADeviceTaintRules on",
            )
            self._taint_rules = () if found else (problem,)
        return self._taint_rules

    async def evictions(self, drain: Drain) -> Sequence[Problem]:
        """Which rights are missing for what a policy asks for. What is missing is asked for again: it may have been granted meanwhile."""
        if drain.mode is not DrainMode.EVICT:
            return ()
        components = {"evict": EVICT}
        if drain.on_timeout is OnTimeout.FORCE_DELETE:
            components["force-delete"] = FORCE_DELETE
        return [
            Problem(
                reason="EvictionForbidden",
                at="spec.rollout.drain",
                why=f"the operator may not {' or '.join(missing)} all over the cluster",
                fix=f"add manifests/components/{component} to the components of your kustomization, or write another mode or onTimeout",
                turn=Turn.CLUSTER,
            )
            for component, rights in components.items()
            if (missing := [what for what, right in rights.items() if not await self._may(what, right)])
        ]

    async def _may(self, what: str, right: Mapping[str, str]) -> bool:
        if what not in self._granted:
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": dict(right)},
            }
            if (await self._client.raw("POST", REVIEWS, body=review))["status"]["allowed"]:
                self._granted.add(what)
        return what in self._granted

    async def dropped(self, driver: DriverSpec) -> Sequence[str]:
        """Field paths that the server drops from the slices this driver would have us write; nothing is stored by asking."""
        if driver.publish is None or not self._dry_runs:
            return ()
        name = driver.publish.driver_name
        if name not in self._dropped:
            lost: list[str] = []
            for body in slices.probe(driver):
                try:
                    answer = await self._client.create(RESOURCE_SLICES, body, dry_run=True)
                except ApiError as error:
                    if error.status == 0 or error.status >= 500:
                        raise
                    lost.append(f"the slice as a whole ({error.message})")
                else:
                    lost += slices.dropped(body, answer)
            self._dropped[name] = tuple(sorted(set(lost)))
        return self._dropped[name]
