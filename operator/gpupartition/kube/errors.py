"""What can go wrong between us and an API server, one class per answer that somebody treats differently.

ApiError
├── Unreachable      no answer: refused, reset, cut, timed out, or a page of somebody else's
├── Forbidden        403  our role lacks a right, or an admission policy said no
├── NotFound         404  no such object
├── NotServed        404  no such kind, at this server at least
├── Conflict         409  somebody wrote first, or a precondition did not hold, or it exists already
├── Gone             410  this resourceVersion (or continue token) is too old: list again
├── Invalid          422  the object breaks its schema or its rules
└── TooManyRequests  429  ask later; for an eviction: a disruption budget says no
"""

# ruff: noqa: N818 - the names are the API's own reasons
from __future__ import annotations

import json
from typing import Any, ClassVar

_LONGEST_BODY = 500  # characters of an answer that is no Status object (a proxy's page): enough to recognise it by


class ApiError(Exception):
    """An answer that is not a success.

    `status` is the HTTP status (0: there was no answer), `reason` the machine-readable word of the server
    (``AlreadyExists``, ``Conflict``, …), `message` the sentence, `details` the Status' details (``name``, ``kind``,
    ``causes``, ``retryAfterSeconds``). ``str()`` is one line that says what was asked for and what came of it.
    """

    _by_status: ClassVar[dict[int, type[ApiError]]] = {}

    def __init__(
        self, what: str, status: int, reason: str, message: str, details: dict[str, Any] | None = None
    ) -> None:
        self.what = what
        self.status = status
        self.reason = reason
        self.message = " ".join(message.split())
        self.details = details or {}
        super().__init__(what, status, reason, self.message)

    def __init_subclass__(cls, *, status: int | None = None) -> None:
        super().__init_subclass__()
        if status is not None:
            ApiError._by_status[status] = cls

    def __str__(self) -> str:
        code = f"{self.status} " if self.status else ""
        told = [f"{field}: {why}" if field else why for field, why in self.causes if why not in self.message]
        return f"{self.what}: {code}{self.reason}: {self.message}" + (f" ({'; '.join(told)})" if told else "")

    @property
    def causes(self) -> list[tuple[str, str]]:
        """The single complaints as (field path or "", sentence)."""
        return [(cause.get("field", ""), cause.get("message", "")) for cause in self.details.get("causes") or ()]

    @classmethod
    def of(cls, what: str, status: int, body: str | dict[str, Any]) -> ApiError:
        """Make the right error of an answer; `body` is a Status object, parsed or not, or whatever a proxy sent."""
        answer: Any = body
        if isinstance(body, str):
            try:
                answer = json.loads(body)
            except ValueError:
                answer = None
        kind = cls._by_status.get(status, ApiError)
        is_status = _is_status(answer)
        if kind is NotFound and not (is_status and (answer.get("details") or {}).get("name")):
            kind = NotServed
        if is_status:
            reason = answer.get("reason") or kind.__name__
            return kind(what, status, reason, answer.get("message") or reason, answer.get("details"))
        return kind(what, status, kind.__name__, str(body)[:_LONGEST_BODY] or "an empty answer")


def _is_status(answer: Any) -> bool:
    """Whether an API server says it: others have a word of that name too, for something else."""
    if not isinstance(answer, dict) or answer.get("kind") != "Status":
        return False
    words, details = (answer.get("reason"), answer.get("message")), answer.get("details") or {}
    if not all(isinstance(word or "", str) for word in words) or not isinstance(details, dict):
        return False
    causes = details.get("causes") or []
    of_causes = isinstance(causes, list) and all(isinstance(cause, dict) for cause in causes)
    return of_causes and isinstance(details.get("retryAfterSeconds", 0), int)


class Unreachable(ApiError, status=0):
    """No answer. After a write nobody knows whether it happened: read before writing again."""


class Forbidden(ApiError, status=403):
    """The account lacks a right, or an admission policy said no."""


class NotFound(ApiError, status=404):
    """No such object: its name stands in `details`."""


class NotServed(ApiError):
    """No such kind, at this server. That says nothing of its objects: another server behind the same address may have them."""


class Conflict(ApiError, status=409):
    """Somebody wrote first, a precondition does not hold, or the name is taken (`reason` is then ``AlreadyExists``)."""


class Gone(ApiError, status=410):
    """The resourceVersion or the continue token is too old: list again."""


class Invalid(ApiError, status=422):
    """The object breaks its schema or its rules; `causes` names the fields."""


class TooManyRequests(ApiError, status=429):
    """Asked too often; for an eviction: a disruption budget does not allow it now."""
