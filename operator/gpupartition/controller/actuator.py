"""Doing is dull: one short function for each effect. A proof that no longer holds is an answer, not an error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from gpupartition import names
from gpupartition.controller import clock
from gpupartition.controller.metrics import WRITES
from gpupartition.domain.effects import (
    ActivateTaintRule,
    CreateSlice,
    CreateTaintRule,
    DeleteHolder,
    DeletePod,
    DeleteSlice,
    DeleteTaintRule,
    Effect,
    EnsureConfig,
    EvictPod,
    PatchNode,
    PutSlice,
    RemoveTaint,
)
from gpupartition.domain.entries import Document, is_entry
from gpupartition.kube import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_SLICES,
    Client,
    Conflict,
    Kind,
    NotFound,
    Object,
)

Do = Callable[[Client, Any], Awaitable[Object | None]]


@dataclass(frozen=True, slots=True)
class Done:
    """It is written. `metadata` is what the server has of a slice now; {} of anything else, and of a slice that is gone."""

    metadata: Object


async def carry_out(client: Client, effect: Effect) -> Done | None:
    """Write once. None: what it was decided on has changed meanwhile, so look again."""
    WRITES.labels(effect=type(effect).__name__).inc()
    try:
        written = await _DO[type(effect)](client, effect)
    except (Conflict, NotFound):
        return None
    return Done(written["metadata"] if written is not None else {})


async def _patch_node(client: Client, effect: PatchNode) -> None:
    labels, annotations = dict(effect.labels), dict(effect.annotations)
    meta: dict[str, Any] = {"resourceVersion": effect.resource_version}
    if labels:
        meta["labels"] = labels
    if annotations:
        meta["annotations"] = annotations
    body: dict[str, Any] = {"metadata": meta}
    if effect.unschedulable is not None:
        body["spec"] = {"unschedulable": effect.unschedulable or None}
    await client.patch(NODES, effect.node, body)


async def _remove_taint(client: Client, effect: RemoveTaint) -> None:
    place = f"/spec/taints/{effect.place}"
    under = {"op": "replace", "path": "/metadata/resourceVersion", "value": effect.resource_version}
    await client.patch(NODES, effect.node, [under, {"op": "remove", "path": place}])


async def _create_rule(client: Client, effect: CreateTaintRule) -> None:
    body = {
        "apiVersion": effect.api_version,
        "kind": "DeviceTaintRule",
        "metadata": {
            "name": effect.name,
            "labels": {names.MANAGED_BY: names.FIELD_MANAGER},
            "annotations": {names.FULL_NODE_NAME: effect.node},
        },
        "spec": {
            # Never an empty selector: that would mean every device of the cluster.
            "deviceSelector": {"driver": effect.driver, "pool": effect.pool},
            "taint": {"key": names.TAINT_KEY, "value": "", "effect": "None"},
        },
    }
    await client.create(_rules(effect.api_version), body)


async def _activate_rule(client: Client, effect: ActivateTaintRule) -> None:
    spec = effect.rule["spec"]
    taint = {k: v for k, v in spec["taint"].items() if k != "timeAdded"} | {"effect": "NoSchedule"}
    await client.replace(_rules(effect.rule["apiVersion"]), {**effect.rule, "spec": {**spec, "taint": taint}})


async def _delete_rule(client: Client, effect: DeleteTaintRule) -> None:
    rules = _rules(effect.api_version)
    await client.delete(rules, effect.name, uid=effect.uid, resource_version=effect.resource_version)


def _rules(api_version: str) -> Kind:
    return replace(DEVICE_TAINT_RULES, api_version=api_version)


async def _evict(client: Client, effect: EvictPod) -> None:
    options: dict[str, Any] = {"preconditions": {"uid": effect.uid}}
    if effect.grace_seconds is not None:
        options["gracePeriodSeconds"] = effect.grace_seconds
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": effect.name, "namespace": effect.namespace},
        "deleteOptions": options,
    }
    await client.raw("POST", PODS.path(effect.namespace, effect.name, "eviction"), body=body)


async def _delete_pod(client: Client, effect: DeletePod | DeleteHolder) -> None:
    await client.delete(PODS, effect.name, namespace=effect.namespace, uid=effect.uid)


async def _ensure_config(client: Client, effect: EnsureConfig) -> None:
    if is_entry(effect.body):
        await _ensure_entry(client, effect)
        return
    kind = _CONFIG_KINDS[effect.kind]
    used = {names.LAST_USED: clock.now().isoformat()}
    if effect.present is None:
        meta = effect.body["metadata"]
        body = {**effect.body, "metadata": {**meta, "annotations": {**meta.get("annotations", {}), **used}}}
        await client.create(kind, body)
        return
    meta = effect.present["metadata"]
    patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "annotations": used}}
    await client.patch(kind, meta["name"], patch, namespace=meta.get("namespace"))


async def _ensure_entry(client: Client, effect: EnsureConfig) -> None:
    document: Document = effect.body["document"]
    body = document.with_entry(effect.present, effect.body["key"], effect.body["content"], clock.now())
    await (client.create(CONFIG_MAPS, body) if effect.present is None else client.replace(CONFIG_MAPS, body))


async def _create_slice(client: Client, effect: CreateSlice) -> Object:
    return await client.create(RESOURCE_SLICES, dict(effect.body), metadata_only=True)


async def _put_slice(client: Client, effect: PutSlice) -> Object:
    return await client.replace(RESOURCE_SLICES, dict(effect.body), metadata_only=True)


async def _delete_slice(client: Client, effect: DeleteSlice) -> None:
    await client.delete(RESOURCE_SLICES, effect.name, uid=effect.uid, resource_version=effect.resource_version)


_CONFIG_KINDS: Final = {"DaemonSet": DAEMON_SETS}

_DO: Final[dict[type[Any], Do]] = {
    PatchNode: _patch_node,
    RemoveTaint: _remove_taint,
    CreateTaintRule: _create_rule,
    ActivateTaintRule: _activate_rule,
    DeleteTaintRule: _delete_rule,
    DeletePod: _delete_pod,
    EvictPod: _evict,
    DeleteHolder: _delete_pod,
    EnsureConfig: _ensure_config,
    CreateSlice: _create_slice,
    PutSlice: _put_slice,
    DeleteSlice: _delete_slice,
}
