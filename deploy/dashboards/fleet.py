"""The dashboard of all agents that Prometheus scrapes."""

from __future__ import annotations

from typing import Final

from deploy.dashboards.model import Dashboard, Kind, Panel, Query, Row, Unit
from deploy.dashboards.queries import ALL, DOMAINS, RATE, agents, value


def _of_leaves(metric: str) -> str:
    """A metric of the leaves only: the agent of the hub has it too, and there it means nothing."""
    return f"({metric}{ALL} unless on (instance) (petiole_fleet_leaves or petiole_hub_leading))"


FLEET: Final = Dashboard(
    "petiole-fleet",
    "Petiole: the fleet",
    "All agents that this Prometheus scrapes. Leaves out of its reach stand on the hub's fleet page.",
    [DOMAINS, agents("petiole_connected", every=True)],
    [
        Row(
            "Is it arriving?",
            [
                value(
                    f"Leaves {said}",
                    f"count({_of_leaves('petiole_linked')}{comparison}) or vector(0)",
                    alarm=alarm,
                )
                for said, comparison, alarm in (("scraped", "", None), ("that are not linked", " == 0", 1))
            ]
            + [
                value(
                    "Servers that do not store",
                    f"count(petiole_server_trouble{ALL} == 1) or vector(0)",
                    alarm=1,
                ),
                value("Inputs that are down", f"count(petiole_input_up{ALL} == 0) or vector(0)", alarm=1),
                value(
                    "Clocks not synchronised",
                    f"count({_of_leaves('petiole_clock_synchronised')} == 0) or vector(0)",
                    alarm=1,
                ),
                value(
                    "Soonest loss",
                    f"min(petiole_seconds_to_loss{ALL}) < Inf",
                    "No data: no backlog grows.",
                    unit=Unit.SECONDS,
                    alarm=86400,
                    alarm_below=True,
                ),
                Panel(
                    "Alerts",
                    [Query('ALERTS{alertname=~"Petiole.+", alertstate="firing"}', "firing")],
                    kind=Kind.TABLE,
                    width=24,
                    columns=("alertname", "severity", "instance", "class", "stream"),
                ),
            ],
        ),
        Row(
            "Backlog and time to loss",
            [
                Panel(
                    "Leaves",
                    [
                        Query(
                            f"sort(min by (instance) (petiole_seconds_to_loss{ALL}))", "loss in", Unit.SECONDS
                        ),
                        Query(f"max by (instance) ({_of_leaves('petiole_linked')})", "linked"),
                        Query(f"sum by (instance) (petiole_backlog_messages{ALL})", "backlog"),
                        Query(f"sum by (instance) (petiole_stream_bytes{ALL})", "stream", Unit.BYTES),
                        Query(
                            f"sum by (instance) (rate(petiole_stored_readings_total{ALL}{RATE}))",
                            "readings a second",
                        ),
                    ],
                    kind=Kind.TABLE,
                    width=24,
                    height=12,
                    columns=("instance",),
                ),
                Panel(
                    "Largest backlogs, messages",
                    [Query(f"topk(10, sum by (instance) (petiole_backlog_messages{ALL}))", "{{instance}}")],
                ),
                Panel(
                    "Soonest losses",
                    [
                        Query(
                            f"bottomk(10, min by (instance) (petiole_seconds_to_loss{ALL}) < Inf)",
                            "{{instance}}",
                        )
                    ],
                    unit=Unit.SECONDS,
                    alarm=86400,
                    alarm_below=True,
                ),
                Panel(
                    "States of links",
                    [Query(f"sum by (state) (petiole_link_state{ALL})", "{{state}}")],
                    "How many links are in each.",
                ),
            ],
        ),
        Row(
            "Ledger: what became of the readings",
            [
                Panel(
                    "Accepted and stored, readings a second",
                    [
                        Query(f"sum(rate(petiole_{name}_readings_total{ALL}{RATE}))", name)
                        for name in ("accepted", "stored")
                    ],
                ),
                Panel(
                    "Refused, readings a second",
                    [
                        Query(
                            "topk(10, sum by (instance, reason)"
                            f" (rate(petiole_refused_readings_total{ALL}{RATE})) > 0)",
                            "{{instance}} {{reason}}",
                        )
                    ],
                ),
                Panel(
                    "Readings that are lost, discarded or unaccounted",
                    [
                        Query(
                            f"sum by (instance) (petiole_refused_after_acceptance_readings_total{ALL}) > 0",
                            "{{instance}} lost after acceptance",
                        ),
                        Query(
                            f"sum by (instance) (petiole_discarded_readings_total{ALL}) > 0",
                            "{{instance}} discarded",
                        ),
                        Query(f"petiole_unaccounted_readings{ALL} != 0", "{{instance}} unaccounted"),
                    ],
                    "Since each agent's start.",
                ),
            ],
        ),
    ],
)
