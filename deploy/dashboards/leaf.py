"""The dashboard of one leaf."""

from __future__ import annotations

from typing import Final

from deploy.dashboards.model import Dashboard, Kind, Panel, Query, Row, Unit, Words
from deploy.dashboards.queries import DOMAINS, HERE, RATE, agents, counted, flag, rate, value

LEAF: Final = Dashboard(
    "petiole-leaf",
    "Petiole: a leaf",
    "One edge machine: what comes in, what is stored, and whether it arrives at the hub.",
    # Only the agent of a leaf has it, and from its start.
    [DOMAINS, agents("petiole_link_state")],
    [
        Row(
            "Is it arriving?",
            [
                flag("Hub", "petiole_linked", Words("linked", "away")),
                flag("NATS server", "petiole_connected", Words("answers", "away")),
                flag(
                    "Store",
                    "petiole_server_trouble",
                    Words("does not store", "stores", good=0),
                    "If it does not store, its disk is full most often.",
                ),
                flag(
                    "Acknowledged is synced",
                    "petiole_server_synced",
                    Words("yes", "no"),
                    "If not, a power cut may lose what was acknowledged.",
                ),
                flag("Clock", "petiole_clock_synchronised", Words("synchronised", "not synchronised")),
                value(
                    "Unaccounted readings",
                    "petiole_unaccounted_readings" + HERE,
                    "Anything but 0: the agent has lost or doubled the account of a reading.",
                    name="{{class}}",
                    alarm=1,
                ),
            ],
        ),
        Row(
            "Backlog and time to loss",
            [
                Panel(
                    "Backlog",
                    [Query("petiole_backlog_messages" + HERE, "{{class}}")],
                    "Messages that the hub has not confirmed. It should fall while the hub is linked.",
                ),
                Panel(
                    "Time to loss",
                    [Query(f"petiole_seconds_to_loss{HERE} < Inf", "{{class}}")],
                    "Until there is no room for a reading. No line: the backlog does not grow.",
                    unit=Unit.SECONDS,
                    alarm=86400,
                    alarm_below=True,
                ),
                Panel("Stream", [Query("petiole_stream_bytes" + HERE, "{{class}}")], unit=Unit.BYTES),
                Panel(
                    "Confirmed and trimmed, messages a second",
                    [
                        Query(f"deriv(petiole_confirmed_sequence{HERE}{RATE})", "confirmed {{class}}"),
                        Query(rate("petiole_trimmed_messages_total"), "trimmed {{class}}"),
                    ],
                    "Confirmed: the hub has it. Trimmed: it is not kept here any more.",
                ),
                Panel(
                    "Discarded readings",
                    [
                        Query(
                            counted("petiole_discarded_readings_total", "class, reason"),
                            "{{class}} {{reason}}",
                        )
                    ],
                    "In the chosen time, before the hub was known to have them. The audit counts exactly.",
                    Kind.VALUE,
                    alarm=1,
                ),
            ],
        ),
        Row(
            "Ledger: what became of the readings",
            [
                Panel(
                    "Accepted and stored, readings a second",
                    [
                        Query(rate("petiole_accepted_readings_total", "class"), "accepted {{class}}"),
                        Query(rate("petiole_stored_readings_total", "class"), "stored {{class}}"),
                    ],
                    "Stored falling behind accepted for a minute: nothing is being stored.",
                ),
                Panel(
                    "Refused, readings a second",
                    [Query(rate("petiole_refused_readings_total", "reason"), "{{reason}}")],
                    "Their senders got an answer and still have them.",
                ),
                Panel(
                    "Lost after acceptance",
                    [
                        Query(
                            counted("petiole_refused_after_acceptance_readings_total", "input, reason"),
                            "{{input}} {{reason}}",
                        )
                    ],
                    'In the chosen time. ack = "stored" for that input makes it impossible.',
                    Kind.VALUE,
                    alarm=1,
                ),
                Panel(
                    "Dead letters, readings a second",
                    [
                        Query(rate("petiole_dead_readings_total", "input"), "{{input}}"),
                        Query(rate("petiole_omitted_letters_total", "input"), "{{input}}, counted only"),
                    ],
                    "The table quarantine shows what came and why.",
                ),
                Panel(
                    "Left out by rules, readings a second",
                    [Query(rate("petiole_dropped_readings_total", "rule, reason"), "{{rule}} {{reason}}")],
                ),
                Panel(
                    "Late for their window, readings a second",
                    [Query(rate("petiole_late_readings_total", "rule"), "{{rule}}")],
                    "docs/rules.md: a larger late gathers them into the window itself.",
                ),
                Panel(
                    "Damaged records of aggregates",
                    [Query("petiole_damaged_aggregate_records_total" + HERE)],
                    "At the last start. Readings of open windows may be lost; the log names file and bytes.",
                    Kind.VALUE,
                    alarm=1,
                ),
                Panel(
                    "Open windows",
                    [Query(f"petiole_open_windows{HERE}", "open")],
                    "Readings of more than 10,000 windows are sent as they are.",
                ),
            ],
        ),
        Row(
            "Link",
            [
                Panel(
                    "State of the link",
                    [Query(f"petiole_link_state{HERE} == 1", "{{class}} {{state}}")],
                    "docs/link.md explains each.",
                    Kind.STATES,
                    width=16,
                    words=Words("in it", "not"),
                ),
                Panel(
                    "New epochs",
                    [Query(counted("petiole_epochs_total", "class, reason"), "{{class}} {{reason}}")],
                    "In the chosen time. Any but first_start: a store or a state file was lost or restored.",
                    Kind.VALUE,
                ),
                Panel(
                    "Declared links that are up",
                    [Query("petiole_link_up" + HERE, "{{link}}")],
                    kind=Kind.STATES,
                    width=16,
                    words=Words("up", "down"),
                ),
                Panel(
                    "Lag of declared links, messages", [Query("petiole_link_lag_messages" + HERE, "{{link}}")]
                ),
            ],
        ),
        Row(
            "Inputs",
            [
                Panel(
                    "Inputs that run",
                    [Query("petiole_input_up" + HERE, "{{input}}")],
                    kind=Kind.STATES,
                    width=16,
                    words=Words("up", "down"),
                ),
                Panel(
                    "Accepted, readings a second",
                    [Query(rate("petiole_accepted_readings_total", "input"), "{{input}}")],
                    "0 where a device should send?",
                ),
                Panel(
                    "Invalid, a second",
                    [
                        Query(
                            rate("petiole_invalid_requests_total", "input, reason"), "{{input}} {{reason}}"
                        ),
                        Query(
                            rate("petiole_left_out_parts_total", "input, reason"), "{{input}} part {{reason}}"
                        ),
                    ],
                    "A sender is broken; the log names the place.",
                ),
                Panel(
                    "HTTP requests without success, a second",
                    [Query(rate("petiole_http_refusals_total", "input, status"), "{{input}} {{status}}")],
                ),
                Panel(
                    "Dropped messages, and gaps of a source, a second",
                    [
                        Query(rate("petiole_dropped_messages_total", "input"), "{{input}}"),
                        Query(rate("petiole_source_gaps_total", "input"), "{{input}} gaps"),
                        Query(rate("petiole_skipped_retained_messages_total", "input"), "{{input}} retained"),
                    ],
                    "Messages came too fast to be stored; a source has dropped what it had; a broker "
                    "has sent retained messages again.",
                ),
                Panel(
                    "MQTT devices refused a second, and the listener",
                    [
                        Query(rate("petiole_mqtt_refusals_total", "reason"), "{{reason}}"),
                        Query("petiole_mqtt_listener_up" + HERE, "lets devices in"),
                    ],
                    "Devices publish to forbidden topics, or are not let in.",
                ),
                Panel("Open connections", [Query("petiole_input_connections" + HERE, "{{input}}")]),
                Panel(
                    "Commands",
                    [Query(counted("petiole_commands_total", "outcome"), "{{outcome}}")],
                    kind=Kind.VALUE,
                ),
                Panel(
                    "Steps of the clock",
                    [Query(f"increase(petiole_clock_steps_total{HERE}[$__range])", "steps")],
                    "In the chosen time. More than one after a start: two programs set the clock.",
                    Kind.VALUE,
                ),
            ],
        ),
        Row(
            "Server and publishing",
            [
                Panel(
                    "From sealing to acknowledgement",
                    [
                        Query(
                            f"histogram_quantile({share}, "
                            f"{rate('petiole_publish_seconds_bucket', 'class, le')})",
                            f"{{{{class}}}} {share:.0%}",
                        )
                        for share in (0.5, 0.99)
                    ],
                    "After fsync. 99 % above a second: the disk is slow.",
                    unit=Unit.SECONDS,
                    alarm=1,
                ),
                Panel("In flight", [Query("petiole_in_flight_bytes" + HERE, "bytes")], unit=Unit.BYTES),
                Panel("Tasks of the agent", [Query("petiole_tasks" + HERE, "tasks")]),
                Panel(
                    "Batches sent again, a second",
                    [Query(rate("petiole_publish_retries_total"), "{{class}}")],
                ),
                Panel(
                    "Readings a batch",
                    [
                        Query(
                            f"{rate('petiole_stored_readings_total', 'class')}"
                            f" / {rate('petiole_stored_batches_total', 'class')}",
                            "{{class}}",
                        )
                    ],
                ),
                Panel(
                    "Bytes of batches",
                    [
                        Query(rate("petiole_batch_raw_bytes_total"), "raw {{class}}"),
                        Query(rate("petiole_batch_wire_bytes_total"), "compressed {{class}}"),
                    ],
                    "Compressed is what goes over the uplink.",
                    unit=Unit.BYTES_A_SECOND,
                ),
                Panel(
                    "Known idempotency keys",
                    [Query("petiole_known_requests" + HERE, "keys")],
                    "At 500,000 a request with a new key is refused.",
                    alarm=400_000,
                ),
                Panel(
                    "Reconnects to the server",
                    [Query(f"increase(petiole_reconnects_total{HERE}[1h])", "in an hour")],
                ),
            ],
        ),
    ],
)
