"""What Prometheus itself says of our metrics, rules, dashboards and its configuration in the documents."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics import MetricWrapperBase

from agent.metrics import Metrics
from deploy.dashboards.__main__ import DASHBOARDS
from deploy.dashboards.model import Dashboard

ROOT = Path(__file__).parents[2]
RULES = sorted((ROOT / "deploy" / "prometheus").glob("*.rules.yml"))


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
    assert says(promtool, "check", "metrics", given=generate_latest(metrics.registry)) == ""
    assert "petiole_x" in says(promtool, "check", "metrics", given=b"# TYPE petiole_x counter\npetiole_x 1\n")


@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.name)
def test_it_reads_our_alert_rules(promtool: str, rules: Path) -> None:
    assert says(promtool, "check", "rules", "--lint=all", "--lint-fatal", str(rules)) == ""


@pytest.mark.parametrize("board", DASHBOARDS.values(), ids=DASHBOARDS.keys())
def test_it_reads_every_query_of_our_dashboards(promtool: str, board: Dashboard, tmp_path: Path) -> None:
    def rules(expressions: list[str]) -> str:
        """A rule file that records each; JSON is YAML too."""
        named = [{"record": f"query_{place}", "expr": one} for place, one in enumerate(expressions)]
        path = tmp_path / "queries.rules.yml"
        path.write_text(json.dumps({"groups": [{"name": "queries", "rules": named}]}))
        return says(promtool, "check", "rules", str(path))

    asked = [query.expression for panel in board.panels() for query in panel.queries]
    # Grafana puts these in; the other variables stand within quotes.
    given = [one.replace("$__rate_interval", "2m").replace("$__range", "6h") for one in asked]
    assert rules(given) == ""
    assert "parse error" in rules([*given, "sum by petiole_linked"])


def test_it_reads_the_scrape_configuration_of_the_documents(promtool: str, tmp_path: Path) -> None:
    _, _, rest = (ROOT / "docs" / "operators.md").read_text().partition("```yaml\nscrape_configs:")
    config = tmp_path / "prometheus.yml"
    config.write_text("scrape_configs:" + rest.partition("```")[0])
    assert says(promtool, "check", "config", "--syntax-only", str(config)) == ""
    config.write_text("scrape_configs:\n  - job: petiole\n")
    assert says(promtool, "check", "config", "--syntax-only", str(config)) != ""
