"""kubernetes-sigs/dra-example-driver: one DaemonSet per layout, and a node label that says whose pod runs there.

A layout's config is the DaemonSet `<base>-<fingerprint>`: the base's pod template told another layout, with a selector of its own, OnDelete
like the base, and never owned by anything, so that deleting a policy takes no plugin away. The label `gpupartition.dev/layout` on a node
moves it from one DaemonSet to another; the driver publishes at its pod's start. A change disturbs the whole node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from gpupartition.api.v1alpha1 import (
    Assigned,
    DriverSpec,
    ExampleDriverSpec,
    PolicySpec,
    SharingMode,
)
from gpupartition.backends import node_label
from gpupartition.backends import plugin_template as plugin
from gpupartition.backends.example_limits import installation_problems, layout_problems, published
from gpupartition.backends.node_label import OnNode, label_of, step_of
from gpupartition.backends.plugin_pods import (
    base_label,
    plugin_pod,
    running_template,
    variant_name,
    why_not_ready,
)
from gpupartition.backends.plugin_template import Settings, Unreadable
from gpupartition.backends.probe import losses
from gpupartition.domain import fingerprint
from gpupartition.domain.backend import Cluster, Config, NodeFacts, Observation
from gpupartition.domain.effects import Effect
from gpupartition.domain.entries import Document
from gpupartition.domain.objects import Object
from gpupartition.domain.others import writer
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Problem, Refused
from gpupartition.names import DRIVER, FINGERPRINT, LAYOUT

_NO_WAY_BACK: Final = "NoWayBack"


class ExampleDriver(OnNode):
    """Backend of the driver type ExampleDriver."""

    label = LAYOUT

    def driver_name(self, driver: DriverSpec, cluster: Cluster) -> str:
        """The name in the base's template. Raises Refused when there is no base or the name cannot be read."""
        base = _base(driver, cluster)
        try:
            return plugin.driver_name(base["spec"]["template"])
        except Unreadable as unreadable:
            raise Refused(unreadable.problem(_at(base))) from unreadable

    def namespaces(self, driver: DriverSpec) -> Sequence[str]:
        """Where the base is; its variants are beside it."""
        return (_spec(driver).daemon_set.namespace,)

    def documents(self, driver: DriverSpec) -> Sequence[Document]:  # noqa: ARG002
        """None: each layout has a DaemonSet of its own."""
        return ()

    def config_maps(self, driver: DriverSpec) -> Sequence[tuple[str, str]]:  # noqa: ARG002
        """None."""
        return ()

    def applying(self, driver: DriverSpec) -> Literal["applying"]:  # noqa: ARG002
        """As long as it takes to start a pod."""
        return "applying"

    def preflight(self, driver: DriverSpec, cluster: Cluster) -> Sequence[Problem]:
        """Whether the base is there, waits for its pods to be deleted, leaves assigned nodes alone, and says what it publishes."""
        try:
            base = _base(driver, cluster)
        except Refused as refused:
            return refused.problems
        return list(installation_problems(base, _at(base)))

    def depends(self, driver: DriverSpec, node: Object, look: Callable[[], NodeFacts]) -> tuple[Any, ...]:  # noqa: ARG002
        """Nothing: the driver is told how many GPUs there are."""
        return ()

    def compile(self, driver: DriverSpec, policy: PolicySpec, facts: NodeFacts, cluster: Cluster) -> Config:  # noqa: ARG002
        """The variant for the policy's one layout; the same for every node. Raises Refused."""
        base = _base(driver, cluster)
        problems = [*layout_problems(policy.layouts, _spec(driver).gpus_per_node)]
        problems += [u.problem(_at(base)) for u in plugin.check(base["spec"]["template"])]
        if problems:
            raise Refused(*problems)
        layout = policy.layouts[0]
        wanted = Settings(
            gpus=_spec(driver).gpus_per_node,
            parts=layout.equal.parts if layout.equal else 0,
            shared=layout.sharing.mode is SharingMode.SHARED,
        )
        config = _variant(base, plugin.set_to(base["spec"]["template"], wanted), cluster)
        if lost := [*losses(config.pool, cluster.dropped)]:
            raise Refused(*lost)
        return config

    def way_back(self, driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> Config:
        """The assignment that the node has, or a frozen variant of what its pod runs where that assignment would bring something else.

        Raises Refused (NoWayBack) where nothing says what that is.
        """
        assignment = label_of(facts.node, LAYOUT)
        base = _spec(driver).daemon_set
        assigned = cluster.daemon_set(
            base.namespace, base.name if assignment is None else variant_name(base.name, assignment)
        )
        pod = plugin_pod(base, facts, assignment)
        running = running_template(pod, cluster)
        template = running if pod is not None else assigned and assigned["spec"]["template"]
        if template is None:
            raise Refused(
                Problem(
                    reason=_NO_WAY_BACK,
                    at=f"node {facts.name}",
                    why=f"nothing says what its driver runs now (assignment {assignment or 'none'}): "
                    "the DaemonSet or its ControllerRevision is gone",
                    fix="annotate the node with gpupartition.dev/accept-no-rollback to change it without a way back",
                )
            )
        try:
            now = plugin.whole_fingerprint(template)
            lasting = assigned is not None and plugin.whole_fingerprint(assigned["spec"]["template"]) == now
            expected = published(plugin.settings(template))
        except Unreadable as unreadable:
            raise Refused(_unreadable_way_back(facts, unreadable)) from unreadable
        seen = facts.pool(facts.name)
        pool = seen if seen.usable and seen.devices else expected
        if lasting and assignment is None:
            return Config(fingerprint=fingerprint.short(now), assignment=None, pool=pool)
        frozen = _variant({"metadata": {"namespace": base.namespace, "name": base.name}}, template, cluster)
        return Config(fingerprint=frozen.fingerprint, assignment=frozen.assignment, pool=pool, objects=frozen.objects)

    def observe(self, driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> Observation:
        """Ready only when the assigned driver's pod is Ready and alone: a former pod that still ends could publish once more."""
        assignment = label_of(facts.node, LAYOUT)
        base = _spec(driver).daemon_set
        pod = plugin_pod(base, facts, assignment)
        template = running_template(pod, cluster)
        complaint = why_not_ready(base, facts, assignment, cluster)
        ready = not complaint
        pool = facts.pool(facts.name)
        return Observation(
            assignment=assignment,
            step=step_of(facts.node),
            running=_fingerprint_or_nothing(template),
            ready=ready,
            complaint=complaint,
            pool=pool,
            plugin=pod,
            writer=writer(facts.node, LAYOUT),
            lost_gpus=_lost_gpus(template, pool) if ready else 0,
            as_told=ready and pool.equals(_told(template)),
        )

    def disturbs(self, now: Pool, then: Pool) -> frozenset[str]:
        """The whole node, unless nothing changes."""
        return frozenset() if now.equals(then) else frozenset(d.name for d in now.devices)

    def assign(self, driver: DriverSpec, facts: NodeFacts, to: Assigned, step: str, generation: int) -> Effect | None:  # noqa: ARG002
        """One patch of the Node: label and step together. A step that is used up is never written again."""
        return node_label.assign(facts, LAYOUT, to, step)


def _unreadable_way_back(facts: NodeFacts, unreadable: Unreadable) -> Problem:
    return Problem(reason=_NO_WAY_BACK, at=f"node {facts.name}", why=unreadable.why, fix=unreadable.fix)


def _spec(driver: DriverSpec) -> ExampleDriverSpec:
    if driver.example_driver is None:
        raise AssertionError(f"driver of type {driver.type} has no spec.exampleDriver: {driver}")
    return driver.example_driver


def _base(driver: DriverSpec, cluster: Cluster) -> Object:
    ref = _spec(driver).daemon_set
    found = cluster.daemon_set(ref.namespace, ref.name)
    if found is None:
        raise Refused(
            Problem(
                reason="BaseMissing",
                at="spec.exampleDriver.daemonSet",
                why=f"there is no DaemonSet {ref.name} in namespace {ref.namespace}",
                fix="install the driver's chart there, or name its DaemonSet "
                f"(kubectl get daemonsets --namespace {ref.namespace})",
            )
        )
    return found


def _at(daemon_set: Object) -> str:
    metadata = daemon_set["metadata"]
    return f"DaemonSet {metadata['namespace']}/{metadata['name']}"


def _variant(base: Object, template: Mapping[str, Any], cluster: Cluster) -> Config:
    whole = plugin.whole_fingerprint(template)
    layout = fingerprint.short(whole)
    namespace, of = base["metadata"]["namespace"], base["metadata"]["name"]
    name, label = variant_name(of, layout), base_label(of)
    labels = {LAYOUT: layout, DRIVER: label}
    body = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels,
            "annotations": {FINGERPRINT: whole},
        },
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "OnDelete"},
            "template": plugin.marked(template, layout, label),
        },
    }
    present = cluster.daemon_set(namespace, name)
    if present is not None:
        _check_unchanged(present, whole)
    return Config(fingerprint=layout, assignment=layout, pool=published(plugin.settings(template)), objects=(body,))


