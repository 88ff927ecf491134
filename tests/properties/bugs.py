"""Rules of the real code, each taken away: how a record is read, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.unit.worlds import WHOLE

from gpupartition.api.v1alpha1 import NodeStateStatus, Phase, Restart
from gpupartition.domain.destination import in_vain
from gpupartition.domain.world import AT_REST, World

CACHED: Final = {
    "holders are read from a cache": {Phase.DRAINING, Phase.APPLYING},
    "draining ends on a cache": {Phase.DRAINING},  # no bug as long as Applying looks again
    "applying is left without using up the step": {Phase.DRAINING},
}


def as_it_is(state: NodeStateStatus, _: World) -> NodeStateStatus:
    """What is on record."""
    return state


def _who_runs_the_former(state: NodeStateStatus, turn: World) -> NodeStateStatus:
    """Whoever runs a former config goes, and a node that goes back has nobody of that kind."""
    runs = turn.observed.plugin is not None and turn.observed.running == WHOLE.fingerprint
    goes = turn.observed.plugin if runs and state.phase is Phase.APPLYING else None
    uid = goes["metadata"]["uid"] if goes else "nobody"
    return state.model_copy(update={"restart": Restart(pod_uid=uid, step=state.step)})


def _whatever_step(state: NodeStateStatus, _: World) -> NodeStateStatus:
    to_go = state.restart
    return state.model_copy(update={"restart": Restart(pod_uid=to_go.pod_uid, step=state.step)}) if to_go else state


def _only_this_step(state: NodeStateStatus, _: World) -> NodeStateStatus:
    old = state.restart is not None and state.restart.step != state.step
    return state.model_copy(update={"restart": None}) if old else state


# How a record is read, where it says less than it should.
RECORDED: Final[dict[str, Callable[[NodeStateStatus, World], NodeStateStatus]]] = {
    "which pod is to go is not on record": _who_runs_the_former,
    "a pod that was to go is forgotten with its step": _only_this_step,
    "a restart of an earlier step counts": _whatever_step,
}

Planted = Callable[[NodeStateStatus, World, NodeStateStatus | None], NodeStateStatus | None]


def _jump(when: Phase, to: Phase, guard: Callable[[NodeStateStatus, World], bool]) -> Planted:
    def planted(state: NodeStateStatus, turn: World, after: NodeStateStatus | None) -> NodeStateStatus | None:
        jumps = state.phase is when and guard(state, turn)
        return state.model_copy(update={"phase": to, "outcome": None}) if jumps else after

    return planted


def _forget_dirty(_: NodeStateStatus, __: World, after: NodeStateStatus | None) -> NodeStateStatus | None:
    return after.model_copy(update={"dirty": False}) if after is not None else None


def _believe_label(state: NodeStateStatus, turn: World, after: NodeStateStatus | None) -> NodeStateStatus | None:
    """Rolling back counts as done when label and pool look right, whoever wrote them."""
    right = state.previous is not None and turn.observed.assignment == state.previous.assignment and turn.observed.ready
    if state.phase is Phase.ROLLING_BACK and right:
        return state.model_copy(
            update={"phase": Phase.RELEASING, "outcome": Phase.ROLLED_BACK, "current": state.previous}
        )
    return after


def _mended_by_anybody(state: NodeStateStatus, turn: World, after: NodeStateStatus | None) -> NodeStateStatus | None:
    """A failed node is opened when it looks like what it was, although its last step may still be written."""
    seen, previous = turn.observed, state.previous
    looks = previous is not None and (seen.assignment, seen.running) == (previous.assignment, previous.fingerprint)
    if state.phase is Phase.FAILED and in_vain(state) and looks:
        return state.model_copy(update={"phase": Phase.RELEASING, "outcome": Phase.ROLLED_BACK, "current": previous})
    return after


def _same_step(state: NodeStateStatus, _: World, after: NodeStateStatus | None) -> NodeStateStatus | None:
    """A step is begun once per grant: Applying, rolling back and applying again share it."""
    begun = after is not None and after.step != state.step and bool(state.step) and state.phase is not Phase.PENDING
    return after.model_copy(update={"step": state.step}) if begun and after is not None else after


def _open_in_passing(state: NodeStateStatus, _: World, after: NodeStateStatus | None) -> NodeStateStatus | None:
    """A node is uncordoned where it is cordoned, and not written where it is not."""
    opens = after is not None and after.phase in {Phase.RELEASING, Phase.ABORTING}
    return after.model_copy(update={"step": state.step}) if opens and after is not None else after


def _release(state: NodeStateStatus, turn: World, after: NodeStateStatus | None) -> NodeStateStatus | None:
    """What was verified is released, whether or not it is still wanted."""
    if state.phase is Phase.VERIFYING and turn.matched:
        update = {"phase": Phase.RELEASING, "outcome": Phase.UP_TO_DATE, "current": state.target}
        return state.model_copy(update=update)
    return after


def _early_token(_: NodeStateStatus, __: World, after: NodeStateStatus | None) -> NodeStateStatus | None:
    """The token leaves the record when it comes to rest, before the ledger's entry does."""
    resting = after is not None and after.phase in AT_REST and after.phase is not Phase.PENDING
    return after.model_copy(update={"token": ""}) if resting and after is not None else after


def _no_way_back(_: NodeStateStatus, __: World, after: NodeStateStatus | None) -> NodeStateStatus | None:
    """What is on record as the way back is where the node goes."""
    begins = after is not None and after.phase is Phase.ADMITTED
    return after.model_copy(update={"previous": after.target}) if begins and after is not None else after


PLANTED: Final[dict[str, Planted]] = {
    "the way back is not on record": _no_way_back,
    "a late verification is given up": _jump(
        Phase.VERIFYING,
        Phase.DRAINING,
        lambda s, w: w.wanted is not None and w.wanted.fingerprint != (s.target and s.target.fingerprint),
    ),
    "applying is left without using up the step": _jump(Phase.APPLYING, Phase.DRAINING, lambda _, w: bool(w.holders)),
    "a failed node is let go": _jump(Phase.FAILED, Phase.ABORTING, lambda _, w: w.wanted is None),
    "dirty is forgotten": _forget_dirty,
    "rolling back believes the label": _believe_label,
    "a failed node is opened whatever its step": _mended_by_anybody,
    "a step is used twice": _same_step,
    "opening is no step": _open_in_passing,
    "the token leaves before the entry": _early_token,
    "a superseded target is released": _release,
}
