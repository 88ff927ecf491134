"""What this API server can do, asked before anything depends on it: a feature that is off drops fields without a word."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from gpupartition.api.v1alpha1 import Drain, DrainMode, DriverSpec, OnTimeout
from gpupartition.backends import probe as slices
from gpupartition.domain.problem import Problem, Turn
from gpupartition.domain.quiesce import TAINTS, chosen
from gpupartition.kube import DEVICE_TAINT_RULES, RESOURCE_SLICES, ApiError, Client, Kind, NotServed

# Of the same shape; Kubernetes 1.36 has them, where they are switched on, in the second version alone.
TAINT_RULES: Final = (DEVICE_TAINT_RULES, replace(DEVICE_TAINT_RULES, api_version="resource.k8s.io/v1beta2"))
GRANTED: Final = timedelta(seconds=15)  # no event tells that a right was granted, or a feature gate switched on
NO_STANDS: Final = 60.0  # seconds

REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

# What evictions take beyond the base role, and the component of the manifests that grants it.
EVICT: Final[Mapping[str, Mapping[str, str]]] = {
    "create pods/eviction": {"resource": "pods", "subresource": "eviction", "verb": "create"},
    "list poddisruptionbudgets": {"group": "policy", "resource": "poddisruptionbudgets", "verb": "list"},
}
FORCE_DELETE: Final[Mapping[str, Mapping[str, str]]] = {"delete pods": {"resource": "pods", "verb": "delete"}}


class Probe:
    """Asks each question once and remembers a yes. A no is asked again: servers are upgraded, and there may be several."""

    def __init__(self, client: Client, *, dry_runs: bool = True) -> None:
        """Without `dry_runs` nothing is asked that takes a right to write."""
        self._client = client
        self._dry_runs = dry_runs
        self._taint_rules: Kind | None = None
        self._ask_again = 0.0  # on the monotonic clock
        self._dropped: dict[tuple[str, str], tuple[Sequence[str], float]] = {}  # and until when that stands
        self._granted: set[str] = set()

    async def taint_rules(self) -> Kind | None:
        """The DeviceTaintRules that this server has, in the best version that it serves."""
        if self._taint_rules is None and time.monotonic() >= self._ask_again:
            self._taint_rules = await self._served(*TAINT_RULES)
            self._ask_again = time.monotonic() + NO_STANDS
        return self._taint_rules

    def rules_are_gone(self) -> None:
        """They are served no more, as after a downgrade, or not by every server: ask again."""
        self._taint_rules = None

    def quiesce(self, asked: str, *, served: bool) -> Sequence[Problem]:
        """Whether new claims can be kept off a node in the way that a driver asks for, where DeviceTaintRules are served, or are not."""
        if served or chosen(asked, served=False) not in TAINTS:
            return ()
        problem = Problem(
            reason="QuiesceUnavailable",
            at="spec.quiesce",
            why=f"the API server does not serve {DEVICE_TAINT_RULES}, so {asked} cannot keep new claims off a node",
            fix="write quiesce: Cordon (or Auto) in the driver, or use Kubernetes 1.37 or later with that API on",
        )
        return (problem,)

    async def _served(self, *kinds: Kind) -> Kind | None:
        for kind in kinds:
            try:
                answer = await self._client.raw("GET", f"/apis/{kind.api_version}")
            except NotServed:
                continue
            if any(r["name"] == kind.plural for r in answer["resources"]):
                return kind
        return None

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
        """Field paths that the server drops from slices like those of this driver; nothing is stored by asking.

        A slice that is refused is lost as a whole, where it is for us to write; of those that the driver's plugin writes nothing is known then.
        """
        if not self._dry_runs:
            return ()
        asked = _asked(driver)
        if self._dropped.get(asked, ((), 0.0))[1] <= time.monotonic():
            lost: list[str] = []
            known = True
            for body in slices.probe(driver):
                try:
                    answer = await self._client.create(RESOURCE_SLICES, body, dry_run=True)
                except ApiError as error:
                    if error.status == 0 or error.status >= 500:
                        raise
                    known = driver.publish is not None
                    lost += [f"the slice as a whole ({error.message})"] if known else []
                else:
                    lost += slices.dropped(body, answer)
            self._remember(driver, tuple(sorted(set(lost))), lasts=known and not lost)
        return self._dropped[asked][0]

    def refused(self, driver: DriverSpec, why: str) -> None:
        """Of several servers behind one address one has refused a slice, whatever the one said that was asked before."""
        if driver.publish is not None:
            self._remember(driver, (f"the slice as a whole ({why})",), lasts=False)

    def _remember(self, driver: DriverSpec, lost: Sequence[str], *, lasts: bool) -> None:
        stands = math.inf if lasts else time.monotonic() + GRANTED.total_seconds()
        self._dropped[_asked(driver)] = lost, stands


def _asked(driver: DriverSpec) -> tuple[str, str]:
    """What the answer depends on; the same for all drivers that publish themselves."""
    return (driver.publish.driver_name, driver.publish.node_operations) if driver.publish is not None else ("", "")
