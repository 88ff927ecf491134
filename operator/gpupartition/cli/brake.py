"""The brake of the whole cluster, a ConfigMap in the operator's namespace: what `freeze` and `unfreeze` both know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gpupartition import names

if TYPE_CHECKING:
    import argparse

    from gpupartition.kube import Client, Object

NAME: Final = f"configmap/{names.FREEZE_CONFIG_MAP}"
"""As kubectl takes it."""


def add_namespace(parser: argparse.ArgumentParser) -> None:
    """Add the operator's namespace."""
    parser.add_argument(
        "-n",
        "--namespace",
        help=f"namespace of the operator (default: $GPUPARTITION_NAMESPACE, else {names.OPERATOR_NAMESPACE})",
    )


def where(namespace: str) -> str:
    """The ConfigMap, for people."""
    return f"ConfigMap {namespace}/{names.FREEZE_CONFIG_MAP}"


async def read(client: Client, namespace: str) -> Object | None:
    """The ConfigMap, or None. Raises ApiError."""
    from gpupartition.kube import CONFIG_MAPS

    return await client.find(CONFIG_MAPS, names.FREEZE_CONFIG_MAP, namespace=namespace)
