"""Small nodes to decide about: three layouts of one GPU, records as each phase leaves them, and worlds in which nothing is the matter."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from gpupartition.api.v1alpha1 import Drain, DrainMode, Grant, NodeStateStatus, Phase
from gpupartition.domain.backend import Config, Observation
from gpupartition.domain.holders import Holder
from gpupartition.domain.pool import Device, Pool
from gpupartition.domain.world import AT_REST, Limits, Quiesce, World

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
LIMITS = Limits()
LONG = timedelta(days=1)
NEVER = timedelta(0)

TOKEN, STEP, FORMER_STEP, FRESH = "token-1", "step-2", "step-1", "step-3"
NODE, UID = "node-a", "uid-a"


def cut(parts: int) -> Pool:
    """One GPU of 80 GiB in so many parts."""
    size = 80 * 1024**3 // parts
    names = ["gpu-0"] if parts == 1 else [f"gpu-0-part-{i}" for i in range(parts)]
    return Pool(
        devices=tuple(Device(name=n, capacity={"memory": size}, costs={"gpu-0": {"memory": size}}) for n in names),
        counters={"gpu-0": {"memory": 80 * 1024**3}},
        generation=1,
    )


def several(gpus: int) -> Pool:
    """So many GPUs in one piece each."""
    size = 80 * 1024**3
    names = [f"gpu-{i}" for i in range(gpus)]
    return Pool(devices=tuple(Device(name=n, capacity={"memory": size}) for n in names), generation=1)


WHOLE = Config(fingerprint="whole", assignment=None, pool=cut(1))
HALVES = Config(fingerprint="halves", assignment="halves", pool=cut(2))
QUARTERS = Config(fingerprint="quarters", assignment="quarters", pool=cut(4))
WHOLE_UPGRADED = Config(fingerprint="whole-v2", assignment="whole-v2", pool=cut(1))
EIGHT = Config(fingerprint="eight", assignment="eight", pool=several(8))
HALVES_RESTARTED = Config(fingerprint="halves-v2", assignment="halves", pool=cut(2))


def seen(
    layout: Config, *, step: str = FORMER_STEP, ready: bool = True, plugin: str = "pod-1", pool: Pool | None = None
) -> Observation:
    """A node that carries this layout's assignment, runs its config and publishes its pool."""
    return Observation(
        assignment=layout.assignment,
        step=step,
        running=layout.fingerprint,
        ready=ready,
        complaint="" if ready else "its driver pod is not ready",
        pool=layout.pool if pool is None else pool,
        plugin={"metadata": {"name": plugin, "namespace": "gpus", "uid": plugin}} if plugin else None,
    )


def record(phase: Phase, *, target: Config = HALVES, previous: Config = WHOLE, **more: Any) -> NodeStateStatus:
    """A record that got to this phase at T0, with all that the phases before have written."""
    fields: dict[str, Any] = {
        "phase": phase,
        "since": T0,
        "target": target.assigned("rev").model_copy(update={"since": T0}),
        "original": WHOLE.assigned(),
    }
    if phase not in AT_REST:
        change = "Restart" if target.pool.equals(previous.pool) else "Repartition"
        fields |= {"token": TOKEN, "previous": previous.assigned(), "change": change, "boot_id": "boot-1"}
    if phase in {Phase.APPLYING, Phase.VERIFYING, Phase.ROLLING_BACK, Phase.FAILED, Phase.RELEASING}:
        fields |= {"step": STEP, "generation": 1}
    if phase is Phase.UP_TO_DATE:
        fields |= {"current": fields["target"]}
    if phase is Phase.RELEASING:
        fields |= {"outcome": Phase.UP_TO_DATE}
    state = NodeStateStatus(**(fields | more))
    assert state.phase in AT_REST or (state.token and state.previous and state.target), f"no such record: {state}"
    closing = {Phase.RELEASING, Phase.ABORTING}
    assert state.outcome is not Phase.ROLLED_BACK or phase in closing, f"no such record: {state}"
    return state


def holder(device: str = "gpu-0", *, claim: str = "team/claim", terminating: bool = False) -> Holder:
    """A claim that has the device."""
    pods = (f"{claim}-pod",)
    return Holder(
        node=NODE, driver="gpu.example.com", pool=NODE, device=device, claim=claim, pods=pods, terminating=terminating
    )


def granted(token: str = TOKEN) -> Grant:
    """The ledger's entry for the node."""
    return Grant(node=NODE, uid=UID, policy="halves", token=token, since=T0)


def quiesce(*, active: bool = True, proven: bool = True, watched: timedelta = LONG) -> Quiesce:
    """The node's rule; when nothing is said, it has been doing its work for long."""
    return Quiesce(active=active, proven=proven, watched=watched)


def world(
    *,
    after: timedelta = timedelta(seconds=1),
    wanted: Config | None = HALVES,
    refused: bool = False,
    there: bool = True,
    observed: Observation | None = None,
    rule: Quiesce | None = None,
    holders: Sequence[Holder] = (),
    idle: timedelta = NEVER,
    matched: timedelta = NEVER,
    differs: timedelta = NEVER,
    plugin_seen: timedelta = LONG,
    grant: Grant | None = None,
    grant_stands: bool = True,
    way_back: Config | None = WHOLE,
    configs: bool = True,
    retry: str = "",
    drain: DrainMode | Drain = DrainMode.WHEN_IDLE,
    limits: Limits = LIMITS,
) -> World:
    """One turn, `after` the record's last change. Unless told otherwise the node is there, whole, and wanted in halves."""
    assert not (refused and wanted), "what was refused is not wanted"
    assert not (idle and holders), "a node with holders is not idle"
    if not there:
        observed = Observation(assignment=None, step="", running="", ready=False, pool=Pool())
    return World(
        now=T0 + after,
        fresh=FRESH,
        node_is_there=there,
        node_ready=there,
        boot_id="boot-1",
        wanted=wanted if there else None,
        refused=refused,
        revision="rev",
        grant=grant,
        grant_stands=grant is not None and grant_stands,
        way_back=way_back if there else None,
        no_way_back="" if way_back else "nothing says what its driver runs",
        config_touched=T0 + after if configs else None,
        observed=observed or seen(WHOLE),
        quiesce=rule,
        holders=holders,
        idle=idle,
        matched=matched,
        plugin_seen=plugin_seen,
        differs=differs,
        retry=retry,
        drain=drain if isinstance(drain, Drain) else Drain(mode=drain),
        limits=limits,
    )
