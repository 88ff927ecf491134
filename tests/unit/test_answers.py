"""What commands say of what an API server has answered."""

from __future__ import annotations

import pytest

from gpupartition.cli.cluster import explained
from gpupartition.kinds import POLICIES
from gpupartition.kube import RESOURCE_SLICES, Kind, NotServed


@pytest.mark.parametrize(
    ("kind", "fix"),
    [
        (POLICIES, "install the CRDs first: kubectl apply -k crds"),
        (RESOURCE_SLICES, "see what is missing: kubectl gpp check"),
    ],
    ids=["ours", "Kubernetes' own"],
)
def test_our_crds_are_the_answer_only_to_the_lack_of_our_kinds(kind: Kind, fix: str) -> None:
    assert explained(NotServed(f"list {kind}", 404, "NotFound", "no such kind")).endswith(f"; {fix}")
