"""What can be set from outside, all by environment variables, each with its unit in its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final

from gpupartition import names
from gpupartition.domain.world import Limits

PREFIX = "GPUPARTITION_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The operator's settings.

    Every time limit of `Limits` is `GPUPARTITION_<NAME>_SECONDS`, for example `GPUPARTITION_DRAINING_WAIT_SECONDS=7200`.
    """

    namespace: str = names.OPERATOR_NAMESPACE  # GPUPARTITION_NAMESPACE: where the freeze ConfigMap and the Lease are
    port: int = 8080  # GPUPARTITION_PORT: /healthz, /readyz, /metrics; 0 chooses a free one and logs it
    host: str = "0.0.0.0"  # noqa: S104  GPUPARTITION_HOST: probes come from outside the pod
    leader_election: bool = False  # GPUPARTITION_LEADER_ELECTION: work only while holding the Lease, else stand by
    read_only: bool = False  # GPUPARTITION_READ_ONLY: write nothing but statuses, for policies that observe
    workers: int = 16  # GPUPARTITION_WORKERS: nodes looked at at the same time; mostly they wait for the API server
    resync: timedelta = timedelta(seconds=300)
    """GPUPARTITION_RESYNC_SECONDS: everything is looked at again, whatever happened."""
    summary: timedelta = timedelta(seconds=5)
    """GPUPARTITION_SUMMARY_SECONDS: counts in a status move at most this often."""
    ignore_not_ready: timedelta = timedelta(seconds=3600)  # GPUPARTITION_IGNORE_NOT_READY_SECONDS
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Settings:
        """Read the settings; raises ValueError with every variable that is unknown or has no usable value."""
        given = {k.removeprefix(PREFIX): v for k, v in environ.items() if k.startswith(PREFIX)}
        own: dict[str, Any] = {}
        limits: dict[str, Any] = {}
        problems: list[str] = []
        for key, text in sorted(given.items()):
            if key in _OF_THE_TESTBED:
                continue
            if key not in _READERS:
                problems.append(f"{PREFIX}{key} is unknown")
                continue
            name = key.removesuffix("_SECONDS").lower()
            try:
                (limits if name in _LIMITS else own)[name] = _READERS[key](text)
            except ValueError as error:
                problems.append(f"{PREFIX}{key}={text!r} {error}")
        if problems:
            raise ValueError("; ".join(problems))
        return cls(**own, limits=Limits(**limits))


def _seconds(text: str) -> timedelta:
    try:
        duration = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise ValueError("is not a number of seconds, such as 90 or 0.5") from None
    if duration < timedelta(0):
        raise ValueError("is negative; write 0 or more")
    return duration


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise ValueError(f"is not a whole number from {low} to {high}")
        return int(text)

    return read


def _yes_or_no(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError("is neither true nor false")
    return text == "true"


def _words(text: str) -> str:
    if not text:
        raise ValueError("is empty; leave the variable out for the default")
    return text


_LIMITS: Final = frozenset(f.name for f in fields(Limits))
_READERS: Final[Mapping[str, Callable[[str], object]]] = {
    "NAMESPACE": _words,
    "HOST": _words,
    "LEADER_ELECTION": _yes_or_no,
    "PORT": _whole(0, 65535),
    "READ_ONLY": _yes_or_no,
    "WORKERS": _whole(1, 256),
    **{f"{name.upper()}_SECONDS": _seconds for name in (*_LIMITS, "resync", "summary", "ignore_not_ready")},
}
_OF_THE_TESTBED: Final = frozenset({"CACHE", "KUBECONFIG", "KUBERNETES"})
