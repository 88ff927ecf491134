"""How an answer of an API server has to look: what comes from elsewhere (a proxy's page, another program's JSON) is no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

_LONGEST_LINE: Final = 80  # characters of a page: enough to recognise who wrote it


class Shape(NamedTuple):
    """What has come `fits`, or is not what it is `called`."""

    called: str
    fits: Callable[[Any], bool]

    def missed_by(self, came: object, content_type: str) -> str:
        """Say what came instead. Of a page the first line is quoted, of JSON nothing: what is in there may be somebody's secret."""
        page = next(iter(came.strip().splitlines()), "")[:_LONGEST_LINE] if isinstance(came, str) else ""
        begins = f", which begins with {page!a}" if page else ""
        return f"{content_type} came that is no {self.called}{begins}: look for what answers in place of the API server"


def _object(came: Any) -> bool:
    return isinstance(came, dict) and isinstance(came.get("metadata"), dict)


def _versioned(came: Any) -> bool:
    return _object(came) and isinstance(came["metadata"].get("resourceVersion"), str)


def _stored(came: Any) -> bool:
    return _versioned(came) and isinstance(came["metadata"].get("name"), str)


def _list(came: Any) -> bool:
    if not _versioned(came) or not all(isinstance(came.get(name), str) for name in ("apiVersion", "kind")):
        return False
    items = came.get("items") or []
    return isinstance(items, list) and all(map(_stored, items))


def _event(came: Any) -> bool:
    if not isinstance(came, dict):
        return False
    match came.get("type"), came.get("object"):
        case "ERROR", {**status}:
            return isinstance(status.get("code", 0), int)
        case "BOOKMARK", bookmark:
            return _versioned(bookmark)
        case str(), changed:
            return _stored(changed)
    return False


ANYTHING: Final = Shape("answer", lambda _: True)
JSON_OBJECT: Final = Shape("JSON object", lambda came: isinstance(came, dict))
OBJECT: Final = Shape("object of the API", _object)
LIST: Final = Shape("list of objects", _list)
EVENT: Final = Shape("event of a watch", _event)
