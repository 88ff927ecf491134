"""What `check` makes of what a cluster answers."""

from __future__ import annotations

from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.fleet import Fleet

from gpupartition.api import crd
from gpupartition.cli import check
from gpupartition.cli.paint import rendered
from gpupartition.controller.records import DRIVERS
from gpupartition.kinds import NODE_STATES, POLICIES
from gpupartition.kube import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Forbidden,
    Kind,
    Listing,
    NotServed,
    Object,
)
from gpupartition.names import API_VERSION
from gpupartition.settings import Settings

EVERYTHING = {
    RESOURCE_SLICES.api_version: {
        each.plural for each in (RESOURCE_SLICES, RESOURCE_CLAIMS, DEVICE_CLASSES, DEVICE_TAINT_RULES)
    },
    API_VERSION: {DRIVERS.plural, POLICIES.plural, NODE_STATES.plural},
}


def schema(kind: crd.Kind) -> dict[str, Any]:
    """Of a kind, as its CRD has it."""
    written: dict[str, Any] = crd.crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return written


class Server(Fleet):
    """A fleet whose API server says what it serves, and answers dry runs without what it `drops`."""

    def __init__(self, *, version: str = "v1.37.0", drops: str = "", may_create: bool = True) -> None:
        super().__init__(2)
        self.version = version
        self.drops = drops
        self.may_create = may_create
        self.is_behind = False  # another server than the one that says what is served
        self.served: dict[str, set[str]] = deepcopy(EVERYTHING)
        self.schemas = {f"dev.gpupartition.v1alpha1.{kind.kind}": deepcopy(schema(kind)) for kind in crd.KINDS}

    async def raw(self, method: str, path: str) -> Any:
        """The version, and what a group serves."""
        assert method == "GET"
        if path == "/version":
            return {"gitVersion": self.version}
        if path == f"/openapi/v3/apis/{API_VERSION}":
            return {"components": {"schemas": self.schemas}}
        api_version = path.removeprefix("/apis/")
        if api_version not in self.served:
            raise NotServed(f"GET {path}", 404, "NotFound", "the server could not find the requested resource")
        return {"resources": [{"name": name} for name in self.served[api_version]]}

    async def create(self, kind: Kind, body: Object, *, dry_run: bool) -> Object:
        """The slice as it would be stored."""
        assert (kind, dry_run) == (RESOURCE_SLICES, True)
        self._serves("create", kind)
        if self.is_behind:
            raise NotServed(f"create {kind}", 404, "NotFound", "the server could not find the requested resource")
        if not self.may_create:
            raise Forbidden("create resourceslices", 403, "Forbidden", "you may not")
        spec = {key: value for key, value in body["spec"].items() if key != self.drops}
        return {**body, "spec": spec}

    async def list(self, kind: Kind, **options: Any) -> Listing:
        """What is served."""
        self._serves("list", kind)
        return await super().list(kind, **options)

    def _serves(self, verb: str, kind: Kind) -> None:
        if kind.api_version in EVERYTHING and kind.plural not in self.served.get(kind.api_version, ()):
            raise NotServed(f"{verb} {kind}", 404, "NotFound", "the server could not find the requested resource")


async def look(server: Server) -> list[check.Found]:
    return await check.look(server.client, Settings())


async def verdicts(server: Server) -> dict[str, str]:
    return {each.check: each.verdict for each in await look(server)}


WELL = {"version": "ok", "slices": "ok", "taints": "ok", "counters": "ok", "crds": "ok", "driver example": "ok"}


async def test_a_cluster_with_everything_is_well() -> None:
    found = await look(Server())
    assert {each.check: each.verdict for each in found} == WELL
    assert found[-1].says == "ExampleDriver gpu.example.com, published by 2 nodes"
    assert check.names(found) == []


@pytest.mark.parametrize(
    ("told", "verdict"),
    [
        ("v1.37.0", "ok"),
        ("v1.38.1-gke.100", "ok"),
        ("v2.0.0", "ok"),
        ("v1.36.4+k3s1", "ok"),
        ("v1.35.9", "failed"),
        ("", "unknown"),
    ],
)
def test_versions_are_read_as_numbers(told: str, verdict: str) -> None:
    assert check.version(told).verdict == verdict


