"""A wire between a client and the API server, which a test can cut, mend, and lead to another server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import yaml

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Wire:
    """Carries bytes between a free port of the loopback and the server of a kubeconfig."""

    def __init__(self) -> None:
        self.target: tuple[str, int] | None = None
        self._carrying: set[asyncio.Task[None]] = set()

    def lead_to(self, kubeconfig: Path) -> None:
        """Carry new connections to the server that this kubeconfig names."""
        url = urlsplit(yaml.safe_load(kubeconfig.read_text())["clusters"][0]["cluster"]["server"])
        assert url.hostname
        assert url.port
        self.target = (url.hostname, url.port)

    def cut(self) -> None:
        """Break off all connections, and refuse new ones."""
        self.target = None
        for task in self._carrying:
            task.cancel()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        ends = [writer]
        try:
            if self.target is None:
                return
            there, away = await asyncio.open_connection(*self.target)
            ends.append(away)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, away))
                both.create_task(_pump(there, writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            self._carrying.discard(task)
            for end in ends:
                end.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while chunk := await source.read(2**16):
        sink.write(chunk)
        await sink.drain()
    raise ConnectionResetError("the other end hung up")


@asynccontextmanager
async def wire(kubeconfig: Path, folder: Path) -> AsyncIterator[tuple[Wire, Path]]:
    """Lay a wire to a kubeconfig's server; gives it, and the kubeconfig of its near end, written to `folder`."""
    line = Wire()
    line.lead_to(kubeconfig)
    server = await asyncio.start_server(line.carry, "127.0.0.1", 0)
    near = _near_end(kubeconfig, server.sockets[0].getsockname()[1], folder)
    try:
        yield line, near
    finally:
        line.cut()
        server.close()
        with suppress(asyncio.CancelledError):
            await server.wait_closed()


def _near_end(kubeconfig: Path, port: int, folder: Path) -> Path:
    config = yaml.safe_load(kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    near = folder / "through-the-wire"
    near.touch(mode=0o600)
    near.write_text(yaml.safe_dump(config))
    return near
