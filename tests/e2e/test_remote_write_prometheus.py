"""Prometheus itself sends what it scrapes of itself to a leaf whose agent is killed meanwhile: what its own
store holds is in the leaf's stream, once."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

from agent.demo.loopback import free_port
from agent.testing.stored_stream import stored_readings
from tests.harness.agent_process import Agent, leaf_with
from tests.harness.wait import wait_for

PROMETHEUS: Final = os.environ.get("PROMETHEUS") or shutil.which("prometheus")
"""2.54 or later; Debian 12 has one that knows 1.0 only. To compile it in an empty module: `go get
github.com/prometheus/prometheus/cmd/prometheus@v0.313.5`, and `go build -tags remove_all_sd` of the same."""
_CONFIG: Final = """\
global:
  scrape_interval: 200ms
  scrape_timeout: 200ms
scrape_configs:
  - job_name: prometheus
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
remote_write:
  - url: {url}/api/v1/write
    {message}
    queue_config: {{min_backoff: 30ms, max_backoff: 300ms, batch_send_deadline: 100ms}}
    metadata_config: {{send_interval: 1s}}
"""
Sample = tuple[str, frozenset[tuple[str, str]], int, float]
"""Metric, labels, time (ms) and value."""


def _speaks_2(program: str) -> bool:
    said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
    version = re.search(r"version (\d+)\.(\d+)", said.stdout + said.stderr)
    return version is not None and (int(version[1]), int(version[2])) >= (2, 54)


class Prometheus:
    """One server, which scrapes itself."""

    def __init__(self, directory: Path, leaf_url: str, message: str) -> None:
        if PROMETHEUS is None:
            pytest.skip("Prometheus is missing; install it, or name it in PROMETHEUS")
        if message and not _speaks_2(PROMETHEUS):
            pytest.skip("this Prometheus is older than 2.54 and knows remote write 1.0 only")
        directory.mkdir()
        self.port = free_port()
        self.log = directory / "log"
        config = directory / "prometheus.yml"
        config.write_text(_CONFIG.format(port=self.port, url=leaf_url, message=message))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    PROMETHEUS,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The result of a query, empty while nobody answers."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        try:
            with urllib.request.urlopen(url, timeout=15) as answer:
                found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
                return found
        except OSError:
            return []

    def scraped(self, until_ms: int) -> set[Sample]:
        """The finite samples that it has stored up to a time."""
        found = set()
        for series in self.ask('{job="prometheus"}[10m]'):
            labels = series["metric"]
            name = labels.pop("__name__")
            for seconds, text in series["values"]:
                ms, value = round(seconds * 1000), float(text)
                if ms <= until_ms and math.isfinite(value):
                    found.add((name, frozenset(labels.items()), ms, value))
        return found


@contextmanager
def sending(directory: Path, leaf: Agent, message: str) -> Iterator[Prometheus]:
    """A Prometheus that sends to the leaf."""
    prometheus = Prometheus(directory, leaf.member.http_url, message)
    try:
        yield prometheus
    finally:
        prometheus.process.terminate()
        prometheus.process.wait(60)


def stored(leaf: Agent) -> Counter[Sample]:
    """What the leaf's stream holds."""
    return Counter(
        (
            row["metric"],
            frozenset(row["tags"].items()),
            round(datetime.fromisoformat(row["ts"]).timestamp() * 1000),
            float(row["value"]),
        )
        for row in stored_readings(leaf.member)
    )


@pytest.mark.parametrize(
    "message", ["", "protobuf_message: io.prometheus.write.v2.Request"], ids=["1.0", "2.0"]
)
def test_prometheus_loses_and_doubles_nothing_by_kills_of_the_agent(tmp_path: Path, message: str) -> None:
    with (
        leaf_with(tmp_path, 'type = "http"\nremote_write = true') as leaf,
        sending(tmp_path / "prometheus", leaf, message) as prometheus,
    ):
        for _ in range(3):
            before = leaf.metric("petiole_stored_readings_total", input="http")
            wait_for(
                lambda before=before: (  # type: ignore[misc]
                    leaf.metric("petiole_stored_readings_total", input="http") > before + 2_000
                ),
                "Prometheus sends",
            )
            leaf.end(signal.SIGKILL)
            leaf.start()
        until_ms = int(time.time() * 1000)
        wait_for(lambda: len(prometheus.scraped(until_ms)) > 6_000, "it has scraped")
        wait_for(lambda: prometheus.scraped(until_ms) <= stored(leaf).keys(), "all that it holds is stored")
        assert set(stored(leaf).values()) == {1}
