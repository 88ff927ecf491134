"""What happens in the demo, chapter by chapter. All that it says was looked at in the cluster; at what is not so, it stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from rich.table import Table

from gpupartition.kube import PODS, Object
from gpupartition.settings import Settings
from testbed import nodes
from testbed.admin import Admin
from testbed.controlplane import ROOT
from testbed.demo import workloads
from testbed.demo.host import SHAPE, SHORTENED
from testbed.demo.scene import GPU_DRIVER, Scene
from testbed.demo.screen import Board, Screen
from testbed.demo.workloads import EXAMPLES, JOBS

LOOK_SECONDS: Final = 0.2
SOON_SECONDS: Final = 60
"""For what takes a second or two on an idle machine."""
NODE_SECONDS: Final = 60
"""For one node's way; some 6 s on two cores."""
READ_SECONDS: Final = 4
"""Where somebody should have time to read before the board moves on; only on a terminal."""
POLICY: Final = EXAMPLES / "driver-example.yaml", EXAMPLES / "halves.yaml"
SHORT, LONG = "train-a", "train-b"
SHORT_SECONDS = 12  # long enough to be seen waiting for, short enough to be waited for
ASKED: Final = {
    "whole": ("a whole GPU", "full is true"),
    "part": ("a part of one", "there is a partition"),
    "large": ("anything with 80Gi", "memory >= 80Gi"),
}


class DidNotHoldError(Exception):
    """Something that the demo says was not so. The message says what, and what was seen instead."""


