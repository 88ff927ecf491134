"""Whole commands, against clusters and files of somebody who means no good: each ends by itself, with a code and words, and moves no cursor."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from unicodedata import category

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.properties import hostile, hostile_statuses
from tests.properties.hostile import fuzz
from tests.unit.fleet import Fleet, driver, policy

from gpupartition.__main__ import main
from gpupartition.cli.offline import refused
from gpupartition.kinds import DRIVERS, NODE_STATES, POLICIES
from gpupartition.kube import (
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Client,
    Object,
)

refused(hostile.SOMETHING)  # as in the other tests of this kind

TURNING: Final = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
FORMS: Final = ("table", "json", "yaml", "name")
LOOKS: Final[Mapping[str, list[str]]] = {
    "plan": [],
    "classes": [],
    "diff": ["inference"],
    "status": [],
    "map": [],
    "explain": [hostile.NODE],
    "history": [hostile.NODE],
    "adopt": [],
}
READS: Final[Mapping[str, list[str]]] = {
    "plan": ["-f", "-"],
    "classes": ["-f", "-"],
    "diff": ["-f", "-"],
    "simulate": ["-f", "-", "--patience", "1"],
}


BASE: Final = Fleet(2)
BASE.apply(policy())


@st.composite
def of_another_release(draw: st.DrawFn, spec: Object) -> Object:
    """A spec as CRDs of another release may let it in: with other values, and fields that this one does not know. What it names stays."""
    more = draw(st.just({}) | st.dictionaries(hostile.IDENTIFIER, hostile.JSON, max_size=1))
    return {**draw(hostile.bent(spec)), **more, **{key: spec[key] for key in ("driver", "type") if key in spec}}


@st.composite
def clusters(draw: st.DrawFn) -> Fleet:
    """Two nodes of the example driver, with whatever anybody may have put beside what is there, or in its place."""
    fleet = copy.deepcopy(BASE)
    for body in fleet.objects[POLICIES]:
        body["metadata"]["annotations"] = draw(hostile.ANNOTATIONS)
        body["status"] = draw(hostile_statuses.policy_status())
    for body in (*fleet.objects[POLICIES], *fleet.objects[DRIVERS]):
        if draw(st.integers(0, 3)) == 0:
            body["spec"] = draw(of_another_release(body["spec"]))
    if draw(st.booleans()):
        fleet.objects[NODES] = [draw(hostile.node(name)) for name in fleet.nodes]
        for body in fleet.objects[NODES]:
            body["metadata"].setdefault("labels", {})["pool"] = "gpu"
    names = st.just("gpu.example.com") | hostile.DOMAIN
    fleet.objects[RESOURCE_SLICES] += draw(hostile.some(hostile.resource_slice(names)))
    fleet.objects[RESOURCE_CLAIMS] += draw(hostile.some(hostile.claim()))
    fleet.objects[PODS] += [{"spec": {}, **body} for body in draw(hostile.some(hostile.pod()))]
    fleet.objects[EVENTS] += draw(hostile.some(hostile_statuses.event(), 4))
    for name in fleet.nodes:
        fleet.objects[NODE_STATES] += draw(hostile.some(hostile_statuses.record(name=name, lawful=True), 1))
    return fleet


REQUEST: Final = {
    "name": "a",
    "exactly": {"deviceClassName": "gpu.example.com", "selectors": [{"cel": {"expression": "true"}}]},
}
EITHER: Final = {
    "name": "a",
    "firstAvailable": [{"name": "s", "deviceClassName": "gpu.example.com", "allocationMode": "All"}],
}
CONTAINER: Final = {"name": "m", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}
JOB: Final = {"containers": [CONTAINER], "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}
POD: Final = {
    "containers": [CONTAINER],
    "nodeSelector": {"pool": "gpu"},
    "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
}
DEVICES: Final = {"requests": [EITHER], "constraints": [{"requests": ["a"], "matchAttribute": "gpu.example.com/index"}]}
ASKED: Final[Mapping[str, tuple[str, Object]]] = {
    "ResourceClaim": ("resource.k8s.io/v1", {"devices": {"requests": [REQUEST]}}),
    "ResourceClaimTemplate": ("resource.k8s.io/v1", {"spec": {"devices": DEVICES}}),
    "Pod": ("v1", POD),
    "Job": ("batch/v1", {"parallelism": 2, "template": {"spec": JOB}}),
}
WORKLOADS: Final = [
    {"apiVersion": version, "kind": kind, "metadata": {"name": "c", "labels": {"a": "b"}}, "spec": spec}
    for kind, (version, spec) in ASKED.items()
]


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """A file: what one of ours or of Kubernetes' own looks like, spoilt; as YAML, as JSON, cut off, or anything."""
    whole = [policy(), driver(), *WORKLOADS, hostile.SOMETHING]
    bodies = draw(st.lists(st.sampled_from(whole).flatmap(hostile.spoilt), min_size=1, max_size=3))
    form = draw(st.sampled_from(["yaml", "json", "list"]))
    if form == "yaml":
        text = yaml.safe_dump_all(bodies, allow_unicode=True)
    else:
        text = json.dumps(bodies[0] if form == "json" else {"kind": "List", "items": bodies})
    made = text.encode(errors="replace")
    made = made[: draw(st.integers(0, len(made)))] if draw(st.integers(0, 3)) == 0 else made
    odd = [b"", b"\xff\xfe", b"%YAML 9.9\n---\n", b"\t", b"a: &a [*a]\n", b"--- !!x\n"]
    more = st.just(b"") | st.just(made) | hostile.TEXT.map(lambda text: b"\n" + text.encode()) | st.binary(max_size=20)
    return draw(st.sampled_from([made] * 6 + odd)) + draw(more)


