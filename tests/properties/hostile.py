"""What an API server lets through, written by somebody who means no good: objects of Kubernetes, by the rules of its own validation.

Each strategy says in its comments which rule keeps it from being worse. Texts may be anything that JSON from a Go program can hold: control
characters and escape sequences too, half of a character never (Go writes U+FFFD in its place).
"""

# ruff: noqa: E501 - rows of examples are wider than prose

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from typing import Any, Final

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from testbed.nodes import DRIVER_NAMESPACE
from tests.e2e.api_examples import EXAMPLES, written

from gpupartition import names
from gpupartition.cli.offline import refused
from gpupartition.kube import Object

CASES: Final = int(os.environ.get("HOSTILE", "0"))  # of all tests together; `make fuzz` asks for many
LEAST: Final = 15  # of each test
# Of a hundred cases, how many each kind of test gets: a command takes fifty milliseconds, a record two.
SHARES: Final = {"commands": 12, "backends": 8, "copies": 8, "compiling": 12, "schemas": 12, "pools": 16, "records": 16, "names": 6, "classes": 4, "evicting": 6}  # fmt: skip
assert sum(SHARES.values()) == 100, SHARES

NODE: Final = "node-1"
NASTY: Final = (
    "", " ", "\x1b[2J\x1b[31m", "\x1b]0;owned\x07", "\x9b2J", "\r\n---\nkind: Evil\n", "# a\n- b", "\u2028kind: Evil", "\u202eevil", "\0",
    "'", '"', "\\", "{{ .Values }}", "$(NUM_DEVICES)", "*a", "&a b", "!!python/object:os.system", "null", "true", "[", "{", "-", "~", "=",
    "9" * 60, "1e999", "-1", "0x10", "0.5", "NaN", "²", "nan", "inf", "\ud7ff\U0010ffff", "a" * 64,
)  # fmt: skip
TEXT: Final = st.sampled_from(NASTY) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LONG: Final = st.sampled_from(["\x1b" * 5000, "[" * 20_000, "{" * 20_000, "9" * 20_000, "a, " * 5000, "a=b," * 5000])
DNS: Final = st.sampled_from([NODE, "node-2", "a", "0", "a" * 63, "gpu-0", "gpu-1", "gpu-0-mig-1g10gb-19-0"])
DOMAIN: Final = st.sampled_from(
    ["a", "gpu.example.com", "gpu.nvidia.com", "gpu.amd.com", "gpu.example.org", "a." * 30 + "a"]
)
IDENTIFIER: Final = st.sampled_from(
    ["index", "uuid", "model", "productName", "product", "profile", "partitionProfile", "type", "pciBusID", "parentUUID", "minor", "a"]
)  # fmt: skip
QUALIFIED: Final = st.builds(
    lambda domain, name: f"{domain}/{name}" if domain else name, st.just("") | DOMAIN, IDENTIFIER
)
VALUE: Final = st.sampled_from(
    [
        "",
        "a",
        "0",
        "8",
        "-1".strip("-"),
        "true",
        "A" * 63,
        "1e9",
        "9" * 63,
        "success",
        "failed",
        "gpp-0123456789",
        "NVIDIA-H100",
    ]
)
QUANTITY: Final = st.sampled_from(
    ["0", "1", "7", "-1", "80Gi", "9223372036854775807", "-9223372036854775807", "1500m", "1n", "10k", "7Ei", "100e6", "0.5", "1E", "8Ei", "1e999", "-9223372036854775808"]
)  # fmt: skip
TIME: Final = st.sampled_from(
    ["2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1969-12-31T23:59:59Z"]
)
WHOLE: Final = st.sampled_from([0, 1, 2, 7, 63, 64, 2**31, 2**63 - 1])
OURS: Final = st.sampled_from(
    sorted(value for value in vars(names).values() if isinstance(value, str) and value.startswith(f"{names.GROUP}/"))
)
LEAF: Final = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
JSON: Final = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)


def fuzz(kind: str, tests: int = 1) -> settings:
    """How a test here looks for examples: as long as it is asked to, and for nothing but answers that are wrong. `tests`: so many share them."""
    quiet = [
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
        HealthCheck.large_base_example,
    ]
    each = CASES * SHARES[kind] // (100 * tests)
    slow = timedelta(seconds=20) if CASES else None  # whoever looks for what hangs gives a busy machine time
    return settings(max_examples=max(LEAST, each), suppress_health_check=quiet, deadline=slow)


