"""What commands that look at a cluster share: what they say when it cannot be read, or what they found not be written, and their exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from kubernetes.aio.config import ConfigException

from gpupartition.cli.options import FOUND, OK, complain, tell, unwritten
from gpupartition.kube import ApiError, Client, Forbidden, NotServed, Object
from gpupartition.names import GROUP

Answer = tuple[str, Collection[str]]
"""What is printed, and what was found of what --fail-on can name."""


async def answer(options: argparse.Namespace, what: str, ask: Callable[[Client], Awaitable[Answer]]) -> int:
    """Ask the cluster, print `what` was asked for, and return the exit code. Raises Unusable where asking does."""
    try:
        async with Client.connect(options.kubeconfig, options.context) as client:
            text, found = await ask(client)
    except (FileNotFoundError, ConfigException) as error:
        return complain(str(error))
    except ApiError as error:
        return complain(explained(error))
    except OSError as error:
        return unwritten(what, error)
    if (code := tell(what, text)) != OK:
        return code
    asked = set(found) & set(options.fail_on)
    if asked:
        print(f"found: {', '.join(sorted(asked))}", file=sys.stderr)  # noqa: T201
    return FOUND if asked else OK


async def taint_rules(client: Client) -> Sequence[Object]:
    """All DeviceTaintRules, in the version that is served; none where they are not. Raises ApiError."""
    from gpupartition.controller.probe import TAINT_RULES

    for kind in TAINT_RULES:
        try:
            return (await client.list(kind)).items
        except NotServed:
            continue
    return ()


def explained(error: ApiError) -> str:
    """What an API server has answered, and what to do about it."""
    if isinstance(error, Forbidden):
        return f"{error}; grant the right: bind {_role(error)} to this account"
    if isinstance(error, NotServed):
        ours = GROUP in error.what
        fix = "install the CRDs first: kubectl apply -k crds" if ours else "see what is missing: kubectl gpp check"
        return f"{error}; {fix}"
    if error.status == 0:
        return f"{error}; is the cluster up, and is this the right kubeconfig and context?"
    return str(error)


def _role(error: Forbidden) -> str:
    reads = error.what.startswith(("get ", "list ", "watch "))
    if " configmaps " in error.what and not reads:
        return "the Role gpupartition-operate (manifests/base/operate.yaml) of the operator's namespace"
    return f"the ClusterRole gpupartition-{'plan (manifests/base/planner.yaml)' if reads else 'operate (manifests/base/operate.yaml)'}"


def published_on(spec: Mapping[str, Any]) -> set[str]:
    """The nodes that devices of a ResourceSlice are on, as far as it names them."""
    names = {spec.get("nodeName"), *(device.get("nodeName") for device in spec.get("devices") or ())}
    return {str(name) for name in names if name}
