"""Config that many layouts share: a ConfigMap with one document, which has one entry for each layout under its key.

An entry never changes as long as it has its key. An annotation says of each when it was written and when somebody last came to use it: pods
see a ConfigMap late, and what is about to be used must not be collected.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import yaml

from gpupartition import names
from gpupartition.domain.objects import Object
from gpupartition.domain.yaml_text import Illegible, documents

ENTRY: Final = "ConfigMapEntry"
_EDITED: Final = ""  # no entry has this key: when one was last removed
MAX_SIZE: Final = 1_000_000  # bytes of a ConfigMap; the API takes 1 MiB, and the annotation is in there too


class Unreadable(ValueError):  # noqa: N818  (reads as what happened)
    """The document is none, or not of the shape that it must have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Where a ConfigMap has its entries: in the text `file`, below the field `under`; `frame` is the document that a new one begins with.

    `reruns`: whether each edit makes drivers carry out anew what their nodes are assigned, whatever was edited. Then it is edited only while no
    node of the driver is being changed, and nodes are changed only when all have seen the last edit.
    """

    namespace: str
    name: str
    file: str
    under: str
    frame: Mapping[str, Any]
    reruns: bool = False

    def entry(self, key: str, content: Any) -> dict[str, Any]:
        """The config object of a layout: `content` under `key`."""
        where = {"namespace": self.namespace, "name": self.name}
        return {"kind": ENTRY, "metadata": where, "document": self, "key": key, "content": content}

    def read(self, config_map: Object | None) -> dict[str, Any]:
        """All that there is, by key; of the frame what it has not. Raises Unreadable."""
        return dict(self._parsed(config_map)[self.under])

    def content(self, config_map: Object | None, key: str | None) -> Any:
        """What stands under this key; None where there is nothing, or the file cannot be read."""
        try:
            return self.read(config_map).get(key) if key is not None else None
        except Unreadable:
            return None

    def with_entry(self, config_map: Object | None, key: str, content: Any, now: datetime) -> dict[str, Any]:
        """The ConfigMap with this entry, which is in use from now on. Raises Unreadable where its file is none."""
        stamp = _stamps(config_map).get(key, {})
        parsed = self._parsed(config_map)
        same = key in parsed[self.under] and parsed[self.under][key] == content
        if not same or "written" not in stamp:
            stamp = {"written": now.isoformat()}
        parsed[self.under][key] = content
        stamps = {**_stamps(config_map), key: {**stamp, "used": now.isoformat()}}
        # To say that an entry is in use is no edit: then the text stays as whoever wrote it.
        return self._body(config_map, None if same else parsed, stamps)

    def without(self, config_map: Object, keys: Collection[str], now: datetime) -> dict[str, Any]:
        """The ConfigMap without these entries. Raises Unreadable where its file is none."""
        parsed = self._parsed(config_map)
        parsed[self.under] = {k: v for k, v in parsed[self.under].items() if k not in keys}
        stamps = {k: v for k, v in _stamps(config_map).items() if k not in keys}
        return self._body(config_map, parsed, stamps | ({_EDITED: {"written": now.isoformat()}} if self.reruns else {}))

    def ours(self, config_map: Object) -> Collection[str]:
        """Keys of the entries that this operator wrote. Raises Unreadable where the file is none."""
        return self.read(config_map).keys() & _stamps(config_map).keys()

    def _parsed(self, config_map: Object | None) -> dict[str, Any]:
        document = _read((config_map or {}).get("data", {}).get(self.file, ""))
        below = document.get(self.under) if isinstance(document, dict) else []
        entries = {} if below is None else below
        if not isinstance(entries, dict):
            raise Unreadable(f"has no mapping {self.under}")
        return {**self.frame, **document, self.under: {**self.frame[self.under], **entries}}

    def _body(
        self, config_map: Object | None, parsed: Mapping[str, Any] | None, stamps: Mapping[str, Any]
    ) -> dict[str, Any]:
        before = config_map or {"metadata": {"namespace": self.namespace, "name": self.name}}
        meta = before["metadata"]
        labels = {names.MANAGED_BY: names.FIELD_MANAGER, **meta.get("labels", {})}
        annotations = {**meta.get("annotations", {}), names.ENTRIES: json.dumps(stamps, sort_keys=True)}
        return {
            **before,
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**meta, "labels": labels, "annotations": annotations},
            "data": {**before.get("data", {})} | ({self.file: self._text(parsed)} if parsed is not None else {}),
        }

    def _text(self, parsed: Mapping[str, Any]) -> str:
        if self.file.endswith(".json"):
            return json.dumps(parsed, indent=1)
        return str(yaml.safe_dump(dict(parsed), sort_keys=False))


def _read(text: str) -> Any:
    found, why = _parse(text)
    if why:
        raise Unreadable(why)
    return {} if found is None else found


@lru_cache(maxsize=16)  # thousands of nodes ask for the same text, and YAML is slow; nobody writes into what is read
def _parse(text: str) -> tuple[Any, str]:
    """The document, or why there is none."""
    try:
        found = [body for _, body in documents(text)]
    except Illegible as illegible:
        return None, f"is neither YAML nor JSON: {illegible}"
    if len(found) > 1:
        return None, "has several documents, of which only one would be read"
    return (found[0] if found else None), ""


def _stamps(config_map: Object | None) -> dict[str, dict[str, str]]:
    """Times by entry. What is no time counts as never said, as people may write the annotation by hand: then the entry is new."""
    text = (config_map or {}).get("metadata", {}).get("annotations", {}).get(names.ENTRIES, "{}")
    found, _ = _parse(text)
    if not isinstance(found, dict):
        return {}
    noted = {key: stamp for key, stamp in found.items() if isinstance(stamp, dict)}
    return {key: {what: t for what, t in stamp.items() if _time(t) is not None} for key, stamp in noted.items()}


def is_entry(body: Object) -> bool:
    """Whether a config object is an entry of a shared one."""
    return bool(body["kind"] == ENTRY)


def identity(body: Object) -> tuple[str, str, str]:
    """What tells config objects apart: namespace, name, and the key of an entry."""
    return body["metadata"]["namespace"], body["metadata"]["name"], body.get("key", "")


def is_there(body: Object, present: Object | None) -> bool:
    """Whether the config object is as it must be; of a shared one, its entry."""
    if present is None or not is_entry(body):
        return present is not None
    document: Document = body["document"]
    try:
        return body["key"] in document.read(present) and document.read(present)[body["key"]] == body["content"]
    except Unreadable:
        return False


def last_used(present: Object) -> datetime | None:
    """When somebody last came to use an object that no two layouts share; None when nobody ever said."""
    return _time(present["metadata"].get("annotations", {}).get(names.LAST_USED))


def used(body: Object, present: Object | None) -> datetime | None:
    """When somebody last came to use the config object; None when it is not there, or nobody ever said."""
    if present is None or not is_there(body, present):
        return None
    return _time(_stamps(present).get(body["key"], {}).get("used")) if is_entry(body) else last_used(present)


def written(body: Object, present: Object | None) -> datetime | None:
    """Since when an entry of a shared object is as it is; None for one that is not there, and for what nobody reads late.

    Where every edit counts for every entry, since when all of them are.
    """
    if present is None or not is_entry(body) or not is_there(body, present):
        return None
    stamps = _stamps(present)
    if not body["document"].reruns:
        return _time(stamps.get(body["key"], {}).get("written"))
    return max((t for stamp in stamps.values() if (t := _time(stamp.get("written"))) is not None), default=None)


def waits_for_rest(body: Object, present: Object | None) -> bool:
    """Whether to write the config object would be an edit that has to wait until no node is being changed."""
    return is_entry(body) and body["document"].reruns and not is_there(body, present)


def _time(text: Any) -> datetime | None:
    """A time that somebody of ours wrote; None for what is none."""
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo is not None else None
