"""`kubectl gpp`: what it says is what is there, it is told as it happens, and it takes no right to write."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
from collections import Counter
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml
from tests.e2e.deployments import PDBS, budget, web
from tests.e2e.harness import NODE_STATES, POLICIES, eventually
from tests.e2e.rollout import apply, asks, at_rest, equal, granting, operator, policy, reaches, ready, said, site, whole
from tests.e2e.shell import PLANNER, VIEWER, Answer, account_of, answer, command, environment, gpp, only_read

from gpupartition.cli.status import BACK, SCREEN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.harness import Cluster

POLICY: Final = "inference"
INTERRUPTED: Final = 130
FOUND: Final = 3


def interruptible() -> None:
    """Whoever runs the tests in the background has them ignore Ctrl-C, and a program inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@asynccontextmanager
async def watching(cluster: Cluster, *arguments: str) -> AsyncIterator[list[str]]:
    """The lines that `status -w` has written into a pipe so far; it is interrupted at the end, and has to take that well."""
    process = await asyncio.create_subprocess_exec(
        *command(cluster, "status", "-w", *arguments),
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=interruptible,
    )
    assert process.stdout is not None
    lines: list[str] = []

    async def read(stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            lines.append(line.decode().rstrip("\n"))

    reading = asyncio.create_task(read(process.stdout))
    try:
        yield lines
    finally:
        os.killpg(process.pid, signal.SIGINT)
        ended = await process.wait()
        await reading
    assert ended == INTERRUPTED


# ─── status ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_status_says_who_is_done_and_who_waits_for_whom_to_whoever_may_view(cluster: Cluster) -> None:
    where = await site(cluster, 3)
    held = where.nodes[1]
    await cluster.holder("job-7", namespace=where.user, node=held, device_class=where.base.driver)
    await cluster.running("job-7", namespace=where.user)
    await operator(cluster)
    await apply(cluster, policy(POLICY, where.driver, equal(2)))
    await said(cluster, POLICY, "Ready", "False", "WaitingForHolders")
    viewer = await account_of(cluster, VIEWER)

    async def settled() -> Any:
        (told,) = (await gpp(cluster, "status", "-o", "json", kubeconfig=viewer)).data["policies"]
        assert told["counts"].get("upToDate") == 2, told
        return told

    told = await eventually(settled)
    nodes = {each["node"]: each for each in told["nodes"]}
    assert {name: each["phase"] for name, each in nodes.items()} == {
        name: "Pending" if name == held else "UpToDate" for name in where.nodes
    }
    (blocker,) = nodes[held]["blockers"]
    assert (blocker["pod"], blocker["reason"]) == (f"{where.user}/job-7", "Allocated")

    table = await gpp(cluster, "status", kubeconfig=viewer)
    assert f"{POLICY} (driver {where.driver}): 2 of 3 nodes up to date; " in table.out
    (row,) = [line.split() for line in table.out.splitlines() if line.startswith(f"  {cluster.name}-")]
    assert row[:2] == [held, "Pending"]
    assert f"{where.user}/job-7" in row
    assert "\x1b" not in table.out
    assert only_read(cluster, VIEWER)


async def test_status_tells_as_it_happens_until_every_node_is_done(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    await operator(cluster)
    async with watching(cluster) as lines:
        await apply(cluster, policy(POLICY, where.driver, equal(2)))
        await ready(cluster, POLICY)

        def last(about: str) -> str:
            found = [line for line in lines if f"  {about}  " in line]
            assert found, lines
            return found[-1]

        await eventually(lambda: "RolloutComplete" in last(f"policy/{POLICY}"))
        await eventually(lambda: all("  UpToDate" in last(f"node/{node}") for node in where.nodes))
    said_of_one = [line.split("  ", 1)[1] for line in lines if f"node/{where.nodes[0]}" in line]
    assert all(one != other for one, other in pairwise(said_of_one)), "nothing is told twice"


async def test_on_a_terminal_the_picture_changes_in_a_screen_of_its_own(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    await apply(cluster, policy(POLICY, where.driver, equal(2)))
    ours, theirs = os.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            *command(cluster, "status", "-w"),
            env={**environment(), "TERM": "xterm"},
            stdout=theirs,
            preexec_fn=interruptible,
        )
        shown = bytearray()

        def reads(text: str) -> bool:
            while select.select([ours], [], [], 0)[0]:
                shown.extend(os.read(ours, 65536))
            return text in shown.decode()

        await eventually(lambda: reads("NotSeenYet"))
        await operator(cluster)
        await eventually(lambda: reads("RolloutComplete"))
        process.send_signal(signal.SIGINT)
        assert await process.wait() == INTERRUPTED
        assert reads(BACK), "the terminal is left as it was found"
        assert shown.decode().startswith(SCREEN)
    finally:
        os.close(ours)
        os.close(theirs)


async def test_a_policy_that_is_not_there_is_an_error_in_one_line(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    await apply(cluster, policy(POLICY, where.driver, equal(2)))
    for more in ([], ["-w"]):
        answer = await gpp(cluster, "status", "training", *more)
        assert (answer.code, answer.out) == (1, "")
        assert answer.errors == f"error: there is no GpuPartitionPolicy training; there are: {POLICY}\n"


# ─── history, diff, pictures, metrics ─────────────────────────────────────────────────────────────────────────────────


async def test_history_diff_and_pictures_take_no_right_to_write(cluster: Cluster, tmp_path: Path) -> None:
    where = await site(cluster, 2)
    one, other = where.nodes
    await operator(cluster)
    await apply(cluster, policy(POLICY, where.driver, equal(2)))
    await ready(cluster, POLICY)
    planner = await account_of(cluster, PLANNER)

    async def known() -> list[Any]:
        entries = (await gpp(cluster, "history", one, "-o", "json", kubeconfig=planner)).data["entries"]
        assert [e["what"] for e in entries if e["from"] == "event"][-1] == "NodeUpToDate"
        return list(entries)

    entries = await eventually(known)
    assert {e["node"] for e in entries} == {one}
    seconds = [datetime.fromisoformat(e["at"]).replace(microsecond=0) for e in entries]
    assert seconds == sorted(seconds)
    whats = [e["what"] for e in entries]
    assert whats.index("NodeAdmitted") < whats.index("NodeApplying") < whats.index("NodeUpToDate")
    of_policy = (await gpp(cluster, "history", POLICY, kubeconfig=planner)).out
    for words in (f"{one} ", f"{other} ", "RolloutComplete", "spec by ", "events are kept for an hour"):
        assert words in of_policy, words

    same, changed = tmp_path / "same.yaml", tmp_path / "changed.yaml"
    same.write_text(yaml.safe_dump(policy(POLICY, where.driver, equal(2))))
    changed.write_text(yaml.safe_dump(policy(POLICY, where.driver, equal(4))))
    assert (await gpp(cluster, "diff", "-f", str(same), kubeconfig=planner)).code == 0
    assert (await gpp(cluster, "diff", POLICY, kubeconfig=planner)).code == 0
    told = await gpp(cluster, "diff", "-f", str(changed), kubeconfig=planner)
    assert told.code == 1, told
    assert {"-      parts: 2", "+      parts: 4", "-32 40Gi", "+64 20Gi"} <= set(told.out.splitlines())

    svg, html = tmp_path / "map.svg", tmp_path / "plan.html"
    assert (await gpp(cluster, "map", "--svg", str(svg), kubeconfig=planner)).code == 0
    assert (await gpp(cluster, "plan", "-f", str(changed), "--html", str(html), kubeconfig=planner)).code == 0
    assert one in svg.read_text()
    assert "Wave 1" in html.read_text()
    assert only_read(cluster, PLANNER)


async def test_metrics_tell_how_things_stand_and_nothing_of_what_is_gone(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    program = await operator(cluster)
    await apply(cluster, policy(POLICY, where.driver, equal(2)))
    await ready(cluster, POLICY)
    await at_rest(cluster)

    async def told() -> set[str]:
        page = await asks(program, "/metrics")
        return {line for line in page.splitlines() if f'policy="{POLICY}"' in line and not line.endswith(" 0.0")}

    async def settled() -> set[str]:
        lines = await told()
        assert f'gpupartition_policy_reason{{policy="{POLICY}",reason="RolloutComplete"}} 1.0' in lines
        assert f'gpupartition_nodes{{phase="UpToDate",policy="{POLICY}"}} 2.0' in lines
        assert f'gpupartition_devices{{policy="{POLICY}",profile="40Gi"}} 32.0' in lines
        return lines

    lines = await eventually(settled)
    assert f'gpupartition_policy_condition{{condition="Ready",policy="{POLICY}"}} 1.0' in lines
    assert not [line for line in lines if "node=" in line], "nobody is in flight"
    await cluster.client.delete(POLICIES, POLICY)
    await cluster.gone(POLICIES, POLICY)
    for node in where.nodes:
        await cluster.gone(NODE_STATES, node)

    async def forgotten() -> bool:
        return not await told()

    await eventually(forgotten)


# ─── completion ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_kubectl_completes_commands_and_names_of_the_cluster(cluster: Cluster) -> None:
    where = await site(cluster, 2)
    await operator(cluster)
    await apply(cluster, policy(POLICY, where.driver, equal(2)))
    await ready(cluster, POLICY)
    kubectl = str(cluster.controlplane.parts.binaries["kubectl"])

    async def completed(*words: str) -> list[str]:
        told = await answer([kubectl, "__complete", "gpp", *words], env=environment())
        return [line.partition("\t")[0] for line in told.out.splitlines()]

    assert await completed("pau") == ["pause", ":4"]
    named = ("--kubeconfig", str(cluster.controlplane.kubeconfig))
    assert await completed("pause", *named, "") == [POLICY, ":4"]
    assert await completed("explain", *named, "") == [*where.nodes, ":4"]
    assert await completed("retry", f"--kubeconfig={named[1]}", POLICY[:3]) == [POLICY, ":4"]


# ─── explain ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_explain_names_pod_and_budget_until_the_node_is_free(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    (node,) = where.nodes
    planner = await account_of(cluster, PLANNER)
    async with granting(cluster, "evict"):
        await web(cluster, where)
        await budget(cluster, where, "always-one")
        await operator(cluster)
        await apply(cluster, policy(POLICY, where.driver, equal(2), rollout={"drain": {"mode": "Evict"}}))

        async def refused() -> Any:
            told = (await gpp(cluster, "explain", node, "-o", "json", kubeconfig=planner)).data
            assert [each["reason"] for each in told["blockers"]] == ["EvictionBlocked"], told
            return told

        told = await eventually(refused)
        (blocker,) = told["blockers"]
        assert blocker["pod"].startswith(f"{where.user}/web-")
        assert blocker["pdb"] == f"{where.user}/always-one"
        assert blocker["since"]
        assert "the disruption budget allows it" in blocker["wouldFree"]
        assert (told["policy"], told["phase"], told["plan"]["state"]) == (POLICY, "Draining", "UnderWay")
        assert told["grant"]["policy"] == POLICY
        table = await gpp(cluster, "explain", node, kubeconfig=planner)
        assert f"{where.user}/always-one" in table.out
        assert "next    it goes on when its holders have ended" in table.out
        asked = cluster.audit(user=f"system:serviceaccount:{cluster.name}-planner:planner")
        assert {each["verb"] for each in asked} <= {"get", "list"}

        await cluster.client.delete(PDBS, "always-one", namespace=where.user)
        await ready(cluster, POLICY, within=90)
    told = (await gpp(cluster, "explain", node, "-o", "json", kubeconfig=planner)).data
    assert (told["phase"], told["plan"]["state"], told["blockers"], told["grant"]) == ("UpToDate", "UpToDate", [], None)


async def test_explain_tells_of_a_node_that_has_what_is_wanted_and_of_one_that_is_nowhere(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    (node,) = where.nodes
    await operator(cluster)
    await apply(cluster, policy(POLICY, where.driver, equal(2)))
    await ready(cluster, POLICY)
    answer = await gpp(cluster, "explain", node)
    assert answer.out.startswith(f"{node}: UpToDate for "), answer
    assert answer.out.rstrip().endswith("nothing is to be done: it has what is wanted")
    assert (await gpp(cluster, "explain", "nowhere")).errors.startswith("error: there is no node nowhere; ")


# ─── map ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.newest
async def test_map_draws_what_is_published_who_has_it_and_what_is_closed(cluster: Cluster) -> None:
    where = await site(cluster, 2, env={"GPU_PARTITIONS": "2"})
    held, other = where.nodes
    await cluster.holder("job-7", namespace=where.user, node=held, device_class=where.base.driver)
    await cluster.running("job-7", namespace=where.user)
    planner = await account_of(cluster, PLANNER)

    async def uses(node: str) -> dict[str, int]:
        """How many parts of a node's GPUs are in which use."""
        pools = (await gpp(cluster, "map", node, "-o", "json", kubeconfig=planner)).data["pools"]
        return Counter(part["use"] for pool in pools for gpu in pool["gpus"] for part in gpu["parts"])

    assert await uses(held) == {"used": 1, "free": 15}
    assert await uses(other) == {"free": 16}
    table = await gpp(cluster, "map", held, kubeconfig=planner)
    (row,) = [line for line in table.out.splitlines() if f"{where.user}/job-7" in line]
    assert row.split()[-2:] == ["used", f"{where.user}/job-7"]
    every = await gpp(cluster, "map", "-l", f"pool={where.base.pool}", "-o", "name", kubeconfig=planner)
    assert every.out.split() == [f"node/{name}" for name in where.nodes]

    await operator(cluster)
    rollout = {"drain": {"mode": "Wait"}, "maxUnavailable": 2}
    await apply(
        cluster, policy(POLICY, where.driver, whole(), selector={"kubernetes.io/hostname": held}, rollout=rollout)
    )
    await reaches(cluster, held, "Draining")
    assert await uses(held) == {"used": 1, "tainted": 15}
    assert await uses(other) == {"free": 16}


# ─── check ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def verdicts(answer: Answer) -> dict[str, str]:
    """What each check has come to; of several the last."""
    return {each["check"]: each["verdict"] for each in json.loads(answer.out)["checks"]}


@pytest.mark.newest
async def test_check_finds_a_cluster_ready_and_names_the_drivers(cluster: Cluster) -> None:
    where = await site(cluster, 1)
    answer = await gpp(cluster, "check", "-o", "json")
    assert answer.code == 0, answer
    found = verdicts(answer)
    assert found.pop(f"driver {where.driver}") == "ok"
    assert {name: verdict for name, verdict in found.items() if name != "drivers"} == dict.fromkeys(
        ("version", "slices", "taints", "counters", "crds"), "ok"
    )
    (said_of_it,) = [c["says"] for c in json.loads(answer.out)["checks"] if c["check"] == f"driver {where.driver}"]
    assert said_of_it == f"ExampleDriver {where.base.driver}, published by 1 nodes"


async def test_check_says_what_it_may_not_ask_instead_of_calling_it_well(cluster: Cluster) -> None:
    await site(cluster, 1)
    answer = await gpp(
        cluster, "check", "-o", "json", "--fail-on=unknown", kubeconfig=await account_of(cluster, PLANNER)
    )
    assert answer.code == FOUND, answer
    assert verdicts(answer)["counters"] == "unknown"
    assert {verdict for name, verdict in verdicts(answer).items() if name != "counters"} <= {"ok", "warned"}
    asked = cluster.audit(user=f"system:serviceaccount:{cluster.name}-planner:planner")
    assert {each["verb"] for each in asked} == {"get", "list", "create"}
    assert all("dryRun=All" in each["requestURI"] for each in asked if each["verb"] == "create"), "nothing is stored"


async def test_check_finds_what_is_switched_off(cluster: Cluster) -> None:
    await site(cluster, 1)
    before = set(cluster.controlplane.programs)
    off = "resource.k8s.io/v1/devicetaintrules=false"
    other = await cluster.controlplane.second_apiserver("DRAPartitionableDevices=false", runtime_config=off)
    (name,) = set(cluster.controlplane.programs) - before
    try:
        answer = await gpp(cluster, "check", "-o", "json", kubeconfig=other)
    finally:
        await cluster.controlplane.programs.pop(name).kill()
    assert answer.code == FOUND, answer
    assert (verdicts(answer)["counters"], verdicts(answer)["taints"]) == ("failed", "warned")
    (counters,) = [c for c in json.loads(answer.out)["checks"] if c["check"] == "counters"]
    assert "DRAPartitionableDevices" in counters["fix"]
