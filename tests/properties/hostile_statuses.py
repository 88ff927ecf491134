"""What somebody who means no good may have written of ours: records of nodes, statuses of policies, events, by the rules of their schemas."""

from __future__ import annotations

import json
from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from tests.properties.hostile import DNS, LONG, NODE, TEXT, TIME, VALUE, WHOLE, metadata, of, some, spoilt

from gpupartition import names
from gpupartition.kube import Object

MEMORY: Final = {"memory": "80"}
POOL: Final = {
    "devices": [
        {"name": "gpu-0", "capacity": MEMORY, "costs": {"gpu-0": MEMORY}, "attributes": {"index": {"int": 0}}},
        {"name": "a", "capacity": {}, "gpu": "gpu-1", "kind": "1g.10gb", "retired": True},
        {"name": "b", "capacity": MEMORY, "shared": True, "requestPolicy": {"memory": {"default": "1"}}},
    ],
    "counters": {"gpu-0": MEMORY},
    "kept": {"gpu-7": {"index": {"int": 7}}},
}


@st.composite
def record(draw: DrawFn, *, name: str = NODE, lawful: bool = False) -> Object:
    """A node's record; texts in it are to be pools. `lawful`: by its schema, else anything may be in it, as the schema may be an older one."""
    pool = spoilt(POOL).map(json.dumps) | TEXT | LONG
    layout = of({}, fingerprint=VALUE, assignment=VALUE | st.none(), pool=pool, revision=VALUE, since=TIME)
    blocker = of({"node": st.just(NODE)}, claim=TEXT, pod=TEXT, device=TEXT, reason=TEXT, since=TIME)
    status = of(
        {"phase": st.sampled_from(["Pending", "UpToDate", "Draining", "Applying", "Failed", "RolledBack", "Skipped"])},
        since=TIME | st.just("2026-01-01T00:00:00+99:99"),
        target=layout,
        current=layout,
        previous=layout,
        original=layout,
        retiring=pool,
        token=VALUE,
        step=VALUE,
        generation=WHOLE,
        attempts=WHOLE,
        gpus=WHOLE,
        drifted=TIME,
        repairs=some(TIME),
        contests=some(TIME),
        blockers=some(blocker),
        restart=of({"podUID": VALUE, "step": VALUE}),
        reason=TEXT,
        message=TEXT,
        retry=TEXT,
    )
    spec = {"policyRef": {"name": "a", "uid": "a"}, "nodeUID": "uid-1", "driver": "d"}
    body = {"apiVersion": names.API_VERSION, "kind": "GpuPartitionNodeState", "metadata": draw(metadata(st.just(name)))}
    if lawful:
        return {**body, "spec": spec, "status": draw(status)}
    return {**body, "spec": draw(st.just(spec) | spoilt(spec)), "status": draw(status | status.flatmap(spoilt))}


@st.composite
def event(draw: DrawFn) -> Object:
    """An event, of whoever may create some: only that it is about something is checked."""
    about = of(
        {"kind": st.sampled_from(["GpuPartitionPolicy", "GpuPartitionNodeState", "Pod"]) | TEXT}, name=DNS | TEXT
    )
    more = of({}, related=about, reason=TEXT, message=TEXT, type=TEXT, lastTimestamp=TIME | st.none(), count=WHOLE)
    made = {"metadata": draw(metadata(namespace="default")), "involvedObject": draw(about)}
    return {**made, **draw(more), "reportingComponent": draw(st.just(f"{names.GROUP}/operator") | TEXT)}


@st.composite
def policy_status(draw: DrawFn) -> Object:
    """What the status of a policy may be, by its schema: messages and names are any text."""
    word = st.sampled_from(["RollingOut", "RolledBack", "RolloutComplete", "A"])
    condition = of(
        {
            "type": st.sampled_from(["Ready", "Accepted", "Stalled", "Reconciling"]),
            "status": st.sampled_from(["True", "False", "Unknown"]),
            "reason": word,
            "lastTransitionTime": st.just("2026-01-01T00:00:00Z"),
        },
        message=TEXT,
        observedGeneration=WHOLE,
    )
    blocker = of({"node": DNS | TEXT}, claim=TEXT, pod=TEXT, pdb=TEXT, device=TEXT, reason=word)
    failed = of({"node": DNS | TEXT, "reason": word, "message": TEXT})
    counts = of({}, matched=WHOLE, upToDate=WHOLE, inProgress=WHOLE, pending=WHOLE, blocked=WHOLE, failed=WHOLE)
    fields = of(
        {},
        conditions=some(condition, 4).map(lambda found: list({each["type"]: each for each in found}.values())),
        observedGeneration=st.integers(-1, 3),
        nodes=counts,
        progress=TEXT,
        revision=VALUE,
        blockedBy=some(blocker),
        failedNodes=some(failed),
    )
    return draw(fields)
