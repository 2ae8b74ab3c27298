"""What Prometheus itself says of our metrics, rules, dashboards and its configuration in the documents."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics import MetricWrapperBase

from agent.base.metrics import Metrics
from agent.hub.registrar.metrics import LeafCollector
from hub_jobs.metrics import JobMetrics
from tests.harness.dashboards import DASHBOARDS, Dashboard, expressions, panels
from tests.unit.hub.registrar.test_metrics import class_state, look, record

ROOT = Path(__file__).parents[2]
RULES = sorted((ROOT / "deploy" / "prometheus").glob("*.rules.yml"))
RULE_TESTS = sorted(Path(__file__).parent.glob("*.test.yml"))


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed; it is in Debian's package prometheus")
    return found


def says(*command: str, given: bytes = b"") -> str:
    """What it complains of, empty when of nothing."""
    ended = subprocess.run(command, input=given, capture_output=True)
    # It exits with 3 when it would have a metric otherwise.
    return "" if ended.returncode == 0 else (ended.stdout + ended.stderr).decode()


def test_it_would_have_no_metric_otherwise(promtool: str) -> None:
    metrics = Metrics()
    for collector in vars(metrics).values():
        if isinstance(collector, MetricWrapperBase) and collector._labelnames:
            collector.labels(*("a" for _ in collector._labelnames))
    leaf = record("edge-1", normal=class_state(100))
    metrics.registry.register(LeafCollector(lambda: look(leaf, sent={"edge-1": 1})))
    assert says(promtool, "check", "metrics", given=generate_latest(metrics.registry)) == ""
    jobs = JobMetrics("ingest")
    for collector in (*vars(jobs).values(), *jobs._of_audit):
        if isinstance(collector, MetricWrapperBase):
            collector.labels(*("a" for _ in collector._labelnames))
    assert says(promtool, "check", "metrics", given=generate_latest(jobs.registry)) == ""
    assert "petiole_x" in says(promtool, "check", "metrics", given=b"# TYPE petiole_x counter\npetiole_x 1\n")


@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.name)
def test_it_reads_our_alert_rules(promtool: str, rules: Path) -> None:
    assert says(promtool, "check", "rules", "--lint=all", "--lint-fatal", str(rules)) == ""


@pytest.mark.parametrize("scenario", RULE_TESTS, ids=lambda path: path.name)
def test_alarms_are_given_when_they_should_be_and_else_not(promtool: str, scenario: Path) -> None:
    assert says(promtool, "test", "rules", str(scenario)) == ""


def test_every_alert_is_given_and_not_given_in_some_course() -> None:
    alerts = {name for path in RULES for name in re.findall(r"- alert: (\w+)", path.read_text())}
    tried = [one for path in RULE_TESTS for one in path.read_text().split("- alertname: ")[1:]]
    assert alerts == {one.split()[0] for one in tried if "exp_labels" in one}
    assert alerts == {one.split()[0] for one in tried if "exp_alerts: []" in one}


LABELS = {
    "state": "flowing",
    "name": "ingest",
    "outcome": "well",
    "reason": "stream_full",
    "version": "0.1.0",
}


def series_of_rules() -> list[str]:
    """A series of each metric that a rule names, with the labels of a scrape."""
    row = re.compile(r"\| `(petiole_\w+)` \| \w+ \| ([^|]+) \|")
    labels = dict(row.findall((ROOT / "docs" / "metrics.md").read_text()))
    named = {name for path in RULES for name in re.findall(r"\bpetiole_\w+", path.read_text())}
    return [
        f"{name}{{{', '.join(f'{key}={value!r}'.replace(chr(39), chr(34)) for key, value in given.items())}}}"
        for name in sorted(named)
        for given in [
            {"job": "petiole", "instance": "hub:9464"}
            | {label: LABELS.get(label, "x") for label in re.findall(r"`(\w+)`", labels[name])}
        ]
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("_x6000", set()),
        ("NaN+0x6000", {"PetioleHubMachineMissing"}),
        ("NaN+0x1000 stale", {"PetioleHubGone", "PetioleAgentDown"}),
    ],
    ids=["absent", "not a number", "gone"],
)
def test_alarms_of_series_that_are_absent_not_a_number_or_gone(
    promtool: str, tmp_path: Path, values: str, expected: set[str]
) -> None:
    given = dict.fromkeys(series_of_rules(), values)
    given |= {'up{job="petiole", instance="hub:9464"}': "0x6000" if "stale" in values else "1x6000"}
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    samples = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(expected)]
    scenario = {
        "interval": "1m",
        "input_series": [{"series": name, "values": those} for name, those in given.items()],
        "promql_expr_test": [{"expr": firing, "eval_time": "1200m", "exp_samples": samples}],
    }
    path = tmp_path / "series.test.yml"
    tests = {"rule_files": [str(path) for path in RULES], "evaluation_interval": "1m", "tests": [scenario]}
    path.write_text(json.dumps(tests))
    assert says(promtool, "test", "rules", str(path)) == ""


def test_a_restart_of_everything_is_no_alarm_and_what_is_lost_after_it_is_one(
    promtool: str, tmp_path: Path
) -> None:
    """All counters begin at 0 again, and one of them comes to what it was before."""
    counters = [name for name in series_of_rules() if "_total{" in name]
    again = next(name for name in counters if "petiole_discarded_readings_total" in name)
    given = dict.fromkeys(counters, "7x30 _x2 0x90") | {again: "7x30 _x2 0x28 7x60"}
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    scenario = {
        "interval": "1m",
        "input_series": [{"series": name, "values": those} for name, those in given.items()],
        "promql_expr_test": [
            {"expr": firing, "eval_time": "50m", "exp_samples": []},
            {
                "expr": firing,
                "eval_time": "63m",
                "exp_samples": [{"labels": '{alertname="PetioleDiscarded"}', "value": 1}],
            },
        ],
    }
    path = tmp_path / "restart.test.yml"
    tests = {"rule_files": [str(path) for path in RULES], "evaluation_interval": "1m", "tests": [scenario]}
    path.write_text(json.dumps(tests))
    assert says(promtool, "test", "rules", str(path)) == ""


@pytest.mark.parametrize("board", DASHBOARDS.values(), ids=DASHBOARDS.keys())
def test_it_reads_every_query_of_our_dashboards(promtool: str, board: Dashboard, tmp_path: Path) -> None:
    def rules(expressions: list[str]) -> str:
        """A rule file that records each; JSON is YAML too."""
        named = [{"record": f"query_{place}", "expr": one} for place, one in enumerate(expressions)]
        path = tmp_path / "queries.rules.yml"
        path.write_text(json.dumps({"groups": [{"name": "queries", "rules": named}]}))
        return says(promtool, "check", "rules", str(path))

    # Grafana puts these in; the other variables stand within quotes.
    given = [one.replace("$__rate_interval", "2m").replace("$__range", "6h") for one in expressions(board)]
    assert rules(given) == ""
    assert "parse error" in rules([*given, "sum by petiole_linked"])


def test_queries_of_the_dashboards_answer_what_their_panels_say(promtool: str, tmp_path: Path) -> None:
    def query(board: str, title: str) -> str:
        found: list[str] = [p["targets"][0]["expr"] for p in panels(DASHBOARDS[board]) if p["title"] == title]
        return (
            found[0]
            .replace("$__range", "30m")
            .replace("$domain", ".*")
            .replace('=~"$instance"', '=~".*"')
            .replace("$instance", "edge-1")
        )

    def answer(board: str, title: str, value: float, labels: str = "") -> dict[str, object]:
        samples = [{"labels": labels or "{}", "value": value}]
        return {"expr": query(board, title), "eval_time": "60m", "exp_samples": samples}

    def scenario(first: int) -> str:
        series = {
            # The hub's agent has it too, and it is no leaf.
            'petiole_linked{instance="hub"}': "0x60",
            'petiole_fleet_leaves{instance="hub"}': "3x60",
            'petiole_linked{instance="edge-1"}': "1x60",
            'petiole_linked{instance="edge-2", domain="edge-2"}': "0x60",
            'petiole_seconds_to_loss{instance="edge-1", class="normal"}': "Inf+0x60",
            'petiole_seconds_to_loss{instance="edge-2", class="normal"}': "600x60",
            'petiole_discarded_readings_total{instance="edge-1", class="bulk", reason="purged"}': "_x40 7x20",
            'petiole_epochs_total{instance="edge-1", class="bulk", reason="hub_lost"}': "5x60",
        }
        test = {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                answer("fleet.json", "Leaves scraped", 2),
                answer("fleet.json", "Leaves that are not linked", 1),
                answer("fleet.json", "Servers that do not store", 0),
                answer("fleet.json", "Soonest loss", 600),
                answer("leaf.json", "Discarded readings", first, '{class="bulk", reason="purged"}'),
                answer("leaf.json", "New epochs", 0, '{class="bulk", reason="hub_lost"}'),
            ],
        }
        path = tmp_path / "queries.test.yml"
        path.write_text(json.dumps({"evaluation_interval": "1m", "tests": [test]}))
        return says(promtool, "test", "rules", str(path))

    assert scenario(first=7) == ""
    assert "purged" in scenario(first=0)


def test_it_reads_the_scrape_configuration_of_the_documents(promtool: str, tmp_path: Path) -> None:
    _, *found = (ROOT / "docs" / "watch.md").read_text().split("```yaml\nscrape_configs:")
    config = tmp_path / "prometheus.yml"
    assert found
    for rest in found:
        config.write_text("scrape_configs:" + rest.partition("```")[0])
        assert says(promtool, "check", "config", "--syntax-only", str(config)) == ""
    config.write_text("scrape_configs:\n  - job: petiole\n")
    assert says(promtool, "check", "config", "--syntax-only", str(config)) != ""
