"""A node's record as it is on the API server: typed, with what a compare-and-swap needs."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from sys import intern
from typing import Annotated, Any, Final

from pydantic import BaseModel, Field, ValidationError

from gpupartition import names
from gpupartition.api.v1alpha1 import DriverStatus, NodeStateSpec, NodeStateStatus, Phase, PolicyRef, PolicyStatus
from gpupartition.controller import clock
from gpupartition.domain.pool import FLEET, MAX_RECORD
from gpupartition.domain.rollout import UNREADABLE
from gpupartition.domain.world import AT_REST
from gpupartition.kinds import DRIVERS, NODE_STATES, POLICIES

__all__ = ["DRIVERS", "NODE_STATES", "POLICIES", "Record", "dump", "new_record", "with_state"]

NOBODYS: Final = NodeStateSpec(policy_ref=PolicyRef(name="", uid=""), node_uid="", driver="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One GpuPartitionNodeState.

    `unreadable`: why nothing is known but that the node is there; then nothing is done to it. `state` is what that comes to: Skipped, or Failed
    where the node may have been on its way, so that it counts as unavailable, with its token.
    """

    name: str
    uid: str
    resource_version: str
    spec: NodeStateSpec
    state: NodeStateStatus
    unreadable: str = ""

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Record:
        """Read the object; never raises."""
        meta = body["metadata"]
        spec, state, wrong = NOBODYS, NodeStateStatus(), ""
        try:
            spec = NodeStateSpec.model_validate(body.get("spec"))
            state = _opened(NodeStateStatus.model_validate(body.get("status", {})))
            wrong = "; ".join(_no_pools(state))
        except ValidationError as error:
            wrong = "; ".join(f"{_path(each['loc'])}: {each['msg']}" for each in error.errors()[:3])
        return cls(
            name=meta["name"],
            uid=meta["uid"],
            resource_version=meta["resourceVersion"],
            spec=spec,
            state=_unknown(meta["name"], body.get("status"), wrong) if wrong else state,
            unreadable=wrong,
        )


def _unknown(node: str, status: Any, wrong: str) -> NodeStateStatus:
    """The state of a node of which nobody knows more than its phase and its token, if that."""
    told = status if isinstance(status, Mapping) else {}
    at_rest, token = told.get("phase", Phase.PENDING) in tuple(AT_REST), told.get("token", "")
    mended = _mended(node, sealed=SEALED in wrong, at_rest=at_rest and not token)
    return NodeStateStatus(
        phase=Phase.SKIPPED if at_rest else Phase.FAILED,
        token=token if isinstance(token, str) and len(token) <= 64 else "",
        reason=UNREADABLE,
        message=f"its record cannot be read, and nothing is done to it ({wrong}); {mended}",
    )


def _mended(node: str, *, sealed: bool, at_rest: bool) -> str:
    """What leads on. A node at rest says itself what its record said; how one that is on its way gets back, its record alone knows."""
    if sealed and at_rest:
        return f"nobody can correct that; have the record made anew: kubectl delete gpupartitionnodestate {node}"
    edit = f"kubectl edit gpupartitionnodestate {node}"
    if sealed:
        return f"put it back as it was, which is as it stands with the same fingerprint in this record, or in that of a node like it: {edit}"
    return f"mend that: {edit}"


def _path(where: tuple[int | str, ...]) -> str:
    return ".".join(map(str, where)) or "it"


_Amounts = dict[str, Annotated[str, Field(pattern=r"^-?[0-9]{1,40}$")]]


class _Device(BaseModel, strict=True):
    name: str
    capacity: _Amounts
    costs: dict[str, _Amounts] = {}
    shared: bool = False
    attributes: dict[str, dict[str, Any]] = {}
    request_policy: dict[str, dict[str, Any]] = Field(default={}, alias="requestPolicy")
    gpu: str = ""
    kind: str = ""
    retired: bool = False


class _Pool(BaseModel, strict=True):
    """As domain/pool.py writes it, as far as it is taken for granted."""

    devices: list[_Device] = []
    counters: dict[str, _Amounts] = {}
    kept: dict[str, dict[str, Any]] = {}


