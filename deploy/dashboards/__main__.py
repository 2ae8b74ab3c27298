"""python -m deploy.dashboards: the Grafana dashboards `deploy/grafana/*.json`.

leaf.py, hub.py, fleet.py and jobs.py say what they show, docs/metrics.md what the figures mean. A test sees
to it that every metric stands there or in an alert.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from deploy.dashboards.fleet import FLEET
from deploy.dashboards.hub import HUB
from deploy.dashboards.jobs import JOBS
from deploy.dashboards.leaf import LEAF
from deploy.dashboards.model import text
from deploy.dist import ROOT

DASHBOARDS: Final = {"leaf.json": LEAF, "hub.json": HUB, "fleet.json": FLEET, "jobs.json": JOBS}


def main() -> None:
    """Write the dashboards."""
    parser = argparse.ArgumentParser(prog="dashboards", description="Write the Grafana dashboards.")
    parser.add_argument(
        "--to", type=Path, default=ROOT / "deploy" / "grafana", help="default: deploy/grafana"
    )
    to: Path = parser.parse_args().to
    to.mkdir(parents=True, exist_ok=True)
    for name, board in DASHBOARDS.items():
        (to / name).write_text(text(board))


if __name__ == "__main__":
    main()
