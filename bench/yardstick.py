"""The yardsticks of the input formats: a body decoded by the quickest library there is and compressed as the
agent compresses batches, in one thread, and nothing else. Nothing is validated beyond that, written or sent.

`python -m bench.yardstick FORM READINGS SECONDS`, FORM one of `bench.load.FORMS`: prints readings a
CPU-second. NDJSON is decoded by msgspec into records, OTLP by protobuf. For line protocol there is no such
library: each line is split into measurement, tags, fields and time, and each field into name and number.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import zstandard
from msgspec import Struct

from bench.load import FORMS

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


def main(form: str, readings: int, seconds: float) -> None:
    """Decode and compress for so many CPU-seconds."""
    bodies = [FORMS[form][2](readings, seed) for seed in range(_BODIES)]
    decode, compress = _decoder(form), zstandard.ZstdCompressor(level=_LEVEL).compress
    decoded, began = 0, time.process_time()
    while (used := time.process_time() - began) < seconds:
        for first in range(0, _BODIES, _A_BATCH):
            batch = bodies[first : first + _A_BATCH]
            for body in batch:
                decode(body)
            compress(b"".join(batch))
        decoded += _BODIES * readings
    print(decoded / used)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
