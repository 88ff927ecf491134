"""Loopback ports that nobody else takes between choosing them and listening on them."""

import fcntl
import os
import random
import socket
from pathlib import Path
from typing import Final

LOWEST: Final = 20_000
EPHEMERAL: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Ports:
    """Ports held for one testbed. Close it when the programs that listen on them have ended.

    They are taken from below the range that the kernel gives to outgoing connections, and each is held by a lock on a file in
    `folder`, which the kernel gives back however the holder ends.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: list[int] = []

    def take(self) -> int:
        """Choose a port that is free now and that no other testbed holds. Raises OSError when there is none."""
        self._folder.mkdir(parents=True, exist_ok=True)
        highest = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32_768
        candidates = range(LOWEST, highest) if highest > LOWEST + 1000 else range(LOWEST, 60_000)
        for port in random.sample(candidates, k=200):
            if self._hold(port):
                return port
        raise OSError(f"no free port on 127.0.0.1 between {candidates.start} and {candidates.stop} in 200 tries")

    def close(self) -> None:
        """Give all ports back."""
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()

    def _hold(self, port: int) -> bool:
        lock = os.open(self._folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", port))
        except OSError:
            os.close(lock)
            return False
        self._locks.append(lock)
        return True
