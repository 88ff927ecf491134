"""A plan asks admission about few nodes at a time. It comes to the same as asking about all of them each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.worlds import HALVES, UID, WHOLE, granted, holder, record, seen, world

from gpupartition.api.v1alpha1 import Phase
from gpupartition.domain.admission import Rules, Standing, admit
from gpupartition.domain.plan import Candidate, Lane, Plan, look, plan, travel
from gpupartition.domain.world import State

GRANT = granted("another")
NODES = st.lists(
    st.fixed_dictionaries(
        {
            "has": st.sampled_from([WHOLE, HALVES]),
            "held": st.booleans(),
            "ready": st.sampled_from([True, True, True, False]),
            "ignored": st.booleans(),
            "initial": st.booleans(),
            "at_work": st.sampled_from(["", "", "", "it is cordoned"]),
            "zone": st.sampled_from(["a", "b"]),
            "phase": st.sampled_from(
                [Phase.PENDING, Phase.PENDING, Phase.UP_TO_DATE, Phase.ROLLED_BACK, Phase.DRAINING]
            ),
        }
    ),
    min_size=1,
    max_size=12,
)
RULES = st.builds(
    Rules,
    max_unavailable=st.integers(1, 5),
    driver_max_unavailable=st.integers(1, 5),
    max_initializing=st.integers(1, 3),
    limit=st.integers(0, 12),
    max_failed=st.integers(0, 2),
)


def candidate(
    number: int,
    *,
    has: object,
    held: bool,
    ready: bool,
    ignored: bool,
    initial: bool,
    at_work: str,
    zone: str,
    phase: Phase,
) -> Candidate:
    """A node that is to have halves."""
    name = f"node-{number:02}"
    layout = HALVES if has is HALVES else WHOLE
    state = record(phase) if layout is WHOLE and phase is not Phase.UP_TO_DATE else State()
    holders = [holder()] if held and layout is WHOLE else []

    def stand(now: State) -> Standing:
        on_target = now.target is not None and now.target.fingerprint == HALVES.fingerprint
        return Standing(
            node=name,
            uid=UID,
            zone=zone,
            phase=now.phase,
            at_target=now.phase is Phase.UP_TO_DATE and on_target,
            startable=now.phase is not Phase.SKIPPED and on_target,
            halted=now.phase in {Phase.ROLLED_BACK, Phase.FAILED} and on_target,
            blocked=bool(now.blockers) and now.phase is Phase.PENDING,
            holders=len(now.blockers),
            ready=ready,
            ignored=ignored and not ready,
            initial=initial and now.current is None and not now.blockers,
            at_work=at_work,
        )

    return Candidate(
        name=name,
        uid=UID,
        state=state,
        world=replace(world(observed=seen(layout), holders=holders, way_back=WHOLE), at_work=at_work),
        stand=stand,
    )


def naive(candidates: Sequence[Candidate], rules: Rules) -> list[tuple[str, ...]]:
    """Ask about everybody, let the chosen ones arrive, ask again."""
    looked = {c.name: look(c) for c in candidates}
    in_the_end = {c.name: c.stand(travel(looked[c.name], c.world, GRANT)) for c in candidates}
    standings = {c.name: c.stand(looked[c.name]) for c in candidates}
    waves: list[tuple[str, ...]] = []
    while True:
        chosen = admit(nodes=list(standings.values()), others=(), ledger=(), rules=rules).nodes
        moving = [n for n, s in standings.items() if s.in_flight]
        if not chosen and not moving:
            return waves
        if chosen:
            waves.append(chosen)
        standings |= {n: in_the_end[n] for n in (*chosen, *moving)}


def _planned(candidates: Sequence[Candidate], rules: Rules) -> Plan:
    (found,) = plan([Lane(policy="p", driver="d", rules=rules, candidates=candidates)], {})
    return found


@settings(deadline=None)  # the CPU may be shared
@given(nodes=NODES, rules=RULES)
def test_asking_about_few_nodes_at_a_time_chooses_the_same_as_asking_about_all(
    nodes: list[dict[str, object]], rules: Rules
) -> None:
    candidates = [candidate(number, **each) for number, each in enumerate(nodes)]  # type: ignore[arg-type]
    assert list(_planned(candidates, rules).waves) == naive(candidates, rules)


@settings(deadline=None)  # the CPU may be shared
@given(nodes=NODES, rules=RULES)
def test_no_wave_has_more_nodes_than_may_begin_at_once_and_nobody_begins_twice(
    nodes: list[dict[str, object]], rules: Rules
) -> None:
    candidates = [candidate(number, **each) for number, each in enumerate(nodes)]  # type: ignore[arg-type]
    waves = _planned(candidates, rules).waves
    most = min(rules.max_unavailable, rules.driver_max_unavailable) + rules.max_initializing
    assert all(len(wave) <= most for wave in waves)
    begun = [node for wave in waves for node in wave]
    assert len(begun) == len(set(begun))
