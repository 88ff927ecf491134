"""Fixtures of the end-to-end tests: one real control plane per worker, one cluster on it per test."""

import itertools
import sys
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
from testbed.build import RELEASES, release
from testbed.controlplane import ControlPlane, Shape
from testbed.programs import tail
from testbed.progress import Progress
from tests.e2e import harness

LOG_LINES = 60
NUMBERS = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder, so that `-m 'not e2e'` is the quick half of the tests; skip what only the newest release can show."""
    newest = next(iter(RELEASES))
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if release() != newest and item.get_closest_marker("newest"):
                item.add_marker(
                    pytest.mark.skip(reason=f"is about what Kubernetes {release()} has not, and {newest} has")
                )


@pytest.fixture(scope="session")
async def controlplane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ControlPlane]:
    """Start a control plane without nodes; the example driver waits for nodes of `pool: gpu`."""
    folder = tmp_path_factory.mktemp("testbed")
    async with ControlPlane(folder, shape=Shape(nodes=0), progress=Progress(sys.stderr)) as running:
        yield running


@pytest.fixture
async def cluster(controlplane: ControlPlane) -> AsyncIterator[harness.Cluster]:
    """Give the test a cluster of its own; swept when it ends."""
    async with harness.cluster(controlplane, f"t{next(NUMBERS)}") as own:
        yield own


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failed test the end of its operators' logs, and of the programs of the testbed that have died."""
    report = yield
    own = item.funcargs.get("cluster") if isinstance(item, pytest.Function) else None
    if report.failed and isinstance(own, harness.Cluster):
        dead = [each for each in own.controlplane.programs.values() if not each.alive]
        report.sections += [(f"{each.name}: {each.log}", tail(each.log, LOG_LINES)) for each in own.operators + dead]
    return report
