"""What of a load came to the hub."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import zstandard

from agent.contract import H_COUNT, H_ENCODING, aggregate
from agent.demo.plan import Member
from hub_jobs.source.connection import Connection
from hub_jobs.source.protocol import parse_headers
from hub_jobs.source.ranges import read_range
from hub_jobs.source.server import Server
from hub_jobs.source.streams import StreamRecord, stream_info
from tests.faults.guest.load import METRIC, Load

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
