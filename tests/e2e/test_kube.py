"""The client and the reflector on a real API server: what it does with pages, watches, preconditions and old versions."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
import pytest
from tests.e2e.harness import eventually
from tests.e2e.wire import wire

from gpupartition.kube import (
    CONFIG_MAPS,
    NAMESPACES,
    NODES,
    Client,
    Conflict,
    Gone,
    Invalid,
    NotFound,
    Object,
    Unreachable,
)
from gpupartition.kube.reflector import Reflector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from testbed.admin import Admin
    from testbed.controlplane import ControlPlane
    from tests.e2e.harness import Cluster
    from tests.e2e.wire import Wire


def config_map(namespace: str, name: str, **data: str) -> Object:
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


@pytest.fixture
async def namespace(cluster: Cluster) -> str:
    name = f"{cluster.name}-kube"
    await cluster.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


@pytest.fixture
def client(cluster: Cluster) -> Admin:
    return cluster.client


class TestWrites:
    """What becomes of writes that race, repeat, or break a rule."""

    async def test_compare_and_swap_lets_only_the_first_of_two_writers_through(
        self, client: Client, namespace: str
    ) -> None:
        read = await client.create(CONFIG_MAPS, config_map(namespace, "swap"))
        await client.replace(CONFIG_MAPS, read | {"data": {"by": "first"}})
        with pytest.raises(Conflict) as caught:
            await client.replace(CONFIG_MAPS, read | {"data": {"by": "second"}})
        assert str(caught.value).startswith(f"replace configmaps {namespace}/swap: 409 Conflict: ")
        now = await client.get(CONFIG_MAPS, "swap", namespace=namespace)
        assert now["data"] == {"by": "first"}

    async def test_a_writer_who_knows_what_it_wrote_is_answered_with_the_metadata_alone(
        self, client: Client, namespace: str
    ) -> None:
        body = config_map(namespace, "brief", large="a" * 1000)
        first = await client.create(CONFIG_MAPS, body, metadata_only=True)
        version = {"resourceVersion": first["metadata"]["resourceVersion"]}
        again = {**body, "metadata": {**body["metadata"], **version}, "data": {"large": "b" * 1000}}
        second = await client.replace(CONFIG_MAPS, again, metadata_only=True)
        assert "data" not in first | second
        now = await client.get(CONFIG_MAPS, "brief", namespace=namespace)
        assert (now["metadata"], now["data"]) == (second["metadata"], again["data"])
        with pytest.raises(Conflict):
            await client.replace(CONFIG_MAPS, again, metadata_only=True)

    async def test_a_merge_patch_under_a_version_is_compare_and_swap_too(self, client: Client, namespace: str) -> None:
        old = await client.create(CONFIG_MAPS, config_map(namespace, "merge"))
        await client.patch(CONFIG_MAPS, "merge", {"data": {"a": "1"}}, namespace=namespace)
        stale = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}, "data": {"a": "2"}}
        with pytest.raises(Conflict):
            await client.patch(CONFIG_MAPS, "merge", stale, namespace=namespace)

    async def test_a_json_patch_whose_test_fails_changes_nothing(self, client: Client, namespace: str) -> None:
        await client.create(CONFIG_MAPS, config_map(namespace, "json", a="1"))
        await client.patch(
            CONFIG_MAPS, "json", [{"op": "replace", "path": "/data/a", "value": "2"}], namespace=namespace
        )
        guarded = [
            {"op": "test", "path": "/data/a", "value": "1"},
            {"op": "replace", "path": "/data/a", "value": "3"},
        ]
        with pytest.raises(Invalid):
            await client.patch(CONFIG_MAPS, "json", guarded, namespace=namespace)
        assert (await client.get(CONFIG_MAPS, "json", namespace=namespace))["data"] == {"a": "2"}

    async def test_a_name_that_is_taken_is_told_from_a_lost_race(self, client: Client, namespace: str) -> None:
        await client.create(CONFIG_MAPS, config_map(namespace, "twice"))
        with pytest.raises(Conflict) as caught:
            await client.create(CONFIG_MAPS, config_map(namespace, "twice"))
        assert caught.value.reason == "AlreadyExists"

    async def test_applying_is_creating_then_owning(self, client: Admin, namespace: str) -> None:
        mine, theirs = config_map(namespace, "owned", a="1"), config_map(namespace, "owned", a="2")
        await client.apply(CONFIG_MAPS, mine, field_manager="me")
        with pytest.raises(Conflict) as caught:
            await client.apply(CONFIG_MAPS, theirs, field_manager="you")
        assert caught.value.causes
        assert ".data.a" in str(caught.value)
        taken = await client.apply(CONFIG_MAPS, theirs, field_manager="you", force=True)
        assert taken["data"] == {"a": "2"}

    async def test_a_dry_run_says_what_would_be_and_leaves_it_at_that(self, client: Admin, namespace: str) -> None:
        for would_be in (
            await client.create(CONFIG_MAPS, config_map(namespace, "dry", a="1"), dry_run=True),
            await client.apply(CONFIG_MAPS, config_map(namespace, "dry", a="1"), field_manager="me", dry_run=True),
        ):
            assert would_be["metadata"]["uid"]
        with pytest.raises(NotFound):
            await client.get(CONFIG_MAPS, "dry", namespace=namespace)

    async def test_an_invalid_object_comes_back_with_the_field_and_the_reason(
        self, client: Client, namespace: str
    ) -> None:
        with pytest.raises(Invalid) as caught:
            await client.create(CONFIG_MAPS, config_map(namespace, "bad", **{"no spaces please": ""}))
        ((field, why),) = caught.value.causes
        assert field == "data[no spaces please]"
        assert "a valid config key" in why

    async def test_deleting_is_bound_to_the_very_object_and_version_that_was_read(
        self, client: Client, namespace: str
    ) -> None:
        old = (await client.create(CONFIG_MAPS, config_map(namespace, "bound")))["metadata"]
        new = (await client.patch(CONFIG_MAPS, "bound", {"data": {"a": "1"}}, namespace=namespace))["metadata"]
        with pytest.raises(Conflict):
            await client.delete(CONFIG_MAPS, "bound", namespace=namespace, uid="00000000-0000-0000-0000-000000000000")
        with pytest.raises(Conflict):
            await client.delete(
                CONFIG_MAPS, "bound", namespace=namespace, uid=old["uid"], resource_version=old["resourceVersion"]
            )
        await client.delete(
            CONFIG_MAPS, "bound", namespace=namespace, uid=new["uid"], resource_version=new["resourceVersion"]
        )
        with pytest.raises(NotFound):
            await client.get(CONFIG_MAPS, "bound", namespace=namespace)

    async def test_a_collection_is_deleted_by_its_label_and_the_rest_stays(self, client: Admin, namespace: str) -> None:
        for name in ("go", "stay"):
            body = config_map(namespace, name)
            body["metadata"]["labels"] = {"fate": name}
            await client.create(CONFIG_MAPS, body)
        await client.delete_all(CONFIG_MAPS, namespace=namespace, label_selector="fate=go")
        left = await client.list(CONFIG_MAPS, namespace=namespace, label_selector="fate")
        assert [each["metadata"]["name"] for each in left.items] == ["stay"]


class TestReads:
    """Lists, watches, and anything else."""

    async def test_a_list_in_pages_is_the_same_as_in_one_piece(self, client: Client, namespace: str) -> None:
        for number in range(7):
            await client.create(CONFIG_MAPS, config_map(namespace, f"page-{number}"))
        whole = await client.list(CONFIG_MAPS, namespace=namespace)
        paged = await client.list(CONFIG_MAPS, namespace=namespace, page=2)
        assert paged.items == whole.items
        assert {(each["kind"], each["apiVersion"]) for each in paged.items} == {("ConfigMap", "v1")}

    async def test_a_watch_goes_on_where_the_list_ended(self, client: Client, namespace: str) -> None:
        since = (await client.list(CONFIG_MAPS, namespace=namespace)).resource_version
        await client.create(CONFIG_MAPS, config_map(namespace, "seen"))
        await client.patch(CONFIG_MAPS, "seen", {"data": {"a": "1"}}, namespace=namespace)
        await client.delete(CONFIG_MAPS, "seen", namespace=namespace)
        events = client.watch(
            CONFIG_MAPS, resource_version=since, namespace=namespace, field_selector="metadata.name=seen"
        )
        seen: list[str] = []
        async for event, _ in events:
            seen.append(event)
            if event == "DELETED":
                break
        await events.aclose()
        assert seen == ["ADDED", "MODIFIED", "DELETED"]

    async def test_anything_else_can_be_asked_for_by_its_path(self, client: Client) -> None:
        assert await client.raw("GET", "/readyz") == "ok"
        assert (await client.raw("GET", "/version"))["major"] == "1"

    async def test_pages_of_a_moment_that_etcd_has_forgotten_are_gone(
        self, controlplane: ControlPlane, namespace: str
    ) -> None:
        # Asked of an API server that has just started: an older one may still remember the moment itself.
        async with Client.connect(controlplane.kubeconfig) as client:
            for number in range(3):
                await client.create(CONFIG_MAPS, config_map(namespace, f"old-{number}"))
            pages = client.pages(CONFIG_MAPS, namespace=namespace, page=1)
            await anext(pages)
            await forget_history(controlplane, client, namespace)
            await controlplane.restart("kube-apiserver")
            with pytest.raises(Gone):
                [page async for page in pages]
            whole = await client.list(CONFIG_MAPS, namespace=namespace, page=1)
            assert {f"old-{number}" for number in range(3)} <= {each["metadata"]["name"] for each in whole.items}


async def forget_history(controlplane: ControlPlane, client: Client, namespace: str) -> None:
    """Have etcd forget all that was before now."""
    now = await client.create(CONFIG_MAPS, config_map(namespace, f"now-{time.monotonic_ns()}"))
    url = f"http://127.0.0.1:{controlplane.parts.ports.etcd}/v3/kv/compaction"
    body = {"revision": now["metadata"]["resourceVersion"], "physical": True}
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
        answer.raise_for_status()


@dataclass(frozen=True, slots=True)
class Seen:
    """What the reflector keeps of a ConfigMap."""

    uid: str
    value: str


def project(obj: Object) -> Seen | None:
    data: dict[str, str] = obj.get("data") or {}
    return None if data.get("hidden") else Seen(obj["metadata"]["uid"], data.get("value", ""))


class Copy:
    """A reflector of one namespace's ConfigMaps, at the far end of a wire, and the changes that it told."""

    def __init__(self, client: Client, namespace: str, line: Wire) -> None:
        self.told: list[tuple[str, str | None, str | None]] = []
        self.line = line
        self.namespace = namespace
        self.reflector = Reflector(
            client,
            CONFIG_MAPS,
            project,
            self._tell,
            namespace=namespace,
            field_selector="metadata.name!=kube-root-ca.crt",
            page=2,
            indexes={"value": lambda seen: [seen.value] if seen.value else []},
        )

    def _tell(self, key: str, old: Seen | None, new: Seen | None) -> None:
        self.told.append(
            (key.removeprefix(f"{self.namespace}/"), old.value if old else None, new.value if new else None)
        )

    def names(self) -> set[str]:
        return {key.removeprefix(f"{self.namespace}/") for key, _ in self.reflector.items()}


