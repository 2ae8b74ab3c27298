"""The Grafana dashboards of `deploy/grafana`, as they are imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

Dashboard = dict[str, Any]

DASHBOARDS: Final[dict[str, Dashboard]] = {
    path.name: json.loads(path.read_text())
    for path in sorted((Path(__file__).parents[2] / "deploy" / "grafana").glob("*.json"))
}
"""By the name of the file."""


def panels(board: Dashboard) -> list[dict[str, Any]]:
    """The panels of a dashboard that ask something."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions(board: Dashboard) -> list[str]:
    """The PromQL of its panels."""
    return [target["expr"] for panel in panels(board) for target in panel["targets"]]


def variables(board: Dashboard) -> list[dict[str, Any]]:
    """The variables whose values Prometheus knows."""
    return [one for one in board["templating"]["list"] if one["type"] == "query"]
