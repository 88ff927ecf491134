"""The testbed keeps its promises: real Kubernetes, quick, side by side, and nothing left behind."""

import asyncio
import contextlib
import json
import signal
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from functools import partial
from pathlib import Path

import pytest
from testbed.build import cache_folder
from testbed.controlplane import ROOT, ControlPlane, Shape, python_env
from testbed.programs import TestbedError
from tests.e2e import harness
from tests.e2e.harness import NODE_STATES, Cluster, eventually

from gpupartition.kube import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Client, Kind
from gpupartition.names import API_VERSION, FINALIZER


async def test_a_pod_with_a_claim_runs_on_a_simulated_node_and_gives_its_device_back(cluster: Cluster) -> None:
    (node,) = await cluster.nodes(1, pool="gpu")
    namespace = await cluster.namespace()
    await cluster.published(8, node=node)
    await cluster.holder("worker", namespace=namespace, node=node)
    pod = await cluster.running("worker", namespace=namespace)
    assert pod["spec"]["nodeName"] == node
    (claim,) = (await cluster.client.list(RESOURCE_CLAIMS, namespace=namespace)).items
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"], result["device"]) == ("gpu.example.com", node, "gpu-0")

    await cluster.client.delete(PODS, "worker", namespace=namespace)
    await cluster.gone(PODS, "worker", namespace=namespace, within=5)  # its grace period of 30 s is not waited for
    await cluster.gone(RESOURCE_CLAIMS, claim["metadata"]["name"], namespace=namespace)


async def test_a_node_whose_kubelet_stops_is_not_ready_until_it_starts(cluster: Cluster) -> None:
    (node,) = await cluster.nodes(1)

    async def taints() -> list[str]:
        return [each["key"] for each in (await cluster.client.get(NODES, node))["spec"].get("taints", [])]

    async def untainted() -> bool:
        return not await taints()

    before = await cluster.client.get(NODES, node)
    await eventually(untainted)
    await cluster.kubelet_stops(node)
    assert set(await eventually(taints)) == {"node.kubernetes.io/not-ready"}

    await cluster.kubelet_starts(node, rebooted=True)
    after = await cluster.client.get(NODES, node)
    assert before["status"]["nodeInfo"]["bootID"] != after["status"]["nodeInfo"]["bootID"]
    await eventually(untainted)


async def test_a_pod_may_take_its_time_to_end(cluster: Cluster) -> None:
    await cluster.nodes(1)
    namespace = await cluster.namespace()
    await cluster.pod("slow", namespace=namespace, annotations={"testbed.gpupartition.dev/terminates-after": "3s"})
    await cluster.running("slow", namespace=namespace)
    began = time.monotonic()
    await cluster.client.delete(PODS, "slow", namespace=namespace)
    await cluster.gone(PODS, "slow", namespace=namespace)
    assert 2.5 < time.monotonic() - began < 20


async def test_a_batch_pod_completes(cluster: Cluster) -> None:
    await cluster.nodes(1)
    namespace = await cluster.namespace()
    note = {"testbed.gpupartition.dev/completes-after": "500ms"}
    await cluster.pod("batch", namespace=namespace, spec={"restartPolicy": "Never"}, annotations=note)
    await cluster.in_phase("Succeeded", "batch", namespace=namespace)


async def test_the_audit_log_tells_who_asked_for_what(cluster: Cluster) -> None:
    async with Client.connect(cluster.controlplane.kubeconfig, user_agent="curious/1") as client:
        await client.get(NODES, (await cluster.nodes(1))[0])
    (entry,) = await eventually(lambda: cluster.audit(user_agent="curious/1"))
    assert (entry["verb"], entry["objectRef"]["resource"], entry["user"]["username"]) == ("get", "nodes", "admin")


async def test_a_test_with_its_own_driver_name_disturbs_no_other(cluster: Cluster) -> None:
    base = await cluster.example_driver(env={"NUM_DEVICES": "3"})
    (node,) = await cluster.nodes(1, pool=base.pool)
    slices = await cluster.published(3, node=node, driver=base.driver)
    assert {each["spec"]["pool"]["name"] for each in slices} == {node}


async def test_nothing_is_left_of_a_test_for_the_next_one(controlplane: ControlPlane) -> None:
    await controlplane.install_crds()
    async with harness.cluster(controlplane, "before") as before:
        (node,) = await before.nodes(1, pool="gpu")
        await before.published(8, node=node)
        namespace = await before.namespace()
        await before.holder("worker", namespace=namespace)
        await before.running("worker", namespace=namespace)
        metadata = {"name": node, "finalizers": [FINALIZER]}  # of an operator that was stopped in the middle
        spec = {"policyRef": {"name": "gone", "uid": "u"}, "driver": "gone", "nodeUID": "n"}
        record = {"apiVersion": API_VERSION, "kind": "GpuPartitionNodeState", "metadata": metadata, "spec": spec}
        await before.create(NODE_STATES, record)

    async with harness.cluster(controlplane, "after") as after:
        for kind in (NODES, PODS, RESOURCE_SLICES, RESOURCE_CLAIMS, NODE_STATES):
            await eventually(partial(_none, after, kind))


