"""For how long what is seen of a node has been so, as far as this very operator has seen it itself."""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime, timedelta

from gpupartition.api.v1alpha1 import NodeStateStatus, Phase
from gpupartition.controller.readiness import is_ready
from gpupartition.controller.records import Record
from gpupartition.controller.stopwatch import Stopwatch
from gpupartition.domain.backend import Observation
from gpupartition.domain.destination import is_expected
from gpupartition.domain.holders import Holder
from gpupartition.domain.pool import Pool
from gpupartition.domain.retiring import retired
from gpupartition.kube import Object


class Durations:
    """Measured on one stopwatch; what was only read from the copies (not `live`) has lasted for no time."""

    def __init__(self, watches: Stopwatch) -> None:
        self._watches = watches

    def dated(self, record: Record, now: datetime) -> NodeStateStatus:
        """Its state, with no time in it that is later than when this operator first read it: the clock of who wrote it was ahead."""
        state, target = record.state, record.state.target
        since = self._came(record.name, "since", state.since, now)
        named = self._came(record.name, "named", target.since if target is not None else None, now)
        if target is not None and named != target.since:
            target = target.model_copy(update={"since": named})
        same = since == state.since and target is state.target
        return state if same else state.model_copy(update={"since": since, "target": target})

    def written(self, node: str, at: datetime | None, now: datetime) -> datetime | None:
        """When the config of a node was written: when this operator first saw that, at the latest."""
        return self._came(node, "written", at, now)

    def _came(self, node: str, what: str, at: datetime | None, now: datetime) -> datetime | None:
        seen = self._watches.read((node, what), at)
        return at and min(at, now - seen)

    def closed(self, node: str, by: Hashable | None, *, live: bool) -> timedelta:
        """Since when new claims are kept off the node, `by` what."""
        return self._watches.read((node, "quiesce"), by) if live else timedelta(0)

    def idle(self, record: Record, held: tuple[Holder, ...], *, live: bool) -> timedelta:
        """Since the first of the empty live lists of holders."""
        if not live:
            return timedelta(0)
        draining = record.state.phase is Phase.DRAINING and not held
        return self._watches.read((record.name, "idle"), record.state.since if draining else None)

    def matched(self, record: Record, observed: Observation, *, live: bool) -> timedelta:
        """Since when the node publishes what its phase waits for."""
        if not live:
            return timedelta(0)
        waits = (
            (record.state.phase in {Phase.VERIFYING, Phase.ROLLING_BACK, Phase.FAILED} or record.state.recovering)
            and observed.ready
            and is_expected(record.state, observed)
        )
        return self._watches.read((record.name, "matched"), record.state.since if waits else None)

    def told(self, record: Record) -> timedelta:
        """Since when the record says what it says."""
        return self._watches.read((record.name, "told"), (record.state.phase, record.state.message))

    def retired(self, record: Record, observed: Observation) -> timedelta:
        """Since when nobody is given the retired devices any more: as long as the copies have shown them, the server has."""
        state = record.state
        closed = observed.ready and observed.retired.equals(retired(state))
        return self._watches.read((record.name, "retired"), state.retiring if closed else None)

    def plugin(self, record: Record, observed: Observation) -> timedelta:
        """Since when the pod of the driver's plugin has been there; the copies do not know of it before it is."""
        pod = observed.plugin
        return self._watches.read((record.name, "plugin"), str(pod["metadata"]["uid"]) if pod is not None else None)

    def differs(self, record: Record, observed: Observation, node: Object | None) -> timedelta:
        """Since when a ready node at rest publishes something else than what was verified."""
        state = record.state
        drifted = (
            state.phase is Phase.UP_TO_DATE
            and state.target is not None
            and is_ready(node)
            and not observed.pool.same_shape(Pool.from_json(state.target.pool))
        )
        return self._watches.read((record.name, "differs"), state.since if drifted else None)
