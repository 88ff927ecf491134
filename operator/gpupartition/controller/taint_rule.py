"""The DeviceTaintRule of a node, as the server has it now: what closes the node's devices to new claims."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from gpupartition import names
from gpupartition.controller.probe import NO_STANDS, TAINT_RULES
from gpupartition.controller.records import Record
from gpupartition.controller.stopwatch import Stopwatch
from gpupartition.domain.quiesce import TAINTS
from gpupartition.domain.world import AT_REST
from gpupartition.kube import Client, Kind, NotServed, Object


class TaintRule:
    """Reads it. `on_refused` is called when a server does not know the kind that it was said to serve."""

    def __init__(self, client: Client, watches: Stopwatch, on_refused: Callable[[], None]) -> None:
        self._client = client
        self._watches = watches
        self._on_refused = on_refused

    async def of(self, record: Record, served: Kind | None) -> Object | None:
        """The rule of a record's node; None when there is none, or none that anybody obeys. `served`: the kind that the server is said to have.

        Raises NotServed until all answers of a minute have been that: while a control plane is upgraded, the next may come from a
        server that has the kind, and a node must not be called open while its devices are closed.
        """
        state, refused = record.state, (record.name, "rule refused")
        if served is None and (state.phase in AT_REST or state.quiesce not in TAINTS):
            return None
        for kind in TAINT_RULES if served is None else (served,):
            try:
                rule = await self._client.find(kind, names.taint_rule(record.name, record.spec.node_uid))
            except NotServed as error:
                refusal = error
            else:
                self._watches.read(refused, None)
                return rule
        if served is not None:
            self._on_refused()
        if self._watches.read(refused, state.token) < timedelta(seconds=NO_STANDS):
            raise refusal
        return None