async def _none(cluster: Cluster, kind: Kind) -> bool:
    items = (await cluster.client.list(kind)).items
    assert not items, [each["metadata"]["name"] for each in items]
    return True


async def test_a_folder_with_an_earlier_testbed_in_it_is_refused(controlplane: ControlPlane) -> None:
    with pytest.raises(TestbedError, match="choose a folder that is empty"):
        await ControlPlane(controlplane.files.root).start()


async def test_two_testbeds_run_side_by_side(controlplane: ControlPlane, tmp_path: Path) -> None:
    async with ControlPlane(tmp_path, shape=Shape(nodes=1, gpus=2)) as other:
        assert other.server != controlplane.server
        async with other.client() as theirs, controlplane.client() as ours:
            names = [each["metadata"]["name"] for each in (await theirs.list(NODES)).items]
            assert names == ["node-1"]
            assert "node-1" not in [each["metadata"]["name"] for each in (await ours.list(NODES)).items]


async def test_killing_the_parent_leaves_no_process_behind(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from testbed.controlplane import ControlPlane, Shape\n"
        "async def main():\n"
        "    async with ControlPlane(Path(sys.argv[1]), shape=Shape(nodes=1)) as up:\n"
        "        print(*[each.pid for each in up.programs.values()], flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tmp_path), env=python_env(), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout
    pids = [int(pid) for pid in (await parent.stdout.readline()).split()]
    assert len(pids) == 6
    assert all(map(_runs, pids))
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    await eventually(lambda: not any(map(_runs, pids)), within=10)


async def test_a_program_that_dies_at_its_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    wrong = ControlPlane(tmp_path, shape=Shape(nodes=0, feature_gates="NoSuchGate=true"))
    with pytest.raises(TestbedError, match=r"(?s)kube-apiserver died with exit code 1.*NoSuchGate"):
        await wrong.start()
    assert not any(program.alive for program in wrong.programs.values())


async def test_a_second_api_server_shows_what_other_feature_gates_do(controlplane: ControlPlane) -> None:
    kubeconfig = await controlplane.second_apiserver("DRAPartitionableDevices=false")
    metrics = await controlplane.kubectl("get", "--raw", "/metrics", kubeconfig=kubeconfig)
    (line,) = [
        each
        for each in metrics.splitlines()
        if each.startswith('kubernetes_feature_enabled{name="DRAPartitionableDevices"')
    ]
    assert line.endswith(" 0")


async def test_the_scheduler_can_be_stopped_and_started(cluster: Cluster) -> None:
    await cluster.nodes(1)
    namespace = await cluster.namespace()
    scheduler = cluster.controlplane.programs["kube-scheduler"]
    await scheduler.stop()
    try:
        await cluster.pod("waits", namespace=namespace)
        pod = await cluster.client.get(PODS, "waits", namespace=namespace)
        assert "nodeName" not in pod["spec"]
    finally:
        await cluster.controlplane.start_again("kube-scheduler")
    await cluster.running("waits", namespace=namespace)


async def test_the_operator_gets_an_account_of_its_own(controlplane: ControlPlane) -> None:
    kubeconfig = await controlplane.install_operator()
    who = json.loads(await controlplane.kubectl("auth", "whoami", "-o", "json", kubeconfig=kubeconfig))
    assert who["status"]["userInfo"]["username"] == "system:serviceaccount:gpupartition-system:gpupartition"
    await controlplane.kubectl("get", "gpupartitionpolicies", kubeconfig=kubeconfig)


async def test_from_the_shell_a_testbed_goes_up_is_used_and_goes_down(tmp_path: Path) -> None:
    # The binaries are shared, the state is not: nobody's testbed of the same name is touched.
    cache = cache_folder()
    (tmp_path / "bin").symlink_to(cache / "bin")
    env = {**python_env(), "GPUPARTITION_CACHE": str(tmp_path)}

    async def testbed(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "testbed", *arguments]
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=env, stdout=PIPE, stderr=STDOUT)
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    assert (await testbed("status"))[0] == 1
    code, said = await testbed("up", "--nodes=2", "--gpus=3")
    try:
        assert code == 0, said
        assert "2 nodes with 3 GPUs each" in said
        code, said = await testbed("status")
        assert code == 0, said
        assert said.count("Ready") == 2
        shell = f'eval "$({sys.executable} -m testbed env)" && kubectl get nodes -o name'
        process = await asyncio.create_subprocess_shell(shell, cwd=ROOT, env=env, stdout=PIPE)
        out, _ = await process.communicate()
        assert out.decode().split() == ["node/node-1", "node/node-2"]
        pids = json.loads((tmp_path / "state" / "testbed" / "testbed.json").read_text())["programs"].values()
    finally:
        assert (await testbed("down"))[0] == 0
    assert not any(map(_runs, pids))
    assert not (tmp_path / "state" / "testbed").exists()


def _runs(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