@asynccontextmanager
async def copy(controlplane: ControlPlane, namespace: str, folder: Path) -> AsyncIterator[Copy]:
    async with wire(controlplane.kubeconfig, folder) as (line, near), Client.connect(near) as client:
        mine = Copy(client, namespace, line)
        task = asyncio.create_task(mine.reflector.run())
        try:
            async with asyncio.timeout(30):
                await mine.reflector.synced.wait()
            yield mine
        finally:
            task.cancel()
            await asyncio.wait([task])


class TestReflector:
    """A copy at the far end of a wire."""

    @pytest.fixture
    async def copied(
        self, controlplane: ControlPlane, client: Client, namespace: str, tmp_path: Path
    ) -> AsyncIterator[Copy]:
        for number in range(5):
            await client.create(CONFIG_MAPS, config_map(namespace, f"c{number}", value="old"))
        async with copy(controlplane, namespace, tmp_path) as copied:
            yield copied

    async def test_it_is_synced_when_it_has_everything(self, copied: Copy) -> None:
        assert copied.names() == {f"c{number}" for number in range(5)}
        assert copied.told == [(f"c{number}", None, "old") for number in range(5)]
        assert copied.reflector.lists == 1

    async def test_it_tells_of_changes_that_matter_and_of_no_others(
        self, copied: Copy, client: Client, namespace: str
    ) -> None:
        copied.told.clear()
        await client.patch(CONFIG_MAPS, "c0", {"metadata": {"labels": {"no": "matter"}}}, namespace=namespace)
        await client.patch(CONFIG_MAPS, "c1", {"data": {"value": "new"}}, namespace=namespace)
        await client.patch(CONFIG_MAPS, "c2", {"data": {"hidden": "yes"}}, namespace=namespace)
        await client.delete(CONFIG_MAPS, "c3", namespace=namespace)
        await eventually(lambda: len(copied.told) == 3)
        assert copied.told == [("c1", "old", "new"), ("c2", "old", None), ("c3", "old", None)]

    async def test_what_is_filed_under_a_value_follows_the_value(
        self, copied: Copy, client: Client, namespace: str
    ) -> None:
        def filed(value: str) -> int:
            return len(copied.reflector.by("value", value))

        assert filed("old") == 5
        await client.patch(CONFIG_MAPS, "c1", {"data": {"value": "new"}}, namespace=namespace)
        await client.delete(CONFIG_MAPS, "c2", namespace=namespace)
        await eventually(lambda: (filed("old"), filed("new")) == (3, 1))
        assert filed("never") == 0

    async def test_after_a_short_cut_it_goes_on_without_listing_again(
        self, copied: Copy, controlplane: ControlPlane, client: Client, namespace: str
    ) -> None:
        copied.line.cut()
        await eventually(lambda: isinstance(copied.reflector.trouble, Unreachable))
        await client.delete(CONFIG_MAPS, "c0", namespace=namespace)
        await client.create(CONFIG_MAPS, config_map(namespace, "c9", value="new"))
        copied.line.lead_to(controlplane.kubeconfig)
        await eventually(lambda: copied.names() == {"c1", "c2", "c3", "c4", "c9"})
        assert copied.reflector.lists == 1
        assert copied.reflector.trouble is None

    async def test_after_a_cut_that_no_server_remembers_it_prunes_what_was_deleted_meanwhile(
        self, copied: Copy, controlplane: ControlPlane, client: Client, namespace: str
    ) -> None:
        copied.line.cut()
        await eventually(lambda: isinstance(copied.reflector.trouble, Unreachable))
        copied.told.clear()
        first = copied.reflector.get(f"{namespace}/c2")
        await client.delete(CONFIG_MAPS, "c0", namespace=namespace)
        await client.delete(CONFIG_MAPS, "c1", namespace=namespace)
        await client.delete(CONFIG_MAPS, "c2", namespace=namespace)
        await client.create(CONFIG_MAPS, config_map(namespace, "c2", value="another"))
        await forget_history(controlplane, client, namespace)
        await controlplane.restart("kube-apiserver")
        copied.line.lead_to(controlplane.kubeconfig)
        await eventually(lambda: copied.reflector.lists == 2)
        assert copied.told[-2:] == [("c0", "old", None), ("c1", "old", None)]
        assert ("c2", "old", "another") in copied.told
        second = copied.reflector.get(f"{namespace}/c2")
        assert first is not None
        assert second is not None
        assert second.uid != first.uid

    async def test_a_mistake_in_a_callback_is_not_hidden(self, client: Client, cluster: Cluster) -> None:
        await cluster.nodes(1)

        def mistaken(*_: object) -> None:
            raise KeyError("no such field")

        with pytest.raises(KeyError, match="no such field"):
            await Reflector(client, NODES, dict, mistaken).run()
