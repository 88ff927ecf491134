"""Who may be touched now. One function decides for every path: roll-out, drift, retry, revert."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from gpupartition.api.v1alpha1 import Grant, NodeCount, Phase, Purpose
from gpupartition.domain.wording import SEVERAL, few
from gpupartition.domain.world import AT_REST

LEDGER_SIZE: Final = 1024  # entries of status.inFlight; more nodes than that at once is nobody's wish


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where one node of a policy stands, as far as admission and status care.

    `at_target`: verified with what is wanted now; `unseen`: its record's target is not, because nobody has looked at it since; `startable`: it
    could begin (its layout compiles and there is a way back); `halted`: it failed with the present target and nobody asked to try again;
    `blocked`: holders are in the way and the policy does not wait for them; `leaving`: the policy gives the node up, and at most brings it
    back to what it had, so that its limit is not about it; `initial`: it is new and in nobody's use, and gets its first layout; `lost`: when a
    verified node counts as lost, because it was restarted or is not Ready; `recovering`: it is only verified again; `at_work`: what others do
    to it.
    """

    node: str
    uid: str
    zone: str = ""
    phase: Phase = Phase.PENDING
    at_target: bool = False
    unseen: bool = False
    startable: bool = True
    halted: bool = False
    blocked: bool = False
    leaving: bool = False
    holders: int = 0
    ready: bool = True
    ignored: bool = False  # NotReady for so long that nobody counts on it
    initial: bool = False
    lost: datetime | None = None
    recovering: bool = False
    at_work: str = ""
    attempts: int = 0
    released: datetime | None = None  # when a change brought it to what is wanted; None where it had that already

    @property
    def in_flight(self) -> bool:
        """Whether we may be making it unavailable."""
        return self.phase not in AT_REST

    @property
    def waits(self) -> bool:
        """Whether it is still to be taken, as far as it is not unavailable already."""
        return not self.at_target and self.startable and not self.halted

    @property
    def free(self) -> bool:
        """Whether it could be taken at once."""
        return self.waits and not self.blocked and self.ready and not self.at_work

    @property
    def away(self) -> bool:
        """Whether others have made it unavailable, or nobody."""
        return (not self.ready and not self.ignored) or bool(self.at_work)

    @property
    def forgotten(self) -> bool:
        """Whether it is only waited for, and has been for so long that nobody counts on it."""
        return self.ignored and self.recovering


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the policy and its driver allow, already resolved for the number of nodes."""

    max_unavailable: int
    driver_max_unavailable: int
    limit: int
    max_initializing: int = 1
    max_failed: int = 0
    drift: str = ""  # why nobody is taken: too many nodes have drifted together; "" when not
    go_on: bool = False  # onFailure: Continue
    paused: str = ""  # by what; "" when not paused
    frozen: str = ""  # the reason; "" when not frozen
    resumes: datetime | None = None  # when one of the two is over by itself
    stopped: str = ""  # what is wrong with the installation; "" when nothing
    outside: str = ""  # when the next window opens, for people; "" while one is open
    looks: timedelta = timedelta(0)  # how much longer it is waited for nodes that nobody has looked at yet
    turn: datetime | None = None  # when the windows open or close next
    pause: timedelta = timedelta(0)  # between the release of one node and the admission of the next
    now: datetime = datetime.min.replace(tzinfo=UTC)  # noqa: RUF009  (a constant; with no pause nobody asks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The nodes to admit, in order, and what keeps the next one out ("" while nothing does).

    `initial` are those of them that get their first layout; `lost` are verified nodes to be verified again, whatever keeps others out.
    `left`: how many are still to be taken after these; `until`: when that may change though nothing happens.
    """

    nodes: tuple[str, ...] = ()
    initial: frozenset[str] = frozenset()
    lost: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    left: int = 0
    until: datetime | None = None

    def until_written(self, why: str) -> Admission:
        """The same without the nodes, because config that must be there before any of them is taken cannot be written yet."""
        left = self.left + len(self.nodes)
        return replace(self, nodes=(), initial=frozenset(), reason="ConfigWaits", message=why, left=left)

    @property
    def grants(self) -> Mapping[str, Purpose]:
        """Who gets a grant, and what for."""
        chosen = {n: Purpose.INITIAL if n in self.initial else Purpose.ROLL_OUT for n in self.nodes}
        return dict.fromkeys(self.lost, Purpose.RECOVERY) | chosen


