"""Pictures for browsers: what is on them, that they stand by themselves, and that nothing that others wrote gets out of its place."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.fleet import Fleet, equal, policy

from gpupartition.cli import map as command
from gpupartition.cli.options import Unusable, save
from gpupartition.cli.page import MOST, page
from gpupartition.cli.planned import plans_for
from gpupartition.cli.show import Shown
from gpupartition.cli.svg import CLASSES, HIGH, document, picture, safe
from gpupartition.domain.course import MOST as MOST_STEPS
from gpupartition.domain.course import course
from gpupartition.domain.gpumap import NodeMap, Use
from gpupartition.domain.plan_summary import capacity
from gpupartition.domain.prospect import Prospect
from gpupartition.kube import DEVICE_TAINT_RULES, NODES
from gpupartition.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from gpupartition.domain.plan import Plan

NOW: Final = datetime(2026, 12, 1, 6, 0, tzinfo=UTC)
SVG: Final = "{http://www.w3.org/2000/svg}"
EVIL: Final = "team-a/<script>alert('x')</script>\"'&\x1b[2J"
CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def fleet() -> Fleet:
    """Four nodes: in halves with one in use, in use as a whole by somebody with an evil name, closed, and free."""
    made = Fleet(4)
    made.publish("node-1", parts=2)
    made.hold("node-1", claim="team-b/job-8", device="gpu-3-partition-1")
    made.hold("node-2", claim=EVIL)
    selector = {"driver": "gpu.example.com", "pool": "node-3"}
    spec = {"deviceSelector": selector, "taint": {"key": "gpupartition.dev/repartitioning", "effect": "NoSchedule"}}
    made.objects[DEVICE_TAINT_RULES] = [{"metadata": {"name": "r"}, "spec": spec}]
    return made


async def planned(made: Fleet, **spec: Any) -> list[Plan]:
    made.apply(policy("inference", equal(2), **spec))
    return await plans_for(made.client, Settings())


def shown(plans: list[Plan]) -> str:
    return page(Shown(plans=plans, prospect=Prospect()), NOW)


def parsed(text: str) -> ET.Element:
    """The picture's elements; raises where it is no XML."""
    return ET.fromstring(text)  # noqa: S314 - of our own making


# ---------------------------------------------------------------------------------------------------------------------------- map


async def test_every_part_is_drawn_to_scale_and_says_what_it_is() -> None:
    root = parsed(picture(await command.look(fleet().client)))
    parts = [(r.get("class"), float(r.get("width", "0")), r[0].text) for r in root.iter(f"{SVG}rect") if len(r)]
    assert len(parts) == 8 * 2 + 3 * 8
    widths = {text: width for _, width, text in parts}
    assert widths["GPU 3: gpu-3-partition-1, 40Gi, used, by team-b/job-8"] == 50
    assert widths["GPU 1: gpu-1, 80Gi, tainted"] == 100
    assert {style for style, _, _ in parts} == {"free", "used", "tainted"}
    told = [text.text for text in root.iter(f"{SVG}text")]
    assert [name for name in told if name in CLASSES.values()] == ["free", "used", "tainted"], "what is there has a key"
    assert CLASSES.keys() == set(Use)


async def test_what_is_wrong_with_a_node_stands_below_its_bars_and_above_the_next_node() -> None:
    made = fleet()
    (cordoned,) = (body for body in made.objects[NODES] if body["metadata"]["name"] == "node-2")
    cordoned["spec"] = {"unschedulable": True}
    root = parsed(picture(await command.look(made.client)))
    texts = {text.text: float(text.get("y", "0")) for text in root.iter(f"{SVG}text")}
    bars = [float(r.get("y", "0")) for r in root.iter(f"{SVG}rect") if len(r)]
    assert not [y for y in bars if y < texts["cordoned: no new pod comes here"] < y + HIGH]
    assert texts["node-2"] < texts["cordoned: no new pod comes here"] < texts["node-3"]
    assert max(bars) + HIGH < texts["free"]


async def test_a_picture_of_nothing_says_so() -> None:
    assert "no node publishes GPUs" in picture([])
    parsed(picture([NodeMap(node="node-1", driver="d", problem="it is <broken>")]))


@given(text=st.text())
def test_no_text_of_others_breaks_a_picture(text: str) -> None:
    root = parsed(document(f'<text id="{safe(text)}">{safe(text)}</text>', high=10, label=text))
    assert [each.tag for each in root] == [f"{SVG}style", f"{SVG}rect", f"{SVG}text"]


