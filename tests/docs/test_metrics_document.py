"""docs/metrics.md, the Grafana dashboards and the alert rules: what is committed, and that they have every
metric and no other."""

from __future__ import annotations

import ast
import re
from itertools import combinations
from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase

from agent.base.metrics import Metrics
from agent.contract import AUDIT_FIGURES
from agent.hub.registrar.metrics import LEAF_METRICS
from hub_jobs.metrics import JobMetrics
from tests.harness.dashboards import DASHBOARDS, Dashboard, expressions, panels, variables

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| `(?P<name>petiole_\w+)` \| (?P<kind>\w+) \| (?P<labels>[^|]+) \| [^|]+ \| [^|]+ \|")


def documented() -> dict[str, tuple[str, str]]:
    """Exposed name to type and labels."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    return {row["name"]: (row["kind"], row["labels"]) for row in ROW.finditer(text)}


def exposed(name: str, kind: str) -> str:
    return f"{name}_total" if kind == "counter" else name


def defined() -> dict[str, str]:
    """Exposed name to type, of every collector that is made anywhere in the agent and the jobs."""
    found = {}
    for path in (path for top in ("agent", "hub_jobs") for path in (ROOT / top).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name(id="Counter" | "Gauge" | "Histogram" | "counter" | "gauge" as kind),
                    args=[ast.Constant(value=str(name)), *_],
                ):
                    found[exposed(name, kind.lower())] = kind.lower()
    found |= {f"petiole_audit_{name}_readings": "gauge" for name in AUDIT_FIGURES}
    return found | {exposed(metric.name, metric.kind): metric.kind for metric in LEAF_METRICS}


def test_every_metric_is_documented_with_its_type_and_none_that_is_gone() -> None:
    assert {name: kind for name, (kind, _) in documented().items()} == defined()


@pytest.mark.parametrize("metrics", [Metrics(), JobMetrics("ingest")], ids=["agent", "jobs"])
def test_every_metric_is_documented_with_its_labels(metrics: Metrics | JobMetrics) -> None:
    described = documented()
    for collector in vars(metrics).values():
        if isinstance(collector, MetricWrapperBase):
            family = next(iter(collector.describe()))
            labels = ", ".join(f"`{label}`" for label in collector._labelnames) or "none"
            assert described[exposed(family.name, family.type)] == (family.type, labels)


def test_every_metric_of_a_leaf_at_the_hub_is_documented_with_its_labels() -> None:
    described = documented()
    for metric in LEAF_METRICS:
        labels = ", ".join(f"`{label}`" for label in ("domain", metric.label) if label)
        assert described[exposed(metric.name, metric.kind)][1] == labels


def test_every_alert_is_of_a_metric_that_there_is() -> None:
    rules = (ROOT / "deploy" / "prometheus").glob("*.rules.yml")
    named = {name for path in rules for name in re.findall(r"\bpetiole_\w+", path.read_text())}
    assert named
    assert named <= documented().keys()


def test_every_name_begins_with_the_product() -> None:
    assert all(name.startswith("petiole_") for name in defined())


NAME = re.compile(r"\bpetiole_\w+")
each_dashboard = pytest.mark.parametrize("board", DASHBOARDS.values(), ids=DASHBOARDS.keys())


def metrics(texts: list[str]) -> set[str]:
    """What they name, the parts of a histogram as the histogram."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for one in texts for name in NAME.findall(one)}


def test_every_metric_stands_in_a_dashboard_or_an_alert_and_none_that_there_is_not() -> None:
    shown = metrics(
        [
            text
            for board in DASHBOARDS.values()
            for text in (*expressions(board), *(one["definition"] for one in variables(board)))
        ]
    )
    rules = (ROOT / "deploy" / "prometheus").glob("*.rules.yml")
    assert shown | metrics([path.read_text() for path in rules]) == documented().keys()


@each_dashboard
def test_a_query_asks_only_for_labels_that_its_metrics_have(board: Dashboard) -> None:
    known = documented()
    # What Prometheus and its configuration add, and the borders of a histogram.
    ours = {"instance", "domain", "le"}
    for panel in panels(board):
        for target in panel["targets"]:
            named = metrics([target["expr"]])
            has = ours.union(*(re.findall(r"`(\w+)`", known[name][1]) for name in named))
            by = re.findall(r"\b(?:by|on) \(([^)]*)\)", target["expr"])
            asked = {label for labels in by for label in labels.split(", ")}
            asked |= set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert asked <= has or not named, (board["title"], panel["title"])


@each_dashboard
def test_no_panel_lies_on_another_one_or_outside(board: Dashboard) -> None:
    def cells(place: dict[str, int]) -> set[tuple[int, int]]:
        across, down = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        return {(x, y) for x in across for y in down}

    places = [cells(panel["gridPos"]) for panel in board["panels"]]
    assert all(not one & other for one, other in combinations(places, 2))
    assert max(x for place in places for x, _ in place) < 24
    assert len({panel["id"] for panel in board["panels"]}) == len(places)


@each_dashboard
def test_a_query_of_one_agent_names_it_and_one_of_all_keeps_to_the_chosen_ones(board: Dashboard) -> None:
    several = any(one["name"] == "instance" and one["multi"] for one in variables(board))
    chosen = 'instance=~"$instance"' if several else 'instance="$instance"'
    for query in expressions(board):
        hubs = ("petiole_fleet_leaves", "petiole_hub_leading") if several else ()
        asked = [name for name in NAME.findall(query) if name not in hubs]
        assert query.count(chosen) == len(asked), query


@each_dashboard
def test_a_table_has_a_name_for_each_of_its_columns(board: Dashboard) -> None:
    for panel in (one for one in panels(board) if one["type"] == "table"):
        names = [target["legendFormat"] for target in panel["targets"]]
        assert "__auto" not in names
        assert len(set(names)) == len(names)
        chosen, order = panel["transformations"][1:]
        assert list(order["options"]["renameByName"].values()) == names
        assert list(order["options"]["indexByName"]) == chosen["options"]["include"]["names"]
        assert len(chosen["options"]["include"]["names"]) > len(names), "no label has a column"
