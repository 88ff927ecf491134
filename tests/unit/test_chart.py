"""The Helm charts follow from what they are made from. What Helm makes of them: tests/e2e/test_helm_values.py and test_helm.py."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest
import yaml
from tests.unit import chart, chart_values

from gpupartition.settings import Settings

CHARTS = sorted(path.parent for path in (chart.ROOT / "charts").glob("*/Chart.yaml"))
EACH_CHART = pytest.mark.parametrize("folder", CHARTS, ids=lambda folder: folder.name)


def test_the_committed_templates_are_those_of_the_manifests() -> None:
    templates = chart.CHART / "templates"
    committed = {
        str(path.relative_to(templates)): path.read_text(encoding="utf-8")
        for folder in chart.MADE
        for path in (templates / folder).rglob("*")
        if path.is_file()
    }
    assert committed == chart.files(), "run `make chart`"


def test_the_committed_schema_of_drivers_and_policies_is_that_of_the_crds() -> None:
    assert chart.SCHEMA.read_text(encoding="utf-8") == chart_values.schema(chart.ROOT / "crds"), "run `make chart`"


def test_the_settings_that_the_chart_takes_are_those_that_the_operator_takes_and_the_chart_does_not_write() -> None:
    schema = json.loads((chart.CHART / "values.schema.json").read_text(encoding="utf-8"))["properties"]["settings"]
    page = (chart.ROOT / "docs/reference.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"`GPUPARTITION_(\w+)`", page))
    takes = explained - {"HOST", "LEADER_ELECTION", "NAMESPACE", "PORT", "READ_ONLY"}
    assert set(schema["properties"]) == takes, "list it in charts/gpupartition/values.schema.json"
    Settings.from_environment({f"GPUPARTITION_{name}": "1" for name in schema["properties"]})


def test_what_is_no_part_of_the_base_has_a_switch() -> None:
    switches = {name: {name, name.rpartition("/")[0]} & chart.SWITCHES.keys() for name in chart.files()}
    assert {name.partition("/")[0] for name, found in switches.items() if not found} == {"admission", "base"}
    assert set().union(*switches.values()) == chart.SWITCHES.keys()


def test_the_release_can_be_in_any_namespace() -> None:
    assert [name for name, text in chart.files().items() if chart.NAMESPACE in text] == []


def test_a_source_without_the_place_of_a_value_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(chart.EDITS, "base/role.yaml", {"replicas: 1": ("", 1)})
    with pytest.raises(ValueError, match=r"base/role.yaml has 'replicas: 1' 0 times, not 1: change EDITS"):
        chart.files()


@EACH_CHART
def test_a_chart_has_the_version_of_the_operator(folder: Any) -> None:
    said = yaml.safe_load((folder / "Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((chart.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert said["name"] == folder.name
    assert (said["version"], said["appVersion"]) == (project["version"],) * 2


@EACH_CHART
def test_a_chart_takes_the_values_that_it_lists_and_no_others(folder: Any) -> None:
    values = yaml.safe_load((folder / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((folder / "values.schema.json").read_text(encoding="utf-8"))
    defined = schema.get("definitions", {})

    def listed(value: Any, node: Any) -> None:
        node = defined[node["$ref"].rpartition("/")[2]] if "$ref" in node else node
        if isinstance(value, dict) and value and "properties" in node:
            assert node["additionalProperties"] is False
            assert value.keys() == node["properties"].keys() - {"global"}
            for name in value:
                listed(value[name], node["properties"][name])

    listed(values, schema)
