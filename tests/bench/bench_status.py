"""How long somebody at a shell waits for `status` of 1,000 nodes, and for the help: the whole program, from its start to its end.

The records are as large as they are in life, with the pools that a node is taken to and from. They come from a server in this process, which
has them ready: what is measured is the command alone. The bounds are CPU time, so that busy neighbours count little; the best of some rounds
counts, because they still count some.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import yaml
from testbed.controlplane import python_env
from testbed.drivers.example import Settings, draw
from tests.bench.figures import Figure
from tests.unit.fleet import policy

from gpupartition.api.v1alpha1 import Assigned, NodeStateStatus, Phase
from gpupartition.controller.records import dump, new_record
from gpupartition.domain.offered import offered_by
from gpupartition.kinds import NODE_STATES, POLICIES

NODES: Final = 1_000
ROUNDS: Final = 5
STATUS_BOUND: Final = 1.0  # seconds: longer, and people look elsewhere meanwhile
HELP_BOUND: Final = 0.15  # seconds: not felt as waiting


def measure() -> list[Figure]:
    """Seconds of CPU from the start of a command to its end."""
    answers = {NODE_STATES.path(None): _listed(_records()), POLICIES.path(None): _listed([policy()])}
    with serving(answers) as kubeconfig:
        status = [_once("status", "--kubeconfig", str(kubeconfig)) for _ in range(ROUNDS)]
    helped = [_once("--help") for _ in range(ROUNDS)]
    told = f"best of {ROUNDS} whole runs"
    size = len(answers[NODE_STATES.path(None)]) / 1e6
    return [
        Figure(
            name="status",
            value=min(status),
            unit="s CPU",
            bound=STATUS_BOUND,
            how=f"{NODES} nodes, {size:.0f} MB of records; {told}",
            rounds=status,
        ),
        Figure(name="help", value=min(helped), unit="s CPU", bound=HELP_BOUND, how=told, rounds=helped),
    ]


def _once(*arguments: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "gpupartition", *arguments]
    ended = subprocess.run(command, env=python_env(), capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ended.stdout, ended.stderr
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 3)


def _records() -> list[dict[str, object]]:
    whole, halves = (Assigned(fingerprint=f"{parts:016}", pool=_pool(parts)) for parts in (0, 2))
    made = []
    for number in range(NODES):
        name = f"node-{number}"
        body = new_record(node=name, node_uid=name, policy="inference", policy_uid="p", driver="example")
        phase = Phase.UP_TO_DATE if number % 10 else Phase.VERIFYING
        state = NodeStateStatus(phase=phase, target=halves, current=halves, previous=whole, original=whole)
        made.append({**body, "status": dump(state)})
    return made


def _pool(parts: int) -> str:
    contents = draw(Settings(node="n", partitions=parts))
    pool = {"name": "n", "generation": 1, "resourceSliceCount": len(contents)}
    slices = [
        {"metadata": {"name": str(place)}, "spec": {"driver": "d", "nodeName": "n", "pool": pool, **content}}
        for place, content in enumerate(contents)
    ]
    return offered_by(slices).to_json()


def _listed(items: Sequence[object]) -> bytes:
    listed = {"apiVersion": "gpupartition.dev/v1alpha1", "kind": "List", "metadata": {"resourceVersion": "1"}}
    return json.dumps({**listed, "items": items}).encode()


@contextmanager
def serving(answers: dict[str, bytes]) -> Iterator[Path]:
    """A kubeconfig of a server that gives these answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers[self.path.partition("?")[0]]
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, tempfile.TemporaryDirectory() as folder:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        path = Path(folder, "kubeconfig")
        path.write_text(yaml.safe_dump(config))
        try:
            yield path
        finally:
            server.shutdown()
