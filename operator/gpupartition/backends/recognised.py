"""Drivers that are installed, recognised by the images that their DaemonSets run, as a GpuPartitionDriver would name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from gpupartition.api.v1alpha1 import DriverSpec, DriverType
from gpupartition.backends import amd_dcm, nvidia_mig
from gpupartition.backends import plugin_template as plugin
from gpupartition.backends.installed import containers
from gpupartition.backends.plugin_template import Unreadable
from gpupartition.domain.adoption import LeftOut
from gpupartition.domain.objects import Object
from gpupartition.names import DRIVER

# Last parts of the images' names, without registry and tag: those are kept where images are mirrored.
EXAMPLE: Final = ("dra-example-driver",)
MIG_MANAGER: Final = ("k8s-mig-manager",)
NVIDIA_PLUGIN: Final = ("dra-driver-nvidia-gpu", "k8s-dra-driver-gpu")
CONFIG_MANAGER: Final = ("device-config-manager",)
AMD_PLUGIN: Final = ("k8s-gpu-dra-driver",)

# The volumes by which GPU operators mount the config; beside them there are others, such as scripts.
_CONFIG_VOLUMES: Final = frozenset({"mig-parted-config", "config-manager-config-volume"})
# ConfigMaps that GPU operators make, and make anew when they are updated.
_THEIRS: Final = {"default-mig-parted-config": "NVIDIA's GPU operator", "default-dcm-config": "AMD's GPU operator"}
_HELM: Final = "meta.helm.sh/release-name"
_OF_NO_GPUS: Final = frozenset({"compute-domain.nvidia.com"})

Spec = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recognised:
    """A driver as somebody installed it: what to call it, and its spec as a user would write it."""

    name: str
    spec: Spec


def publishes_gpus(driver_name: str) -> bool:
    """Whether devices of this DRA driver could be GPUs: some drivers are known to publish other things."""
    return driver_name not in _OF_NO_GPUS


def recognised(driver_name: str, daemon_sets: Sequence[Object]) -> list[Recognised]:
    """How to name what publishes under this DRA driver name, where all DaemonSets of the cluster are these.

    Raises LeftOut when it cannot be told which of them belong to it.
    """
    vendor = _VENDORS.get(driver_name)
    return [vendor.recognised(driver_name, daemon_sets)] if vendor is not None else _example(driver_name, daemon_sets)


@dataclass(frozen=True, slots=True)
class _Vendor:
    """One that has a program that cuts GPUs, told by a ConfigMap, beside its DRA driver: images of both, and where a spec has what."""

    name: str
    type: DriverType
    field: str
    agent: tuple[str, Sequence[str]]
    plugin: Sequence[str]
    config: str

    def recognised(self, driver_name: str, daemon_sets: Sequence[Object]) -> Recognised:
        """The driver, where there is one of each."""
        field, images = self.agent
        agent = _only(images, daemon_sets, driver_name)
        plugin = _ref(_only(self.plugin, daemon_sets, driver_name))
        spec = {field: _ref(agent), "config": _config(agent, self.config), "plugin": plugin}
        return Recognised(self.name, {"type": str(self.type), self.field: spec})


_VENDORS: Final[Mapping[str, _Vendor]] = {
    nvidia_mig.DRIVER_NAME: _Vendor(
        "mig", DriverType.NVIDIA_MIG, "nvidiaMig", ("migManager", MIG_MANAGER), NVIDIA_PLUGIN, "gpupartition-mig"
    ),
    amd_dcm.DRIVER_NAME: _Vendor(
        "amd", DriverType.AMD_DCM, "amdDcm", ("configManager", CONFIG_MANAGER), AMD_PLUGIN, "gpupartition-amd"
    ),
}


def keeper(name: str, config_map: Object | None) -> str:
    """Who else keeps a ConfigMap as it is, so that what the operator writes into it may be gone one day; "" where nobody is known to."""
    meta = (config_map or {}).get("metadata", {})
    owners = [f"{owner['kind']} {owner['name']}" for owner in meta.get("ownerReferences", ())]
    release = meta.get("annotations", {}).get(_HELM, "")
    return _THEIRS.get(name) or next(iter(owners), f"Helm release {release}" if release else "")


def _example(driver_name: str, daemon_sets: Sequence[Object]) -> list[Recognised]:
    """Each DaemonSet of the example driver that publishes under this name; what the operator made of one is none of its own."""
    bases = [d for d in _running(EXAMPLE, daemon_sets) if DRIVER not in d["metadata"].get("labels", {})]
    found = [told for base in bases if (told := _told(base)) is not None and told[0] == driver_name]
    if not found:
        raise LeftOut(
            f"DRA driver {driver_name}: no GpuPartitionDriver is for it, and no DaemonSet runs a driver that is known here and publishes under "
            "that name; write a GpuPartitionDriver for it, if it is of a type that there is, and adopt again"
        )
    return [Recognised("example", spec) for _, spec in found]


def _told(base: Object) -> tuple[str, Spec] | None:
    """The name under which it publishes, and its spec."""
    template = base["spec"]["template"]
    try:
        name, gpus = plugin.driver_name(template), plugin.settings(template).gpus
        spec = {"type": "ExampleDriver", "exampleDriver": {"daemonSet": _ref(base), "gpusPerNode": gpus}}
        DriverSpec.model_validate(spec)
    except (Unreadable, ValidationError):
        return None
    return name, spec


def _only(images: Sequence[str], daemon_sets: Sequence[Object], driver_name: str) -> Object:
    found = _running(images, daemon_sets)
    if len(found) == 1:
        return found[0]
    named = ", ".join(f"{d['metadata']['namespace']}/{d['metadata']['name']}" for d in found)
    what = f"more than one DaemonSet runs {images[0]}: {named}" if found else f"no DaemonSet runs {images[0]}"
    raise LeftOut(
        f"DRA driver {driver_name}: {what}; write a GpuPartitionDriver that names what belongs together, and adopt again"
    )


def _running(images: Sequence[str], daemon_sets: Sequence[Object]) -> list[Object]:
    return [d for d in daemon_sets if any(_plain(c.get("image", "")) in images for c in containers(d))]


def _plain(image: str) -> str:
    return image.partition("@")[0].rpartition("/")[2].partition(":")[0]


def _ref(daemon_set: Object) -> Spec:
    return {"namespace": daemon_set["metadata"]["namespace"], "name": daemon_set["metadata"]["name"]}


def _config(daemon_set: Object, otherwise: str) -> str:
    """The ConfigMap that it mounts as its config; the name that it should have where it mounts none."""
    volumes = daemon_set["spec"]["template"]["spec"].get("volumes", ())
    mounted = {v["name"]: str(v["configMap"]["name"]) for v in volumes if v.get("configMap", {}).get("name")}
    named = [mounted[name] for name in sorted(mounted.keys() & _CONFIG_VOLUMES)]
    return next(iter(named or (mounted.values() if len(mounted) == 1 else ())), otherwise)