def resolve(count: NodeCount, of: int) -> int:
    """`3` -> 3; `"25%"` of 10 -> 2: rounded down, but never below one, or a percentage of a small pool would stop it for ever."""
    if isinstance(count, int):
        return count
    return max(1, of * int(count.removesuffix("%")) // 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """The nodes that count against the limits before anybody is chosen.

    `beginning`: on their way, or about to be; `beginners`: those of them that are new; `away`: the others that are not there to be used, and
    why; `stuck`: they failed and stay closed; `down`: unavailable, of this policy; `everybody`: of all policies of the driver.
    """

    beginning: set[str]
    beginners: set[str]
    away: Mapping[str, str]
    stuck: set[str]
    down: set[str]
    everybody: set[str]


def paused_until(nodes: Iterable[Standing], pause: timedelta) -> datetime | None:
    """When the pause after the last release is over; None where there is none. Nodes that were only adopted start none."""
    released = [n.released for n in nodes if n.released is not None]
    return max(released) + pause if released and pause else None


def admit(
    *,
    nodes: Sequence[Standing],
    others: Iterable[str],
    ledger: Sequence[Grant],
    rules: Rules,
    vanished: Collection[str] = (),
) -> Admission:
    """Choose the nodes to begin with now, and those to verify again.

    `nodes` are those of the policy; `others` names the nodes of the driver's other policies that are unavailable. A node counts as
    unavailable while it has a grant, is not at rest, or is NotReady for whatever reason: what others took away is gone too. New nodes do not
    count: nobody has had them yet. `vanished` are nodes whose grant outlived their record: nobody knows what they are like.
    """
    nodes = as_granted(nodes, ledger)
    lost, next_lost = _lost(nodes, ledger, rules)
    shut = _shut(nodes, rules) or _unseen(nodes, rules)
    if shut is not None:
        return replace(shut, lost=lost, until=_first(shut.until, next_lost))
    taken = _taken(nodes, others, ledger, rules, vanished)
    slots = _slots(nodes, taken, ledger, rules)
    waiting = [n for n in nodes if n.waits and n.node not in taken.beginning and (n.ready or n.ignored)]
    free = sorted((n for n in waiting if n.free), key=order)
    over = paused_until(nodes, rules.pause)
    resumes = over if over is not None and over > rules.now else None
    chosen = () if rules.outside else _choose(free, slots, rules.max_initializing - len(taken.beginners), resumes)
    left, spare = len(waiting) - len(chosen), len(free) - len(chosen)
    reason, message = _gate(taken, slots, waiting, chosen, spare=spare)
    if left and reason != "LimitReached" and rules.outside:
        reason, message = "OutsideWindow", f"{_waiting(left)} for the next window: {rules.outside}"
    elif spare and reason == "RollingOut" and resumes is not None:
        message = f"no node is taken before {resumes:%H:%M:%S} UTC: spec.rollout.pauseBetweenSeconds"
    return Admission(
        nodes=chosen,
        initial=frozenset(chosen).intersection(n.node for n in nodes if n.initial),
        lost=lost,
        reason=reason,
        message=message,
        left=left,
        until=_first(next_lost, rules.turn, resumes) if left else next_lost,
    )


def _taken(
    nodes: Sequence[Standing],
    others: Iterable[str],
    ledger: Sequence[Grant],
    rules: Rules,
    vanished: Collection[str],
) -> _Taken:
    granted = {grant.node for grant in ledger}
    beginning = {n.node for n in nodes if n.in_flight or n.node in granted}
    away = {n.node: n.at_work or "not Ready" for n in nodes if n.away}
    stuck = {n.node for n in nodes if n.halted and n.in_flight}
    excused = {n.node for n in nodes if n.initial or n.forgotten}
    if rules.go_on:
        excused |= stuck  # they count against max_failed instead
    down = beginning.union(away, vanished) - excused
    elsewhere = {grant.node for grant in ledger if grant.purpose is not Purpose.INITIAL} | set(others)
    return _Taken(
        beginning=beginning,
        beginners={n.node for n in nodes if n.initial} & beginning,
        away={node: why for node, why in away.items() if node not in beginning},
        stuck=stuck,
        down=down,
        everybody=(down | elsewhere) - excused,
    )


def _slots(nodes: Sequence[Standing], taken: _Taken, ledger: Sequence[Grant], rules: Rules) -> dict[str, int]:
    """How many more each limit lets through, by what is said when it lets through none."""
    # Whoever has a grant goes to what is wanted now, whatever its record says yet.
    reached = sum((n.at_target or n.node in taken.beginning) and not n.leaving for n in nodes)
    return {
        "LimitReached": rules.limit - reached,
        "RollingOut": rules.max_unavailable - len(taken.down),
        "BudgetExhausted": rules.driver_max_unavailable - len(taken.everybody),
        "LedgerFull": LEDGER_SIZE - len(ledger),
    }


def _choose(
    free: Sequence[Standing], slots: Mapping[str, int], beginners: int, resumes: datetime | None
) -> tuple[str, ...]:
    """Those of the free, in order, that the limits let through. `beginners`: so many new ones, which nobody uses yet and no pause holds up."""
    staying = {n.node for n in [n for n in free if not n.leaving][: max(0, slots["LimitReached"])]}
    takeable = [n for n in free if n.leaving or n.node in staying]
    room = max(0, min(number for name, number in slots.items() if name != "LimitReached"))
    settled = [] if resumes else [n.node for n in takeable if not n.initial][:room]
    new = [n.node for n in takeable if n.initial][: max(0, beginners)]
    picked = {*settled, *new[: max(0, slots["LedgerFull"] - len(settled))]}
    return tuple(n.node for n in takeable if n.node in picked)


def _first(*times: datetime | None) -> datetime | None:
    return min((at for at in times if at is not None), default=None)


def as_granted(nodes: Sequence[Standing], ledger: Iterable[Grant]) -> Sequence[Standing]:
    """The nodes, each of them what its grant was given for until it is given back.

    A new node that is released has its first layout already, and takes up maxInitializing still. One that somebody used when it was taken is no
    beginner, though nobody uses it any more.
    """
    initial = {grant.node: grant.purpose is Purpose.INITIAL for grant in ledger}
    return [replace(n, initial=initial[n.node]) if n.node in initial else n for n in nodes] if initial else nodes


def _lost(nodes: Iterable[Standing], ledger: Sequence[Grant], rules: Rules) -> tuple[tuple[str, ...], datetime | None]:
    """Verified nodes to be verified again now, and when the next one counts as lost. No limit holds them up: they are unavailable anyway."""
    if rules.frozen or rules.stopped:
        return (), None
    granted = {grant.node for grant in ledger}
    times = {n.node: n.lost for n in nodes if n.lost is not None and not n.in_flight and n.node not in granted}
    due = sorted(n for n, at in times.items() if at <= rules.now)
    later = _first(*(at for at in times.values() if at > rules.now))
    return tuple(due[: max(0, LEDGER_SIZE - len(ledger))]), later


def _waiting(count: int) -> str:
    return "1 node waits" if count == 1 else f"{count} nodes wait"


def order(node: Standing) -> tuple[int, bool, str, str]:
    """Those that were given up last come last; then nodes without holders; then zone by zone, by name."""
    return node.attempts, node.holders > 0, node.zone, node.node


def _shut(nodes: Sequence[Standing], rules: Rules) -> Admission | None:
    if rules.stopped:
        return Admission(reason="Stopped", message=rules.stopped)
    if rules.frozen:
        return Admission(reason="Frozen", message=rules.frozen, until=rules.resumes)
    if rules.paused:
        return Admission(reason="Paused", message=rules.paused, until=rules.resumes)
    if rules.drift:
        return Admission(reason="MassDrift", message=rules.drift)
    halted = sorted(n.node for n in nodes if n.halted)
    if len(halted) > rules.max_failed:
        return Admission(reason="RolloutHalted", message=f"no other node is touched since {halted[0]} failed")
    return None


def _unseen(nodes: Sequence[Standing], rules: Rules) -> Admission | None:
    """Who goes first is decided when all are known, for a while: else it would be whoever was looked at first, with or without holders."""
    unseen = sum(n.unseen for n in nodes)
    if not unseen or not rules.looks:
        return None
    left = unseen + sum(n.waits and not n.in_flight for n in nodes)
    return Admission(
        reason="RollingOut", message=f"{_waiting(unseen)} to be looked at", left=left, until=rules.now + rules.looks
    )


def _gate(
    taken: _Taken, slots: Mapping[str, int], waiting: Sequence[Standing], chosen: Sequence[str], *, spare: int
) -> tuple[str, str]:
    """Why none of the others that wait is chosen, reason and message; `spare`: how many of them are free."""
    stuck, left = few(sorted(taken.stuck), SEVERAL), len(waiting) - len(chosen)
    moving = taken.down.union(chosen, taken.beginners) - taken.stuck
    if not left and not moving and stuck:
        return "RolloutHalted", f"all nodes are done but {stuck}"
    if not left:
        return "RollingOut" if moving else "", ""
    if slots["LimitReached"] <= 0:
        return "LimitReached", f"spec.rollout.limit is reached; {_waiting(left)} for it to be raised"
    if slots["RollingOut"] <= 0 and not moving and stuck:
        return "RolloutHalted", f"spec.rollout.maxUnavailable is used up by {stuck}, which failed"
    foreign = {n.node: n.at_work for n in waiting if n.at_work}
    if not spare and moving <= set(taken.away) and (foreign or not moving):
        return _nobody_free(left, blocked=0 if moving else sum(n.blocked for n in waiting), foreign=foreign)
    used_up = _used_up(slots, moving=moving, away=taken.away, elsewhere=taken.everybody - moving - taken.stuck)
    if used_up:
        return "BudgetExhausted", used_up
    if slots["LedgerFull"] <= 0:
        return "LedgerFull", f"{LEDGER_SIZE} nodes are in flight already"
    return "RollingOut", ""


def _nobody_free(left: int, *, blocked: int, foreign: Mapping[str, str]) -> tuple[str, str]:
    if blocked:
        return "WaitingForHolders", f"{_waiting(blocked)} until all devices are free"
    if foreign:
        return "ForeignMaintenance", f"waits until others are done: {_named(foreign)}"
    return "RollingOut", f"{_waiting(left)} to become Ready"


def _named(nodes: Mapping[str, str]) -> str:
    return few([f"node {node}: {why}" for node, why in sorted(nodes.items())], SEVERAL, between="; ")


def _used_up(slots: Mapping[str, int], *, moving: set[str], away: Mapping[str, str], elsewhere: set[str]) -> str:
    """Whose budget is used up by nodes that this policy does not change; "" when none is."""
    if slots["RollingOut"] <= 0 and moving and moving <= set(away):
        if all(away[node] == "not Ready" for node in moving):
            return (
                f"spec.rollout.maxUnavailable is used up by {few(sorted(moving), SEVERAL)}, not Ready for other reasons"
            )
        return f"spec.rollout.maxUnavailable is used up by others: {_named({n: away[n] for n in moving})}"
    if slots["BudgetExhausted"] <= 0 and slots["RollingOut"] > 0 and elsewhere:
        return f"the driver's maxUnavailable is used up by {few(sorted(elsewhere), SEVERAL)}"
    return ""