def _check_unchanged(present: Object, whole: str) -> None:
    name, namespace = present["metadata"]["name"], present["metadata"]["namespace"]
    if _whole_or_nothing(present["spec"]["template"]) == whole:
        return
    if (present["metadata"].get("annotations") or {}).get(FINGERPRINT) == whole:
        why = "somebody changed its template, so it no longer is the layout in its name"
        fix = f"kubectl rollout undo daemonset/{name} --namespace {namespace}"
    else:
        why = "it is somebody else's, under the name of the one that the layout needs"
        fix = "find out whose it is, and delete it"
    raise Refused(Problem(reason="ConfigChanged", at=_at(present), why=why, fix=fix))


def _fingerprint_or_nothing(template: Mapping[str, Any] | None) -> str:
    return fingerprint.short(_whole_or_nothing(template)) if template is not None else ""


def _whole_or_nothing(template: Mapping[str, Any]) -> str:
    try:
        return plugin.whole_fingerprint(template)
    except Unreadable:
        return ""


def _told(template: Mapping[str, Any] | None) -> Pool:
    """What a driver of this template publishes; the empty pool where that cannot be told."""
    try:
        return published(plugin.settings(template)) if template is not None else Pool()
    except Unreadable:
        return Pool()


def _lost_gpus(template: Mapping[str, Any] | None, pool: Pool) -> int:
    """A pool that is empty or incomplete says nothing: the driver may be about to publish."""
    if template is None or not pool.usable or not pool.devices:
        return 0
    try:
        return max(0, plugin.settings(template).gpus - len(pool.gpus))
    except Unreadable:
        return 0