def some(strategy: SearchStrategy[Any], most: int = 3) -> SearchStrategy[list[Any]]:
    """A few of them."""
    return st.lists(strategy, max_size=most)


def of(required: dict[str, SearchStrategy[Any]], **optional: SearchStrategy[Any]) -> SearchStrategy[Object]:
    """An object with these fields; some may be left out, as the API server leaves out what is empty."""
    return st.fixed_dictionaries(required, optional=optional)


def _with(names_: SearchStrategy[str], values: SearchStrategy[Any], most: int = 4) -> SearchStrategy[Object]:
    return st.dictionaries(names_, values, max_size=most)


# Labels: qualified names and values of at most 63 characters. Annotations: qualified names, and any text, 256 KiB together.
LABELS: Final = _with(
    st.sampled_from(
        [
            names.LAYOUT, names.SKIP, names.DRIVER, "nvidia.com/mig.config", "nvidia.com/mig.config.state", "nvidia.com/gpu.product", "nvidia.com/gpu.count",
            "nvidia.com/gpu.memory", "dcm.amd.com/gpu-config-profile", "dcm.amd.com/gpu-config-profile-state", "topology.kubernetes.io/zone",
            "kubernetes.io/hostname", "pool", "controller-revision-hash",
        ]
    ),
    VALUE,
)  # fmt: skip
ANNOTATIONS: Final = _with(OURS | QUALIFIED, TEXT | LONG, 3)


@st.composite
def metadata(draw: DrawFn, name: SearchStrategy[str] = DNS, namespace: str = "") -> Object:
    """Names are checked by each kind; UIDs and versions are the API server's own."""
    made: Object = {
        "name": draw(name),
        "uid": draw(st.sampled_from(["base", "uid-1", "uid-2"])),
        "resourceVersion": "7",
    }
    made |= {"namespace": namespace} if namespace else {}
    made |= {"generation": draw(st.integers(1, 3)), "creationTimestamp": draw(TIME)}
    more = of({}, labels=LABELS, annotations=ANNOTATIONS, deletionTimestamp=TIME, ownerReferences=OWNERS)
    return {**made, **draw(more)}


# An owner has a kind and a name, a UID, and any text may be each; one at most is the controller.
OWNERS: Final = some(
    of(
        {
            "apiVersion": st.just("apps/v1"),
            "kind": st.just("DaemonSet") | TEXT.filter(bool),
            "name": st.sampled_from(["base", "mig-manager", "plugin", "dcm"]) | TEXT.filter(bool),
            "uid": st.sampled_from(["base", "uid-1"]) | TEXT.filter(bool),
        },
        controller=st.just(True),
    ),
    1,
)

# Type, status, reason and message of a Node's conditions are checked by nobody.
CONDITIONS: Final = some(
    of(
        {"type": st.just("Ready") | TEXT, "status": st.sampled_from(["True", "False", "Unknown"]) | TEXT},
        lastTransitionTime=TIME | st.none(),
        reason=TEXT,
        message=TEXT,
        observedGeneration=WHOLE,
    )
)


