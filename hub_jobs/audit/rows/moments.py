"""To which moment a message belongs. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from agent.contract import H_CLOCK, H_SEALED_AT
from hub_jobs.source.protocol import header_column
from hub_jobs.tables.ranges import Mask, Numbers

LATE_SECONDS: Final = 600
"""What arrives longer than this after it was sealed is late."""
_AHEAD_SECONDS: Final = 3_600
"""A time of sealing so far after the arrival is not a time that can be."""
_SECOND: Final = 1_000_000


def moments(rows: pa.Table) -> tuple[Numbers, Mask]:
    """To which moment batches with `arrived` and `headers` belong, in microseconds since 1970, and whether
    they came late: the time of sealing, if the clock there was synchronised, otherwise that of arrival."""
    arrived: Numbers = rows["arrived"].cast(pa.int64()).to_numpy()
    headers = [row or b"" for row in rows["headers"].to_pylist()]
    sealed = header_column(headers, H_SEALED_AT.encode())
    clocks = header_column(headers, H_CLOCK.encode())
    found = arrived.copy()
    for at, (text, clock) in enumerate(zip(sealed, clocks, strict=True)):
        if text is None or clock is None or not clock.startswith(b"synchronised=yes"):
            continue
        if text.isdigit() and len(text) <= _NANOSECOND_DIGITS:
            found[at] = int(text) // 1000
    found = np.where(found <= arrived + _AHEAD_SECONDS * _SECOND, found, arrived)
    return found, arrived - found > LATE_SECONDS * _SECOND


_NANOSECOND_DIGITS: Final = 19
