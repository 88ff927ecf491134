"""Who holds a node's devices: read from allocated claims of every kind, whether or not their device is still published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One allocated device of one claim. `claim` and `pods` are namespace/name; `terminating`: a pod of it is on its way out.

    `uids` are those of the pods, in their order: another pod of the same name has nothing to do with it.
    """

    node: str
    driver: str
    pool: str
    device: str
    claim: str
    pods: tuple[str, ...] = ()
    terminating: bool = False
    admin: bool = False
    uids: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """Why it is in the way."""
        if self.admin:
            return "AdminAccess"
        if self.terminating:
            return "Terminating"
        return "Allocated" if self.pods else "AllocatedUnreserved"


def holders(claims: Iterable[Mapping[str, Any]], *, node: str, driver: str, pool: str) -> tuple[Holder, ...]:
    """Every allocated device of this pool: shared and admin-access ones too, and claims that no pod has reserved (yet).

    Not only pods reserve claims (`status.reservedFor` may name pod groups), and a claim may be allocated before anybody reserved it: a claim
    without a pod is a holder like any other.
    """
    found: list[Holder] = []
    for claim in claims:
        status = claim.get("status", {})
        results = status.get("allocation", {}).get("devices", {}).get("results", ())
        namespace, name = claim["metadata"].get("namespace", ""), claim["metadata"]["name"]
        reserved = sorted(
            (f"{namespace}/{r['name']}", r.get("uid", ""))
            for r in status.get("reservedFor", ())
            if r.get("resource") == "pods"
        )
        found += [
            Holder(
                node=node,
                driver=driver,
                pool=pool,
                device=result["device"],
                claim=f"{namespace}/{name}",
                pods=tuple(pod for pod, _ in reserved),
                terminating="deletionTimestamp" in claim["metadata"],
                admin=bool(result.get("adminAccess", False)),
                uids=tuple(uid for _, uid in reserved),
            )
            for result in results
            if result["driver"] == driver and result["pool"] == pool
        ]
    return tuple(sorted(found, key=lambda h: (h.device, h.claim)))
