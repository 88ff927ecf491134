"""A driver's pod as its kubelet sees it: what its container is told at the start, and what is reported of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from testbed.drivers.example import BadEnvironmentError
from testbed.faults import Running

if TYPE_CHECKING:
    from testbed.faults import Behaviour

IMAGE: Final = "dra-example-driver"
LABEL: Final = f"app.kubernetes.io/name={IMAGE}"
ENDED: Final = frozenset({"Succeeded", "Failed"})

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DriverPod:
    """One pod bound to a node, with the container that is the driver."""

    body: Object
    container: Object

    @classmethod
    def of(cls, body: Object, image: str = IMAGE) -> DriverPod | None:
        """Recognise a driver's pod, by its image, that should run: bound, neither ended nor being deleted."""
        if not body["spec"].get("nodeName") or body["metadata"].get("deletionTimestamp"):
            return None
        if body.get("status", {}).get("phase") in ENDED:
            return None
        found = next((item for item in body["spec"]["containers"] if image in item.get("image", "")), None)
        return cls(body, found) if found else None

    def seen_as(self, body: Object) -> DriverPod:
        """Take the same pod as the server returned it later."""
        return DriverPod(body, self.container)

    @property
    def uid(self) -> str:  # noqa: D102
        return str(self.body["metadata"]["uid"])

    @property
    def name(self) -> str:  # noqa: D102
        return str(self.body["metadata"]["name"])

    @property
    def namespace(self) -> str:  # noqa: D102
        return str(self.body["metadata"]["namespace"])

    @property
    def node(self) -> str:  # noqa: D102
        return str(self.body["spec"]["nodeName"])

    @property
    def started(self) -> datetime | None:
        """When the kubelet first saw the pod, as it once reported."""
        told = self.body.get("status", {}).get("startTime")
        return datetime.fromisoformat(told) if told else None

    def env(self) -> dict[str, str]:
        """Resolve the container's environment: values, and fields of the pod. Raises BadEnvironmentError for other sources."""
        for item in self.container.get("env") or ():
            if others := item.get("valueFrom", {}).keys() - {"fieldRef"}:
                raise BadEnvironmentError(f"{item['name']} comes from {', '.join(others)}: only fieldRef is simulated")
        return {
            item["name"]: item.get("value")
            or self._field(item.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath"))
            for item in self.container.get("env") or ()
        }

    def config_map(self, folder: str) -> str:
        """The ConfigMap that the container has mounted at this path; empty when there is none."""
        mounts = self.container.get("volumeMounts") or ()
        mounted = {item["name"] for item in mounts if item["mountPath"].rstrip("/") == folder.rstrip("/")}
        volumes = (item for item in self.body["spec"].get("volumes") or () if item["name"] in mounted)
        return next((str(item["configMap"]["name"]) for item in volumes if "configMap" in item), "")

    def status(self, behaviour: Behaviour, started: datetime, now: datetime) -> Object | None:
        """Draw the status that reports this behaviour; None when the pod already reports it."""
        before: Object = self.body.get("status", {})
        ready = behaviour.running is Running.READY
        reported = {item["type"]: item for item in before.get("conditions") or ()}
        states = {
            "PodReadyToStartContainers": True,
            "Initialized": True,
            "Ready": ready,
            "ContainersReady": ready,
            "PodScheduled": True,
        }
        status: Object = {
            "phase": "Pending" if behaviour.running is Running.CREATING else "Running",
            "startTime": _stamp(started),
            "conditions": [_condition(kind, reported.get(kind, {}), holds, now) for kind, holds in states.items()],
            "containerStatuses": [
                self._container(container, behaviour, now) for container in self.body["spec"]["containers"]
            ],
        }
        return None if all(_holds(before.get(key), value) for key, value in status.items()) else status

    def _container(self, container: Object, behaviour: Behaviour, now: datetime) -> Object:
        reports = self.body.get("status", {}).get("containerStatuses") or ()
        before: Object = next((item for item in reports if item["name"] == container["name"]), {})
        running, restarts = behaviour.running, 0
        if container["name"] == self.container["name"]:
            restarts = max(behaviour.restarts, before.get("restartCount", 0))
        elif running is not Running.CREATING:
            running = Running.READY
        report: Object = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": running is Running.READY,
            "started": running.connected,
            "restartCount": restarts,
        }
        if running.connected:
            since = before.get("state", {}).get("running", {}).get("startedAt")
            return {**report, "state": {"running": {"startedAt": since or _stamp(now)}}}
        report["state"] = {"waiting": {"reason": running.value}}
        if running is Running.CRASHING:
            report["state"]["waiting"]["message"] = f"back-off restarting failed container={container['name']}"
            if restarts == before.get("restartCount"):
                report["lastState"] = before.get("lastState", {})
            else:
                ended = {"startedAt": _stamp(now), "finishedAt": _stamp(now), "message": behaviour.message}
                report["lastState"] = {"terminated": {"exitCode": 1, "reason": "Error", **ended}}
        return report

    def _field(self, path: str | None) -> str:
        value: Any = self.body
        for step in (path or "").split("."):
            value = value.get(step, {}) if isinstance(value, dict) else {}
        return value if isinstance(value, str) else ""


def _condition(kind: str, before: Object, holds: bool, now: datetime) -> Object:
    status = "True" if holds else "False"
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    return {"type": kind, "status": status, "lastTransitionTime": since or _stamp(now)}


def _holds(before: Any, drawn: Any) -> bool:
    """Whether the server's copy says what was drawn; it may say more (defaults, other people's fields)."""
    if isinstance(drawn, dict):
        return isinstance(before, dict) and all(_holds(before.get(key), value) for key, value in drawn.items())
    if isinstance(drawn, list):
        return isinstance(before, list) and len(before) == len(drawn) and all(map(_holds, before, drawn))
    return bool(before == drawn) or (before is None and drawn in ("", {}))


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
