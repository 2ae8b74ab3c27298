"""The yardsticks of the input formats: a body decoded by the quickest library there is and compressed by zstd
at level 1, in one thread, and nothing else. Nothing is validated beyond that, written or sent.
And the alternative to the agent's publish path: nats-py as its documents show it, one reading a message.

`python -m bench.yardstick FORM READINGS SECONDS`, FORM one of `bench.load.FORMS`: prints readings a
CPU-second. NDJSON is decoded by msgspec into records, OTLP by protobuf. For line protocol there is no such
library: each line is split into measurement, tags, fields and time, and each field into name and number.
`python -m bench.yardstick nats-py URL SEED_FILE DOMAIN awaited|async SECONDS` prints readings stored and CPU
seconds used.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import nats
import uvloop
import zstandard
from msgspec import Struct

from agent import contract
from agent.leaf.inputs.formats.ndjson import decode_ndjson
from bench.load import FORMS, body

_A_BATCH: Final = 4
"""Bodies compressed together, about as many as the agent puts into a batch."""
_BODIES: Final = 16
_LEVEL: Final = 1
DECODED_BY: Final[Mapping[str, str]] = {
    "ndjson": "msgspec",
    "lines-1": "split",
    "lines-10": "split",
    "otlp": "protobuf",
}
"""What decodes a form."""


class _Reading(Struct, gc=False):
    ts: float | str
    device: str
    metric: str
    value: float | str
    tags: dict[str, str]


def measured(form: str, readings: int, seconds: float) -> float:
    """Readings a CPU-second, of a process of its own."""
    command = [sys.executable, "-m", "bench.yardstick", form, str(readings), str(seconds)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _split(body: bytes) -> list[tuple[list[bytes], list[tuple[bytes, float]], int]]:
    decoded = []
    for line in body.splitlines():
        key, fields, stamp = line.split(b" ")
        pairs = [field.split(b"=") for field in fields.split(b",")]
        decoded.append((key.split(b","), [(name, float(value)) for name, value in pairs], int(stamp)))
    return decoded


def _decoder(form: str) -> Callable[[bytes], Any]:
    if form == "ndjson":
        return msgspec.json.Decoder(_Reading).decode_lines
    if form == "otlp":
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        return lambda body: ExportMetricsServiceRequest.FromString(body)
    return _split


def decode(form: str, readings: int, seconds: float) -> None:
    """Decode and compress for so many CPU-seconds."""
    bodies = [FORMS[form][2](readings, seed) for seed in range(_BODIES)]
    decoder, compress = _decoder(form), zstandard.ZstdCompressor(level=_LEVEL).compress
    decoded, began = 0, time.process_time()
    while (used := time.process_time() - began) < seconds:
        for first in range(0, _BODIES, _A_BATCH):
            batch = bodies[first : first + _A_BATCH]
            for prepared in batch:
                decoder(prepared)
            compress(b"".join(batch))
        decoded += _BODIES * readings
    print(decoded / used)


_CHECK_EVERY: Final = 500


async def publish(url: str, seed_file: str, domain: str, mode: str, seconds: float) -> None:
    """Validate and publish until the time is over, then wait for what is in flight."""
    nc = await nats.connect(
        url, nkeys_seed=seed_file, inbox_prefix=contract.inbox_prefix(domain).encode(), allow_reconnect=False
    )
    js = nc.jetstream()
    subject = contract.direct_subject(domain, contract.DEFAULT_CLASS, "bench", "pressure")
    lines = [line + b"\n" for line in body(_CHECK_EVERY, seed=1).splitlines()]
    stored, began, cpu = 0, time.monotonic(), time.process_time()
    while time.monotonic() - began < seconds:
        for line in lines:
            payload = decode_ndjson(line, domain, time.time_ns()).payload
            if mode == "awaited":
                await js.publish(subject, payload)
            else:
                await js.publish_async(subject, payload)
            stored += 1
    if mode == "async":
        await js.publish_async_completed()
    print(json.dumps({"readings": stored, "cpu_seconds": time.process_time() - cpu}))
    await nc.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["nats-py", server, key_file, own_domain, how, long]:
            uvloop.run(publish(server, key_file, own_domain, how, float(long)))
        case [form, readings, long]:
            decode(form, int(readings), float(long))
