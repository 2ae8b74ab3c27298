"""Senders that number their readings and remember when each was acknowledged; and what of their load came to
the hub."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import zstandard

from agent.contract import H_COUNT, H_ENCODING, aggregate
from agent.demo.plan import Member
from hub_jobs.source.connection import Connection
from hub_jobs.source.protocol import parse_headers
from hub_jobs.source.server import Server
from hub_jobs.source.streams import stream_info
from tests.harness.stream_records import StreamRecord, read_range

METRIC: Final = "serial"
READINGS: Final = 10
_ANSWER_SECONDS: Final = 20.0
_RETRY_SECONDS: Final = 1.0
"""Each try costs a guest two processes, and its only processor is slow."""
_PACE_SECONDS: Final = 0.02


class Load:
    """Senders of an agent's `http` input, each one request after the other and each request under its key
    until it is acknowledged. `acknowledged` has, by device, when (monotonic seconds) each reading was; their
    values count from 1."""

    def __init__(self, port: int, senders: int = 4) -> None:
        self._port = port
        self.acknowledged: dict[str, list[float]] = {f"sender-{number}": [] for number in range(senders)}
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(one,)) for one in self.acknowledged]
        for thread in self._threads:
            thread.start()

    @property
    def count(self) -> int:
        """How many readings were acknowledged."""
        return sum(map(len, self.acknowledged.values()))

    def end(self) -> None:
        """Send no more; returns when what was begun is acknowledged or given up."""
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _send(self, device: str) -> None:
        acknowledged = self.acknowledged[device]
        while not self._ending.wait(_PACE_SECONDS):
            first = len(acknowledged) + 1
            now = datetime.now(UTC).isoformat()
            lines = (
                f'{{"ts":"{now}","device":"{device}","metric":"{METRIC}","value":{value}}}\n'
                for value in range(first, first + READINGS)
            )
            if self._stored("".join(lines).encode(), f"{device}-{first}"):
                acknowledged.extend([time.monotonic()] * READINGS)

    def _stored(self, body: bytes, key: str) -> bool:
        headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": key}
        while not self._ending.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_SECONDS)
            try:
                connection.request("POST", "/v1/readings", body, headers)
                if connection.getresponse().status == http.HTTPStatus.NO_CONTENT:
                    return True
            except (OSError, http.client.HTTPException):
                pass  # stored or not: the next try under the same key is stored once
            finally:
                connection.close()
            self._ending.wait(_RETRY_SECONDS)
        return False


_LARGEST: Final = 2**26


@dataclass(frozen=True, slots=True)
class Arrived:
    """How often each value of a device is there."""

    values: dict[str, Counter[int]]

    def lost(self, load: Load) -> list[float]:
        """When those were acknowledged that are not there."""
        return sorted(
            moment
            for device, times in load.acknowledged.items()
            for value, moment in enumerate(times, 1)
            if not self.values[device][value]
        )

    def doubled(self) -> int:
        """How many values are there more than once."""
        return sum(count > 1 for counts in self.values.values() for count in counts.values())


def at_hub(hub: Member, subject: str) -> list[StreamRecord]:
    """The messages of a subject that the hub's stream holds."""
    stream, key = aggregate(0), hub.state / "keys" / "jobs.nk"
    with Connection(Server(hub.nats_url, seed_file=str(key)), 30.0) as connection:
        info = stream_info(connection, stream)
        found = read_range(connection, stream, info.first_seq, info.last_seq, filter_subjects=[subject])
        return [one for records in found for one in records]


def arrived(load: Load, batches: Iterable[StreamRecord]) -> Arrived:
    """Count the load's readings in the batches of its input."""
    found = Arrived({device: Counter() for device in load.acknowledged})
    for batch in batches:
        headers = {name: value.decode() for name, value in parse_headers(batch.headers)}
        payload = batch.payload
        if H_ENCODING in headers:
            payload = zstandard.ZstdDecompressor().decompress(payload, max_output_size=_LARGEST)
        rows = [json.loads(line) for line in payload.splitlines()]
        assert len(rows) == int(headers[H_COUNT])
        for row in rows:
            if row["metric"] == METRIC:
                found.values[row["device"]][int(row["value"])] += 1
    return found
