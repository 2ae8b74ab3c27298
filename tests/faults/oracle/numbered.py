"""Readings that tell by themselves which they are. Pure.

A device numbers the readings of each of its lives from 1. Life and number stand in the tags; metric, value
and the kind of the value follow from device, life and number, so that a reading whose contents were changed
on the way is found though it still has its number.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

LIFE, NUMBER = "life", "n"
HEAVY = "recorder-"
"""Devices with such names send long texts that nothing makes smaller."""
HEAVY_BYTES = 16 * 1024
VALVE = "valve-"
"""Devices with such names go to and fro between few values, without tags, so that all they send is one
series to a deadband; their readings are told by their time."""
_POSITIONS = (0.0, 0.25, 1.0)
_LONGEST = 64
"""Characters of a text that is compared as it is."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Series(NamedTuple):
    """Where a device's readings of one life go: to a class of a domain."""

    domain: str
    cls: str
    device: str
    life: int

    def __str__(self) -> str:
        return f"{self.device} of {self.domain}, class {self.cls}, life {self.life}"


def contents(series: Series, n: int) -> tuple[str, float | str | bool]:
    """Metric and value of a reading."""
    seed = f"{series.device}/{series.life}/{n}".encode()
    digest = hashlib.blake2b(seed, digest_size=8).digest()
    if series.device.startswith(VALVE):
        return "m0", _POSITIONS[digest[0] % len(_POSITIONS)]
    metric = f"m{digest[0] % 3}"
    if series.device.startswith(HEAVY):
        return metric, b64encode(hashlib.shake_128(seed).digest(HEAVY_BYTES // 4 * 3)).decode()
    kind = digest[1] % 8
    if kind == 0:
        return metric, digest.hex()
    if kind == 1:
        return metric, digest[2] % 2 == 0
    return metric, int.from_bytes(digest[2:7], "big") / 1024


def short(text: str) -> str:
    """A text as it is compared: the digest of a long one, so that a table of them need not be held."""
    if len(text) <= _LONGEST:
        return text
    return f"{len(text)} characters, {hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"


def reading(series: Series, n: int, ts_us: int) -> dict[str, Any]:
    """A reading as its device sends it; `ts_us` are microseconds since 1970."""
    metric, value = contents(series, n)
    return {
        "ts": time_text(ts_us),
        "device": series.device,
        "metric": metric,
        "value": value,
        "tags": tags(series, n),
    }


def tags(series: Series, n: int) -> dict[str, str]:
    """The tags of a reading."""
    return {} if series.device.startswith(VALVE) else {LIFE: str(series.life), NUMBER: str(n)}


def time_text(ts_us: int) -> str:
    """A time as RFC 3339."""
    return (_EPOCH + timedelta(microseconds=ts_us)).isoformat(timespec="microseconds")


def ranges_text(numbers: list[int], most: int = 5) -> str:
    """Numbers as a person reads them: `3, 7-9`; the first ranges, and how many more there are."""
    ranges: list[list[int]] = []
    for n in sorted(set(numbers)):
        if ranges and ranges[-1][1] == n - 1:
            ranges[-1][1] = n
        else:
            ranges.append([n, n])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in ranges[:most]]
    if len(ranges) > most:
        shown.append(f"and {len(ranges) - most} more ranges")
    return ", ".join(shown)
