"""Static MIG: NVIDIA's mig-manager cuts the GPUs of a node as a label tells it, and NVIDIA's DRA driver publishes what it finds at its start.

A layout's config is an entry `gpp-<fingerprint>` of mig-parted's config file, in a ConfigMap that the operator owns; the label
`nvidia.com/mig.config` assigns it. mig-manager answers by a second label, which is never taken for the truth: what counts is what is published.
It acts when the value of the label changes, so that the same value is taken away first. The DRA driver's pod is restarted after each change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Literal

from gpupartition.api.v1alpha1 import DriverSpec, NvidiaMigSpec, PolicySpec, Reboot
from gpupartition.backends.by_label import PREFIX, ByLabel, Software, fingerprint_of
from gpupartition.backends.mig_parted import cuts_of, document, entry, key_of, meaning, text
from gpupartition.backends.node_label import label_of, step_of
from gpupartition.backends.nvidia_gpus import (
    Cuts,
    Gpus,
    Table,
    cuts_now,
    disturbed,
    expected,
    gpus_on,
    published,
    table_of,
)
from gpupartition.backends.nvidia_limits import (
    DEPLOYED,
    cuts_for,
    device_plugin_problems,
    installation_problems,
    no_inventory,
)
from gpupartition.backends.plugin_pods import plugin_pod, why_not_ready
from gpupartition.domain.backend import Cluster, Config, NodeFacts, Observation
from gpupartition.domain.entries import written
from gpupartition.domain.objects import Object
from gpupartition.domain.others import writer
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Problem, Refused
from gpupartition.domain.products import unmatched

DRIVER_NAME: Final = "gpu.nvidia.com"
CONFIG: Final = "nvidia.com/mig.config"
STATE: Final = "nvidia.com/mig.config.state"
SUCCESS: Final = "success"
FAILED: Final = "failed"
_PAUSED: Final = "paused-for-mig-change"


class NvidiaMig(ByLabel):
    """Backend of the driver type NvidiaMig."""

    label = CONFIG
    state = STATE
    publishes_as = DRIVER_NAME

    def software(self, driver: DriverSpec) -> Software:
        """mig-manager and NVIDIA's DRA driver."""
        return _software(driver)

    def applying(self, driver: DriverSpec) -> Literal["applying_mig", "applying_reboot"]:
        """As long as it takes to stop and start all that looks at the GPUs, or to reboot too."""
        return "applying_reboot" if _spec(driver).reboot is Reboot.ALLOW else "applying_mig"

    def preflight(self, driver: DriverSpec, cluster: Cluster) -> Sequence[Problem]:
        """Whether mig-manager and the DRA driver are there, wired to each other by what we write, and alone."""
        return [
            *installation_problems(_spec(driver), _software(driver), cluster),
            *known_products(driver, cluster).problems,
        ]

    def depends(self, driver: DriverSpec, node: Object, look: Callable[[], NodeFacts]) -> tuple[Any, ...]:  # noqa: ARG002
        """Its GPUs, and whether a device plugin offers them too."""
        gpus, problems = _gpus(look()), tuple(device_plugin_problems(node, Cluster()))
        return gpus, problems, label_of(node, DEPLOYED), "" if gpus else node["metadata"]["name"]

    def compile(self, driver: DriverSpec, policy: PolicySpec, facts: NodeFacts, cluster: Cluster) -> Config:
        """An entry that cuts the node's GPUs as the first layout that matches each says. Raises Refused."""
        table = known_products(driver, cluster)
        gpus, problems = _gpus(facts), list(device_plugin_problems(facts.node, cluster))
        if not gpus and not problems:
            problems.append(no_inventory(facts.node))
        if problems:
            raise Refused(*problems)
        products = {table.product(gpu.product) for gpu in gpus}
        return replace(
            _config(driver, table, gpus, cuts_for(policy.layouts, gpus, table)),
            products=frozenset(map(str, products)),
            unmatched=unmatched(policy.layouts, products),
        )

    def way_back(self, driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> Config:
        """The assignment that the node has, or an entry for what it publishes, where that assignment means something else.

        Raises Refused (NoWayBack) where nothing usable is published.
        """
        table = known_products(driver, cluster)
        seen, gpus = published(facts.pool(facts.name), table), _gpus(facts)
        if not seen.usable or not seen.devices:
            raise Refused(
                Problem(
                    reason="NoWayBack",
                    at=f"node {facts.name}",
                    why=f"it cannot be told how its GPUs are cut: {seen.problem or 'it publishes nothing'}",
                    fix="see why its DRA driver publishes nothing, or annotate the node with gpupartition.dev/accept-no-rollback",
                )
            )
        value, content = label_of(facts.node, CONFIG), self.assigned_entry(driver, facts, cluster)
        if value is not None and content is not None:
            cuts = cuts_of(content, gpus, table)
            # A GPU of which nothing is published, such as one that died, is no reason to number the others anew.
            there = tuple(cut if gpu.name in seen.gpus else None for gpu, cut in zip(gpus, cuts or (), strict=False))
            if cuts is not None and expected(table, gpus, there).equals(seen):
                found = _fingerprint(value, content, gpus, table)
                return _software(driver).config(found, value, content, expected(table, gpus, there))
        return _config(driver, table, gpus, cuts_now(gpus, seen))

    def observe(self, driver: DriverSpec, facts: NodeFacts, cluster: Cluster) -> Observation:
        """Ready when mig-manager has done what the label says and the DRA driver's pod is Ready and alone."""
        has, table = _software(driver), known_products(driver, cluster)
        value, state = label_of(facts.node, CONFIG), label_of(facts.node, STATE)
        seen = published(facts.pool(facts.name), table)
        done = state == SUCCESS or (value is None and state is None)
        complaint = why_not_ready(has.plugin, facts, None, cluster) if done else _complaint(facts.node, state)
        failed = _complaint(facts.node, state) if state == FAILED else ""
        at_work = plugin_pod(has.agent, facts, None)
        return Observation(
            assignment=value,
            step=step_of(facts.node),
            running=self._running(driver, facts, cluster, seen) if done else "",
            ready=not complaint,
            complaint=complaint,
            pool=seen,
            plugin=plugin_pod(has.plugin, facts, None),
            writer=writer(facts.node, CONFIG),
            acknowledged=done,
            restarts=True,
            failed=failed,
            agent=at_work,
            stale=bool(failed) and self._older_than_its_config(driver, value, at_work, cluster),
        )

    def disturbs(self, now: Pool, then: Pool) -> frozenset[str]:
        """The GPUs that are cut otherwise; the whole node where a MIG mode changes."""
        return disturbed(now, then)

    def _running(self, driver: DriverSpec, facts: NodeFacts, cluster: Cluster, seen: Pool) -> str:
        value, gpus = label_of(facts.node, CONFIG), _gpus(facts)
        if value is None:
            return _by_hand(facts, gpus, seen)
        return _fingerprint(value, self.assigned_entry(driver, facts, cluster), gpus, known_products(driver, cluster))

    def _older_than_its_config(
        self, driver: DriverSpec, value: str | None, agent: Object | None, cluster: Cluster
    ) -> bool:
        """Whether mig-manager's pod began before the entry was written: the copy that it has mounted may be from before."""
        began = agent["metadata"].get("creationTimestamp") if agent is not None else None
        file = _software(driver).file
        config_map = cluster.config_map(file.namespace, file.name)
        if not began or value is None or config_map is None:
            return False
        since = written(file.entry(value, file.content(config_map, value)), config_map)
        return since is not None and datetime.fromisoformat(began) < since


def _spec(driver: DriverSpec) -> NvidiaMigSpec:
    if driver.nvidia_mig is None:
        raise AssertionError(f"driver of type {driver.type} has no spec.nvidiaMig: {driver}")
    return driver.nvidia_mig


def _software(driver: DriverSpec) -> Software:
    spec = _spec(driver)
    return Software(
        agent=spec.mig_manager,
        plugin=spec.plugin,
        file=document(spec.mig_manager.namespace, spec.config),
        tables=spec.tables.name if spec.tables is not None else "",
    )


def known_products(driver: DriverSpec, cluster: Cluster) -> Table:
    """What is known of products here, the driver's own tables included."""
    has = _software(driver)
    return table_of(cluster, has.agent.namespace, has.tables)


def _gpus(facts: NodeFacts) -> Gpus:
    return gpus_on(facts.node, facts.pool(facts.name), facts.known)


def _config(driver: DriverSpec, table: Table, gpus: Gpus, cuts: Cuts) -> Config:
    content = entry(gpus, cuts)
    key = key_of(content)
    return _software(driver).config(key.removeprefix(PREFIX), key, content, expected(table, gpus, cuts))


def _fingerprint(value: str, content: Any, gpus: Gpus, table: Table) -> str:
    return fingerprint_of(value, content, text, lambda theirs: meaning(theirs, gpus, table))


def _by_hand(facts: NodeFacts, gpus: Gpus, seen: Pool) -> str:
    """The layout of a node that mig-manager was never told anything of: whoever cut it, what it publishes. "" where that is not known.

    One that carries a step has lost its label, and with it what mig-manager would do when it starts.
    """
    if step_of(facts.node) or not seen.usable or not seen.devices:
        return ""
    return text(entry(gpus, cuts_now(gpus, seen)))


def _complaint(node: Object, state: str | None) -> str:
    """What mig-manager's answer means; its own reasons stand only in its log."""
    paused = sorted(k for k, v in node["metadata"].get("labels", {}).items() if v == _PAUSED)
    left = f", and has paused {', '.join(paused)}" if paused else ""
    if state is None:
        return "mig-manager has not answered yet"
    if state == FAILED:
        return f"mig-manager failed ({STATE}: {FAILED}){left}: its log says why, and the former partitions may be gone"
    return f"mig-manager is at work ({STATE}: {state}){left}"
