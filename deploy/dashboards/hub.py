"""The dashboard of the hub."""

from __future__ import annotations

from typing import Final

from deploy.dashboards.model import Dashboard, Kind, Panel, Query, Row, Unit, Words
from deploy.dashboards.queries import DOMAINS, HERE, RATE, agents, flag, rate, value

HUB: Final = Dashboard(
    "petiole-hub",
    "Petiole: the hub",
    "The registrar and the aggregates: do the leaves arrive, and does Spark take their data away?",
    [DOMAINS, agents("petiole_fleet_leaves")],
    [
        Row(
            "Is it arriving?",
            [
                flag("NATS server", "petiole_connected", Words("answers", "away")),
                flag("Store", "petiole_server_trouble", Words("does not store", "stores", good=0)),
                flag("Acknowledged is synced", "petiole_server_synced", Words("yes", "no")),
                Panel(
                    "Lead",
                    [
                        Query("petiole_hub_leading" + HERE, "leads"),
                        Query("petiole_hub_term" + HERE, "term"),
                    ],
                    "Where the hub has three machines. The term counts takeovers.",
                ),
                value(
                    "Leaves linked",
                    f"petiole_fleet_linked_leaves{HERE} / petiole_fleet_leaves{HERE}",
                    unit=Unit.SHARE,
                ),
                Panel(
                    "Leaves",
                    [
                        Query("petiole_fleet_leaves" + HERE, "known"),
                        Query("petiole_fleet_linked_leaves" + HERE, "linked"),
                        Query("petiole_fleet_silent_leaves" + HERE, "silent"),
                    ],
                    "Linked falling by many at once: the fault is on the hub's side.",
                ),
            ],
        ),
        Row(
            "Aggregates and time to full",
            [
                Panel("Messages", [Query("petiole_aggregate_messages" + HERE, "{{stream}}")]),
                Panel(
                    "Size",
                    [Query("petiole_aggregate_bytes" + HERE, "{{stream}}")],
                    "When an aggregate is full the leaves wait, and their own streams fill next.",
                    unit=Unit.BYTES,
                ),
                Panel(
                    "Time to full",
                    [Query(f"petiole_hub_seconds_to_full{HERE} < Inf", "{{stream}}")],
                    "Were nothing more committed. No line: nothing comes in.",
                    unit=Unit.SECONDS,
                    alarm=3600,
                    alarm_below=True,
                ),
                Panel(
                    "Since Spark last committed",
                    [Query("petiole_hub_seconds_since_commit" + HERE, "{{stream}}")],
                    "Longer than the interval of ingest: the job does not run.",
                    unit=Unit.SECONDS,
                ),
                Panel(
                    "Committed and purged, messages a second",
                    [Query(rate("petiole_aggregate_purged_messages_total"), "{{stream}}")],
                ),
            ],
        ),
        Row(
            "The fleet, leaf by leaf",
            [
                Panel(
                    "States of leaves",
                    [Query(f"count by (state) (petiole_leaf_state{HERE})", "{{state}}")],
                    "How many leaves are in each.",
                ),
                Panel(
                    "Largest backlogs, messages",
                    [Query(f"topk(10, petiole_leaf_backlog_messages{HERE})", "{{domain}}")],
                    "As each leaf announced it.",
                ),
                Panel(
                    "Lost in an hour, readings",
                    [
                        Query(
                            f"topk(10, increase(petiole_leaf_{name}_readings_total{HERE}[1h]) > 0)",
                            f"{{{{domain}}}} {said}",
                        )
                        for name, said in (
                            ("discarded", "discarded"),
                            ("refused_after_acceptance", "lost after acceptance"),
                        )
                    ],
                ),
                Panel(
                    "Refused, readings a second",
                    [
                        Query(
                            f"topk(10, rate(petiole_leaf_refused_readings_total{HERE}{RATE}) > 0)",
                            "{{domain}}",
                        )
                    ],
                ),
                Panel(
                    "Over the links, bytes a second",
                    [Query(f"topk(10, rate(petiole_leaf_link_bytes_total{HERE}{RATE}))", "{{domain}}")],
                    "Only where [registrar] bytes_per_hour is set.",
                    unit=Unit.BYTES_A_SECOND,
                ),
                value(
                    "Leaves without metrics of their own",
                    "petiole_fleet_unshown_leaves" + HERE,
                    "Left out by [registrar] metrics or metrics_leaves.",
                ),
                value(
                    "Clocks not synchronised",
                    f"count(petiole_leaf_clock_synchronised{HERE} == 0) or vector(0)",
                    alarm=1,
                ),
                Panel(
                    "Leaves",
                    [
                        Query(
                            f"sort(min by (domain) (petiole_leaf_seconds_to_loss{HERE}))",
                            "loss in",
                            Unit.SECONDS,
                        ),
                        Query(
                            f"max by (domain) (petiole_leaf_seconds_since_heard{HERE})",
                            "last heard",
                            Unit.SECONDS,
                        ),
                        Query(f"max by (domain) (petiole_leaf_linked{HERE})", "linked"),
                        Query(f"max by (domain) (petiole_leaf_backlog_messages{HERE})", "backlog"),
                        Query(f"max by (domain) (petiole_leaf_stream_bytes{HERE})", "streams", Unit.BYTES),
                        Query(f"max by (domain, version) (petiole_leaf_info{HERE})", "agent"),
                    ],
                    kind=Kind.TABLE,
                    width=24,
                    height=12,
                    columns=("domain", "version"),
                ),
            ],
        ),
        Row(
            "Leaves and links",
            [
                Panel(
                    "Announcements a second",
                    [Query(rate("petiole_announcements_total", "outcome"), "{{outcome}}")],
                    "Refusals: a leaf with a wrong key or domain, or two machines with one domain.",
                ),
                Panel(
                    "Sources added again",
                    [Query(f"increase(petiole_source_readds_total{HERE}[1h])", "in an hour")],
                    "Lasting: a link that flaps.",
                ),
                Panel(
                    "Reconnects to the server",
                    [Query(f"increase(petiole_reconnects_total{HERE}[1h])", "in an hour")],
                ),
            ],
        ),
    ],
)
