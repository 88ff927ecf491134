"""The operator's rights: what its roles give it, and what it has used of that by the audit logs of the tests. Neither may be the more."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from gpupartition.names import OPERATOR_NAMESPACE

FOLDER: Final = Path(__file__).parent
MANIFESTS: Final = FOLDER.parents[1] / "manifests"
ACCOUNT: Final = f"system:serviceaccount:{OPERATOR_NAMESPACE}:gpupartition"
AGENT: Final = "gpupartition/"  # tests that borrow the operator's token call themselves something else
PEOPLES: Final = frozenset(
    {"gpupartition-view", "gpupartition-plan", "gpupartition-operate"}
)  # roles that are not its own
EVERYBODYS: Final = frozenset({"authorization.k8s.io/selfsubjectaccessreviews"})  # Kubernetes gives it to every account

EVERYWHERE, OWN, DRIVERS = "everywhere", "in its own namespace", "in a driver's namespace"


@dataclass(frozen=True, slots=True, order=True)
class Right:
    """A verb on `<group>/<resource>[/<subresource>]`, and where it is given."""

    resource: str
    verb: str
    where: str

    def __str__(self) -> str:
        """As a sentence has it."""
        return f"{self.verb} {self.resource} {self.where}"


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """What was asked of the API server; `namespace` is "" for what is of the cluster, or of all namespaces."""

    resource: str
    verb: str
    namespace: str

    def __str__(self) -> str:
        """As a sentence has it."""
        return f"{self.verb} {self.resource}" + (f" in {self.namespace}" if self.namespace else "")

    def takes(self, right: Right) -> bool:
        """Whether this right is enough for it."""
        own = self.namespace == OPERATOR_NAMESPACE
        places = {EVERYWHERE: True, OWN: own, DRIVERS: bool(self.namespace) and not own}
        return (self.resource, self.verb) == (right.resource, right.verb) and places[right.where]


def given(manifests: Path = MANIFESTS) -> set[Right]:
    """What all roles of the operator give it together, those of the optional components included."""
    bodies = (body for path in sorted(manifests.rglob("*.yaml")) for body in yaml.safe_load_all(path.read_text()))
    return {
        Right(f"{group}/{resource}", verb, _where(body))
        for body in bodies
        if body and body["kind"] in {"ClusterRole", "Role"} and body["metadata"]["name"] not in PEOPLES
        for rule in body["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(log: Path) -> set[Request]:
    """What the operator has asked for, by one audit log; a line that is not yet whole is left out."""
    with log.open(encoding="utf-8") as lines:
        entries = (json.loads(line) for line in lines if ACCOUNT in line and line.endswith("\n"))
        return {
            _request(each["verb"], each["objectRef"])
            for each in entries
            if each["user"]["username"] == ACCOUNT
            and each.get("userAgent", "").startswith(AGENT)
            and "objectRef" in each
        }


def audit_logs(folder: Path) -> Iterator[Path]:
    """Those of the testbeds of a session with this base folder, or of its workers."""
    for testbed in (*folder.glob("testbed*"), *folder.glob("popen-gw*/testbed*")):
        yield from testbed.glob("audit.jsonl")
        yield from testbed.glob("logs/audit-*.log")  # of further API servers on the same etcd


def differences(rights: Iterable[Right], requests: Iterable[Request]) -> list[str]:
    """Every request that no role speaks of, and every right that nobody has used."""
    rights, requests = set(rights), {each for each in requests if each.resource not in EVERYBODYS}
    outside = [each for each in requests if not any(each.takes(right) for right in rights)]
    unused = [right for right in rights if not any(each.takes(right) for each in requests)]
    return [
        *(f"no role of manifests/ lets the operator {each}, and it tries to" for each in sorted(outside)),
        *(
            f"the operator may {each}, and never does: take the right away, or test what it is for"
            for each in sorted(unused)
        ),
    ]


class Overseer:
    """Part of a pytest session, not of the processes that share its tests: when all end-to-end tests have passed it compares the two."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._ran: set[str] = set()
        self._found: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._ran.add(Path(report.nodeid.split("::")[0]).name)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.OK or not all_ran(self._config, self._ran):
            return
        folder = self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # that of the workers is in there
        requests = {each for log in audit_logs(folder) for each in used(log)}
        self._found = differences(given(), requests)
        if self._found:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._found:
            terminalreporter.section("the operator's rights are not what it uses", red=True)
            for line in self._found:
                terminalreporter.line(line)


def all_ran(config: pytest.Config, ran: Collection[str]) -> bool:
    """Whether this was the whole suite: at least one test of each file (`ran`), and none left out by name or mark."""
    chosen = (
        config.getoption("keyword")
        or config.getoption("deselect")
        or config.getoption("markexpr") not in {"", "e2e"}
        or any("::" in argument for argument in config.args)
    )
    return not chosen and {path.name for path in FOLDER.glob("test_*.py")} <= set(ran)


def _where(role: dict[str, Any]) -> str:
    if role["kind"] == "ClusterRole":
        return EVERYWHERE
    return OWN if role["metadata"]["namespace"] == OPERATOR_NAMESPACE else DRIVERS


def _request(verb: str, about: dict[str, str]) -> Request:
    resource = f"{about.get('apiGroup', '')}/{about['resource']}"
    subresource = about.get("subresource")
    return Request(f"{resource}/{subresource}" if subresource else resource, verb, about.get("namespace", ""))
