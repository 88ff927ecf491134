"""How a token that expires is kept fresh, on simulated time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from kubernetes.aio.client import Configuration
from tests.unit.simulated import play

from gpupartition.kube.credentials import keep_fresh

if TYPE_CHECKING:
    from kubernetes.aio.config.kube_config import KubeConfigLoader


class Loader:
    """What kubernetes' loader does for a user with a plugin, or at a cloud; `answers`: a token, a failure, or None where it says no more."""

    def __init__(self, provider: str | None, *answers: str | Exception | None) -> None:
        self.provider = provider
        self.answers = [*answers]

    async def load_gcp_token(self) -> str:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert answer is not None
        self.token = answer
        return answer

    async def load_from_exec_plugin(self) -> bool | None:
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            self.token = answer
        return True if answer is not None else None


@pytest.mark.parametrize(
    "loader",
    [Loader("gcp", RuntimeError("no network"), "new", RuntimeError("again")), Loader(None, None, "new", None)],
    ids=["cloud", "plugin"],
)
def test_a_token_that_could_not_be_refreshed_is_asked_for_again(
    loader: Loader, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = Configuration(api_key={"BearerToken": "old"})
    had: list[Any] = []

    async def story() -> None:
        task = asyncio.create_task(keep_fresh(cast("KubeConfigLoader", loader), configuration))
        await asyncio.sleep(1)
        while loader.answers:
            await asyncio.sleep(60)
            had.append(configuration.api_key["BearerToken"])
        task.cancel()

    play(story())
    assert had == ["old", "new", "new"]
    assert len(caplog.messages) == 2
    assert all(message.startswith("the token was not refreshed: ") for message in caplog.messages)


def test_where_a_plugin_gives_certificates_there_is_no_token_to_refresh(caplog: pytest.LogCaptureFixture) -> None:
    configuration = Configuration()

    async def story() -> None:
        loader = cast("KubeConfigLoader", Certificates())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(keep_fresh(loader, configuration), 600)

    play(story())
    assert not configuration.api_key
    assert not caplog.messages


class Certificates(Loader):
    """A plugin that has no tokens."""

    def __init__(self) -> None:
        super().__init__(None)

    async def load_from_exec_plugin(self) -> bool:
        return True
