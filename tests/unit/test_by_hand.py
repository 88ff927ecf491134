"""Files of vendors in which people have written by hand: whatever stands there is understood, or is not, and nothing hangs or breaks."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from gpupartition.backends import dcm, mig_parted
from gpupartition.backends.nvidia_gpus import Cut, MigGpu, table_of
from gpupartition.domain.backend import Cluster

GPUS = (MigGpu(minor=0, product="NVIDIA H100 80GB HBM3"),)
TABLE = table_of(Cluster(), "", "")


@pytest.mark.parametrize("count", [10**12, -1, True, "7", 1.5, None, [7]], ids=repr)
def test_an_entry_with_a_count_that_no_gpu_has_is_not_understood(count: Any) -> None:
    entry = [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": count}}]
    assert mig_parted.cuts_of(entry, GPUS, TABLE) is None


@pytest.mark.parametrize("profile", [7, None, True, date(2026, 1, 1)], ids=repr)
def test_an_entry_with_a_profile_that_is_no_text_is_not_understood_and_has_a_hash_all_the_same(profile: Any) -> None:
    entry = [{"devices": "all", "mig-enabled": True, "mig-devices": {profile: 7, "1g.10gb": 1}}]
    assert mig_parted.cuts_of(entry, GPUS, TABLE) is None
    assert mig_parted.whole_fingerprint(entry) == mig_parted.whole_fingerprint(entry)


SEVENTHS = Cut.of({"1g.10gb": 7})


@pytest.mark.parametrize(
    ("ids", "cut"),
    [
        (["0x233010DE", "0x233110DE", "0x232210DE", "0x232410DE"], SEVENTHS),
        (["0x20b210de", "0x233010de", "0x233110de", "0x232210de", "0x232410de"], SEVENTHS),
        ("0x20B710DE", None),
        ([], SEVENTHS),
    ],
    ids=["all of its model", "in small letters, others too", "another model", "no filter"],
)
def test_a_filter_by_pci_ids_lets_gpus_of_their_models_through(ids: Any, cut: Cut | None) -> None:
    entry = [{"device-filter": ids, "devices": "all", "mig-enabled": True, "mig-devices": {"1g.10gb": 7}}]
    assert mig_parted.cuts_of(entry, GPUS, TABLE) == (cut,)


@pytest.mark.parametrize("ids", [["0x233010DE"], [7], 7, {"0x233010DE": 1}], ids=repr)
def test_a_filter_that_may_or_may_not_let_a_gpu_through_is_not_understood(ids: Any) -> None:
    entry = [{"device-filter": ids, "devices": "all", "mig-enabled": False}]
    assert mig_parted.cuts_of(entry, GPUS, TABLE) is None
    strange = (MigGpu(minor=0, product="NVIDIA Q900"),)
    assert mig_parted.cuts_of([{**entry[0], "device-filter": ["0x20B710DE"]}], strange, TABLE) is None


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
