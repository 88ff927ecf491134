"""Alerts and dashboard ask for what there is: metrics, labels and values of this operator, in PromQL that is understood."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import promql_parser
import pytest
import yaml

from gpupartition.__main__ import COMMANDS
from gpupartition.api.v1alpha1 import Phase
from gpupartition.controller import metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "manifests/monitoring"
RULES: Final = yaml.safe_load((FOLDER / "rules.yaml").read_text(encoding="utf-8"))
ALERTS: Final = [rule for group in RULES["spec"]["groups"] for rule in group["rules"]]
DASHBOARD: Final = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
PANELS: Final = DASHBOARD["panels"]

# Label values that are words of ours, and what may be written for them.
WORDS: Final[dict[str, set[str]]] = {
    "phase": set(Phase),
    "condition": {"Accepted", "Ready", "Reconciling", "Stalled"},
    "reason": set(re.findall(r"`(\w+)`", (ROOT / "docs/reference.md").read_text(encoding="utf-8"))),
}


def known() -> dict[str, set[str]]:
    """Labels by metric, as a query names it."""
    found = {f"gpupartition_{name}": set(labels) for name, (labels, _) in metrics.STANDING.items()}
    for each in (metrics.WRITES, metrics.TRANSITIONS, metrics.FAILED_TURNS):
        found[f"{each._name}_total"] = set(each._labelnames)
    found[metrics.LEADING._name] = set()
    for suffix in ("_bucket", "_sum", "_count"):
        found[f"{metrics.TURNS._name}{suffix}"] = {*metrics.TURNS._labelnames, *(["le"] if suffix == "_bucket" else [])}
    return found


KNOWN: Final = known()


def selectors(query: str) -> list[Any]:
    """What a query asks for. Raises ValueError for one that is no PromQL."""
    found: list[Any] = []

    def visit(node: object) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        return True

    promql_parser.walk(promql_parser.parse(query), visit)
    return found


def queries() -> Iterator[tuple[str, str]]:
    yield from ((alert["alert"], alert["expr"]) for alert in ALERTS)
    for panel in PANELS:
        for target in panel["targets"]:
            # As Grafana fills it in.
            yield panel["title"], target["expr"].replace("$policy", ".*").replace("$__rate_interval", "2m")


@pytest.mark.parametrize(("title", "query"), list(queries()))
def test_a_query_names_metrics_labels_and_values_that_there_are(title: str, query: str) -> None:
    asked = selectors(query)
    assert asked, title
    for each in asked:
        assert each.name in KNOWN, each.name
        for matcher in each.matchers.matchers:
            assert matcher.name in KNOWN[each.name], f"{each.name} has no label {matcher.name}"
            if matcher.name in WORDS:
                assert set(matcher.value.split("|")) <= WORDS[matcher.name], matcher.value
    for grouping in re.findall(r"\bby \(([^)]*)\)", query):
        assert {label.strip() for label in grouping.split(",")} <= {
            label for each in asked for label in KNOWN[each.name]
        }


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_says_what_is_wrong_where_and_what_to_type(alert: dict[str, Any]) -> None:
    assert alert.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert alert["labels"]["severity"] in {"info", "warning", "critical"}
    assert promql_parser.parse_duration(alert.get("for", "1m")).total_seconds() > 0
    texts = alert["annotations"]
    assert texts.keys() == {"summary", "description"}
    named = {label for text in texts.values() for label in re.findall(r"\$labels\.(\w+)", text)}
    grouped = re.findall(r"sum by \(([^)]*)\)", alert["expr"])
    there = {g.strip() for g in grouped} or {label for s in selectors(alert["expr"]) for label in KNOWN[s.name]}
    assert named <= there
    commands = re.findall(r"kubectl gpp ([a-z]+)", texts["description"])
    assert set(commands) <= COMMANDS.keys()
    assert commands or "kubectl" in texts["description"] or "annotate" in texts["description"]


def test_alerts_have_names_of_their_own_and_each_thing_that_people_should_hear_of_has_one() -> None:
    names = [alert["alert"] for alert in ALERTS]
    assert len(set(names)) == len(names)
    asked = {s.name.removeprefix("gpupartition_") for alert in ALERTS for s in selectors(alert["expr"])}
    assert asked >= {
        "policy_condition",
        "policy_reason",
        "phase_since_timestamp_seconds",
        "grant_since_timestamp_seconds",
        "drift_repairs",
        "frozen",
        "leading",
    }


def test_panels_have_titles_of_their_own_and_lie_beside_each_other() -> None:
    assert len({panel["id"] for panel in PANELS}) == len({panel["title"] for panel in PANELS}) == len(PANELS)
    for one, other in combinations([panel["gridPos"] for panel in PANELS], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in PANELS)


def test_every_query_goes_to_the_data_source_that_was_chosen_and_every_variable_is_there() -> None:
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    sources = {json.dumps(t["datasource"]) for panel in PANELS for t in [panel, *panel["targets"]]}
    assert sources == {'{"type": "prometheus", "uid": "${datasource}"}'}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD)))
    assert {name for name in used if not name.startswith("__")} <= variables
    (policy,) = [v for v in DASHBOARD["templating"]["list"] if v["name"] == "policy"]
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", policy["query"]["query"]).groups()  # type: ignore[union-attr]
    assert label in KNOWN[metric]


def test_the_monitor_asks_the_port_that_the_operator_serves() -> None:
    monitor = yaml.safe_load((FOLDER / "podmonitor.yaml").read_text(encoding="utf-8"))
    deployment = yaml.safe_load((ROOT / "manifests/base/deployment.yaml").read_text(encoding="utf-8"))
    template = deployment["spec"]["template"]
    ports = {port["name"] for c in template["spec"]["containers"] for port in c["ports"]}
    assert {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]} <= ports
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