LAYOUTS: Final = ("target", "current", "previous", "original")
LEGIBLE: Final = 4096  # characters of a pool that people may read with kubectl; of many devices nobody does
MAX_BYTES: Final = 4 * MAX_RECORD  # no character of UTF-8 has more
PACKED: Final = "zlib:"  # and base64
SEALED: Final = "this is no squeezed text that opens"


def _in_pools(state: NodeStateStatus, change: Callable[[str], str]) -> NodeStateStatus:
    """The same state, with another text for each of its pools."""
    layouts = {name: layout for name in LAYOUTS if (layout := getattr(state, name)) is not None}
    texts = {name: layout.model_copy(update={"pool": change(layout.pool)}) for name, layout in layouts.items()}
    return state.model_copy(update={**texts, "retiring": change(state.retiring)})


def _opened(state: NodeStateStatus) -> NodeStateStatus:
    """The same state, with the texts of its pools as the other records have them that say the same: they are most of a record."""
    return _in_pools(state, unpacked)


@lru_cache(maxsize=FLEET)
def packed(pool: str) -> str:
    """A pool's text as the server has it: a long one squeezed, because a record is sent and stored again at each step of its node."""
    if len(pool) <= LEGIBLE:
        return pool
    return PACKED + b64encode(zlib.compress(pool.encode(), 9)).decode()


@lru_cache(maxsize=FLEET)
def unpacked(text: str) -> str:
    """The pool's text; what somebody else wrote there, and nobody can open, as it is: it is no pool."""
    if not text.startswith(PACKED):
        return intern(text)
    try:
        opener = zlib.decompressobj()
        opened = opener.decompress(b64decode(text.removeprefix(PACKED), validate=True), MAX_BYTES).decode()
    except (zlib.error, ValueError):
        return text
    return intern(opened) if opener.eof else text


def _no_pools(state: NodeStateStatus) -> Iterator[str]:
    """What is to be a pool in this state, and is none."""
    layouts = {name: getattr(state, name) for name in LAYOUTS}
    texts = {f"{name}.pool": layout.pool for name, layout in layouts.items() if layout is not None}
    for where, text in {**texts, "retiring": state.retiring}.items():
        if text and (wrong := _no_pool(text)):
            yield f"{where}: {wrong}"


@lru_cache(maxsize=256)  # nearly all records of a fleet name the same few
def _no_pool(text: str) -> str:
    if text.startswith(PACKED):
        return SEALED
    try:
        _Pool.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        return f"{_path(first['loc'])}: {first['msg']}"
    return ""


def new_record(
    *, node: str, node_uid: str, policy: str, policy_uid: str, driver: str, token: str = ""
) -> dict[str, Any]:
    """A record at rest, owned by its Node so that it goes with it."""
    body: dict[str, Any] = {
        "apiVersion": names.API_VERSION,
        "kind": "GpuPartitionNodeState",
        "metadata": {"name": node},
        "spec": {"policyRef": {"name": policy, "uid": policy_uid}, "nodeUID": node_uid, "driver": driver},
        "status": dump(NodeStateStatus(token=token, since=clock.now())),
    }
    if token:
        body["metadata"]["finalizers"] = [names.FINALIZER]
    else:
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}
        body["metadata"]["ownerReferences"] = [owner]
    return body


def with_state(body: Mapping[str, Any], state: NodeStateStatus) -> dict[str, Any]:
    """The record as it is to be PUT: the whole status, and the finalizer exactly while a token is held."""
    meta = dict(body["metadata"])
    finalizers = [f for f in meta.get("finalizers", ()) if f != names.FINALIZER]
    meta["finalizers"] = [*finalizers, names.FINALIZER] if state.token else finalizers
    meta.pop("managedFields", None)
    return {**body, "metadata": meta, "status": dump(_in_pools(state, packed))}


def dump(status: NodeStateStatus | PolicyStatus | DriverStatus) -> dict[str, Any]:
    """As the API server stores it: nothing for what is not set."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
