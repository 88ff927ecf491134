"""That somebody has paused a policy, or frozen everything: why, who, and until when.

It is written beside specs (annotations of a policy, the freeze ConfigMap), so that whoever keeps specs in Git does not revert it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gpupartition import names

PAUSE: Final = {"by": names.PAUSED_BY, "reason": names.PAUSED_REASON, "until": names.PAUSED_UNTIL}
"""The annotations of a paused policy that say more, by the field of Suspension."""
LONGEST: Final = 200  # characters of what somebody wrote, in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """As it is written. `until`: a time with its zone; without one, or with one that nobody can read, it lasts until it is taken away."""

    by: str = ""
    reason: str = ""
    until: str = ""

    @property
    def ends(self) -> datetime | None:
        """When it is over by itself; None for never."""
        try:
            time = datetime.fromisoformat(self.until)
            return time.astimezone(UTC) if time.tzinfo is not None else None
        except (ValueError, OverflowError):
            return None

    def holds(self, now: datetime) -> bool:
        """Whether it is not over yet."""
        return self.ends is None or now < self.ends

    def __str__(self) -> str:
        """As a sentence goes on after a colon: `driver upgrade (by alice, until 2026-12-01T06:00:00Z)`."""
        about = [f"by {_short(self.by)}"] if self.by else []
        if self.until and self.ends is None:
            about.append(
                f"until it is taken away: {_short(self.until)!r} is no time, write such as 2026-12-01T06:00:00Z"
            )
        elif self.until:
            about.append(f"until {self.until}")
        return (_short(self.reason) or "no reason was given") + (f" ({', '.join(about)})" if about else "")


def of_policy(body: Mapping[str, Any]) -> Suspension | None:
    """What the annotations of a policy say; None when it is not paused by any. Any value but `false` pauses."""
    notes = body["metadata"].get("annotations") or {}
    if notes.get(names.PAUSED, "false") == "false":
        return None
    return Suspension(**{field: str(notes.get(key, "")) for field, key in PAUSE.items()})


def is_paused(body: Mapping[str, Any], now: datetime) -> bool:
    """Whether a policy is paused, by its spec or beside it."""
    beside = of_policy(body)
    return bool(body["spec"].get("rollout", {}).get("paused")) or (beside is not None and beside.holds(now))


def of_freeze(config_map: Mapping[str, Any]) -> Suspension:
    """What the freeze ConfigMap says."""
    told = config_map.get("data") or {}
    return Suspension(**{field: str(told.get(field, "")) for field in PAUSE})


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
