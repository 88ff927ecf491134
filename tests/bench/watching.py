"""What measurements see of an operator that runs beside them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.harness import POLICIES, follow

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpupartition.kube import Client, Object

MUTATING: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
"""The verbs of the audit log that write."""
WITHIN: Final = 600  # seconds for anything


def cpu_of(pid: int) -> float:
    """CPU seconds of a process so far (proc(5): utime and stime, counted after the command's closing bracket)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def highest(pid: int) -> int:
    """MB of memory that a process had at most so far (proc(5): VmHWM)."""
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


async def until(client: Client, policy: Object, is_so: Callable[[Object], bool]) -> None:
    """Return as soon as the policy, of which this is an earlier version, is so."""
    meta = policy["metadata"]
    of_this_name = f"metadata.name={meta['name']}"
    async with asyncio.timeout(WITHIN):
        async for what, body in follow(client, POLICIES, meta["resourceVersion"], field_selector=of_this_name):
            if what == "MODIFIED" and is_so(body):
                return
