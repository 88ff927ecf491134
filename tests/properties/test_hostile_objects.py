"""Whatever an API server lets through is looked at, or refused in words; none of it ends the operator, or gets into what it writes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.properties import hostile, hostile_statuses
from tests.properties.harm import NOW, unchanged_but_for_ours, unharmed
from tests.properties.hostile import fuzz
from tests.unit import published

from gpupartition.api.v1alpha1 import DriverSpec, PolicySpec, PolicyStatus
from gpupartition.backends import BACKENDS
from gpupartition.backends.plugin_pods import running_template
from gpupartition.cli.offline import refused
from gpupartition.controller import metrics, packed, trimmed
from gpupartition.controller.declared import Policy
from gpupartition.controller.intent import known
from gpupartition.controller.reading import NOBODY
from gpupartition.controller.records import Record
from gpupartition.domain import gpumap
from gpupartition.domain.admission import Rules, Standing, admit
from gpupartition.domain.backend import Cluster, Config, NodeFacts
from gpupartition.domain.conditions import summarise
from gpupartition.domain.destination import is_expected
from gpupartition.domain.effects import PatchNode
from gpupartition.domain.entries import last_used
from gpupartition.domain.holders import holders
from gpupartition.domain.offered import offered_by
from gpupartition.domain.pool import Pool
from gpupartition.domain.problem import Refused
from gpupartition.domain.reports import reports
from gpupartition.domain.rest import released_at
from gpupartition.domain.rollout import UNREADABLE, Rollout
from gpupartition.domain.world import Limits
from gpupartition.kube import Object
from gpupartition.kube.reflector import key_of

refused(
    hostile.SOMETHING
)  # the library for CEL raises the limit of recursion when it is first used, which a test here may not

NAMESPACE: Final = "gpus"
ALL: Final = {"all": True}
DRIVERS: Final[Mapping[str, Object]] = {
    "ExampleDriver": {"exampleDriver": {"daemonSet": {"namespace": NAMESPACE, "name": "base"}, "gpusPerNode": 8}},
    "NvidiaMig": {
        "nvidiaMig": {
            "migManager": {"namespace": NAMESPACE, "name": "mig-manager"},
            "config": "gpp",
            "plugin": {"namespace": NAMESPACE, "name": "plugin"},
            "tables": {"name": "tables"},
        }
    },
    "AmdDcm": {
        "amdDcm": {
            "configManager": {"namespace": NAMESPACE, "name": "dcm"},
            "config": "gpp",
            "plugin": {"namespace": NAMESPACE, "name": "plugin"},
            "tables": {"name": "tables"},
        }
    },
    "Publish": {
        "publish": {
            "driverName": "gpu.example.org",
            "inventory": {
                "nodeLabels": {"count": "nvidia.com/gpu.count", "product": "nvidia.com/gpu.product", "memory": "nvidia.com/gpu.memory"}
            },
        }
    },
}  # fmt: skip
LAYOUTS: Final[Mapping[str, list[Object]]] = {
    "ExampleDriver": [published.layout(), published.equal(2)],
    "NvidiaMig": [
        published.layout(),
        published.layout("Keep"),
        published.layout("Profiles", profiles=[{"name": "1g.10gb", "count": 2}]),
        published.layout("Profiles", profiles=[{"name": "all-balanced"}]),
    ],
    "AmdDcm": [published.layout(), published.layout("Keep"), published.layout("Mode", mode={"compute": "CPX", "memory": "NPS1"})],
    "Publish": [published.layout(), published.equal(2), published.equal(63)],
}  # fmt: skip


@st.composite
def clusters(draw: st.DrawFn, kind: str) -> Cluster:
    """What stands in the namespace of a driver of this type."""
    sets = [draw(hostile.daemon_set(name, NAMESPACE)) for name in ("base", "mig-manager", "plugin", "dcm")]
    maps = {
        "NvidiaMig": [("gpp", "config.yaml", hostile.MIG), ("tables", "", hostile.MIG_TABLE)],
        "AmdDcm": [("gpp", "config.json", hostile.DCM), ("tables", "", hostile.AMD_TABLE)],
    }
    there = [draw(hostile.config_map(name, NAMESPACE, file, seed)) for name, file, seed in maps.get(kind, ())]
    revisions = draw(hostile.some(hostile.controller_revision(NAMESPACE)))
    return Cluster(
        daemon_sets=[d for d in sets if draw(st.integers(0, 9))], config_maps=there, controller_revisions=revisions
    )


@st.composite
def facts(draw: st.DrawFn) -> NodeFacts:
    """A node with whatever is on it."""
    return NodeFacts(
        node=draw(hostile.node()),
        slices=draw(hostile.some(hostile.resource_slice())),
        pods=[trimmed.trim_pod(pod) for pod in draw(hostile.some(hostile.pod(NAMESPACE)))],
    )


@pytest.mark.parametrize("kind", DRIVERS)
@given(data=st.data())
@fuzz("backends", len(DRIVERS))
def test_each_backend_answers_or_refuses_in_words(kind: str, data: st.DataObject) -> None:
    driver = DriverSpec.model_validate({"type": kind, **DRIVERS[kind]})
    backend, cluster, on = BACKENDS[driver.type], data.draw(clusters(kind)), data.draw(facts())
    policy = PolicySpec.model_validate(
        {
            "driver": "d",
            "nodeSelector": {"matchLabels": {"a": "b"}},
            "layouts": [data.draw(st.sampled_from(LAYOUTS[kind]))],
        }
    )
    before = copy.deepcopy(cluster)
    told = [str(problem) for problem in backend.preflight(driver, cluster)]
    hash(backend.depends(driver, on.node, lambda: on))
    configs: list[Config] = []
    for ask in (backend.compile, lambda d, _, f, c: backend.way_back(d, f, c)):
        try:
            configs.append(ask(driver, policy, on, cluster))
        except Refused as why:
            told += map(str, why.problems)
    try:
        backend.driver_name(driver, cluster)
    except Refused as why:
        told += map(str, why.problems)
    seen = backend.observe(driver, on, cluster)
    for config in configs:
        assert Pool.from_json(config.pool.to_json()).to_json() == config.pool.to_json()
        backend.disturbs(seen.pool, config.pool)
        for step in ("", "s2"):
            effect = backend.assign(driver, on, config.assigned(), step, 2)
            assert not isinstance(effect, PatchNode) or unharmed(effect.labels)
        backend.repair(driver, on, config.assigned(), None, 2)
        for body in config.objects:
            unchanged_but_for_ours(body, cluster, told)
    backend.cancel(driver, on, "s2")
    assert cluster == before
    assert all(told)


@given(
    slices=st.lists(hostile.resource_slice(st.just("gpu.example.com")), max_size=4),
    claims=st.lists(hostile.claim(), max_size=3),
)
@fuzz("pools")
def test_a_pool_is_read_whatever_is_published_and_held(slices: list[Object], claims: list[Object]) -> None:
    pool = offered_by(s for s in slices if s["spec"]["pool"]["name"] == hostile.NODE)
    again = Pool.from_json(pool.to_json())
    assert again.to_json() == pool.to_json()
    assert pool.equals(pool) is pool.usable
    assert not pool.usable or pool.vanishing(pool) == frozenset()  # two of one name are two things
    held = holders(claims, node=hostile.NODE, driver="gpu.example.com", pool=hostile.NODE)
    drawn = gpumap.read(hostile.NODE, "gpu.example.com", slices, claims)
    assert {h.device for h in held} - pool.names == set(drawn.lost)
    assert all(part.size > 0 for gpu in drawn.gpus for part in gpu.parts)


@pytest.mark.parametrize(
    "data", [{}, {"spec": []}, {"spec": {"template": "a"}}, {"spec": {"template": {"spec": {"containers": []}}}}]
)
def test_a_controller_revision_of_another_shape_says_nothing_of_what_a_pod_runs(data: Object) -> None:
    owner = [{"kind": "DaemonSet", "name": "base", "uid": "base", "controller": True}]
    made = {"metadata": {"name": "a", "labels": {"controller-revision-hash": "1"}, "ownerReferences": owner}}
    revision = {"metadata": {"name": "base-1", "ownerReferences": owner}, "data": data}
    assert running_template(made, Cluster(controller_revisions=[revision])) is None


@given(data=st.data())
@fuzz("copies")
def test_the_operator_keeps_a_copy_of_whatever_there_is(data: st.DataObject) -> None:
    """What its caches make of an object ends the operator, should it fail."""
    for strategy, keep, *indexes in (
        (hostile.node(), trimmed.trim_node, trimmed.node_ready),
        (
            hostile.resource_slice(),
            packed.packed,
            *(packed.slice_node, packed.slice_of_a_plugin, packed.slice_astray, packed.slice_afloat),
        ),
        (hostile.claim(), trimmed.trim_claim, trimmed.claim_pools),
        (hostile.pod(), trimmed.trim_pod, trimmed.pod_node),
        (hostile.daemon_set("base"), trimmed.trim_daemon_set),
        (hostile.controller_revision(), trimmed.trim),
    ):
        body = data.draw(strategy)
        assert key_of(body)
        kept: Any = keep(copy.deepcopy(body))
        if kept is not None:
            kept_body = kept.body() if isinstance(kept, packed.PackedSlice) else kept
            assert all(isinstance(value, str) for index in indexes for value in index(kept))
            last_used(kept_body)


@given(body=hostile_statuses.record(), now=st.sampled_from([NOW, datetime(1971, 1, 1, tzinfo=UTC)]))
@fuzz("records")
def test_a_record_is_read_whatever_is_in_it_and_what_cannot_be_read_is_nodes_own_trouble(
    body: Object, now: datetime
) -> None:
    record = Record.read(body)
    state = record.state
    assert (state.reason == UNREADABLE) >= bool(record.unreadable)
    assert all(isinstance(value, str) for value in trimmed.record_policy(record))
    layouts = [each for each in (state.target, state.current, state.previous, state.original) if each is not None]
    pools = [Pool.from_json(text) for text in (*(each.pool for each in layouts), state.retiring)]
    for pool in pools:
        assert Pool.from_json(pool.to_json()).to_json() == pool.to_json()
        pool.without_retired()
        for other in pools:
            pool.equals(other), pool.same_shape(other), pool.retire(other), pool.equals_but_for_lost_gpus(other)
    known(state), is_expected(state, NOBODY)
    list(metrics._of_node(record, now))
    if record.spec.policy_ref.name:
        (stands,) = reports([], [body]) if isinstance(body["spec"], dict) and not record.unreadable else (None,)
        assert stands is None or stands.nodes[0].phase == state.phase
    of = {hostile.NODE: state}
    on = Standing(node=hostile.NODE, uid="uid-1", phase=state.phase, released=released_at(state))
    rules = Rules(max_unavailable=1, driver_max_unavailable=1, limit=1, pause=timedelta(seconds=60), now=now)
    admission = admit(nodes=[on], others=(), ledger=[], rules=rules)
    for deleting in (False, True):
        about = Rollout(spec=None, nodes=[on], records=of, admission=admission, deleting=deleting)
        summarise(about, before=PolicyStatus(), generation=1, now=now, revision="", arriving=Limits().arriving)


@pytest.mark.parametrize("kind", ["GpuPartitionPolicy", "GpuPartitionDriver"])
@given(data=st.data())
@fuzz("schemas", 2)
def test_what_the_schema_lets_through_is_read_and_all_else_refused_in_words(kind: str, data: st.DataObject) -> None:
    body = data.draw(hostile.written_by_hand(kind))
    whys = refused(body)
    assert all(len(f"{path}{why}") < 1000 for path, why in whys)
    if whys:
        return
    if kind == "GpuPartitionDriver":
        assert DriverSpec.model_validate(body["spec"])
        return
    notes = data.draw(hostile.ANNOTATIONS)
    policy = Policy.read({**body, "metadata": {"name": "a", "uid": "a", "generation": 1, "annotations": notes}})
    assert policy.spec is not None
    assert policy.paused(NOW) is not None
    assert policy.retry_of(hostile.NODE) is not None
    policy.selects(data.draw(hostile.node()))