def run(fleet: Fleet, words: list[str], piped: bytes = b"") -> tuple[int, str, str]:
    """A command's code, and what it printed to where."""

    @asynccontextmanager
    async def connect(*_: object, **__: object) -> AsyncIterator[Client]:
        yield fleet.client

    out, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Client, "connect", connect)
        patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped)))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = main(words)
    return code, out.getvalue(), errors.getvalue()


def told(command: str, form: str, code: int, out: str, errors: str) -> None:
    """Hold what was printed to what is promised of every command."""
    assert code in {0, 1, 2, 3}
    assert code in {0, 3} or out or errors.startswith("error: "), (code, out, errors)
    shown = errors if form in {"json", "yaml"} else out + errors
    assert not [char for char in shown if char in TURNING or (category(char) in {"Cc", "Zl", "Zp"} and char != "\n")]
    assert not [char for char in out if category(char) == "Cc" and char not in "\n\x85"]
    if form == "json" and out:
        json.loads(out)
    if form == "yaml" and out:
        bodies = [body for body in yaml.safe_load_all(out) if body is not None]
        assert command not in {"adopt", "classes"} or all(body["kind"] in OURS for body in bodies)


OURS: Final = {"GpuPartitionPolicy", "GpuPartitionDriver", "DeviceClass"}


@pytest.mark.parametrize("command", LOOKS)
@given(fleet=clusters(), form=st.sampled_from(FORMS))
@fuzz("commands", len(LOOKS) + len(READS))
def test_a_command_looks_at_whatever_is_in_a_cluster(command: str, fleet: Fleet, form: str) -> None:
    form = {("adopt", "table"): "yaml", ("classes", "table"): "yaml"}.get((command, form), form)
    told(command, form, *run(fleet, [command, *LOOKS[command], "-o", form]))


@pytest.mark.parametrize("command", READS)
@given(fleet=clusters(), text=texts(), form=st.sampled_from(FORMS))
@fuzz("commands", len(LOOKS) + len(READS))
def test_a_command_reads_whatever_is_piped_into_it(command: str, fleet: Fleet, text: bytes, form: str) -> None:
    form = {("classes", "table"): "yaml"}.get((command, form), form)
    told(command, form, *run(fleet, [command, *READS[command], "-o", form], text))
