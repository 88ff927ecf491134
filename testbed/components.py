"""The command line of each program of the control plane, and the files that they read.

All listen on 127.0.0.1 only. Everybody has a user of their own, so that the audit log says who did what.
"""

import base64
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

KWOK_STAGES: Final = sorted((Path(__file__).parent / "kwok").glob("*.yaml"))

USERS: Final[Mapping[str, str]] = {
    "admin": "system:masters",
    "system:kube-scheduler": "",
    "system:kube-controller-manager": "",
    "testbed:kwok": "system:masters",
    "testbed:driver-host": "system:masters",
}
"""Users and their groups. The two of the control plane have the roles that Kubernetes itself gives them."""

AUDIT_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where a testbed keeps its files. `root` may be moved to, not shared: one testbed, one folder."""

    root: Path

    @property
    def audit_log(self) -> Path:
        """One JSON object a line: every request, with user and user agent, no bodies."""
        return self.root / "audit.jsonl"

    def kubeconfig(self, user: str) -> Path:
        """The kubeconfig of one of `USERS`, or `operator`."""
        return self.root / f"{user.removeprefix('system:').replace(':', '-')}.kubeconfig"

    def log(self, program: str) -> Path:
        """Output of a program."""
        return self.root / "logs" / f"{program}.log"

    @property
    def bin(self) -> Path:
        """A folder for PATH: kubectl and the others."""
        return self.root / "bin"

    @property
    def serving_certificate(self) -> Path:
        """What the API server made for itself: certificate and authority in one file."""
        return self.root / "apiserver" / "apiserver.crt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """One free port for each listener."""

    etcd: int
    etcd_peer: int
    apiserver: int
    scheduler: int
    controller_manager: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Makes the command lines for one testbed."""

    binaries: Mapping[str, Path]
    files: Layout
    ports: Ports
    feature_gates: str = ""
    """Gates away from their defaults, for all components: `Name=true,Other=false`."""
    tokens: Mapping[str, str] = field(default_factory=lambda: {user: secrets.token_urlsafe(24) for user in USERS})

    def write_files(self) -> None:
        """Write what the API server reads at its start."""
        root = self.files.root
        root.mkdir(parents=True, exist_ok=True)
        rows = [f'{token},{user},{user},"{USERS[user]}"' for user, token in self.tokens.items()]
        _write_secret(root / "tokens.csv", "\n".join(rows) + "\n")
        _write_secret(root / "service-account.key", _new_ec_key())
        (root / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY))
        self.files.bin.mkdir(exist_ok=True)
        for name, binary in self.binaries.items():
            link = self.files.bin / name
            link.unlink(missing_ok=True)
            link.symlink_to(binary)

    def write_kubeconfigs(self) -> None:
        """Write one kubeconfig per user. The API server must have made its certificate."""
        for user, token in self.tokens.items():
            self.write_kubeconfig(user, token)

    def write_kubeconfig(self, user: str, token: str) -> Path:
        """Write a kubeconfig with everything in it, and return its path."""
        authority = base64.b64encode(self.files.serving_certificate.read_bytes()).decode()
        cluster = {"server": f"https://127.0.0.1:{self.ports.apiserver}", "certificate-authority-data": authority}
        content: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testbed", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
            "current-context": "testbed",
        }
        path = self.files.kubeconfig(user)
        _write_secret(path, json.dumps(content, indent=1))
        return path

    def etcd(self) -> list[str | Path]:
        """Run without fsync: nothing in it must survive this machine's crash."""
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.ports.etcd, self.ports.etcd_peer))
        return [
            self.binaries["etcd"],
            f"--data-dir={self.files.root / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def apiserver(
        self, *, port: int | None = None, feature_gates: str | None = None, runtime_config: str = ""
    ) -> list[str | Path]:
        """With RBAC and an audit log. A second one on the same etcd may have another port, other gates, and serve other APIs."""
        root = self.files.root
        audit = self.files.audit_log if port is None else self.files.log(f"audit-{port}")
        return [
            self.binaries["kube-apiserver"],
            f"--etcd-servers=http://127.0.0.1:{self.ports.etcd}",
            "--bind-address=127.0.0.1",  # it listens on every address otherwise
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",  # refuses to advertise a loopback address otherwise
            f"--secure-port={port or self.ports.apiserver}",
            "--allow-privileged=true",  # as a driver's plugin is
            f"--cert-dir={self.files.serving_certificate.parent}",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--authorization-mode=RBAC",
            f"--token-auth-file={root / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={root / 'service-account.key'}",
            f"--service-account-signing-key-file={root / 'service-account.key'}",
            f"--audit-policy-file={root / 'audit-policy.json'}",
            f"--audit-log-path={audit}",
            "--audit-log-maxsize=4000",  # MB: one file, however long the test
            *self._gates(feature_gates),
            *([f"--runtime-config={runtime_config}"] if runtime_config else []),
        ]

    def scheduler(self) -> list[str | Path]:
        """Not throttled: at its default of 50 requests a second, tests that allocate devices take four times as long."""
        return [self.binaries["kube-scheduler"], *self._client_flags("system:kube-scheduler", self.ports.scheduler)]

    def controller_manager(self) -> list[str | Path]:
        """All controllers, node lifecycle included: kwok renews the leases."""
        return [
            self.binaries["kube-controller-manager"],
            *self._client_flags("system:kube-controller-manager", self.ports.controller_manager),
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.files.root / 'service-account.key'}",
            f"--root-ca-file={self.files.serving_certificate}",
        ]

    def kwok(self) -> list[str | Path]:
        """The kubelet of every node, living by the stages in `kwok/`."""
        return [
            self.binaries["kwok"],
            f"--kubeconfig={self.files.kubeconfig('testbed:kwok')}",
            *(f"--config={stage}" for stage in KWOK_STAGES),
            "--manage-all-nodes=true",
            "--node-ip=127.0.0.1",
            "--node-lease-duration-seconds=40",
        ]

    def _client_flags(self, user: str, port: int) -> list[str]:
        kubeconfig = self.files.kubeconfig(user)
        return [
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            "--leader-elect=false",
            "--kube-api-qps=1000",
            "--kube-api-burst=1000",
            *self._gates(None),
        ]

    def _gates(self, own: str | None) -> list[str]:
        gates = self.feature_gates if own is None else own
        return [f"--feature-gates={gates}"] if gates else []


def _write_secret(path: Path, content: str) -> None:
    path.touch(mode=0o600)
    path.write_text(content)


def _new_ec_key() -> str:
    """Make a fresh P-256 private key as PEM (RFC 5915, without the public key: the reader derives it)."""
    scalar = (secrets.randbelow(2**255) + 1).to_bytes(32, "big")  # below the order of the curve
    named_curve = bytes.fromhex("a00a06082a8648ce3d030107")
    der = bytes.fromhex("30310201010420") + scalar + named_curve
    body = base64.b64encode(der).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{body[:64]}\n{body[64:]}\n-----END EC PRIVATE KEY-----\n"
