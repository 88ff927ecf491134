"""More API servers on the etcd of a control plane: of another release, with other gates or other APIs."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from testbed.controlplane import ControlPlane


@asynccontextmanager
async def one_more(
    controlplane: ControlPlane, *, feature_gates: str = "", runtime_config: str = "", of: str = ""
) -> AsyncIterator[Path]:
    """One more API server, until the block ends; gives the administrator's kubeconfig for it."""
    before = set(controlplane.programs)
    admin = await controlplane.second_apiserver(feature_gates, runtime_config=runtime_config, of=of)
    (name,) = set(controlplane.programs) - before
    try:
        yield admin
    finally:
        await controlplane.programs.pop(name).kill()


@asynccontextmanager
async def served_by(
    controlplane: ControlPlane, *, feature_gates: str = "", runtime_config: str = "", of: str = ""
) -> AsyncIterator[Path]:
    """One more API server, until the block ends; gives a kubeconfig of the operator for it."""
    operator = await controlplane.install_operator()
    async with one_more(controlplane, feature_gates=feature_gates, runtime_config=runtime_config, of=of) as admin:
        config = yaml.safe_load(await asyncio.to_thread(operator.read_text))
        config["clusters"] = yaml.safe_load(await asyncio.to_thread(admin.read_text))["clusters"]
        path = admin.with_name(f"operator-{admin.name}")
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))
        yield path
