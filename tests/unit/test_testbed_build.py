"""The testbed's builder: what it takes for good, what it builds again, and what it says when it cannot.

`go` is a small shell script here, so that a build fails, dies or lies as the test wishes. All else is real: files, locks, processes.
"""

import asyncio
import io
import os
import signal
import sys
from pathlib import Path

import pytest
from testbed.build import Builder, BuildError, cache_folder, control_plane
from testbed.controlplane import python_env
from testbed.progress import Progress

ETCD = control_plane()["etcd"]
KUBECTL = control_plane()["kubectl"]

GOOD_BUILD = """\
echo build >> "$BUILDS"
while [ "$1" != "-o" ]; do shift; done
printf '#!/bin/sh\\necho etcd Version: 3.7.3\\n' > "$2"; chmod +x "$2"
"""


class Machine:
    """A machine with an empty cache, on whose PATH there is a `go` that does what the test says."""

    def __init__(self, folder: Path, build: str = GOOD_BUILD, *, version: str = "go1.26.8") -> None:
        self.cache = folder / "cache"
        self.builds = folder / "builds"
        self.told = io.StringIO()
        self.env = {"PATH": f"{folder}:/usr/bin:/bin", "BUILDS": str(self.builds), "FOLDER": str(folder)}
        self._go = folder / "go"
        self.go_does(build, version=version)

    def go_does(self, build: str, *, version: str = "go1.26.8") -> None:
        script = f'#!/bin/sh\nif [ "$1" = version ]; then echo "go version {version} linux/amd64"; exit; fi\n{build}'
        self._go.write_text(script)
        self._go.chmod(0o755)

    @property
    def builder(self) -> Builder:
        return Builder(cache=self.cache, progress=Progress(self.told), env=self.env)

    @property
    def built(self) -> int:
        return len(self.builds.read_text().split()) if self.builds.exists() else 0


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def test_a_tool_is_built_once_and_then_reused(machine: Machine) -> None:
    first = await machine.builder.tools([ETCD])
    second = await machine.builder.tools([ETCD])
    assert first == second == {"etcd": machine.builder.place(ETCD)}
    assert machine.built == 1
    assert "building etcd 3.7.3" in machine.told.getvalue()


async def test_a_failing_build_names_the_tool_and_shows_the_end_of_its_log(machine: Machine) -> None:
    machine.go_does("seq 100 200; echo 'no required module provides package' >&2; exit 1")
    with pytest.raises(
        BuildError, match=r"(?s)etcd 3.7.3 does not build.*200\n.*no required module provides package"
    ) as error:
        await machine.builder.tools([ETCD])
    assert "101\n" not in str(error.value)
    assert not machine.builder.place(ETCD).exists()


async def test_a_failing_build_leaves_nothing_that_is_later_taken_for_good(machine: Machine) -> None:
    machine.go_does('while [ "$1" != "-o" ]; do shift; done; echo half > "$2"; chmod +x "$2"; exit 1')
    with pytest.raises(BuildError):
        await machine.builder.tools([ETCD])
    assert list(machine.builder.place(ETCD).parent.iterdir()) == []
    machine.go_does(GOOD_BUILD)
    await machine.builder.tools([ETCD])
    assert machine.built == 1


async def test_a_half_written_binary_is_never_taken_for_good(machine: Machine) -> None:
    started = machine.builder.place(ETCD).parents[2] / "started"
    machine.env["STARTED"] = str(started)
    machine.go_does(
        'while [ "$1" != "-o" ]; do shift; done; echo half > "$2"; chmod +x "$2"; touch "$STARTED"; sleep 60'
    )
    script = (
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from testbed.build import Builder, control_plane\n"
        "from testbed.progress import Progress\n"
        "asyncio.run(Builder(cache=Path(sys.argv[1]), progress=Progress(None), env=os.environ).tools([control_plane()['etcd']]))\n"
    )
    env = {**python_env(), **machine.env}
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(machine.cache), env=env)
    async with asyncio.timeout(30):
        while not started.exists():  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    await killed.wait()
    assert not machine.builder.place(ETCD).exists()

    machine.go_does(GOOD_BUILD)
    path = (await machine.builder.tools([ETCD]))["etcd"]
    assert "3.7.3" in path.read_text()
    assert list(path.parent.iterdir()) == [path]


async def test_a_binary_that_says_another_version_is_refused(machine: Machine) -> None:
    machine.go_does(GOOD_BUILD.replace("3.7.3", "3.7.2"))
    with pytest.raises(BuildError, match=r"says 3\.7\.2 where 3\.7\.3 was expected"):
        await machine.builder.tools([ETCD])
    assert not machine.builder.place(ETCD).exists()


async def test_a_binary_that_does_not_run_is_refused(machine: Machine) -> None:
    machine.go_does('while [ "$1" != "-o" ]; do shift; done; echo garbage > "$2"')
    with pytest.raises(BuildError, match="says nothing where"):
        await machine.builder.tools([ETCD])
    assert not machine.builder.place(ETCD).exists()


async def test_two_testbeds_do_not_build_at_once(machine: Machine) -> None:
    machine.go_does(f'mkdir "$FOLDER/alone" || exit 9\n{GOOD_BUILD}\nsleep 0.5; rmdir "$FOLDER/alone"')
    first, second = await asyncio.gather(machine.builder.tools([ETCD]), machine.builder.tools([ETCD]))
    assert first == second
    assert machine.built == 1
    assert "another testbed is building" in machine.told.getvalue()


async def test_source_and_flags_are_part_of_the_place(machine: Machine) -> None:
    places = {machine.builder.place(tool) for tool in control_plane().values()}
    assert len(places) == len(control_plane())
    assert all(place.parent.name.startswith(f"{place.name}-") for place in places)


async def test_binaries_of_kubebuilder_are_used_when_they_are_of_the_right_minor_version(
    machine: Machine, tmp_path: Path
) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    _fake(assets / "etcd", "etcd Version: 3.7.9")
    _fake(assets / "kubectl", "Client Version: v1.36.0")
    machine.env["KUBEBUILDER_ASSETS"] = str(assets)
    machine.go_does(GOOD_BUILD.replace("etcd Version: 3.7.3", "Client Version: v1.37.2"))
    tools = await machine.builder.tools([ETCD, KUBECTL])
    assert tools == {"etcd": assets / "etcd", "kubectl": machine.builder.place(KUBECTL)}
    assert "says version 1.36.0; 1.37.2 is built instead" in machine.told.getvalue()


async def test_an_old_go_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, version="go1.25.4")
    newer = tmp_path / "scripts"
    newer.mkdir()
    (newer / "go").write_text((tmp_path / "go").read_text().replace("go1.25.4", "go1.26.6"))
    (newer / "go").chmod(0o755)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(newer) if name == "scripts" else "")
    await machine.builder.tools([ETCD])
    assert machine.built == 1


def test_the_cache_is_outside_the_checkout_and_can_be_moved() -> None:
    home = Path.home() / ".cache" / "gpupartition" / "testbed"
    assert cache_folder({}) == home
    assert cache_folder({"XDG_CACHE_HOME": "/elsewhere"}) == Path("/elsewhere/gpupartition/testbed")
    assert cache_folder({"GPUPARTITION_CACHE": "/mine", "XDG_CACHE_HOME": "/elsewhere"}) == Path("/mine")
    assert Path(os.path.commonpath([home, Path(__file__)])) != Path(__file__).parents[2]


def _fake(path: Path, says: str) -> None:
    path.write_text(f"#!/bin/sh\necho {says}\n")
    path.chmod(0o755)
