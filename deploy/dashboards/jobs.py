"""The dashboard of the jobs. Their metrics are on other addresses than the agent's: those of node_exporter
and of the jobs' own endpoints."""

from __future__ import annotations

from typing import Final

from deploy.dashboards.model import Dashboard, Kind, Panel, Query, Row, Unit, Variable
from deploy.dashboards.queries import value

_HERE: Final = '{instance=~"$instance"}'


def _lines(title: str, metric: str, name: str, says: str = "", unit: Unit = Unit.COUNT) -> Panel:
    return Panel(title, [Query(f"petiole_job_{metric}{_HERE}", name)], says, unit=unit)


JOBS: Final = Dashboard(
    "petiole-jobs",
    "Petiole: the jobs",
    "Do they run, do they keep up with the hub's streams, and how large are the tables?",
    [Variable("instance", "Instance", "label_values(petiole_job_runs_total, instance)", every=True)],
    [
        Row(
            "Do they run?",
            [
                Panel(
                    "Since the last success",
                    [Query(f"time() - petiole_job_last_success_timestamp_seconds{_HERE}", "{{name}}")],
                    "Only exit code 0 counts.",
                    unit=Unit.SECONDS,
                ),
                Panel(
                    "Since the last run",
                    [Query(f"time() - petiole_job_last_end_timestamp_seconds{_HERE}", "{{name}}")],
                    unit=Unit.SECONDS,
                ),
                Panel(
                    "Exit code of the last run",
                    [Query(f"petiole_job_last_exit_code{_HERE}", "{{name}}")],
                    "1 failed, 2 wrong usage, 3 a loss, 4 another writer was first, 5 no hub.",
                    alarm=1,
                ),
                _lines("Duration of a run", "last_duration_seconds", "{{name}}", unit=Unit.SECONDS),
                Panel(
                    "Runs in an hour that did not end well",
                    [
                        Query(
                            'increase(petiole_job_runs_total{instance=~"$instance", outcome!="well"}[1h])',
                            "{{name}} {{outcome}}",
                        )
                    ],
                ),
                Panel(
                    "Conflicts in an hour",
                    [Query(f"increase(petiole_job_conflicts_total{_HERE}[1h])", "{{name}}")],
                    "Commits that another writer was ahead of; the next run does them again.",
                ),
            ],
        ),
        Row(
            "Do they keep up?",
            [
                _lines(
                    "Waiting for ingest",
                    "stream_lag_seconds",
                    "{{stream}}",
                    "Age of the oldest message that is not in bronze.",
                    Unit.SECONDS,
                ),
                _lines("Waiting for ingest, sequences", "stream_lag_sequences", "{{stream}}"),
                _lines("Waiting for refine, sequences", "unrefined_sequences", "{{name}}"),
                _lines("Messages of a run of ingest", "ingested_messages", "{{stream}}"),
                _lines("Bytes of a run of ingest", "ingested_bytes", "{{stream}}", unit=Unit.BYTES),
                _lines("Rows of a run of refine", "refined_rows", "{{kind}}"),
            ],
        ),
        Row(
            "Is everything there?",
            [
                value(
                    "Leaves that are not accounted for",
                    f"count(min by (domain) (petiole_audit_accounted{_HERE}) == 0) or vector(0)",
                    "By the newest audit of each.",
                    alarm=1,
                ),
                value(
                    "The newest audit was",
                    f"time() - max(petiole_audit_timestamp_seconds{_HERE})",
                    "So long ago.",
                    unit=Unit.SECONDS,
                    alarm=172800,
                ),
                Panel(
                    "Settled for",
                    [Query(f"time() - petiole_job_settled_timestamp_seconds{_HERE} > 0", "{{name}}")],
                    "What arrived longer ago than this was found in order, and is not read again.",
                    unit=Unit.SECONDS,
                    height=4,
                ),
                Panel(
                    "Readings by the newest audit",
                    [
                        Query(f"max by (domain) (petiole_audit_{name}_readings{_HERE})", says)
                        for name, says in (
                            ("missing", "missing"),
                            ("doubled", "doubled"),
                            ("unexplained", "unexplained rows"),
                            ("accepted", "accepted"),
                            ("in_table", "in the table"),
                            ("named", "not there, for a reason"),
                        )
                    ],
                    kind=Kind.TABLE,
                    width=24,
                    height=10,
                    columns=("domain",),
                ),
            ],
        ),
        Row(
            "The tables",
            [
                _lines(
                    "Files",
                    "table_files",
                    "{{table}} by {{name}}",
                    "Many small ones make queries slow: maintain writes them together.",
                ),
                _lines("Size", "table_bytes", "{{table}} by {{name}}", unit=Unit.BYTES),
                _lines("Rows", "table_rows", "{{table}} by {{name}}"),
            ],
        ),
    ],
)