async def test_without_taint_rules_it_says_that_nodes_are_cordoned() -> None:
    server = Server()
    server.served[RESOURCE_SLICES.api_version].discard(DEVICE_TAINT_RULES.plural)
    (taints,) = [each for each in await look(server) if each.check == "taints"]
    assert (taints.verdict, "cordoned" in taints.says) == ("warned", True)


async def test_without_dynamic_resource_allocation_nothing_works() -> None:
    server = Server()
    del server.served[RESOURCE_SLICES.api_version]
    assert await verdicts(server) == {"version": "ok", "slices": "failed", "crds": "ok"}


async def test_what_a_server_does_not_know_after_all_takes_no_other_answer_away() -> None:
    server = Server()
    server.is_behind = True
    assert await verdicts(server) == {**WELL, "counters": "unknown"}


async def test_a_field_that_is_dropped_without_a_word_is_named() -> None:
    (counters,) = [each for each in await look(Server(drops="sharedCounters")) if each.check == "counters"]
    assert counters.verdict == "failed"
    assert "drops spec.sharedCounters: " in counters.says


async def test_what_may_not_be_asked_is_unknown_and_not_well() -> None:
    assert await verdicts(Server(may_create=False)) == {**WELL, "counters": "unknown"}


async def test_without_the_crds_the_drivers_are_recognised_all_the_same() -> None:
    server = Server()
    del server.served[API_VERSION]
    found = {each.check: each for each in await look(server)}
    assert (found["crds"].verdict, found["crds"].fix) == ("failed", "kubectl apply -k crds")
    assert found["drivers"].verdict == "warned"
    assert found["drivers"].says.endswith("no GpuPartitionDriver is for it; it is of type ExampleDriver")


async def test_crds_of_a_release_that_knew_less_are_told_with_the_outermost_fields_that_they_drop() -> None:
    server = Server()
    driver, policy = (
        server.schemas[f"dev.gpupartition.v1alpha1.{kind}"]["properties"]["spec"]["properties"]
        for kind in ("GpuPartitionDriver", "GpuPartitionPolicy")
    )
    del driver["publish"]["properties"]["multiNode"]
    del policy["layouts"]["items"]["properties"]["sharing"]["properties"]["capacity"]["additionalProperties"][
        "properties"
    ]["step"]
    (crds,) = [each for each in await look(server) if each.check == "crds"]
    assert (crds.verdict, "CRDs" in crds.fix) == ("warned", True)
    told = "GpuPartitionDriver spec.publish.multiNode, GpuPartitionPolicy spec.layouts[].sharing.capacity{}.step"
    assert crds.says.endswith(f"drop {told}")


async def test_a_field_that_a_later_release_has_is_no_fault() -> None:
    server = Server()
    for each in server.schemas.values():
        each["properties"]["spec"]["properties"]["later"] = {"type": "string"}
    assert await verdicts(server) == WELL


async def test_a_driver_that_cannot_work_is_told_with_what_to_do() -> None:
    server = Server()
    (body,) = server.objects[DRIVERS]
    body["spec"]["exampleDriver"]["daemonSet"]["name"] = "nowhere"
    found, others = [each for each in await look(server) if each.check.startswith("driver")]
    assert (found.check, found.verdict) == ("driver example", "failed")
    assert "nowhere" in found.says
    assert found.fix
    assert "no GpuPartitionDriver that works is for it" in others.says


async def test_a_driver_that_is_being_deleted_is_said_to_be() -> None:
    server = Server()
    server.objects[DRIVERS][0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    (found,) = [each for each in await look(server) if each.check == "driver example"]
    assert (found.verdict, "being deleted" in found.says) == ("warned", True)
    assert "delete the policies" in found.fix


async def test_a_cluster_without_gpus_is_told_what_to_install() -> None:
    server = Server()
    server.objects[RESOURCE_SLICES] = []
    server.objects[DRIVERS] = []
    (found,) = [each for each in await look(server) if each.check == "drivers"]
    assert (found.verdict, found.says) == ("warned", "no DRA driver publishes devices of a node")


async def test_people_see_a_line_for_each_and_what_to_do_below_it() -> None:
    server = Server()
    del server.served[API_VERSION]
    lines = rendered(check.pictured(await look(server), datetime.now(UTC)), colour=False).splitlines()
    assert lines[:2] == ["VERDICT   CHECK      FOUND", "ok        version    Kubernetes v1.37.0"]
    assert lines[6] == "                     -> kubectl apply -k crds"
