"""How watching our own kinds ends when kopf does."""

from __future__ import annotations

import asyncio
from typing import Any

import kopf
import pytest
from tests.unit.fleet import Fleet

from gpupartition.controller.handlers import Deaf, Kinds, watch

KINDS = Kinds(policies={}, drivers={}, on_policy=lambda _: None, on_driver=lambda _: None)


async def fails() -> None:
    raise RuntimeError("the list was refused")


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (lambda: asyncio.sleep(0), "stop-flag checker ended without a word"),
        (fails, "the list was refused"),
    ],
    ids=["without a word", "with an error"],
)
async def test_an_operator_of_which_kopf_ends_is_deaf_whatever_kopf_says(
    task: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def spawn(**_: Any) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(task(), name="stop-flag checker")]

    monkeypatch.setattr(kopf, "spawn_tasks", spawn)
    with pytest.raises(Deaf, match=f"^kopf watches policies and drivers no longer: {why}$"):
        await watch(Fleet(1).client, KINDS, on_start=lambda: None)
