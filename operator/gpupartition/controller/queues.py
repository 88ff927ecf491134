"""What is known of the cluster, and who has to be looked at when it changes: a queue of names for each loop."""

from __future__ import annotations

from gpupartition.controller.caches import Caches
from gpupartition.controller.declared import Policy
from gpupartition.controller.handlers import Kinds
from gpupartition.domain.world import AT_REST
from gpupartition.kube import Client, Object
from gpupartition.kube.workqueue import WorkQueue

GATHER = 0.1  # seconds in which events about one policy are gathered into one look at it
GATHER_MORE = 3  # times the last look at it, where that is longer: looks at a large policy take a quarter of the time
GATHER_MOST = 2  # seconds


class Queues:
    """Copies of the cluster (`caches`) and of our own `kinds`; names of `nodes`, `policies` and `drivers` that wait to be looked at.

    `namespace` is the operator's own.
    """

    def __init__(self, client: Client, *, namespace: str) -> None:
        self.nodes = WorkQueue(longest_retry=60)
        self.policies = WorkQueue(longest_retry=60)
        self.drivers = WorkQueue(longest_retry=60)
        self.kinds = Kinds(policies={}, drivers={}, on_policy=self.policy_changed, on_driver=self.driver_changed)
        self.caches = Caches(
            client,
            namespace=namespace,
            on_node=self._node_changed,
            on_all=self._everything_changed,
            on_relabelled=self._tell_policies_of,
        )
        self._ledgers: dict[str, tuple[object, dict[str, tuple[str, str]]]] = {}  # of drivers, as last heard of
        self._selecting: dict[str, tuple[Object, Policy]] = {}  # policies, read from these very copies
        self._took: dict[str, float] = {}  # seconds of the last look at each policy

    def everything(self) -> None:
        """Have all that there is looked at."""
        for driver in self.kinds.drivers:
            self.drivers.add(driver)
        for policy in self.kinds.policies:
            self.policies.add(policy)
        for record in self.caches.records.values():
            self.nodes.add(record.name)

    def _node_changed(self, name: str) -> None:
        self.nodes.add(name)
        record, node = self.caches.records.get(name), self.caches.nodes.get(name)
        if record is not None:
            self.policy_progressed(record.spec.policy_ref.name)
        else:
            self._tell_policies_of(node)

    def _tell_policies_of(self, node: Object | None) -> None:
        """Have those look again that select a node, as it is or as it was."""
        before = self._selecting
        self._selecting = {
            name: known if (known := before.get(name)) and known[0] is body else (body, Policy.read(body))
            for name, body in self.kinds.policies.items()
        }
        for name, (_, policy) in self._selecting.items():
            if policy.selects(node):
                self.policy_progressed(name)

    def policy_progressed(self, name: str) -> None:
        """Have a policy looked at once what else happens to it has been gathered."""
        self.policies.add_after(name, max(GATHER, min(GATHER_MORE * self._took.get(name, 0), GATHER_MOST)))

    def looked_at_policy(self, name: str, seconds: float) -> None:
        """So long did the look at a policy take."""
        if name in self.kinds.policies:
            self._took[name] = seconds
        else:
            self._took.pop(name, None)

    def policy_changed(self, name: str) -> None:
        """Somebody wrote or deleted a policy."""
        self.policies.add(name)
        for driver in self.kinds.drivers:
            self.drivers.add(driver)
        for record in self.caches.records.by("policy", name):
            self.nodes.add(record.name)
        for other in self.kinds.policies:  # a selector that moved may contest a node, or no longer
            self.policy_progressed(other)

    def driver_changed(self, name: str) -> None:
        """Somebody wrote or deleted a driver, or its ledger has changed."""
        for policy in self.kinds.policies:
            self.policy_progressed(policy)
        body = self.kinds.drivers.get(name, {})
        meta = body.get("metadata", {})
        asked = meta.get("uid"), meta.get("generation"), meta.get("deletionTimestamp")
        grants = {g["node"]: (g["token"], g["policy"]) for g in body.get("status", {}).get("inFlight", ())}
        asked_before, before = self._ledgers.get(name, (None, {}))
        self._ledgers[name] = asked, grants
        if asked != asked_before or grants == before or not grants:
            self.drivers.add_after(name, GATHER)  # that a ledger was written says nothing of the driver itself
        for node in grants.keys() | before.keys():
            if grants.get(node) != before.get(node):  # nobody else has to hear of it: a ledger is written for each node
                self.nodes.add(node)
        for policy in {policy for _, policy in grants.values()} - self.kinds.policies.keys():
            self.policies.add(policy)
        if asked != asked_before:
            for record in self.caches.records.values():
                if record.spec.driver == name and (record.state.token or record.state.phase not in AT_REST):
                    self.nodes.add(record.name)

    def _everything_changed(self) -> None:
        for driver in self.kinds.drivers:
            self.drivers.add_after(driver, GATHER)
        for policy in self.kinds.policies:
            self.policy_progressed(policy)
        for record in self.caches.records.values():
            if record.state.phase not in AT_REST:
                self.nodes.add(record.name)
