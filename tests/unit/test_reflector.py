"""What the reflector makes of a server that forgets, breaks off, or never gets as far as the version that was asked for."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from tests.unit.scripted import Answer, Scripted, line, refusal, scripted

from gpupartition.kube import NODES, Client, NotServed
from gpupartition.kube.pauses import AT_ONCE
from gpupartition.kube.reflector import Reflector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from gpupartition.kube import Object

SILENCE = Answer(hang=True)
EXPIRED = refusal(410, "Expired", "too old")


def node(name: str, version: int) -> Object:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def version_of(body: Object) -> str:
    """What is kept of a node; a zone would be too much."""
    if "zone" in body["metadata"]:
        raise KeyError("zone")
    return str(body["metadata"]["resourceVersion"])


MANY = [node(f"n{number}", 3) for number in range(10)]


def listed(*nodes: Object, version: int, more: str = "") -> Answer:
    meta = {"resourceVersion": str(version), "continue": more}
    return Answer({"kind": "NodeList", "apiVersion": "v1", "metadata": meta, "items": list(nodes)})


def watched(*events: tuple[str, Object], cut: bool = False) -> Answer:
    return Answer(lines=tuple(line(*event) for event in events), cut=cut)


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Scripted]:
    async with scripted(tmp_path) as server:
        yield server


@asynccontextmanager
async def following(server: Scripted, *script: Answer, **more: Any) -> AsyncIterator[Reflector[str]]:
    """Follow the script to its end, after which the server keeps silent."""
    server.will_answer(*script, SILENCE)
    async with Client.connect(server.kubeconfig) as client:
        reflector = Reflector(client, NODES, version_of, page=1, **more)
        task = asyncio.create_task(reflector.run())
        try:
            async with asyncio.timeout(20):
                await server.finished.wait()
            yield reflector
        finally:
            task.cancel()
            await asyncio.wait([task])


def versions_watched_from(server: Scripted) -> list[str]:
    return [request.query["resourceVersion"] for request in server.asked if "watch" in request.query]


async def test_it_goes_on_from_the_last_event_bookmarks_included(server: Scripted) -> None:
    script = (
        listed(node("a", 3), version=5),
        watched(("MODIFIED", node("a", 7)), cut=True),
        watched(("BOOKMARK", {"metadata": {"resourceVersion": "9"}})),
    )
    async with following(server, *script) as reflector:
        assert versions_watched_from(server) == ["5", "7", "9"]
        assert dict(reflector.items()) == {"a": "7"}
        assert reflector.lists == 1


NAMELESS: Object = {"metadata": {"resourceVersion": "6"}}
PAGE = Answer("<!DOCTYPE html>\n<title>Log in</title>")


@pytest.mark.parametrize(
    "odd",
    [
        PAGE,
        *map(Answer, (None, [], 5, {}, {"kind": "NodeList", "apiVersion": "v1", "metadata": {}})),
        listed(NAMELESS, version=5),
        listed({}, version=5),
        Answer({**listed(version=5).body, "items": {"a": 1}}),
        Answer({"kind": "Status", "details": 1, "message": 2}, 500),
        Answer({"kind": "Status", "details": {"causes": 1, "retryAfterSeconds": "soon"}}, 503),
    ],
)
async def test_what_no_api_server_lists_is_no_list_and_is_asked_for_again(server: Scripted, odd: Answer) -> None:
    async with following(server, odd, listed(node("a", 3), version=5)) as reflector:
        assert dict(reflector.items()) == {"a": "3"}


@pytest.mark.parametrize(
    "odd",
    [
        PAGE,
        *(
            Answer(lines=(each + "\n",))
            for each in ("null", "[]", "{}", '{"type": "ADDED"}', '{"type": 1, "object": {}}')
        ),
        watched(("ADDED", {})),
        watched(("ADDED", NAMELESS)),
        watched(("BOOKMARK", {"metadata": {}})),
        watched(("ERROR", {"code": []})),
        watched(("ERROR", {"kind": "Status", "details": [], "message": {}})),
    ],
)
async def test_what_no_api_server_tells_is_no_news_and_the_watch_goes_on(server: Scripted, odd: Answer) -> None:
    script = (listed(node("a", 3), version=5), odd, watched(("ADDED", node("b", 6))))
    async with following(server, *script) as reflector:
        assert versions_watched_from(server) == ["5", "5", "6"]
        assert dict(reflector.items()) == {"a": "3", "b": "6"}


async def test_what_the_second_list_lacks_is_gone(server: Scripted) -> None:
    script = (listed(node("a", 3), node("b", 4), version=5), EXPIRED, listed(node("b", 4), version=9))
    async with following(server, *script) as reflector:
        assert dict(reflector.items()) == {"b": "4"}
        assert versions_watched_from(server) == ["5", "9"]


async def test_a_list_that_was_only_half_read_prunes_nothing(server: Scripted) -> None:
    script = (
        listed(node("a", 3), node("b", 4), version=5),
        EXPIRED,
        listed(node("a", 3), version=9, more="b"),
        EXPIRED,
    )
    async with following(server, *script) as reflector:
        assert set(dict(reflector.items())) == {"a", "b"}


async def test_a_list_whose_pages_grew_too_old_is_read_in_one_piece_the_next_time(server: Scripted) -> None:
    script = (listed(node("a", 3), version=5, more="b"), EXPIRED, listed(node("a", 3), node("b", 4), version=9))
    async with following(server, *script) as reflector:
        assert reflector.synced.is_set()
        assert ["limit" in request.query for request in server.asked[:3]] == [True, True, False]


async def test_a_list_that_fails_in_one_piece_too_is_read_in_pages_again(server: Scripted) -> None:
    too_much = refusal(500, "InternalError", "the list is too large")
    script = (listed(node("a", 3), version=5, more="b"), EXPIRED, too_much, listed(node("a", 3), version=9))
    async with following(server, *script) as reflector:
        assert reflector.synced.is_set()
        assert ["limit" in request.query for request in server.asked[:4]] == [True, True, False, True]


async def test_a_version_that_never_comes_is_given_up_for_a_new_list(server: Scripted) -> None:
    ahead = refusal(504, "Timeout", "Too large resource version")
    script = (listed(node("a", 300), version=300), *[ahead] * 5, listed(node("a", 7), version=9))
    async with following(server, *script) as reflector:
        assert versions_watched_from(server) == ["300"] * 5 + ["9"]
        assert dict(reflector.items()) == {"a": "7"}


@pytest.mark.parametrize(
    "script",
    [
        (listed(*MANY, version=5),),
        (listed(version=5), watched(*(("ADDED", each) for each in MANY))),
    ],
    ids=["list", "watch"],
)
async def test_others_have_their_turn_while_much_is_read(server: Scripted, script: tuple[Answer, ...]) -> None:
    turns: list[int] = []
    of_others = 0

    def slowly(body: Object) -> str:
        until = time.monotonic() + 2 * AT_ONCE
        while time.monotonic() < until:
            pass
        turns.append(of_others)
        return version_of(body)

    async def others() -> None:
        nonlocal of_others
        while len(turns) < len(MANY):
            of_others += 1
            await asyncio.sleep(0)

    server.will_answer(*script, SILENCE)
    async with Client.connect(server.kubeconfig) as client, asyncio.timeout(20):
        following = asyncio.create_task(Reflector(client, NODES, slowly).run())
        await others()
        following.cancel()
        await asyncio.wait([following])
    assert len(set(turns)) == len(MANY), "they had none between one object and the next"


async def test_a_kind_that_no_server_behind_the_address_has_is_not_waited_for(server: Scripted) -> None:
    unknown = refusal(404, "NotFound", "the server could not find the requested resource")
    async with following(server, *[unknown] * 4) as reflector:
        assert not reflector._answered.is_set(), "another of them may be upgraded already"
    async with following(server, *[unknown] * 5) as reflector:
        with pytest.raises(NotServed):
            await asyncio.wait_for(reflector.complete(), 20)
    async with following(server, *[unknown] * 4, listed(node("a", 3), version=5)) as reflector:
        await asyncio.wait_for(reflector.complete(), 20)
        assert dict(reflector.items()) == {"a": "3"}


async def test_it_says_what_is_wrong_until_it_is_right_again(server: Scripted) -> None:
    no = refusal(403, "Forbidden", "nodes are none of your business")
    async with following(server, no) as reflector:
        assert "list nodes: 403 Forbidden: nodes are none of your business" in str(reflector.trouble)
        assert not reflector.synced.is_set()
    server.asked.clear()
    async with following(server, no, listed(version=5)) as reflector:
        assert reflector.trouble is None


async def test_only_what_the_copy_has_in_another_version_is_read_again(server: Scripted) -> None:
    async with following(server, listed(node("a", 3), node("b", 4), node("gone", 1), version=5)) as reflector:
        server.will_answer(
            listed(node("a", 3), node("b", 6), node("new", 7), version=8),
            listed(node("b", 6), version=8),
            listed(version=9),  # it has gone since
        )
        assert sorted(await reflector.now(str, field_selector="spec.driver=d")) == ["3", "6"]
        versions, *read = server.asked[-3:]
        assert "PartialObjectMetadataList" in versions.headers["Accept"]
        assert versions.query["fieldSelector"] == "spec.driver=d"
        assert sorted(each.query["fieldSelector"] for each in read) == ["metadata.name=b", "metadata.name=new"]


async def test_where_much_differs_all_is_read_again(server: Scripted) -> None:
    many = [node(f"n{number}", 7) for number in range(30)]
    async with following(server, listed(node("n1", 7), version=5)) as reflector:
        server.will_answer(listed(*many, version=8), listed(*many, version=8))
        assert await reflector.now(str) == ["7"] * 30
        assert "fieldSelector" not in server.asked[-1].query


async def test_an_object_that_cannot_be_read_is_reported_and_all_others_are_followed(
    server: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    odd = {"metadata": {"name": "odd", "resourceVersion": "4", "zone": {}}}
    gone = {"metadata": {"name": "gone", "resourceVersion": "4", "zone": {}}}
    script = (
        listed(odd, gone, node("a", 3), version=5),
        watched(("MODIFIED", odd), ("MODIFIED", node("a", 6)), ("DELETED", gone), ("MODIFIED", node("b", 7))),
    )
    async with following(server, *script, indexes={"zone": lambda version: (version[:1],)}) as reflector:
        assert dict(reflector.items()) == {"a": "6", "b": "7"}
        assert list(reflector.by("zone", "6")) == ["6"]
        assert list(reflector.unreadable) == ["odd"]
    assert [record.message for record in caplog.records] == [
        "nodes odd cannot be read, and counts as absent",
        "nodes gone cannot be read, and counts as absent",
    ]


async def test_an_object_that_can_no_longer_be_read_leaves_nothing_old_behind(server: Scripted) -> None:
    spoilt = {"metadata": {"name": "a", "resourceVersion": "6", "zone": {}}}
    changes: list[tuple[object, ...]] = []
    script = (
        listed(node("a", 3), version=5),
        watched(("MODIFIED", spoilt), ("MODIFIED", node("a", 7))),
    )
    by_zone = {"zone": lambda version: (version,)}
    async with following(
        server, *script, indexes=by_zone, on_change=lambda *change: changes.append(change)
    ) as reflector:
        assert changes == [("a", None, "3"), ("a", "3", None), ("a", None, "7")]
        assert not reflector.by("zone", "3")
        assert not reflector.unreadable


async def test_what_somebody_nests_without_end_spoils_no_list_and_no_watch(server: Scripted) -> None:
    """An API server takes 10,000 levels in the parameters of a ResourceClaim, and anybody may create one."""
    deep = json.dumps(node("deep", 6) | {"spec": None}).replace("null", "[" * 9000 + "]" * 9000)
    page = json.dumps(listed(node("a", 3), version=5).body).replace('"items": [', f'"items": [{deep}, ')
    event = f'{{"type": "MODIFIED", "object": {deep}}}\n'
    script = (Answer(lines=(page,)), Answer(lines=(event, line("ADDED", node("b", 7)))))
    async with following(server, *script) as reflector:
        assert dict(reflector.items()) == {"a": "3", "deep": "6", "b": "7"}
        assert not reflector.unreadable


async def test_the_version_of_an_object_is_known_though_nothing_has_changed_that_is_kept(server: Scripted) -> None:
    events = watched(("MODIFIED", node("a", 2)), ("DELETED", node("b", 3)), ("BOOKMARK", node("-", 3)))
    server.will_answer(listed(node("a", 1), node("b", 1), version=1), events, SILENCE)
    heard: list[str] = []
    async with Client.connect(server.kubeconfig) as client:
        nodes = Reflector(client, NODES, lambda _: "same", lambda key, *_: heard.append(key), versions=True)
        task = asyncio.create_task(nodes.run())
        async with asyncio.timeout(10):
            while nodes.resource_version != "3":  # noqa: ASYNC110  (there is no event that says so)
                await asyncio.sleep(0.01)
        task.cancel()
    assert (nodes.version("a"), nodes.version("b"), nodes.version("c")) == ("2", "", "")
    assert heard == ["a", "b", "b"], "nobody is told of a version"
