"""Exposes job metrics to Prometheus by a text file for node_exporter and an HTTP endpoint of repeating jobs.

docs/metrics.md describes each metric. The job's label is `name`, because Prometheus reserves `job`. No error
here fails a job; it is printed and retried after the next run.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Metric,
    disable_created_metrics,
    generate_latest,
    start_http_server,
)
from prometheus_client.parser import text_string_to_metric_families

from agent.contract import AUDIT_FIGURES, AuditedLeaf, AuditPart, Exit
from hub_jobs.tables.delta import TableError, open_table
from hub_jobs.tables.places import Place
from hub_jobs.tables.scan import files

DIRECTORY_VARIABLE: Final = "PETIOLE_JOB_METRICS"
"""Environment variable with the default of `--metrics`."""
_LOOPBACK: Final = "127.0.0.1"
_MODE: Final = 0o644
"""Readable by all: node_exporter is another user, and the file has no secret."""
_LEAVES: Final = 1_000
"""Most leaves with audit figures."""


class ListenError(Exception):
    """The endpoint can't listen at its address; the text has the reason."""


class MetricsAddress(NamedTuple):
    """The listen address of the endpoint."""

    host: str
    port: int


def address(text: str) -> MetricsAddress:
    """Parse `HOST:PORT`, `[::1]:PORT`, or a loopback port. Raises `ArgumentTypeError`."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 0 <= int(port) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{text!r} is not an address; write 127.0.0.1:9465, or a port alone")
    return MetricsAddress(host.strip("[]") or _LOOPBACK, int(port))


class JobMetrics:
    """The metrics of one job in this process. Skips costly ones when nothing exposes them (`shown`)."""

    def __init__(
        self, name: str, directory: Path | None = None, listen: MetricsAddress | None = None
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.name = name
        self.shown = directory is not None or listen is not None
        self.registry = registry = CollectorRegistry()
        self._file = None if directory is None else directory / f"petiole_job_{name}.prom"
        self._listen = listen

        def gauge(name: str, says: str, *labels: str) -> Gauge:
            return Gauge(name, says, ["name", *labels], registry=registry)

        def counter(name: str, says: str, *labels: str) -> Counter:
            return Counter(name, says, ["name", *labels], registry=registry)

        self.last_end = gauge("petiole_job_last_end_timestamp_seconds", "When the last run ended.")
        self.last_success = gauge(
            "petiole_job_last_success_timestamp_seconds", "When the last run with exit code 0 ended."
        )
        self.last_duration = gauge("petiole_job_last_duration_seconds", "How long the last run took.")
        self.last_exit = gauge("petiole_job_last_exit_code", "The exit code of the last run.")
        self.runs = counter("petiole_job_runs", "Runs, by what their exit code means.", "outcome")
        self.conflicts = counter("petiole_job_conflicts", "Commits that another writer was ahead of.")
        self.lag_sequences = gauge(
            "petiole_job_stream_lag_sequences",
            "Sequences of the hub's stream that are not in bronze.",
            "stream",
        )
        self.lag_seconds = gauge(
            "petiole_job_stream_lag_seconds", "Age of the oldest message that is not in bronze.", "stream"
        )
        self.ingested_messages = gauge(
            "petiole_job_ingested_messages", "Messages that the last run committed to bronze.", "stream"
        )
        self.ingested_bytes = gauge("petiole_job_ingested_bytes", "Bytes of the files with them.", "stream")
        self.refined = gauge(
            "petiole_job_refined_rows", "Rows of the last run, by what became of them.", "kind"
        )
        self.unrefined = gauge("petiole_job_unrefined_sequences", "Sequences of bronze that are not refined.")
        self.settled = gauge(
            "petiole_job_settled_timestamp_seconds",
            "What arrived before this is settled: the next audit need not read it.",
        )
        self.table_files = gauge("petiole_job_table_files", "Files of a table's snapshot.", "table")
        self.table_bytes = gauge("petiole_job_table_bytes", "Bytes of them.", "table")
        self.table_rows = gauge("petiole_job_table_rows", "Rows in them, as the log says.", "table")
        self._audit_figures = {
            name: Gauge(f"petiole_audit_{name}_readings", says, ["domain"], registry=registry)
            for name, says in AUDIT_FIGURES.items()
        }
        self._accounted = Gauge(
            "petiole_audit_accounted",
            "1 where nothing of the leaf is missing, doubled, unexplained or gone.",
            ["domain"],
            registry=registry,
        )
        self._audited_at = Gauge(
            "petiole_audit_timestamp_seconds",
            "When the audit looked at the tables.",
            ["domain"],
            registry=registry,
        )
        self._of_audit = (*self._audit_figures.values(), self._accounted, self._audited_at)
        self._show()

    def beside(self, name: str) -> JobMetrics:
        """Return the metrics of another job: same endpoint, own file."""
        other = copy(self)
        other.name = name
        other._file = None if self._file is None else self._file.with_name(f"petiole_job_{name}.prom")
        other._listen = None
        other._show()
        return other

    def _show(self) -> None:
        for outcome in Exit:
            self.runs.labels(self.name, outcome.name.lower())
        self.conflicts.labels(self.name)
        self._resume()

    def collect(self) -> Iterator[Metric]:
        """Yield the samples of all jobs in the process."""
        for family in self.registry.collect():
            of_job = copy(family)
            of_job.samples = [
                sample for sample in family.samples if sample.labels.get("name", self.name) == self.name
            ]
            yield of_job

    def begin(self) -> None:
        """Start a run and clear the previous run's figures."""
        for figure in (self.ingested_messages, self.ingested_bytes, self.refined):
            for sample in [sample for family in figure.collect() for sample in family.samples]:
                if sample.labels.get("name", self.name) == self.name:
                    figure.remove(*sample.labels.values())

    def end(self, code: Exit, seconds: float) -> None:
        now = time.time()
        self.last_end.labels(self.name).set(now)
        self.last_duration.labels(self.name).set(seconds)
        self.last_exit.labels(self.name).set(code)
        self.runs.labels(self.name, code.name.lower()).inc()
        if code is Exit.WELL:
            self.last_success.labels(self.name).set(now)
        self.write()

    def add_ingested(self, stream: str, messages: int, size: int) -> None:
        """Count a commit of `ingest`; zeros at the start of a run."""
        self.ingested_messages.labels(self.name, stream).inc(messages)
        self.ingested_bytes.labels(self.name, stream).inc(size)

    def set_lag(self, stream: str, sequences: int, oldest: Callable[[], float | None]) -> None:
        """Set ingest's lag in sequences; `oldest` is the unix time of the first waiting message, None if
        unknown.
        """
        if not self.shown:
            return
        self.lag_sequences.labels(self.name, stream).set(max(0, sequences))
        now = time.time()
        since = oldest() if sequences > 0 else now
        if since is not None:
            self.lag_seconds.labels(self.name, stream).set(max(0.0, now - since))
        else:
            with suppress(KeyError):
                self.lag_seconds.remove(self.name, stream)
        self.write()

    def add_refined(self, readings: int, quarantine: int, repeats: int) -> None:
        """Count a pass of `refine`; zeros at the start of a run."""
        for kind, rows in (("readings", readings), ("quarantine", quarantine), ("repeats", repeats)):
            self.refined.labels(self.name, kind).inc(rows)

    def set_unrefined(self, sequences: int) -> None:
        """Set refine's lag behind bronze in sequences."""
        self.unrefined.labels(self.name).set(sequences)
        self.write()

    def set_settled(self, until: int) -> None:
        """Set the settled moment in microseconds since 1970, 0 for none."""
        self.settled.labels(self.name).set(until / 1e6)

    def set_audit(self, head: AuditPart, leaves: Sequence[AuditedLeaf]) -> None:
        """Replace the audit results; leaves with losses come first."""
        for gauge in self._of_audit:
            gauge.clear()
        at = datetime.fromisoformat(head.at).timestamp()
        for leaf in sorted(leaves, key=lambda leaf: (not leaf.lost, leaf.domain))[:_LEAVES]:
            for name, gauge in self._audit_figures.items():
                gauge.labels(leaf.domain).set(getattr(leaf, name))
            self._accounted.labels(leaf.domain).set(not leaf.lost)
            self._audited_at.labels(leaf.domain).set(at)

    def measure(self, lake: Place, names: Iterable[str]) -> None:
        if not self.shown:
            return
        for name in names:
            with suppress(TableError, OSError, pa.ArrowException):  # who reads or commits to it says so
                table = open_table(lake, name)
                if table is not None:
                    found = files(table)
                    labels = (self.name, name)
                    self.table_files.labels(*labels).set(found.num_rows)
                    self.table_bytes.labels(*labels).set(pc.sum(found["size_bytes"]).as_py() or 0)
                    self.table_rows.labels(*labels).set(pc.sum(found["num_records"]).as_py() or 0)

    @contextmanager
    def served(self) -> Iterator[int | None]:
        """Serve the endpoint, if configured; yields its port. Raises `ListenError`."""
        if self._listen is None:
            yield None
            return
        try:
            server, thread = start_http_server(self._listen.port, self._listen.host, self.registry)
        except OSError as error:
            host, port = self._listen
            raise ListenError(f"--metrics-listen: can't listen on {host} port {port}: {error}") from error
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def write(self) -> None:
        """Replace the metrics file, if configured."""
        if self._file is None:
            return
        draft = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        try:
            draft.write_bytes(generate_latest(self))
            draft.chmod(_MODE)
            draft.replace(self._file)
        except OSError as error:
            self._say(f"the metrics are not written to {self._file}: {error}")
            with suppress(OSError):
                draft.unlink(missing_ok=True)

    def _resume(self) -> None:
        """Load counters and the last outcome of earlier processes from the file."""
        if self._file is None:
            return
        try:
            for family in text_string_to_metric_families(self._file.read_text()):
                for sample in family.samples:
                    self._restore(sample.name, sample.labels, sample.value)
        except FileNotFoundError:
            return
        except (OSError, ValueError, LookupError) as error:
            self._say(f"the metrics of earlier runs in {self._file} can't be read and begin again: {error}")

    def _restore(self, sample: str, labels: Mapping[str, str], value: float) -> None:
        outcome = labels.get("outcome", "")
        of_runs = (self.last_end, self.last_success, self.last_duration, self.last_exit)
        for gauge in (*of_runs, *self._of_audit):
            if sample == gauge._name:
                gauge.labels(**labels).set(value)
        if sample == "petiole_job_runs_total" and outcome in (code.name.lower() for code in Exit):
            self.runs.labels(self.name, outcome).inc(value)
        elif sample == "petiole_job_conflicts_total":
            self.conflicts.labels(self.name).inc(value)

    def _say(self, text: str) -> None:
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)
