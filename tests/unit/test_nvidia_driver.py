"""The simulated NVIDIA hardware and software, as far as it needs no API server: GPUs, mig-parted, what is announced, and what is waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import yaml
from testbed import faults, nodes
from testbed.drivers import gpus, mig_parted
from testbed.drivers.gpus import WHOLE, BadGpusError, Gpu, Instance, NvmlError, read_spec, read_state, write_state
from testbed.drivers.mig_manager import Label
from testbed.drivers.mig_parted import BadConfigError, Node, apply, apply_mode, generated, holds, mode_holds, read
from testbed.drivers.mounts import Mount, Original, _Version
from testbed.drivers.nvidia_slices import draw, meant
from testbed.drivers.pods import DriverPod
from tests.unit.simulated import play

from gpupartition.kube import DAEMON_SETS, Object

H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-40GB"
A30 = "NVIDIA A30"


def cut(product: str, **counts: int) -> Gpu:
    """A GPU in MIG mode with these instances; `_1g_10gb` stands for 1g.10gb."""
    empty = Gpu(product=product, mig=True, pending=True)
    return gpus.create(empty, {name.removeprefix("_").replace("_", "."): count for name, count in counts.items()})


# ── GPUs ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_may_have_several_kinds_of_gpus() -> None:
    assert read_spec(f"2x {A100}, 1x {H100}") == (Gpu(product=A100), Gpu(product=A100), Gpu(product=H100))


def test_gpus_that_cannot_be_read_say_what_to_write() -> None:
    with pytest.raises(BadGpusError, match="write COUNTx PRODUCT"):
        read_spec("eight H100")


def test_instances_are_destroyed_one_by_one_and_those_before_one_in_use_are_gone() -> None:
    gpu = cut(H100, _1g_10gb=2, _3g_40gb=1)
    (big,) = (each for each in gpu.instances if each.profile == "3g.40gb")
    left, refusal = gpus.clear(gpu, {str(big)})
    assert left.instances == (big,)
    assert str(refusal) == "In use by another client"


def test_a_process_outside_of_all_instances_keeps_them_all() -> None:
    gpu = cut(H100, _1g_10gb=7)
    left, refusal = gpus.clear(gpu, {WHOLE})
    assert left == gpu
    assert str(refusal) == "In use by another client"


def test_an_ampere_changes_its_mode_at_a_reset_and_a_hopper_at_once() -> None:
    old, new = (gpus.set_mode(Gpu(product=product), True, ()) for product in (A100, H100))
    assert (old.mig, old.pending) == (False, True)
    assert (new.mig, new.pending) == (True, True)
    assert gpus.reset(old, ()).mig
    with pytest.raises(NvmlError, match="In use by another client"):
        gpus.reset(old, {WHOLE})


def test_a_reboot_takes_all_instances_and_only_an_ampere_remembers_its_mode() -> None:
    for product, mode in ((A100, True), (H100, False)):
        found = gpus.reboot(cut(product, **{"_1g_5gb" if product == A100 else "_1g_10gb": 7}))
        assert (found.mig, found.pending, found.instances) == (mode, mode, ())


def test_a_reboot_brings_the_pending_mode_of_an_ampere_and_every_lost_gpu() -> None:
    asked = gpus.set_mode(Gpu(product=A30), True, ())
    assert gpus.reboot(asked).mig
    assert not gpus.reboot(replace(asked, lost=True)).lost


def test_what_does_not_fit_is_refused_and_so_is_a_gpu_that_cannot_be_cut() -> None:
    with pytest.raises(NvmlError, match="Insufficient Resources"):
        cut(H100, _3g_40gb=3)
    with pytest.raises(NvmlError, match="Not Supported"):
        gpus.set_mode(Gpu(product="NVIDIA L40S"), True, ())


def test_the_hardware_survives_its_programs_and_forgets_at_a_reboot_or_when_others_are_put_in() -> None:
    spec = f"1x {H100}, 1x {A100}"
    there = (cut(H100, _3g_40gb=2), Gpu(product=A100))
    told = write_state(there, "boot-1", spec)
    assert read_state(told, "boot-1", spec) == there
    assert read_state(told, "boot-2", spec) == tuple(map(gpus.reboot, there))
    assert read_state(told, "boot-1", f"2x {A30}") == read_spec(f"2x {A30}")
    assert read_state("", "boot-1", spec) == read_spec(spec)


@pytest.mark.parametrize(
    "state", ["{", '{"spec": "1x NVIDIA A30", "gpus": []}', '{"spec": "1x NVIDIA A30", "gpus": [{}]}']
)
def test_a_state_that_is_none_says_so(state: str) -> None:
    with pytest.raises(BadGpusError, match="is no state of"):
        read_state(state, "boot-1", f"1x {A30}")


# ── mig-parted ────────────────────────────────────────────────────────────────────────────────────────────────────────


def entry(counts: dict[str, int] | None, devices: object = "all", **more: object) -> Object:
    """An entry of a config; None: MIG off."""
    return {"devices": devices, "mig-enabled": counts is not None, "mig-devices": counts or {}, **more}


def config(*entries: Object) -> mig_parted.Config:
    return read(yaml.safe_dump({"version": "v1", "mig-configs": {"it": list(entries)}}), "it")


def run(wanted: mig_parted.Config, node: Node, **switches: str) -> str:
    """Apply it to the end; what it was refused."""
    try:
        for _ in apply(wanted, node, {name.replace("_", "-"): value for name, value in switches.items()}):
            pass
    except NvmlError as refusal:
        return str(refusal)
    return ""


def test_a_layout_is_applied_to_all_gpus_and_then_holds() -> None:
    node = Node(gpus=list(read_spec(f"2x {H100}")))
    wanted = config(entry({"3g.40gb": 2}))
    assert not holds(wanted, node)
    assert run(wanted, node) == ""
    assert holds(wanted, node)
    assert [gpu.counts for gpu in node.gpus] == [{"3g.40gb": 2}] * 2
    assert run(config(entry(None)), node) == ""
    assert node.gpus == list(read_spec(f"2x {H100}"))


def test_gpus_are_chosen_by_their_number_and_their_kind() -> None:
    node = Node(gpus=list(read_spec(f"2x {A100}, 1x {H100}")))
    wanted = config(
        entry({"7g.40gb": 1}, [0], **{"device-filter": ["0x20B010DE"]}),
        entry({"1g.10gb": 7}, **{"device-filter": "0x233010DE"}),
    )
    assert run(wanted, node) == ""
    assert [gpu.counts for gpu in node.gpus] == [{"7g.40gb": 1}, {}, {"1g.10gb": 7}]
    assert mode_holds(wanted, node)
    assert not holds(wanted, node), "an entry that says nothing of a GPU never holds"


def test_the_mode_of_one_gpu_costs_all_that_are_meant_their_instances() -> None:
    node = Node(gpus=[cut(H100, _1g_10gb=7), Gpu(product=H100)])
    list(apply_mode(config(entry({"1g.10gb": 7})), node))
    assert [(gpu.mig, gpu.instances) for gpu in node.gpus] == [(True, ()), (True, ())]


def test_the_reset_for_one_ampere_needs_every_gpu_of_the_node_to_be_idle() -> None:
    node = Node(gpus=[Gpu(product=A100), cut(A100, _7g_40gb=1)], users={1: {"7g.40gb@0"}})
    with pytest.raises(NvmlError, match="resetting all GPUs: In use by another client"):
        list(apply_mode(config(entry({"1g.5gb": 7}, [0])), node))
    assert (node.gpus[0].mig, node.gpus[0].pending) == (False, True)


def test_where_nothing_can_be_reset_the_mode_waits_for_a_reboot() -> None:
    node = Node(gpus=[Gpu(product=A100)], can_reset=False)
    wanted = config(entry({"1g.5gb": 7}))
    assert "Not Supported" in run(wanted, node)
    node.gpus[:] = map(gpus.reboot, node.gpus)
    assert run(wanted, node) == ""


def test_a_layout_that_has_no_room_is_tried_and_costs_the_old_one() -> None:
    node = Node(gpus=[cut(H100, _3g_40gb=2), cut(H100, _3g_40gb=2)])
    assert run(config(entry({"3g.40gb": 3})), node) == "Insufficient Resources"
    assert [gpu.counts for gpu in node.gpus] == [{}, {"3g.40gb": 2}]


def test_a_gpu_that_has_its_layout_is_left_alone_even_in_use() -> None:
    node = Node(gpus=[cut(H100, _7g_80gb=1), cut(H100, _3g_40gb=2)], users={0: {"7g.80gb@0"}})
    assert run(config(entry({"7g.80gb": 1})), node) == ""


@pytest.mark.parametrize(
    ("switches", "refusal", "left"),
    [
        ({"apply_fails": "cleared"}, "Unknown Error", [{}, {"3g.40gb": 2}]),
        ({"apply_fails": "partly"}, "Unknown Error", [{"1g.10gb": 7}, {"3g.40gb": 2}]),
        ({"gpu_dies": "1"}, "GPU is lost", [{"1g.10gb": 7}, {"3g.40gb": 2}]),
    ],
)
def test_what_fails_in_the_middle_leaves_what_was_done(
    switches: dict[str, str], refusal: str, left: list[dict[str, int]]
) -> None:
    node = Node(gpus=[cut(H100, _3g_40gb=2), cut(H100, _3g_40gb=2)])
    assert run(config(entry({"1g.10gb": 7})), node, **switches) == refusal
    assert [gpu.counts for gpu in node.gpus] == left


def test_a_lost_gpu_refuses_everything_until_a_reboot() -> None:
    node = Node(gpus=[replace(cut(H100, _7g_80gb=1), lost=True)])
    assert run(config(entry({"7g.80gb": 1})), node) == "GPU is lost"
    node.gpus[:] = map(gpus.reboot, node.gpus)
    assert run(config(entry({"7g.80gb": 1})), node) == ""


def test_only_the_names_of_the_release_are_known_and_the_others_cost_the_old_layout() -> None:
    node = Node(gpus=[cut(H100, _1g_10gb=7)], other_names=True)
    assert run(config(entry({"7g.80gb": 1})), node) == "MIG profile '7g.80gb' not found on this GPU"
    assert node.gpus[0].instances == ()
    assert run(config(entry({"7g.79gb": 1})), node) == ""
    assert node.gpus[0].counts == {"7g.80gb": 1}


def test_all_means_all_that_can_be_cut() -> None:
    node = Node(gpus=list(read_spec("1x NVIDIA L40S, 1x NVIDIA A30")))
    assert run(config(entry({"1g.6gb": 4})), node) == ""
    assert "non MIG-capable" in run(config(entry({"1g.6gb": 4}, [0])), node)


def test_a_file_of_its_own_has_the_usual_names_for_what_is_there() -> None:
    node = Node(gpus=list(read_spec(f"1x {A30}, 1x {H100}")))
    text = generated(node)
    assert run(read(text, "all-balanced"), node) == ""
    assert [gpu.counts for gpu in node.gpus] == [
        {"1g.6gb": 2, "2g.12gb": 1},
        {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1},
    ]
    assert {"all-disabled", "all-enabled", "all-1g.6gb.me", "all-7g.80gb"} <= yaml.safe_load(text)["mig-configs"].keys()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version: v1\nmig-configs: {}", "not present: 'it'"),
        ("version: v2", "unknown version"),
        ("- v1", "unmarshal error"),
        ("version: [", "unmarshal error"),
        ("version: v1\nmig-configs: {other: [{devices: all, mig-enabled: true, colour: red}]}", "unexpected field"),
        (
            "version: v1\nmig-configs: {other: [{devices: all, mig-enabled: true}]}",
            "missing required field: mig-devices",
        ),
        ("version: v1\nmig-configs: {other: [{devices: some, mig-enabled: false}]}", "write all, or a list"),
        (
            "version: v1\nmig-configs: {it: [{devices: all, mig-enabled: true, mig-devices: {big: 1}}]}",
            "invalid format",
        ),
    ],
)
def test_one_wrong_entry_makes_the_whole_file_unreadable(text: str, says: str) -> None:
    with pytest.raises(BadConfigError, match=says):
        read(text, "it")


# ── what is announced ─────────────────────────────────────────────────────────────────────────────────────────────────


def names(*there: Gpu, places: Sequence[int] | None = None, **how: bool) -> list[str]:
    (content,) = draw("n1", there, places, **how)
    return [device["name"] for device in content["devices"]]


def test_a_gpu_that_has_fallen_off_the_bus_is_not_announced_and_the_others_keep_their_names() -> None:
    assert names(Gpu(product=H100), Gpu(product=H100), Gpu(product=H100), places=(0, 2)) == ["gpu-0", "gpu-2"]


def test_users_are_counted_as_the_library_counts_gpus() -> None:
    node = Node(gpus=[Gpu(product=H100)] * 2, places=(0, 2))
    assert node.numbered({0: {"a"}, 1: {"gone"}, 2: {"b"}}) == {0: {"a"}, 1: {"b"}}


def test_cut_gpus_are_announced_in_parts_and_not_as_a_whole() -> None:
    empty = Gpu(product=H100, mig=True, pending=True)
    parts = replace(empty, instances=(Instance(0, "1g.10gb+me"), Instance(2, "1g.20gb"), Instance(4, "3g.40gb")))
    assert names(Gpu(product=H100), parts, empty) == [
        "gpu-0",
        "gpu-1-mig-1g10gb-me-20-0",
        "gpu-1-mig-1g20gb-15-2",
        "gpu-1-mig-3g40gb-9-4",
    ]
    assert names(cut(H100, _7g_80gb=1), whole_too=True) == ["gpu-0", "gpu-0-mig-7g80gb-0-0"]


def test_a_part_says_what_it_is_and_which_memory_slices_it_occupies() -> None:
    gpu = Gpu(product=H100, mig=True, pending=True, instances=(Instance(4, "3g.40gb"),))
    (content,) = draw("n1", [gpu])
    (device,) = content["devices"]
    assert device["name"] == "gpu-0-mig-3g40gb-9-4"
    own = {key: value["string"] for key, value in device["attributes"].items() if "string" in value}
    assert (own["type"], own["profile"], own["productName"], own["architecture"]) == ("mig", "3g.40gb", H100, "Hopper")
    assert own["parentUUID"] == gpu.identity("n1", 0)
    assert {key: value["value"] for key, value in device["capacity"].items()} == {
        "multiprocessors": "60",
        "copyEngines": "3",
        "decoders": "3",
        "encoders": "0",
        "jpegEngines": "3",
        "ofaEngines": "0",
        "memory": "40448Mi",
        **{f"memorySlice{slot}": "1" for slot in (4, 5, 6, 7)},
    }
    assert "consumesCounters" not in device


def test_a_whole_gpu_has_its_memory_and_nothing_else() -> None:
    (content,) = draw("n1", [Gpu(product=H100)])
    assert content["devices"][0]["capacity"] == {"memory": {"value": "81152Mi"}}


def test_another_release_rounds_the_name_down_and_reports_less() -> None:
    (content,) = draw("n1", [cut(H100, _7g_80gb=1)], other_names=True)
    (device,) = content["devices"]
    assert device["name"] == "gpu-0-mig-7g79gb-0-0"
    assert device["attributes"]["profile"] == {"string": "7g.79gb"}
    assert device["capacity"]["memory"] == {"value": "81088Mi"}


def test_a_device_is_found_on_its_gpu_again() -> None:
    there = [Gpu(product=H100), cut(H100, _3g_40gb=2)]
    assert meant("gpu-0", there) == (0, None)
    assert meant("gpu-1-mig-3g40gb-9-4", there) == (1, Instance(4, "3g.40gb"))
    assert meant("gpu-1-mig-1g10gb-19-0", there) is None
    assert meant("gpu-9", there) is None


# ── mig-manager and its mount ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_label_that_is_taken_away_and_set_again_is_heard_by_who_waits() -> None:
    label = Label()
    label.tell("a")
    assert label.ask() == "a"
    assert label.ask() is None
    label.tell("")
    assert label.ask() is None
    label.tell("a")
    assert label.ask() == "a"


def test_a_label_that_is_taken_away_and_set_again_is_missed_by_who_works() -> None:
    label = Label()
    label.tell("a")
    assert label.ask() == "a"
    label.tell("")
    label.tell("a")
    assert label.ask() is None


def test_a_label_that_is_taken_away_from_who_works_is_looked_for_as_nothing() -> None:
    label = Label()
    label.tell("a")
    assert label.ask() == "a"
    label.tell("")
    assert label.ask() == ""


def test_a_mounted_copy_follows_its_original_late_and_an_old_one_never_comes_back() -> None:
    async def story() -> list[Object | None]:
        original = Original()
        mount = Mount(original)
        seen = [mount.read(1)]
        original.exists, original.versions = True, [_Version({"v": "1"}, 900)]
        seen.append(mount.read(1))
        original.versions.append(_Version({"v": "2"}, 999.5))
        seen += [mount.read(1), mount.read(0.5), mount.read(1)]
        original.exists = False
        return [dict(each) if each else None for each in [*seen, mount.read(1), Mount(original).read(1)]]

    assert play(story()) == [None, {"v": "1"}, {"v": "1"}, {"v": "2"}, {"v": "2"}, {"v": "2"}, None]


def test_switches_can_be_for_one_config_alone() -> None:
    told = faults.parse("apply-fails@config=all-1g.10gb, in-use=3, wedged")
    assert faults.active(told, config="all-1g.10gb") == {"apply-fails": "cleared", "in-use": "3", "wedged": "before"}
    assert "apply-fails" not in faults.active(told, config="all-7g.80gb")


def test_late_slices_come_when_their_time_has_come() -> None:
    late = faults.shown({"late-slices": "7"}, 5, lambda: [{}])
    assert (late.slices, late.again) == (None, 2)
    assert faults.shown({"late-slices": "7"}, 7, lambda: [{}]).slices == ({},)


# ── the install ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_pods_of_the_install_are_those_that_are_simulated() -> None:
    daemon_sets = {body["metadata"]["name"]: body for kind, body in nodes.nvidia() if kind is DAEMON_SETS}
    for name, label, image in (
        ("nvidia-mig-manager", "app=nvidia-mig-manager", "k8s-mig-manager"),
        (
            "dra-driver-nvidia-gpu-kubelet-plugin",
            "dra-driver-nvidia-gpu-component=kubelet-plugin",
            "dra-driver-nvidia-gpu",
        ),
    ):
        template = daemon_sets[name]["spec"]["template"]
        key, _, value = label.partition("=")
        assert template["metadata"]["labels"][key] == value
        meta = {"name": "p", "namespace": "x", "uid": "u"}
        assert DriverPod.of({"metadata": meta, "spec": {**template["spec"], "nodeName": "n1"}}, image)