# --------------------------------------------------------------------------------------------------------------------------- plan


class Reader(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in {"meta", "line", "polyline"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in {"line", "polyline"}:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


async def test_a_plan_stands_by_itself_and_runs_nothing() -> None:
    read = Reader(shown(await planned(fleet())))
    assert read.open == []
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name.startswith("on") or name in {"href", "src"}]
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in read.attributes
    assert "<script>alert('x')</script>" in read.text, "as a text"
    assert "\x1b" not in read.text


async def test_a_plan_shows_before_and_after_waves_blockers_and_capacity() -> None:
    text = shown(await planned(fleet(), rollout={"maxUnavailable": 1}))
    for style in ("lost", "gained"):
        assert f'class="{style}"' in text
    read = Reader(text)
    for told in (
        "Wave 1",
        "Who is in the way",
        "At least meanwhile",
        "node-2",
        "Blocked",
        "gpu-0",
    ):
        assert told in read.text, told
    assert "ends when the pod does" in read.text


async def test_nodes_that_are_alike_are_drawn_once_and_many_waves_are_cut_short() -> None:
    plans = await planned(Fleet(MOST * 3))
    text = shown(plans)
    assert text.count(">before<") == 1
    assert f"and {MOST * 3 - MOST} more waves" in text
    assert len(text) < 200_000


async def test_a_plan_in_which_nothing_happens_is_a_page_too() -> None:
    made = Fleet(1)
    made.publish("node-1", parts=2)
    assert Reader(shown(await planned(made))).open == []
    assert Reader(shown([])).open == []


# ------------------------------------------------------------------------------------------------------------------------- course


async def test_a_node_in_its_wave_has_nothing_to_offer_and_then_what_is_wanted() -> None:
    (plan,) = await planned(Fleet(2))
    going = course(plan)
    assert going.moments == ("now", "during wave 1", "after wave 1", "during wave 2", "after wave 2")
    assert going.open == {"40Gi": (0, 0, 16, 16, 32), "80Gi": (16, 8, 16, 8, 16)}


async def test_the_end_of_the_course_is_what_the_plan_says() -> None:
    (plan,) = await planned(fleet())
    going = course(plan)
    assert {m.profile: (m.before, m.after) for m in capacity(plan)} == {
        profile: (values[0], values[-1]) for profile, values in going.open.items()
    }


async def test_many_waves_are_told_as_few_with_the_least_of_each() -> None:
    (plan,) = await planned(Fleet(MOST_STEPS * 2 + 1), rollout={"maxUnavailable": 1})
    going = course(plan)
    assert len(going.moments) <= 2 * MOST_STEPS + 1
    assert going.moments[1] == "during wave 1 to wave 3"
    (nodes,) = {len(plan.nodes)}
    assert min(going.open["80Gi"]) == 8 * (nodes - 1)
    assert going.open["40Gi"][-1] == 16 * nodes


# -------------------------------------------------------------------------------------------------------------------- as a browser


def test_a_file_that_cannot_be_written_is_an_error_in_one_line(tmp_path: Path) -> None:
    save(str(tmp_path / "a.svg"), "x")
    assert (tmp_path / "a.svg").read_text() == "x"
    with pytest.raises(Unusable, match="could not be written: No such file or directory; name a file"):
        save(str(tmp_path / "nowhere" / "a.svg"), "x")


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
async def test_a_browser_shows_them_in_light_and_in_dark_and_refuses_nothing(tmp_path: Path) -> None:
    (tmp_path / "plan.html").write_text(shown(await planned(fleet())))
    (tmp_path / "map.svg").write_text(picture(await command.look(fleet().client)))
    for name in ("plan.html", "map.svg"):
        pictures = []
        for scheme in ("0", "1"):  # preferred: dark, light
            shot = tmp_path / f"{name}-{scheme}.png"
            flags = [
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--enable-logging=stderr",
                f"--user-data-dir={tmp_path}/{scheme}",
            ]
            look = [
                f"--blink-settings=preferredColorScheme={scheme}",
                f"--screenshot={shot}",
                f"file://{tmp_path / name}",
            ]
            command_line = [str(CHROMIUM), *flags, *look]
            ran = await asyncio.to_thread(
                subprocess.run, command_line, capture_output=True, text=True, timeout=60, check=True
            )
            assert not re.search(r"CONSOLE|Refused|error on line", ran.stderr), ran.stderr
            pictures.append(shot.read_bytes())
        assert pictures[0] != pictures[1], "dark is not light"
