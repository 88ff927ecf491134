"""What is asked of an API server before anything depends on it, and how long the answer stands."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, cast

import pytest
from tests.unit.published import driver

from gpupartition.api.v1alpha1 import DriverSpec
from gpupartition.controller import probe
from gpupartition.controller.probe import Probe
from gpupartition.kube import Forbidden

if TYPE_CHECKING:
    from gpupartition.kube import Client, Kind, Object

BASE = {"namespace": "gpu-driver", "name": "plugin"}


class Server:
    """Answers dry runs, without the counters while its gate is off."""

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self.asked = 0

    async def create(self, kind: Kind, body: Object, *, dry_run: bool) -> Object:  # noqa: ARG002
        """The slice as it would be stored."""
        assert dry_run
        self.asked += 1
        return {**body, "spec": {k: v for k, v in body["spec"].items() if self.on or k != "sharedCounters"}}


async def test_what_a_server_keeps_is_asked_once() -> None:
    server = Server(on=True)
    asking = Probe(cast("Client", server))
    assert await asking.dropped(driver()) == ()
    asked = server.asked
    assert await asking.dropped(driver()) == ()
    assert server.asked == asked


async def test_what_a_server_drops_is_asked_again_so_that_a_gate_can_be_switched_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server(on=False)
    asking = Probe(cast("Client", server))
    for _ in range(2):
        assert await asking.dropped(driver()) == ("spec.sharedCounters",)
    assert server.asked == 2, "a slice of counters, and one of devices"
    monkeypatch.setattr(probe, "GRANTED", timedelta(0))
    asking = Probe(cast("Client", server))
    assert await asking.dropped(driver()) == ("spec.sharedCounters",)
    server.on = True
    assert await asking.dropped(driver()) == ()


async def test_what_is_dropped_of_slices_that_others_write_is_asked_too_and_a_refusal_says_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs = DriverSpec.model_validate(
        {"type": "ExampleDriver", "exampleDriver": {"daemonSet": BASE, "gpusPerNode": 8}}
    )
    assert await Probe(cast("Client", Server(on=False))).dropped(theirs) == ("spec.sharedCounters",)

    class Refusing(Server):
        refuses = True

        async def create(self, kind: Kind, body: Object, *, dry_run: bool) -> Object:
            if self.refuses:
                raise Forbidden("create resourceslices", 403, "Forbidden", "not yours")
            return await super().create(kind, body, dry_run=dry_run)

    monkeypatch.setattr(probe, "GRANTED", timedelta(0))
    server = Refusing(on=False)
    asking = Probe(cast("Client", server))
    assert await asking.dropped(theirs) == ()
    assert await asking.dropped(driver()) == ("the slice as a whole (not yours)",)
    server.refuses = False
    assert await asking.dropped(theirs) == ("spec.sharedCounters",), "it is asked again"


async def test_a_slice_that_was_refused_is_believed_before_an_earlier_yes() -> None:
    asking = Probe(cast("Client", Server(on=True)))
    assert await asking.dropped(driver()) == ()
    asking.refused(driver(), "this API server drops what devices draw on counters")
    (lost,) = await asking.dropped(driver())
    assert "drops what devices draw on counters" in lost
