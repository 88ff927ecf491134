"""GPUs that a table knows, published by the operator: what the scheduler can make of them, and what it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.e2e.bench import becomes
from tests.e2e.history import Watcher
from tests.e2e.publishing import FULL, POLICY, WAIT, gpus, nothing_is_ever_sold_twice, site
from tests.e2e.rollout import condition, stalled

from gpupartition.kube import RESOURCE_CLAIMS, RESOURCE_SLICES

if TYPE_CHECKING:
    from tests.e2e.harness import Cluster

    from gpupartition.kube import Object

H100 = "NVIDIA H100 80GB HBM3"
MI300X = "AMD_Instinct_MI300X_OAM"
PROFILES = ["1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]


def layout(kind: str, **more: Any) -> Object:
    return {"name": kind.lower(), "match": {"all": True}, "type": kind, **more}


def choices(*profiles: str, **more: Any) -> Object:
    return layout("Choices", choices={"profiles": list(profiles), **more})


def of(profile: str, index: int | None = None) -> str:
    on = f" && mine.index == {index}" if index is not None else ""
    return f"mine.profile == '{profile}'{on}"


async def test_eight_h100_give_claims_whatever_partition_they_ask_for_and_never_what_cannot_be(
    cluster: Cluster,
) -> None:
    own = await site(cluster, gpus(8, H100))
    async with Watcher(cluster, RESOURCE_SLICES, RESOURCE_CLAIMS) as history:
        await own.gets(choices(*PROFILES))
        assert len(await own.offers()) == 8 * 26
        users = own.users()
        await users.ask("small", of("1g.10gb"))
        assert await users.device("small") == "gpu-0-1g--10gb-6"
        await users.ask("large", of("3g.40gb"))
        assert await users.device("large") == "gpu-0-3g--40gb-0"
        await users.ask("whole", FULL)
        assert await users.device("whole") == "gpu-1-full"
        await users.ask("another-large", of("3g.40gb", 0))
        await users.waits("another-large")  # the small one lies where it would
        await users.ask("part-of-whole", of("1g.10gb", 1))
        await users.waits("part-of-whole")
        await users.end("small")
        assert await users.device("another-large") == "gpu-0-3g--40gb-4"
        await users.end("whole")
        assert await users.device("part-of-whole") == "gpu-1-1g--10gb-6"
    assert nothing_is_ever_sold_twice(history, own) == 3


async def test_seven_of_the_smallest_can_be_had_of_each_h100_and_no_more(cluster: Cluster) -> None:
    own = await site(cluster, gpus(8, H100))
    await own.gets(choices(*PROFILES))
    users = own.users()
    for index in range(8):
        await users.ask(f"seven-{index}", of("1g.10gb", index), count=7)
    for index in range(8):
        names = await users.devices(f"seven-{index}")
        assert sorted(names) == [f"gpu-{index}-1g--10gb-{start}" for start in range(7)]
    await users.ask("eighth", "mine.type == 'mig'")
    await users.waits("eighth")


async def test_exact_partitions_can_all_be_had_and_who_holds_one_that_stays_notices_no_change(
    cluster: Cluster,
) -> None:
    own = await site(cluster, gpus(2, H100))
    async with Watcher(cluster, RESOURCE_SLICES, RESOURCE_CLAIMS) as history:
        await own.gets(choices(*PROFILES))
        users = own.users()
        await users.ask("stays", of("3g.40gb"))
        assert await users.device("stays") == "gpu-0-3g--40gb-4"
        await own.gets(layout("Profiles", profiles=[{"name": "all-balanced"}]), **WAIT)
        await becomes(own.retired, [])
        kinds = ["1g--10gb-2", "1g--10gb-3", "2g--20gb-0", "3g--40gb-4"]
        assert sorted(await own.offers()) == [f"gpu-{index}-{kind}" for index in (0, 1) for kind in kinds]
        for number in range(7):
            await users.ask(f"part-{number}")
        devices = {await users.device(f"part-{number}") for number in range(7)}
        assert devices | {"gpu-0-3g--40gb-4"} == set(await own.offers())
        await users.ask("more")
        await users.waits("more")
    assert nothing_is_ever_sold_twice(history, own) == 8


async def test_exact_partitions_that_cannot_be_are_refused_with_what_fits(cluster: Cluster) -> None:
    own = await site(cluster, gpus(1, H100))
    await own.want(layout("Profiles", profiles=[{"name": "3g.40gb", "count": 3}]))
    message = condition(await stalled(cluster, POLICY, "LayoutDoesNotFit"), "Accepted")["message"]
    assert "GPU 0 (NVIDIA H100 80GB HBM3) 3 x 3g.40gb are too many" in message
    assert "what fits instead: 2 x 3g.40gb" in message
    assert await own.slices() == []


async def test_a_gpu_of_amd_is_in_one_mode_at_a_time_whatever_the_scheduler_chooses(cluster: Cluster) -> None:
    own = await site(cluster, gpus(1, MI300X, "192Gi"))
    async with Watcher(cluster, RESOURCE_SLICES, RESOURCE_CLAIMS) as history:
        await own.gets(layout("Mode", mode={"compute": "CPX", "memory": "NPS4"}))
        users = own.users()
        await users.ask("eight", "mine.partitionProfile == 'cpx_nps4'", count=8)
        assert sorted(await users.devices("eight")) == [f"gpu-0-cpx-nps4-{number}" for number in range(8)]
        await users.end("eight")

        await own.gets(choices("CPX/NPS1", "DPX/NPS1"), **WAIT)
        await users.ask("half", of("dpx_nps1"))
        assert await users.device("half") == "gpu-0-dpx-nps1-0"
        await users.ask("eighth", of("cpx_nps1"))
        await users.waits("eighth")
        await users.ask("whole", FULL)
        await users.waits("whole")
        await users.ask("other-half", of("dpx_nps1"))
        assert await users.device("other-half") == "gpu-0-dpx-nps1-1"
    assert nothing_is_ever_sold_twice(history, own) == 8
