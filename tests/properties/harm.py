"""What must not come of hostile objects: labels that no API server takes, or a file of which more has changed than what is ours."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gpupartition.backends import plugin_template as plugin
from gpupartition.domain.backend import Cluster
from gpupartition.domain.entries import Unreadable, identity, is_entry, is_there, used, waits_for_rest
from gpupartition.domain.entries import written as written_at
from gpupartition.kube import Object

NOW: Final = datetime(2026, 3, 1, 12, tzinfo=UTC)


def unharmed(labels: Mapping[str, str | None]) -> bool:
    """Whether the API server would take these."""
    return all(
        value is None or re.fullmatch(r"[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", value, re.ASCII)
        for value in labels.values()
    )


def unchanged_but_for_ours(body: Mapping[str, Any], cluster: Cluster, told: Collection[str]) -> None:
    """What is written of a layout is what stood there, and in it nothing but what the layout says; nothing is where that cannot be read."""
    present = cluster.present(body)
    for ask in (is_there, used, written_at, waits_for_rest):
        ask(body, present)
    if not is_entry(body):
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", body["metadata"]["name"])
        template = body["spec"]["template"]
        assert plugin.settings(template)
        assert body["metadata"]["labels"].items() <= template["metadata"]["labels"].items()
        assert [*containers(template)] in [[*containers(each)] for each in templates(cluster)]
        return
    document = body["document"]
    try:
        before, unreadable = document.read(present), ""
    except Unreadable as why:
        before, unreadable = {}, str(why)
    if unreadable:
        assert any(unreadable in each for each in told)
        return
    after = document.with_entry(present, body["key"], body["content"], NOW)
    assert document.read(after) == {**before, body["key"]: json.loads(json.dumps(body["content"]))}
    assert {k: v for k, v in after["data"].items() if k != document.file} == {
        k: v for k, v in (present or {}).get("data", {}).items() if k != document.file
    }
    assert document.read(document.without(after, {body["key"]}, NOW)) == {
        k: v for k, v in before.items() if k != body["key"]
    }
    assert identity(body)


def templates(cluster: Cluster) -> Iterator[Object]:
    """All from which a variant can be made."""
    yield from (each["spec"]["template"] for each in cluster.daemon_sets)
    for revision in cluster.controller_revisions:
        spec = revision["data"].get("spec")
        template = spec.get("template") if isinstance(spec, dict) else None
        if isinstance(template, dict) and isinstance(template.get("spec"), dict):
            yield template


def containers(template: Object) -> Iterator[Object]:
    """Each container without the variables that say the layout."""
    for each in template["spec"].get("containers", ()):
        env = [e for e in each.get("env", ()) if e["name"] not in {plugin.GPUS, plugin.PARTS, plugin.SHARED}]
        yield {**{key: value for key, value in each.items() if key != "env"}, "env": env}