@st.composite
def node(draw: DrawFn, name: str = NODE) -> Object:
    """A Node, as its kubelet and anybody who labels it make it."""
    taint = of(
        {"key": QUALIFIED, "effect": st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"])},
        value=VALUE,
        timeAdded=TIME,
    )
    resources = _with(
        st.sampled_from(["cpu", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "amd.com/gpu", "a/b"]), QUANTITY
    )
    spec = of({}, unschedulable=st.just(True), taints=some(taint), providerID=TEXT)
    status = of({}, conditions=CONDITIONS, allocatable=resources, nodeInfo=of({"bootID": TEXT, "kernelVersion": TEXT}))
    body = draw(of({"metadata": metadata(st.just(name))}, spec=spec, status=status))
    return {"apiVersion": "v1", "kind": "Node", **body}


# Of an attribute exactly one field is set: a text of at most 64 characters, a semantic version, a number of 64 bits, or a truth.
ATTRIBUTE: Final = st.one_of(
    st.builds(lambda text: {"string": text[:64]}, TEXT | st.sampled_from(["mig", "gpu", "1g.10gb", "spx_nps1", "NVIDIA H100 80GB HBM3", "0000:05:00.0", "parts-2"])),
    st.builds(lambda number: {"int": number}, WHOLE | st.integers(-(2**63), 2**63 - 1)),
    st.builds(lambda truth: {"bool": truth}, st.booleans()),
    st.just({"version": "1.2.3-alpha+b"}),
)  # fmt: skip
COUNTERS: Final = st.dictionaries(DNS | st.just("memory"), of({"value": QUANTITY}), min_size=1, max_size=3)
RANGE: Final = of({"min": QUANTITY}, max=QUANTITY, step=QUANTITY)
CAPACITY: Final = of(
    {"value": QUANTITY}, requestPolicy=of({"default": QUANTITY}, validRange=RANGE, validValues=some(QUANTITY))
)
DEVICE_TAINT: Final = of(
    {"key": QUALIFIED, "effect": st.sampled_from(["NoSchedule", "NoExecute", "None"])}, value=VALUE, timeAdded=TIME
)
DEVICE: Final = of(
    {"name": DNS | st.builds(lambda n: f"gpu-{n}", st.integers(0, 9))},
    attributes=_with(QUALIFIED, ATTRIBUTE, 5),
    capacity=_with(
        QUALIFIED | st.sampled_from(["memory", "memorySlice0", "memorySlice7", "memorySlice999999999999999999"]),
        CAPACITY,
    ),
    consumesCounters=some(of({"counterSet": DNS, "counters": COUNTERS}), 2),
    taints=some(DEVICE_TAINT, 2),
    allowMultipleAllocations=st.booleans(),
    bindsToNode=st.booleans(),
)


@st.composite
def resource_slice(draw: DrawFn, driver: SearchStrategy[str] = DOMAIN, on: str = NODE) -> Object:
    """A ResourceSlice: names are DNS labels, a driver's name is one of at most 63 characters, numbers are not negative."""
    pool = of(
        {
            "name": st.sampled_from([on, f"gpu.example.org/{on}", "node-2", "a/b"]),
            "generation": WHOLE,
            "resourceSliceCount": st.sampled_from([1, 2, 2**63 - 1]),
        }
    )
    sets = of({}, sharedCounters=some(of({"name": DNS, "counters": COUNTERS}), 2))
    spec = draw(of({"driver": driver, "pool": pool})) | draw(of({}, devices=some(DEVICE, 4)) | sets)  # never both
    where: Object = draw(
        st.sampled_from([{"nodeName": on}] * 4 + [{"allNodes": True}, {"nodeSelector": {"nodeSelectorTerms": []}}])
    )
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": draw(metadata()),
        "spec": {**spec, **where},
    }


@st.composite
def claim(draw: DrawFn) -> Object:
    """A ResourceClaim, allocated or not; not only pods reserve one."""
    result = of(
        {
            "request": DNS,
            "driver": DOMAIN,
            "pool": st.sampled_from([NODE, f"gpu.example.org/{NODE}", "node-2"]),
            "device": DNS,
        },
        adminAccess=st.booleans(),
        shareID=st.just("4f9b1f9e-0000-0000-0000-000000000000"),
        consumedCapacity=_with(QUALIFIED, QUANTITY),
    )
    allocation = of({}, devices=of({}, results=some(result, 4)), nodeSelector=JSON, allocationTimestamp=TIME)
    # A name, a UID and a resource of who reserved it are required, and any text.
    user = of(
        {"resource": st.just("pods") | TEXT.filter(bool), "name": TEXT.filter(bool), "uid": TEXT.filter(bool)},
        apiGroup=TEXT,
    )
    body = draw(
        of(
            {"metadata": metadata(namespace="team-a"), "spec": st.just({})},
            status=of({}, allocation=allocation, reservedFor=some(user)),
        )
    )
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **body}


@st.composite
def pod(draw: DrawFn, namespace: str = DRIVER_NAMESPACE) -> Object:
    """A pod; its phase, conditions and what its containers wait for are whatever its kubelet writes."""
    state = of({}, waiting=of({}, reason=TEXT, message=TEXT), running=st.just({}))
    status = of(
        {},
        phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"]),
        conditions=CONDITIONS,
        containerStatuses=some(of({"name": DNS}, state=state)),
    )
    spec = of({}, nodeName=st.just(NODE), volumes=some(of({"name": DNS}, emptyDir=st.just({}))))
    return draw(of({"metadata": metadata(namespace=namespace)}, spec=spec, status=status))


def texts_of_devices() -> SearchStrategy[dict[str, str]]:
    """Attributes that are texts, of the driver's own domain."""
    return st.dictionaries(IDENTIFIER, TEXT.map(lambda text: text[:64]), min_size=1, max_size=3)


DRAIN: Final = of(
    {"mode": st.sampled_from(["WhenIdle", "Wait", "Evict"])},
    force=st.booleans(),
    deleteEmptyDir=st.booleans(),
    waitForCompletion=of({"matchLabels": st.dictionaries(st.just("pool"), VALUE, min_size=1)}),
)


