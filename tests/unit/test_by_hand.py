"""Files of vendors in which people have written by hand: whatever stands there is understood, or is not, and nothing hangs or breaks."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from gpupartition.backends import dcm, mig_parted
from gpupartition.backends.nvidia_gpus import MigGpu

GPUS = (MigGpu(minor=0, product="NVIDIA H100 80GB HBM3"),)


@pytest.mark.parametrize("count", [10**12, -1, True, "7", 1.5, None, [7]], ids=repr)
def test_an_entry_with_a_count_that_no_gpu_has_is_not_understood(count: Any) -> None:
    assert (
        mig_parted.cuts_of([{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": count}}], GPUS) is None
    )


@pytest.mark.parametrize("profile", [7, None, True, date(2026, 1, 1)], ids=repr)
def test_an_entry_with_a_profile_that_is_no_text_is_not_understood_and_has_a_hash_all_the_same(profile: Any) -> None:
    entry = [{"devices": "all", "mig-enabled": True, "mig-devices": {profile: 7, "1g.10gb": 1}}]
    assert mig_parted.cuts_of(entry, GPUS) is None
    assert mig_parted.whole_fingerprint(entry) == mig_parted.whole_fingerprint(entry)


@pytest.mark.parametrize(
    "odd",
    [
        {"skippedGPUs": [1]},
        {"skippedGPUs": {"ids": 1}},
        {"profiles": [{"numGPUsAssigned": -1}]},
        {"profiles": [{"numGPUsAssigned": True}]},
        {"profiles": [{"numGPUsAssigned": 10**12}]},
        {"profiles": ["CPX"]},
        {"profiles": 1},
    ],
    ids=repr,
)
def test_a_profile_that_says_something_odd_is_not_understood_and_has_a_hash_all_the_same(odd: Any) -> None:
    profile = {"profiles": [{"computePartition": "CPX", "memoryPartition": "NPS1", "numGPUsAssigned": 8}]} | odd
    assert dcm.modes_of(profile, 8) is None
    assert dcm.whole_fingerprint(profile)
