"""What the fault proxy does to a client of a real API server, and what has become of the writes."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest
from testbed.faultproxy import FaultProxy, Injury, Rule, To
from tests.e2e.harness import eventually

from gpupartition.kube import CONFIG_MAPS, ApiError, Client, Conflict, Gone, NotFound, TooManyRequests, Unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.e2e.harness import Cluster

ALWAYS: Final = 1.0


@asynccontextmanager
async def line(cluster: Cluster, folder: Path, *rules: Rule, seed: int = 1) -> AsyncIterator[tuple[FaultProxy, Client]]:
    """A fault proxy, and a client at its near end."""
    async with (
        FaultProxy(cluster.controlplane.kubeconfig, folder, seed=seed, rules=rules) as proxy,
        Client.connect(proxy.kubeconfig) as client,
    ):
        yield proxy, client


def config_map(name: str, namespace: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}}


async def exists(cluster: Cluster, name: str, namespace: str) -> bool:
    try:
        await cluster.client.get(CONFIG_MAPS, name, namespace=namespace)
    except NotFound:
        return False
    return True


async def test_a_good_line_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    namespace = await cluster.namespace()
    async with line(cluster, tmp_path) as (proxy, client):
        made = await client.create(CONFIG_MAPS, config_map("a", namespace))
        assert await client.get(CONFIG_MAPS, "a", namespace=namespace) == made
        changed = await client.patch(CONFIG_MAPS, "a", {"data": {"a": "ö"}}, namespace=namespace)
        assert changed["data"] == {"a": "ö"}
        with pytest.raises(Conflict, match="AlreadyExists"):
            await client.create(CONFIG_MAPS, config_map("a", namespace))
        version = made["metadata"]["resourceVersion"]
        async for what, body in client.watch(CONFIG_MAPS, namespace=namespace, resource_version=version):
            assert (what, body) == ("MODIFIED", changed)
            break
        assert proxy.log == []


@pytest.mark.parametrize(
    ("injury", "error", "status"),
    [
        (Injury.CONFLICT, Conflict, 409),
        (Injury.EXPIRED, Gone, 410),
        (Injury.BUSY, TooManyRequests, 429),
        (Injury.BROKEN, ApiError, 500),
        (Injury.HANG, Unreachable, 0),
    ],
)
async def test_what_is_refused_does_not_happen(
    cluster: Cluster, tmp_path: Path, injury: Injury, error: type[ApiError], status: int
) -> None:
    namespace = await cluster.namespace()
    rule = Rule(injury=injury, to=To.WRITES, share=ALWAYS, path="/configmaps", seconds=(0.1, 0.2))
    async with line(cluster, tmp_path, rule) as (proxy, client):
        with pytest.raises(error) as caught:
            await client.create(CONFIG_MAPS, config_map("a", namespace))
        assert caught.value.status == status
        assert not await exists(cluster, "a", namespace)
        assert [(each.injury, each.method) for each in proxy.log] == [(injury, "POST")]
        proxy.rules = ()
        await client.create(CONFIG_MAPS, config_map("a", namespace))


async def test_a_write_whose_answer_is_lost_has_happened(cluster: Cluster, tmp_path: Path) -> None:
    namespace = await cluster.namespace()
    rule = Rule(injury=Injury.LOST, to=To.WRITES, share=ALWAYS)
    async with line(cluster, tmp_path, rule) as (_, client):
        with pytest.raises(Unreachable):
            await client.create(CONFIG_MAPS, config_map("a", namespace))
        assert await exists(cluster, "a", namespace)


async def test_a_late_write_happens_when_its_sender_has_long_given_it_up(cluster: Cluster, tmp_path: Path) -> None:
    namespace = await cluster.namespace()
    rule = Rule(injury=Injury.LATE, to=To.WRITES, share=ALWAYS, seconds=(1, 1))
    async with line(cluster, tmp_path, rule) as (proxy, client):
        with pytest.raises(Unreachable):
            await client.create(CONFIG_MAPS, config_map("a", namespace))
        assert not await exists(cluster, "a", namespace)
        await proxy.delivered()
        assert await exists(cluster, "a", namespace)


@pytest.mark.parametrize(("injury", "error"), [(Injury.CUT, Unreachable), (Injury.EXPIRED, Gone)])
async def test_a_watch_breaks_off_after_it_has_shown_something(
    cluster: Cluster, tmp_path: Path, injury: Injury, error: type[ApiError]
) -> None:
    namespace = await cluster.namespace()
    rule = Rule(injury=injury, to=To.WATCHES, share=ALWAYS, seconds=(1, 1))
    async with line(cluster, tmp_path, rule) as (_, client):
        version = (await client.list(CONFIG_MAPS, namespace=namespace)).resource_version
        await client.create(CONFIG_MAPS, config_map("a", namespace))
        seen = []

        async def follow() -> None:
            async for what, body in client.watch(CONFIG_MAPS, namespace=namespace, resource_version=version):
                seen.append((what, body["metadata"]["name"]))

        with pytest.raises(error):
            await follow()
        assert ("ADDED", "a") in seen


async def test_the_same_seed_does_the_same_to_the_same_requests(cluster: Cluster, tmp_path: Path) -> None:
    rules = [Rule(injury=Injury.HANG, to=To.READS, share=0.5, seconds=(0, 0.01))]
    logs = []
    for seed in (5, 5, 6):
        async with line(cluster, tmp_path, *rules, seed=seed) as (proxy, client):
            await eventually(lambda client=client, proxy=proxy: asked(client, proxy, 40))  # type: ignore[misc]
            logs.append([(each.number, each.seconds) for each in proxy.log if each.number <= 40])
    assert logs[0] == logs[1] != logs[2]


async def asked(client: Client, proxy: FaultProxy, times: int) -> bool:
    """Ask once more; whether enough has been asked."""
    with suppress(Unreachable):
        await client.raw("GET", "/version")
    return proxy.log[-1:] != [] and proxy.log[-1].number >= times