@st.composite
def budget(draw: DrawFn) -> Object:
    """A PodDisruptionBudget: without a selector it is about nobody, with an empty one about all pods of its namespace."""
    requirement = of({"key": QUALIFIED, "operator": st.sampled_from(["Exists", "DoesNotExist"])}) | of(
        {
            "key": QUALIFIED,
            "operator": st.sampled_from(["In", "NotIn"]),
            "values": st.lists(VALUE, min_size=1, max_size=2),
        }
    )
    selector = of({}, matchLabels=LABELS, matchExpressions=some(requirement, 2))
    status = of({}, disruptionsAllowed=WHOLE, conditions=CONDITIONS)
    return draw(of({"metadata": metadata(namespace="team-a"), "spec": of({}, selector=selector)}, status=status))


# Names of variables: printable ASCII without an equals sign. Values, arguments and images: any text.
VARIABLE: Final = of(
    {
        "name": st.sampled_from(["NUM_DEVICES", "GPU_PARTITIONS", "GPU_ALLOW_MULTIPLE_ALLOCATIONS", "DRIVER_NAME", "DEVICE_PROFILE", "WITH_REBOOT", "FEATURE_GATES", "A", "a b"])
    },
    value=TEXT | st.sampled_from(["8", "2", "true", "gpu", "gpu.example.com"]),
    valueFrom=st.sampled_from([{"fieldRef": {"fieldPath": "spec.nodeName"}}, {"configMapKeyRef": {"name": "a", "key": "b"}}]),
)  # fmt: skip
CONTAINER: Final = of(
    {"name": DNS},
    image=TEXT
    | st.sampled_from(
        ["registry/dra-example-driver:v0.4.0", "nvcr.io/nvidia/k8s-mig-manager@sha256:0", "rocm/device-config-manager"]
    ),
    env=some(VARIABLE, 4),
    envFrom=some(of({}, prefix=TEXT, configMapRef=of({"name": DNS})), 1),
    args=some(TEXT | st.sampled_from(["--num-devices=9", "--gpu-partitions", "-a=b"]), 2),
    command=some(TEXT, 2),
    resources=of({}, limits=_with(QUALIFIED, QUANTITY)),
    volumeMounts=some(of({"name": DNS, "mountPath": TEXT.filter(bool)}), 1),
)
TERM: Final = of(
    {},
    matchExpressions=some(
        st.just({"key": names.LAYOUT, "operator": "DoesNotExist"})
        | of({"key": QUALIFIED, "operator": st.just("In"), "values": st.lists(VALUE, min_size=1, max_size=2)})
    ),
    matchFields=some(st.just({"key": "metadata.name", "operator": "In", "values": [NODE]}), 1),
)
REQUIRED: Final = of({"nodeSelectorTerms": st.lists(TERM, min_size=1, max_size=2)})
TEMPLATE: Final = of(
    {
        "metadata": of({}, labels=LABELS, annotations=ANNOTATIONS),
        "spec": of(
            {"containers": st.lists(CONTAINER, min_size=1, max_size=2)},
            initContainers=some(CONTAINER, 1),
            volumes=some(
                of({"name": DNS}, configMap=of({}, name=st.sampled_from(["gpp", "tables", "a"])), emptyDir=st.just({}))
            ),
            nodeSelector=LABELS,
            affinity=of({}, nodeAffinity=of({}, requiredDuringSchedulingIgnoredDuringExecution=REQUIRED)),
            overhead=_with(QUALIFIED, QUANTITY),
            hostNetwork=st.booleans(),
        ),
    }
)


@st.composite
def daemon_set(draw: DrawFn, name: str, namespace: str = DRIVER_NAMESPACE) -> Object:
    """A DaemonSet of this name; that it has containers with names, and volumes with names, is checked."""
    spec = of(
        {"template": TEMPLATE, "selector": st.just({"matchLabels": {"a": "b"}})},
        updateStrategy=st.sampled_from([{"type": "OnDelete"}, {"type": "RollingUpdate", "rollingUpdate": {}}]),
    )
    return draw(of({"metadata": metadata(st.just(name), namespace), "spec": spec}))


