"""The limits of a body that HTTP or gRPC brings, and of the readings made of it. Bytes. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from agent import contract

MAX_ARRAY_BYTES: Final = 2**20
"""The largest body that is decoded as a whole: a JSON array, an export. It may need many times its size."""
MAX_QUERY_BYTES: Final = 64 * 1024
"""The largest statements of InfluxDB's clients."""
MAX_RATIO: Final = 200
"""Bytes of content or readings per received byte. Alike readings pack to a hundredth at zstd level 3, and to
a hundred-and-fiftieth at level 19."""
LEAST: Final = 2**20
"""Bytes that any body may unpack to."""
EXPANSION: Final = 32
"""How many times its size an export may need in memory: an empty part of it is two bytes."""


class BodyLimits(NamedTuple):
    """The limits of one body."""

    body: int
    """Of the body, received and unpacked."""
    readings: int
    """Of the readings made of it."""

    def of(self, received: int) -> BodyLimits:
        """Return the limits of a body by its received bytes."""
        most = max(LEAST, MAX_RATIO * received)
        return BodyLimits(min(self.body, most), min(self.readings, most))


def line_limits(body: int) -> BodyLimits:
    """Return the limits of lines that are decoded one by one, by the option `body`."""
    return BodyLimits(body, body)


def whole_limits(body: int) -> BodyLimits:
    """Return the limits of a body that is decoded as a whole."""
    return BodyLimits(min(body, MAX_ARRAY_BYTES), body)


def reading_limits(body: int, *, is_json: bool) -> BodyLimits:
    """Return the limits of readings as they are stored, which fill a batch at most."""
    received = whole_limits(body).body if is_json else body
    return BodyLimits(received, max(body, contract.MAX_UNPACKED_BYTES))
