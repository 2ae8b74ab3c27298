"""docs/metrics.md names every metric of the agent and of the jobs, as it is, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from prometheus_client.metrics import MetricWrapperBase

from agent.base.metrics import Metrics
from agent.contract import AUDIT_FIGURES
from agent.hub.registrar.leaf_metrics import LEAF_METRICS
from hub_jobs.metrics import JobMetrics

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