@st.composite
def controller_revision(draw: DrawFn, namespace: str = DRIVER_NAMESPACE) -> Object:
    """A ControllerRevision: its data may be any object, and anybody with that right may write one."""
    name = st.sampled_from(["base-a", "base-0", f"base-{'A' * 63}", "base-8"])
    data = _with(TEXT, JSON) | of({"spec": of({"template": TEMPLATE | JSON}) | JSON})
    return draw(of({"metadata": metadata(name, namespace), "data": data, "revision": WHOLE}))


MIG: Final = {
    "version": "v1",
    "mig-configs": {
        "all-disabled": [{"devices": "all", "mig-enabled": False}],
        "a": [{"devices": [0], "mig-enabled": True, "mig-devices": {"1g.10gb": 2}}],
    },
}
DCM: Final = {
    "gpu-config-profiles": {
        "a": {
            "skippedGPUs": {"ids": [1]},
            "profiles": [{"computePartition": "CPX", "memoryPartition": "NPS1", "numGPUsAssigned": 1}],
        }
    },
    "gpuClientSystemdServices": {"names": ["a"]},
}
MIG_TABLE: Final = {"gpus": [{"name": "Q900", "products": ["NVIDIA Q900"], "architecture": "Quiet", "memorySlices": 2, "profiles": [
    {"name": "1g.10gb", "id": 19, "slices": 1, "size": 1, "starts": [0, 1], "max": 2}, {"name": "2g.20gb", "id": 14, "slices": 2, "size": 2, "starts": [0], "max": 1}]}]}  # fmt: skip
AMD_TABLE: Final = {
    "gpus": [{"name": "MI1", "partitions": {"SPX": 1, "DPX": 2}, "validated": ["SPX/NPS1"], "allowed": ["DPX/NPS1"]}]
}


@st.composite
def spoilt(draw: DrawFn, value: Any, with_: SearchStrategy[Any] = JSON) -> Any:
    """The value, with something else in the place of some of what it has in it."""
    if draw(st.integers(0, 9)) == 0:
        return draw(with_)
    if isinstance(value, dict):
        made = {key: draw(spoilt(each, with_)) for key, each in value.items() if draw(st.integers(0, 15))}
        return made | (draw(st.dictionaries(TEXT, with_, max_size=1)) if draw(st.integers(0, 9)) == 0 else {})
    if isinstance(value, list):
        return [draw(spoilt(each, with_)) for each in value] * draw(st.sampled_from([1, 1, 1, 1, 0, 2]))
    return value


@st.composite
def config_map(draw: DrawFn, name: str, namespace: str, file: str, *seeds: Any) -> Object:
    """A ConfigMap: values are texts, 1 MiB together, and of what is in them the API server knows nothing."""
    text = st.sampled_from(seeds).flatmap(spoilt).map(json.dumps) | TEXT | LONG
    return draw(
        of(
            {"metadata": metadata(st.just(name), namespace)},
            data=of({}, **{file: text}) if file else _with(DNS, text, 2),
        )
    )


SOMETHING: Final = written(EXAMPLES["accepted"][0])


WORD: Final = TEXT | DNS | QUALIFIED | VALUE | QUANTITY
LIKE: Final[dict[type, SearchStrategy[Any]]] = {
    str: WORD,
    int: WHOLE,
    bool: st.booleans(),
    float: WHOLE,
    type(None): WORD,
}


@st.composite
def bent(draw: DrawFn, value: Any) -> Any:
    """The value, with something of the same type in the place of one to three of its leaves, or under another key: schemas let much of it through."""
    made = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        leaves = list(_leaves(made))
        if not leaves:
            break
        inside, key = draw(st.sampled_from(leaves))
        if isinstance(inside, dict) and draw(st.integers(0, 5)) == 0:
            inside[draw(WORD)] = inside.pop(key)
        else:
            inside[key] = draw(LIKE[type(inside[key])])
    return made


def _leaves(value: Any) -> Iterator[tuple[Any, Any]]:
    """Where they are: the mapping or list, and the key or place."""
    places = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inside in list(places):
        if isinstance(inside, dict | list):
            yield from _leaves(inside)
        else:
            yield value, key


@cache
def accepted(kind: str) -> list[Object]:
    """The examples of one of our kinds that an API server takes as they stand: it drops what is null."""
    examples = map(written, EXAMPLES["accepted"])
    return [body for body in examples if body["kind"] == kind and not refused(body)]


@st.composite
def written_by_hand(draw: DrawFn, kind: str) -> Object:
    """One of our own kinds, somewhere between what is right and what is not: whether it passes the schema is not said."""
    body = draw(st.sampled_from(accepted(kind)))
    return {**body, "spec": draw(bent(body["spec"]) | spoilt(body["spec"]))}
