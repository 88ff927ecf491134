"""What Device Config Manager is told: profiles of its config file, what each is called, and what one that is there means for a node's GPUs.

A profile names the GPUs that are skipped by their numbers, and tells the others in their order: so many of them in these modes, then so many in
those. The numbers must add up to all GPUs of the node, or it is refused there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from gpupartition.backends.amd_gpus import Cuts
from gpupartition.backends.by_label import PREFIX
from gpupartition.domain import fingerprint
from gpupartition.domain.amd_modes import Mode
from gpupartition.domain.entries import Document

FILE: Final = "config.json"
_SERVICES: Final = "gpuClientSystemdServices"

Profile = dict[str, Any]


def document(namespace: str, name: str) -> Document:
    """The config file in its ConfigMap. Every edit makes each Device Config Manager carry out its node's profile once more."""
    return Document(
        namespace=namespace,
        name=name,
        file=FILE,
        under="gpu-config-profiles",
        frame={"gpu-config-profiles": {}},
        reruns=True,
    )


def services(config_map: Mapping[str, Any] | None) -> Sequence[str]:
    """The services of the node that the file says to stop and start; none where there is no file, or none that can be read."""
    try:
        found = json.loads((config_map or {}).get("data", {}).get(FILE, "{}"))
    except (ValueError, RecursionError):
        return ()
    told = found.get(_SERVICES) if isinstance(found, dict) else None
    names = told.get("names") if isinstance(told, dict) else None
    return [str(name) for name in names] if isinstance(names, list) else ()


def profile(cuts: Cuts) -> Profile:
    """The profile that cuts a node's GPUs so."""
    return _profile([cut.mode if cut is not None else None for cut in cuts])


def _profile(modes: Sequence[Mode | None]) -> Profile:
    told = [mode for mode in modes if mode is not None]
    return {
        "skippedGPUs": {"ids": [number for number, mode in enumerate(modes) if mode is None]},
        "profiles": [
            {"computePartition": mode.compute, "memoryPartition": mode.memory, "numGPUsAssigned": len(list(same))}
            for mode, same in groupby(told)
        ],
    }


def whole_fingerprint(profile: Any) -> str:
    """The whole hash of a profile, whoever wrote it."""
    told = profile if isinstance(profile, dict) else {}
    skipped = told.get("skippedGPUs") or {}
    ids = skipped.get("ids") if isinstance(skipped, dict) else None
    return fingerprint.digest(
        {"dcm": fingerprint.as_json({"skipped": ids or [], "profiles": told.get("profiles") or []})}
    )


def text(profile: Any) -> str:
    """The fingerprint of a profile as it is written."""
    return fingerprint.short(whole_fingerprint(profile))


def key_of(profile: Profile) -> str:
    """What the profile of a layout is called."""
    return PREFIX + text(profile)


def meaning(content: Any, gpus: int) -> str:
    """The fingerprint of what a profile makes of so many GPUs, however it says so; of its text where that is not understood."""
    modes = modes_of(content, gpus)
    return text(content if modes is None else _profile(modes))


def modes_of(profile: Any, gpus: int) -> tuple[Mode | None, ...] | None:
    """What a profile makes of so many GPUs (None: skipped); None where it does not fit them, or does not say in a way understood here.

    A number that is left out means all others: newer releases take that.
    """
    if not isinstance(profile, dict) or not isinstance(profile.get("profiles"), list):
        return None
    left_out = profile.get("skippedGPUs") or {}
    skipped = left_out.get("ids") or [] if isinstance(left_out, dict) else None
    if not isinstance(skipped, list):
        return None
    numbers = [n for n in range(gpus) if n not in skipped]
    found: list[Mode | None] = [None] * gpus
    for item in profile["profiles"]:
        count = item.get("numGPUsAssigned", len(numbers)) if isinstance(item, dict) else None
        if type(count) is not int or not 0 <= count <= len(numbers):
            return None
        mode = Mode(str(item.get("computePartition")), str(item.get("memoryPartition")))
        for number in numbers[:count]:
            found[number] = mode
        numbers = numbers[count:]
    return None if numbers else tuple(found)
