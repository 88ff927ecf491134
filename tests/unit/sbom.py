"""What is in the operator's image besides its base, as CycloneDX. `python -m tests.unit.sbom` writes it, for scanners and auditors.

All is read from where it is true: versions and hashes from requirements.lock, which the image is built from; who needs whom, and licences,
from what is installed. Markers are read as the image has them, whatever machine this runs on.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from testbed.controlplane import ROOT

SELF: Final = "gpupartition"
WRITTEN: Final = ROOT / "dist" / "sbom.cdx.json"
# The base image of the Dockerfile.
IMAGE: Final[Mapping[str, str]] = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.11.0",
    "python_version": "3.11",
    "sys_platform": "linux",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """A line of the lock: one version, and the SHA-256 of each file of it that may be installed."""

    version: str
    hashes: tuple[str, ...]


def pinned(lock: str) -> dict[str, Pinned]:
    """All that the lock pins for the image, by canonical name."""
    found: dict[str, Pinned] = {}
    for line in lock.replace("\\\n", " ").splitlines():
        said, *hashes = line.split("--hash=sha256:")
        if not said.strip():
            continue
        asked = Requirement(said.strip())
        if _holds(asked):
            (exact,) = asked.specifier
            found[canonicalize_name(asked.name)] = Pinned(
                version=exact.version, hashes=tuple(h.strip() for h in hashes)
            )
    return found


def needed() -> dict[str, set[str]]:
    """Who needs whom directly, from the operator on: canonical names."""
    found: dict[str, set[str]] = {}
    queue: list[tuple[str, frozenset[str]]] = [(SELF, frozenset())]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        name, extras = queue.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        asked = list(_asks(distribution(name), extras))
        found.setdefault(name, set()).update(canonicalize_name(each.name) for each in asked)
        queue += [(canonicalize_name(each.name), frozenset(each.extras)) for each in asked]
    return found


def _asks(of: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    for text in of.requires or ():
        asked = Requirement(text)
        if any(_holds(asked, extra) for extra in extras or {""}):
            yield asked


def _holds(asked: Requirement, extra: str = "") -> bool:
    return asked.marker is None or asked.marker.evaluate({**IMAGE, "extra": extra})


def bom(lock: str) -> dict[str, Any]:
    """The bill of materials: the same bytes for the same lock."""
    versions, graph = pinned(lock), needed()
    operator = {**_component(SELF, distribution(SELF).version), "type": "application"}
    components = [
        _component(name, versions[name].version, versions[name].hashes) for name in sorted(graph) if name != SELF
    ]
    refs = {each["name"]: each["bom-ref"] for each in (operator, *components)}
    body: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": operator},
        "components": components,
        "dependencies": [
            {"ref": refs[name], "dependsOn": sorted(refs[each] for each in graph[name])} for name in sorted(graph)
        ],
    }
    content = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return body | {"serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, content).urn}


def _component(name: str, version: str, hashes: tuple[str, ...] = ()) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    made: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if licence := _licence(distribution(name)):
        made["licenses"] = [licence]
    if hashes:
        digests = [{"alg": "SHA-256", "content": each} for each in hashes]
        made["externalReferences"] = [
            {
                "type": "distribution",
                "url": purl,
                "comment": "installed is one of the files with these hashes",
                "hashes": digests,
            }
        ]
    return made


def _licence(of: Distribution) -> dict[str, Any]:
    """As the package itself says it: an SPDX expression, or else words; nothing where it says nothing."""
    meta = of.metadata.json
    if expression := meta.get("license_expression"):
        return {"expression": expression}
    classified = [c.split(" :: ")[-1] for c in meta.get("classifier", ()) if c.startswith("License :: OSI")]
    words = " and ".join(classified) or re.split(r"\n", str(meta.get("license", "")).strip())[0]
    return {"license": {"name": words}} if words else {}


def main() -> None:
    """Write it, and say where."""
    WRITTEN.parent.mkdir(exist_ok=True)
    body = bom((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    WRITTEN.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {WRITTEN.relative_to(Path.cwd())}: {len(body['components'])} packages\n")


if __name__ == "__main__":
    main()
