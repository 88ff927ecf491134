"""What the client makes of servers that refuse, hang, break off, or answer with something else."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
import yaml
from kubernetes.aio.client import Configuration
from kubernetes.aio.config import ConfigException
from tests.unit.scripted import TOKEN, Answer, Scripted, kubeconfig, line, refusal, scripted

from gpupartition.kube import (
    CONFIG_MAPS,
    NODES,
    PODS,
    ApiError,
    Client,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotServed,
    TooManyRequests,
    Unreachable,
)
from gpupartition.kube.credentials import Credentials

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

NODE = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n", "resourceVersion": "7"}}
LATER = refusal(429, "TooManyRequests", "not now", retryAfterSeconds=0)


def page(*names: str, more: str = "", version: str = "5") -> Answer:
    items = [{"metadata": {"name": name, "resourceVersion": "1"}} for name in names]
    return Answer(
        {
            "kind": "NodeList",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": version, "continue": more},
            "items": items,
        }
    )


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[Scripted]:
    async with scripted(tmp_path) as server:
        yield server


@pytest_asyncio.fixture
async def client(server: Scripted) -> AsyncIterator[Client]:
    async with Client.connect(server.kubeconfig, user_agent="someone/1") as client:
        yield client


async def test_a_read_that_is_told_to_come_back_comes_back(client: Client, server: Scripted) -> None:
    server.will_answer(LATER, Answer("<html>", 503, {"Retry-After": "0"}), Answer(NODE))
    assert await client.get(NODES, "n") == NODE
    assert len(server.asked) == 3


async def test_a_read_gives_up_after_a_few_attempts(client: Client, server: Scripted) -> None:
    server.will_answer(*[LATER] * 4)
    with pytest.raises(TooManyRequests, match="get nodes n: 429 TooManyRequests: not now"):
        await client.get(NODES, "n")


async def test_an_answer_that_is_cut_off_is_no_answer(client: Client, server: Scripted) -> None:
    server.will_answer(Answer(lines=('{"kind": "Node", "metadata": {',)), Answer(NODE))
    assert await client.get(NODES, "n") == NODE
    server.will_answer(Answer(lines=('{"kind": "Node"',)))
    with pytest.raises(Unreachable, match="replace nodes n: Unreachable: "):
        await client.replace(NODES, NODE)


async def test_a_read_does_not_wait_for_minutes_in_its_callers_place(client: Client, server: Scripted) -> None:
    server.will_answer(refusal(429, "TooManyRequests", "not now", retryAfterSeconds=3600))
    with pytest.raises(TooManyRequests):
        await client.get(NODES, "n")


async def test_a_write_is_never_sent_twice(client: Client, server: Scripted) -> None:
    for refused in (LATER, Answer("<html>", 503, {"Retry-After": "0"})):
        server.will_answer(refused)
        with pytest.raises(ApiError):
            await client.patch(NODES, "n", {"metadata": {"labels": {"a": "b"}}})
    assert len(server.asked) == 2


async def test_a_write_tells_the_server_when_its_caller_gives_up(client: Client, server: Scripted) -> None:
    server.will_answer(Answer(NODE))
    await client.replace(NODES, NODE)
    assert server.asked[0].query["timeout"] == "15s"


async def test_a_server_that_hangs_is_unreachable_after_the_time_that_was_given(server: Scripted) -> None:
    server.will_answer(Answer(hang=True))
    async with Client.connect(server.kubeconfig, patience=0.1) as client:
        with pytest.raises(Unreachable, match="create configmaps x/y: Unreachable: timed out"):
            await client.create(CONFIG_MAPS, {"metadata": {"name": "y", "namespace": "x"}})


async def test_each_request_carries_the_token_and_the_name_of_who_asks(client: Client, server: Scripted) -> None:
    server.will_answer(Answer(NODE))
    await client.get(NODES, "n")
    assert server.asked[0].headers["Authorization"] == f"Bearer {TOKEN}"
    assert server.asked[0].headers["User-Agent"] == "someone/1"


async def test_another_session_has_the_same_rights_and_closes_alone(client: Client, server: Scripted) -> None:
    server.will_answer(Answer(NODE), Answer(NODE))
    async with client.session() as session, session.get(f"{client.server}/api/v1/nodes/n") as response:
        assert response.status == 200
    await client.get(NODES, "n")
    assert {request.headers["Authorization"] for request in server.asked} == {f"Bearer {TOKEN}"}


async def test_a_credential_plugin_is_asked_for_the_token(server: Scripted, tmp_path: Path) -> None:
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": "fresh"},
    }
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"print({json.dumps(credential)!r})"],
        "interactiveMode": "Never",
    }
    config = tmp_path / "with-plugin"
    config.write_text(yaml.safe_dump(kubeconfig(server.url, {"exec": plugin})))
    server.will_answer(Answer(NODE))
    async with Client.connect(config) as client:
        await client.get(NODES, "n")
    assert server.asked[0].headers["Authorization"] == "Bearer fresh"


@pytest.mark.parametrize("why", [ConfigException("Token file exists but empty."), FileNotFoundError(2, "No such file")])
async def test_without_a_token_there_is_no_answer_until_there_is_one_again(server: Scripted, why: Exception) -> None:
    failures = [why]

    def read_token(found: Configuration) -> None:
        if failures:
            raise failures.pop()
        found.api_key["BearerToken"] = f"Bearer {TOKEN}"

    configuration = Configuration(host=server.url, api_key={"BearerToken": "old"})
    configuration.refresh_api_key_hook = read_token  # type: ignore[assignment]  # as in a pod; the library says None
    way_in = Credentials(configuration)
    server.will_answer(Answer(NODE))
    async with way_in.session("someone/1") as session:
        client = Client(way_in, session, "someone/1", 15)
        with pytest.raises(Unreachable, match=re.escape(f"nothing was sent, there is no token: {why}")):
            await client.replace(NODES, NODE)
        await client.replace(NODES, NODE)
    assert [request.headers["Authorization"] for request in server.asked] == [f"Bearer {TOKEN}"]


async def test_a_missing_kubeconfig_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no kubeconfig at .*nowhere.*set KUBECONFIG"):
        async with Client.connect(tmp_path / "nowhere"):
            pass


async def test_no_error_shows_the_token(client: Client, server: Scripted) -> None:
    server.will_answer(
        Answer("<html>who are you?", 401), refusal(403, "Forbidden", "no"), Answer(lines=("{",), cut=True)
    )
    for _ in range(3):
        with pytest.raises(ApiError) as caught:
            await client.create(CONFIG_MAPS, {"metadata": {"name": "y"}}, namespace="x")
        assert TOKEN not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"


@pytest.mark.parametrize(
    ("status", "kind"), [(403, Forbidden), (409, Conflict), (410, Gone), (422, Invalid), (429, TooManyRequests)]
)
async def test_an_error_says_in_one_line_what_was_asked_for_and_why_not(
    client: Client, server: Scripted, status: int, kind: type[ApiError]
) -> None:
    cause = {"field": "spec.x", "message": "must be 1"}
    server.will_answer(refusal(status, "Because", "Pod is\n bad", causes=[cause]))
    with pytest.raises(kind) as caught:
        await client.patch(PODS, "web", [], namespace="default", subresource="status")
    assert str(caught.value) == f"patch pods/status default/web: {status} Because: Pod is bad (spec.x: must be 1)"
    assert caught.value.causes == [("spec.x", "must be 1")]


async def test_a_server_without_the_kind_says_nothing_of_its_objects(client: Client, server: Scripted) -> None:
    server.will_answer(refusal(404, "NotFound", "nodes n not found", name="n", kind="nodes"))
    assert await client.find(NODES, "n") is None
    for answer in (refusal(404, "NotFound", "no such resource"), Answer("404 page not found", 404)):
        server.will_answer(*[answer] * 4)
        began = time.monotonic()
        with pytest.raises(NotServed):
            await client.find(NODES, "n")
        assert time.monotonic() - began > 0.5, "all answers of one moment are those of one server"
    server.will_answer(answer, Answer(NODE))
    assert await client.find(NODES, "n") == NODE, "another server behind the same address serves it"


async def test_a_page_of_some_proxy_is_quoted_but_not_endlessly(client: Client, server: Scripted) -> None:
    server.will_answer(Answer("<html>Bad Gateway" + "!" * 10_000, 502))
    with pytest.raises(ApiError, match="Bad Gateway") as caught:
        await client.get(NODES, "n")
    assert len(str(caught.value)) < 1000


async def test_a_page_that_comes_as_a_success_is_no_answer_and_only_its_first_line_is_told(
    client: Client, server: Scripted
) -> None:
    server.will_answer(Answer("\n<title>Log \x1bin</title>\nas me:secret"))
    with pytest.raises(Unreachable) as caught:
        await client.replace(NODES, NODE)
    assert str(caught.value) == (
        "replace nodes n: Unreachable: text/html came that is no object of the API, which begins with "
        "'<title>Log \\x1bin</title>': look for what answers in place of the API server"
    )


async def test_of_json_that_no_api_server_sends_nothing_is_told(client: Client, server: Scripted) -> None:
    server.will_answer(Answer({"token": TOKEN}), Answer(lines=(json.dumps({"type": TOKEN}),)), Answer([TOKEN]))
    told = []
    with pytest.raises(Unreachable) as caught:
        await client.replace(NODES, NODE)
    told.append(str(caught.value))
    with pytest.raises(Unreachable) as caught:
        await anext(client.watch(NODES, resource_version="1"))
    told.append(str(caught.value))
    with pytest.raises(Unreachable) as caught:
        await client.raw("POST", "/apis/policy/v1", body={})
    told.append(str(caught.value))
    what = ("replace nodes n", "watch nodes", "POST /apis/policy/v1")
    shapes = ("object of the API", "event of a watch", "JSON object")
    assert told == [
        f"{asked}: Unreachable: application/json came that is no {shape}: look for what answers in place of the API server"
        for asked, shape in zip(what, shapes, strict=True)
    ]


async def test_a_list_comes_in_pages_and_its_items_know_what_they_are(client: Client, server: Scripted) -> None:
    server.will_answer(page("a", more="more"), page("b"))
    listing = await client.list(NODES, page=1)
    assert [(item["kind"], item["apiVersion"], item["metadata"]["name"]) for item in listing.items] == [
        ("Node", "v1", "a"),
        ("Node", "v1", "b"),
    ]
    assert listing.resource_version == "5"
    assert [dict(request.query) for request in server.asked] == [{"limit": "1"}, {"limit": "1", "continue": "more"}]


async def test_of_a_list_only_what_is_asked_for_is_kept(client: Client, server: Scripted) -> None:
    server.will_answer(page("a", "b", more="more"), page("c"))
    listing = await client.list(
        NODES, page=2, keep=lambda body: None if body["metadata"]["name"] == "b" else {"is": body["metadata"]["name"]}
    )
    assert listing.items == [{"is": "a"}, {"is": "c"}]


async def test_a_page_has_as_many_objects_as_a_moment_is_enough_to_read(client: Client, server: Scripted) -> None:
    large = {"metadata": {"name": "b", "resourceVersion": "1", "annotations": {"large": "." * 2**19}}}
    small = page("a", more="more")
    server.will_answer(small, Answer({**small.body, "items": [large]}), Answer({**small.body, "items": []}), page("c"))
    await client.list(NODES, page=300)
    first, *later = (int(request.query["limit"]) for request in server.asked)
    assert first < 300, "nobody knows yet how large they are"
    assert later == [300, 1, 1]


async def test_a_list_whose_pages_grew_too_old_is_read_in_one_piece(client: Client, server: Scripted) -> None:
    server.will_answer(page("a", more="more"), refusal(410, "Expired", "too old"), page("b", "c", version="9"))
    listing = await client.list(NODES, page=1)
    assert [item["metadata"]["name"] for item in listing.items] == ["b", "c"], "nothing of the first attempt is left"
    assert listing.resource_version == "9"
    assert "limit" not in server.asked[-1].query


async def test_a_watch_ends_with_its_server(client: Client, server: Scripted) -> None:
    server.will_answer(Answer(lines=(line("ADDED", NODE), line("BOOKMARK", NODE))))
    seen = [event async for event, _ in client.watch(NODES, resource_version="1")]
    assert seen == ["ADDED", "BOOKMARK"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(lines=(line("ADDED", NODE), line("ERROR", {"kind": "Status", "code": 410}))), Gone),
        (Answer(lines=(line("ADDED", NODE), '{"type": "ADD'), cut=True), Unreachable),
        (Answer(lines=(line("ADDED", NODE), '{"type": "ADD')), Unreachable),
    ],
    ids=["too old", "cut in the middle", "ended in the middle"],
)
async def test_a_watch_that_breaks_off_says_so_after_what_it_has_seen(
    client: Client, server: Scripted, answer: Answer, error: type[ApiError]
) -> None:
    server.will_answer(answer)
    seen: list[Any] = []
    with pytest.raises(error):  # noqa: PT012 - what came before the error counts
        async for event in client.watch(NODES, resource_version="1"):
            seen.append(event)  # noqa: PERF401
    assert seen == [("ADDED", NODE)]


async def test_a_warning_of_the_server_is_logged_once(
    client: Client, server: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    server.will_answer(*[Answer(NODE, headers={"Warning": '299 - "unknown field \\"spec.foo\\""'})] * 2)
    with caplog.at_level(logging.WARNING):
        await client.replace(NODES, NODE)
        await client.replace(NODES, NODE)
    assert [record.getMessage() for record in caplog.records] == [
        'replace nodes n: the API server warns: 299 - "unknown field \\"spec.foo\\""'
    ]


async def test_a_proxy_that_the_environment_names_is_asked_instead(
    server: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url.replace("//", "//me:secret@"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(yaml.safe_dump(kubeconfig("http://api.example", {"token": TOKEN})))
    server.will_answer(Answer(NODE))
    async with Client.connect(elsewhere) as client:
        assert await client.get(NODES, "n") == NODE
    (request,) = server.asked
    assert request.headers["Host"] == "api.example"
    assert request.headers["Proxy-Authorization"] == "Basic bWU6c2VjcmV0"
    assert request.headers["Authorization"] == f"Bearer {TOKEN}"


async def test_no_proxy_is_asked_about_a_server_that_the_environment_excepts(
    server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server.will_answer(Answer(NODE))
    async with Client.connect(server.kubeconfig) as client:
        assert await client.get(NODES, "n") == NODE


@pytest.mark.parametrize(("kind", "namespace"), [(NODES, "x"), (PODS, None)])
async def test_an_impossible_place_is_refused_before_anything_is_asked(
    client: Client, kind: Any, namespace: Any
) -> None:
    with pytest.raises(ValueError, match="namespace"):
        await client.get(kind, "n", namespace=namespace)