class Story:
    """One telling of it."""

    def __init__(self, screen: Screen, client: Admin) -> None:
        self._screen = screen
        self._client = client
        self._names = tuple(nodes.names(SHAPE.nodes))
        self._busy, self._held_long = self._names[1], self._names[3]

    async def tell(self) -> None:
        """All chapters. Raises DidNotHoldError."""
        await self._before()
        await self._policy()
        await self._roll_out()
        await self._last_job()
        given = await self._three_ways()
        await self._exclusion(*given)

    async def keep_showing(self) -> None:
        """Show the board until cancelled."""
        with self._screen.board() as board:
            while True:
                board.update(await self._look())
                await asyncio.sleep(LOOK_SECONDS)

    # ---------------------------------------------------------------------------------------------------------- chapters

    async def _before(self) -> None:
        screen, client = self._screen, self._client
        screen.chapter("Before: every GPU in one piece, and two jobs at work")
        await workloads.make_namespace(client, JOBS)
        await workloads.submit(client, JOBS, SHORT, node=self._busy, completes_after=f"{SHORT_SECONDS}s")
        await workloads.submit(client, JOBS, LONG, node=self._held_long)
        jobs = {SHORT: self._busy, LONG: self._held_long}
        scene = await self._until(
            lambda s: all(s.got(JOBS, job) for job in jobs), f"the jobs {SHORT} and {LONG} have their GPUs"
        )
        screen.map(scene)
        for job, node in jobs.items():
            screen.held(f"pod {JOBS}/{job} has {(scene.got(JOBS, job) or ('', 'nothing'))[1]} of {node}")
        screen.gap()
        screen.say(
            f"{JOBS}/{SHORT} ends by itself, {SHORT_SECONDS} s after it began; {JOBS}/{LONG} goes on until somebody ends it."
        )
        await self._pause()

    async def _policy(self) -> None:
        screen = self._screen
        screen.chapter("A policy: every GPU in halves")
        screen.code("\n".join(f"kubectl apply -f {path.relative_to(ROOT)}" for path in POLICY))
        screen.gap()
        screen.code("\n".join(line for line in POLICY[1].read_text().splitlines() if not line.startswith("#")))
        screen.gap()
        screen.say(f"{_shortened()} Nodes that are in use are left alone until they are idle (WhenIdle).")
        await self._pause()

    async def _roll_out(self) -> None:
        screen = self._screen
        before = await self._look()
        for file in POLICY:
            await workloads.apply(self._client, file)
        screen.chapter("The roll-out: one node at a time, nobody loses a GPU")
        others = [name for name in self._names if name != self._held_long]
        with screen.board() as board:
            scene = await self._until(
                lambda s: self._all_but_one(s, others),
                f"{', '.join(others)} are up to date, and {self._held_long} waits for {JOBS}/{LONG}",
                within=NODE_SECONDS * len(others),
                board=board,
                also=self._one_at_a_time,
            )
            await self._pause()
        row = next(row for row in scene.rows() if row.node == self._held_long)
        _, reason, message = scene.ready()
        screen.gap()
        screen.held(f"{', '.join(others)} are in halves")
        screen.held("at every look at most one node was in work, and no device in use was missing")
        self._claim(f"{JOBS}/{LONG}" in row.waits, f"{row.node} waits for {row.waits}")
        self._claim(
            scene.untouched(row.node) == before.untouched(row.node),
            f"nothing on {row.node} was touched: the same driver pod, the same slices",
        )
        screen.held(f"the policy says {reason}: {message}")
        await self._pause()

    async def _last_job(self) -> None:
        screen = self._screen
        screen.gap()
        screen.say(f"The job {JOBS}/{LONG} comes to its end:")
        screen.code(f"kubectl delete pod --namespace {JOBS} {LONG}")
        screen.gap()
        await self._client.delete(PODS, LONG, namespace=JOBS)
        with screen.board() as board:
            scene = await self._until(
                lambda s: s.ready()[0],
                "the policy is Ready",
                within=NODE_SECONDS,
                board=board,
                also=self._one_at_a_time,
            )
        screen.gap()
        screen.held(f"Ready: {scene.ready()[2]}")
        expected = [name for gpu in range(SHAPE.gpus) for name in _devices(gpu)]
        self._claim(
            all(scene.devices(name) == expected for name in self._names),
            f"every node publishes {len(expected)} devices: {', '.join(_devices(0))} ...",
        )
        if not screen.lively:
            screen.gap()
            screen.map(scene)
        await self._pause()

    async def _three_ways(self) -> tuple[str, str]:
        """Returns node and device of the pod that asked for a whole GPU."""
        screen = self._screen
        screen.chapter("Three pods: a whole GPU, a part, and whatever has 80Gi")
        path = EXAMPLES / "pods" / "three-ways-to-ask.yaml"
        screen.code(f"kubectl apply -f {path.relative_to(ROOT)}")
        screen.gap()
        await workloads.apply(self._client, path)
        scene = await self._until(lambda s: all(s.got("default", pod) for pod in ASKED), "the three pods run")
        given = {pod: scene.got("default", pod) or ("", "") for pod in ASKED}
        table = Table(box=None, pad_edge=False, header_style="bright_black", padding=(0, 3, 0, 0))
        for column in ("POD", "ASKED FOR", "GOT", "OF", "MEMORY"):
            table.add_column(column, no_wrap=column != "ASKED FOR")
        for pod, (node, device) in given.items():
            table.add_row(pod, ASKED[pod][0], device, node, scene.size(node, device))
        screen.show(table)
        screen.gap()
        screen.map(scene)
        self._claim(given["whole"][1].endswith("-full"), "whoever asked for a whole GPU got one")
        self._claim("-partition-" in given["part"][1], "whoever asked for a part got a half")
        self._claim(scene.size(*given["large"]) == "80Gi", "whoever asked for 80Gi by a CEL expression got 80Gi")
        await self._pause()
        return given["whole"]

    async def _exclusion(self, node: str, whole: str) -> None:
        screen, client = self._screen, self._client
        gpu = int(whole.removeprefix("gpu-").removesuffix("-full"))
        screen.chapter(
            f"A fourth pod wants a half of {whole.removesuffix('-full')} on {node}, which is taken as a whole"
        )
        attributes = f"device.attributes['{GPU_DRIVER}']"
        cel = f"has({attributes}.partition) && {attributes}.index == {gpu}"
        await workloads.submit(client, "default", "late", node=node, cel=cel)
        scene = await self._until(lambda s: _refused(s, "late") != "", "the scheduler has tried to place the pod late")
        self._claim(
            scene.got("default", "late") is None, f"it does not get one; the scheduler: {_refused(scene, 'late')}"
        )
        self._claim(scene.got("default", "whole") == (node, whole), f"pod whole still has {whole}")
        await self._pause()
        screen.gap()
        screen.say("The whole is given back:")
        screen.code("kubectl delete pod whole")
        screen.gap()
        await client.delete(PODS, "whole", namespace="default")
        scene = await self._until(lambda s: s.got("default", "late") is not None, "the pod late runs")
        got = scene.got("default", "late")
        self._claim(got is not None and got[1] in _devices(gpu)[:-1] and got[0] == node, f"now it has {got and got[1]}")
        screen.gap()
        screen.map(scene)
        await self._pause()

    # ----------------------------------------------------------------------------------------------------------- looking

    async def _look(self) -> Scene:
        scene = await Scene.look(self._client, self._names)
        for each in scene.maps():
            if each.lost:
                raise DidNotHoldError(f"{', '.join(each.lost)} of {each.node} is in use but not published any more")
        return scene

    async def _until(
        self,
        condition: Callable[[Scene], bool],
        what: str,
        *,
        within: float = SOON_SECONDS,
        board: Board | None = None,
        also: Callable[[Scene], None] = lambda _: None,
    ) -> Scene:
        """Look until it is so, and check `also` each time; raises DidNotHoldError after `within` seconds."""
        deadline = time.monotonic() + within
        while True:
            scene = await self._look()
            also(scene)
            if board:
                board.update(scene)
            if condition(scene):
                return scene
            if time.monotonic() > deadline:
                seen = "; ".join(f"{row.node} {row.phase or '-'} {row.waits}".strip() for row in scene.rows())
                raise DidNotHoldError(f"{what} (waited {within:.0f} s; seen: {seen})")
            await asyncio.sleep(LOOK_SECONDS)

    def _all_but_one(self, scene: Scene, others: list[str]) -> bool:
        rows = {row.node: row for row in scene.rows()}
        held = rows[self._held_long]
        settled = all(rows[name].phase == "UpToDate" for name in others) and held.blocked
        return settled and scene.ready()[1] == "WaitingForHolders"

    def _one_at_a_time(self, scene: Scene) -> None:
        if len(scene.in_hand()) > 1:
            raise DidNotHoldError(f"one node at a time: {', '.join(scene.in_hand())} are all in work")

    def _claim(self, holds: bool, sentence: str) -> None:
        if not holds:
            raise DidNotHoldError(sentence)
        self._screen.held(sentence)

    async def _pause(self) -> None:
        if self._screen.lively:
            await asyncio.sleep(READ_SECONDS)


def _devices(gpu: int) -> list[str]:
    """What a halved GPU publishes, in this order."""
    return [f"gpu-{gpu}-partition-0", f"gpu-{gpu}-partition-1", f"gpu-{gpu}-full"]


def _refused(scene: Scene, pod: str) -> str:
    """What the scheduler says of a pod that it cannot place; nothing while it has not tried."""
    body = scene.pod("default", pod) or {}
    conditions = body.get("status", {}).get("conditions", ())
    said: Object = next((c for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), {})
    return str(said.get("message", "")).split(". ", 1)[0]


def _shortened() -> str:
    usual = Settings().limits
    times = {"settle": usual.settle, "idle gap": usual.idle_gap, "min ready": usual.min_ready}
    said = [f"{n} {SHORTENED[n.replace(' ', '_')]:g} s, not {t.total_seconds():g} s" for n, t in times.items()]
    return f"The operator's waiting times are shortened for this demo ({'; '.join(said)})."
