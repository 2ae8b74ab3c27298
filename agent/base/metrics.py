"""Defines all metrics of the agent, described in docs/metrics.md: base units, `_total` on counters."""

from __future__ import annotations

import asyncio
import platform
from functools import cache, partial
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

LATENCY_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


@cache
def own_version() -> str:
    """Return this program's version, read once."""
    return version("petiole")


class Metrics:
    """The collectors of one agent with their own registry."""

    def __init__(self) -> None:
        # They would be a series more for each counter, of no use here.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        ProcessCollector(registry=registry)
        self.build_info = gauge("petiole_build_info", "1, with the versions that run.", ["version", "python"])
        self.build_info.labels(own_version(), platform.python_version()).set(1)
        by_class, by_input = ["class"], ["input", "class"]
        self.accepted = counter("petiole_accepted_readings", "Readings taken in by an input.", by_input)
        self.stored = counter(
            "petiole_stored_readings", "Readings acknowledged by the local stream.", by_input
        )
        self.dead = counter(
            "petiole_dead_readings",
            "What an input received and could not take, without a sender to refuse it to.",
            by_input,
        )
        self.omitted = counter(
            "petiole_omitted_letters",
            "Dead letters that were counted only, for more came than may be kept.",
            by_input,
        )
        self.refused = counter(
            "petiole_refused_readings",
            "Readings refused, so that their sender still has them.",
            [*by_input, "reason"],
        )
        self.refused_late = counter(
            "petiole_refused_after_acceptance_readings",
            "Readings lost: acknowledged as accepted and then refused.",
            [*by_input, "reason"],
        )
        self.unaccounted = gauge(
            "petiole_unaccounted_readings",
            "Readings let in that are neither stored nor refused nor in flight: 0 unless the agent is wrong.",
            by_class,
        )
        self.ruled_out = counter(
            "petiole_dropped_readings",
            "Readings that a rule dropped, held back or aggregated.",
            ["input", "rule", "reason"],
        )
        self.late = counter(
            "petiole_late_readings",
            "Readings that came for a window that was closed already, and went into a further part of it.",
            ["rule"],
        )
        self.damaged_records = counter(
            "petiole_damaged_aggregate_records",
            "Stretches of the log of aggregates that the last start of the agent could not read.",
        )
        self.open_windows = gauge("petiole_open_windows", "Windows of aggregated readings that are open.")
        self.invalid = counter(
            "petiole_invalid_requests",
            "Requests or lines of an input that break the contract.",
            ["input", "reason"],
        )
        self.missing_values = counter(
            "petiole_missing_values",
            "Members of mapped payloads that had no value, such as null.",
            ["input"],
        )
        self.source_gaps = counter(
            "petiole_source_gaps",
            "Times that the source of an input may have had changes that it does not have any more.",
            ["input"],
        )
        self.skipped_retained = counter(
            "petiole_skipped_retained_messages",
            "Retained messages of a broker that were not stored, by the option `retained`.",
            ["input"],
        )
        self.dropped = counter(
            "petiole_dropped_messages",
            "Datagrams or messages that were dropped before an input had read them.",
            ["input"],
        )
        self.input_connections = gauge(
            "petiole_input_connections", "Open connections of an input.", ["input"]
        )
        self.left_out = counter(
            "petiole_left_out_parts",
            "Lines and data points left out of requests whose rest was taken.",
            ["input", "reason"],
        )
        self.http_refusals = counter(
            "petiole_http_refusals",
            "Requests of an http input that were not answered by success.",
            ["input", "status"],
        )
        self.in_flight = gauge("petiole_in_flight_bytes", "Bytes accepted and not yet stored or refused.")
        gauge("petiole_tasks", "Tasks of the agent's event loop.").set_function(_tasks)
        self.known_requests = gauge("petiole_known_requests", "Idempotency keys in flight or stored lately.")
        self.batches = counter("petiole_stored_batches", "Batches stored.", by_class)
        self.retries = counter("petiole_publish_retries", "Batches sent again under the same id.", by_class)
        self.taken_ids = counter(
            "petiole_taken_message_ids",
            "Batches whose message id another message had, so that they got another number.",
            by_class,
        )
        self.raw_bytes = counter(
            "petiole_batch_raw_bytes", "Bytes of stored batches before compression.", by_class
        )
        self.wire_bytes = counter(
            "petiole_batch_wire_bytes", "Bytes of stored batches after compression.", by_class
        )
        self.publish_seconds = Histogram(
            "petiole_publish_seconds",
            "From sealing a batch to its PubAck.",
            by_class,
            buckets=LATENCY_BUCKETS,
            registry=registry,
        )
        self.backlog = gauge(
            "petiole_backlog_messages", "Messages stored here and not confirmed by the hub.", by_class
        )
        self.stream_bytes = gauge("petiole_stream_bytes", "Bytes in the stream.", by_class)
        self.seconds_to_loss = gauge(
            "petiole_seconds_to_loss",
            "Seconds until the first unconfirmed message would be refused or discarded.",
            by_class,
        )
        self.confirmed = gauge(
            "petiole_confirmed_sequence", "Stream sequence up to which the hub holds all.", by_class
        )
        self.trimmed = counter(
            "petiole_trimmed_messages", "Messages purged after the hub confirmed them.", by_class
        )
        self.discarded = counter(
            "petiole_discarded_readings",
            "Readings that went from the stream before the hub was known to have them.",
            [*by_class, "reason"],
        )
        self.epochs = counter(
            "petiole_epochs", "New epochs of the link, by why they were needed.", [*by_class, "reason"]
        )
        self.reconnects = counter("petiole_reconnects", "Connections to the local server made again.")
        self.connected = gauge("petiole_connected", "1 while the local server answers.")
        self.server_trouble = gauge(
            "petiole_server_trouble", "1 while the local server is known not to store."
        )
        self.mqtt_up = gauge(
            "petiole_mqtt_listener_up", "1 while all MQTT users of this leaf's listener are let in."
        )
        self.mqtt_refusals = counter(
            "petiole_mqtt_refusals", "What MQTT devices were refused by this leaf's listener.", ["reason"]
        )
        self.server_synced = gauge(
            "petiole_server_synced",
            "1 when the local server syncs before it acknowledges, 0 when not, NaN when unknown.",
        )
        by_certificate = ["certificate"]
        self.certificate_expiry = gauge(
            "petiole_certificate_expiry_timestamp_seconds",
            "When a certificate ends, in seconds since 1970; 0 where it cannot be read.",
            by_certificate,
        )
        self.certificate_renewal = gauge(
            "petiole_certificate_renewal_timestamp_seconds",
            "When a certificate should be renewed, in seconds since 1970; 0 where it cannot be read.",
            by_certificate,
        )
        self.certificate_begin = gauge(
            "petiole_certificate_begin_timestamp_seconds",
            "When a certificate becomes valid, in seconds since 1970; 0 where it cannot be read.",
            by_certificate,
        )
        self.state_kept = gauge(
            "petiole_state_kept",
            "1 when the file system of state_dir keeps what is synced, 0 when not or not known.",
        )
        self.link_state = gauge(
            "petiole_link_state", "1 for the state that the link of a class is in.", [*by_class, "state"]
        )
        self.link_sent = counter(
            "petiole_link_sent_bytes", "Bytes that the local server gave to its link to the hub."
        )
        self.link_arrived = counter(
            "petiole_link_arrived_bytes",
            "Bytes of messages that the hub acknowledged for the first time.",
            by_class,
        )
        self.link_bridged = counter(
            "petiole_link_bridged", "Breaks of the line over which a relayed link continued."
        )
        self.link_resent = counter(
            "petiole_link_resent_bytes", "Bytes that this end's relay sent again after a break."
        )
        self.links_in_vain = gauge(
            "petiole_links_in_vain", "Consecutive links that ended before anything arrived.", by_class
        )
        self.linked = gauge("petiole_linked", "1 while the hub answers announcements.")
        self.link_lag = gauge(
            "petiole_link_lag_messages",
            "Messages of a declared link's origin that are not here yet; no series while that is not known.",
            ["link"],
        )
        self.link_up = gauge("petiole_link_up", "1 while a declared link brings in messages.", ["link"])
        self.input_up = gauge("petiole_input_up", "1 while the input runs.", ["input"])
        self.clock_synchronised = gauge(
            "petiole_clock_synchronised", "1 while the kernel calls its clock synchronised."
        )
        self.clock_ahead = gauge(
            "petiole_clock_ahead_seconds",
            "Seconds by which this machine's clock is ahead of the hub's, NaN until the hub has told it.",
        )
        self.clock_ahead.set(float("nan"))
        self.clock_steps = counter("petiole_clock_steps", "Steps of the wall clock that were seen.")
        self.commands = counter("petiole_commands", "Commands answered, by what became of them.", ["outcome"])

    def show_link(self, link: str, *, up: bool, lag: int | None) -> None:
        """Set a declared link's state; `lag` None if unknown."""
        self.link_up.labels(link).set(up)
        if lag is not None:
            self.link_lag.labels(link).set(lag)
        else:
            self.link_lag.remove(link)


def _tasks() -> float:
    """Count tasks at a scrape in the loop; 0 elsewhere."""
    try:
        return float(len(asyncio.all_tasks()))
    except RuntimeError:
        return 0.0
