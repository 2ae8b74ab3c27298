"""Defines the columns of the tables, which are a contract: columns are never renamed or redefined.

A new column is added at the end and raises `VERSION`. Numbers inside a batch (`index`, `line`) count from 0.
No table is partitioned, because one device's bad clock would create a file per day.
"""

from __future__ import annotations

import hashlib
from typing import Final

import pyarrow as pa

_DIGEST_BYTES: Final = 16

VERSION: Final = 1
"""The version of all tables of a lake. Newer tables are refused."""

TIME: Final = pa.timestamp("us", tz="UTC")

BRONZE: Final = pa.schema(
    [
        ("stream", pa.string()),
        ("created", pa.string()),
        ("seq", pa.int64()),
        ("arrived", TIME),
        ("subject", pa.string()),
        ("headers", pa.binary()),
        ("payload", pa.binary()),
        ("digest", pa.binary()),
        ("domain", pa.string()),
        ("source_stream", pa.string()),
        ("source_identity", pa.string()),
        ("source_seq", pa.int64()),
        ("message_id", pa.string()),
        ("class", pa.string()),
        ("run", pa.string()),
        ("n", pa.int64()),
        ("count", pa.int64()),
    ]
)
"""One row per message as received.

`stream`, `created` and `seq` are the hub's; `created` names one history of the stream. `domain` is null
without a source, `class` also when the subject is not of that domain. A valid message id sets `run`, `n` and
`count` for a batch. `digest` is the 16-byte BLAKE2b of the payload.
"""

READINGS: Final = pa.schema(
    [
        ("ts", TIME),
        ("ts_source", pa.string()),
        ("domain", pa.string()),
        ("device", pa.string()),
        ("metric", pa.string()),
        ("value", pa.float64()),
        ("text", pa.string()),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("class", pa.string()),
        ("run", pa.string()),
        ("n", pa.int64()),
        ("index", pa.int32()),
        ("arrived", TIME),
        ("event_date", pa.date32()),
        ("source_stream", pa.string()),
        ("source_identity", pa.string()),
        ("source_seq", pa.int64()),
        ("ts_original", TIME),
        ("value_array", pa.list_(pa.float64())),
        ("value_bytes", pa.binary()),
    ]
)
"""One row per reading.

The key of a batch's reading is (domain, class, run, n, index). A direct message has no run; its key is its
source's stream, identity and sequence, which are null for batches. `ts_source` names the clock of `ts`:
`device`, `agent` or `hub`; `corrected` means that the machine's clock was wrong and `ts_original` has its
time. A bool is value 0 or 1 and text `true` or `false`. An integer beyond 2^53 is rounded in value, and text
has its digits. Arrays of numbers are in `value_array` and bytes in `value_bytes`, up to 1 MiB each, with null
value and text.
"""

QUARANTINE: Final = pa.schema(
    [
        ("stream", pa.string()),
        ("created", pa.string()),
        ("seq", pa.int64()),
        ("line", pa.int32()),
        ("domain", pa.string()),
        ("class", pa.string()),
        ("run", pa.string()),
        ("n", pa.int64()),
        ("count", pa.int64()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("excerpt", pa.binary()),
        ("arrived", TIME),
        ("place", pa.string()),
    ]
)
"""Refused data, keyed by (stream, created, seq, line).

`line` is null for a whole message, whose `count` is in its header. A dead letter has its edge location in
`place` (file and byte, topic, sender) and its input's reason in `detail`. `reason` is one of
`hub_jobs.refine.messages.QuarantineReason`.
"""

CLOCKS: Final = pa.schema(
    [
        ("domain", pa.string()),
        ("boot", pa.string()),
        ("since", pa.int64()),
        ("until", pa.int64()),
        ("offset", pa.int64()),
        ("by", pa.int64()),
    ]
)
"""Agents' clock corrections (`agent.contract.Correction`) in order of arrival. A cache like `seen`."""

SEEN: Final = pa.schema(
    [("space", pa.string()), ("first", pa.int64()), ("last", pa.int64()), ("run", pa.string())],
)
"""Possibly overlapping ranges of numbers in bronze, by space.

Spaces are `batch/<domain>/<class>/<run>` for batch numbers, `source/<stream>/<identity>` for source
sequences, and `hub/<stream>/<created>` for hub sequences. The table is a cache of bronze; its `txn` per
stream is the hub sequence it covers. `run` is the space's run, "" for other spaces, null in loose files
(`hub_jobs.tables.seen_files`).
"""

AUDIT: Final = pa.schema(
    [
        ("at", TIME),
        ("domain", pa.string()),
        ("class", pa.string()),
        ("run", pa.string()),
        ("accepted", pa.int64()),
        ("stored", pa.int64()),
        ("in_bronze", pa.int64()),
        ("pending", pa.int64()),
        ("in_readings", pa.int64()),
        ("quarantined", pa.int64()),
        ("missing", pa.int64()),
        ("doubled", pa.int64()),
        ("discarded", pa.int64()),
        ("refused", pa.int64()),
        ("open_tail", pa.int64()),
        ("findings", pa.list_(pa.string())),
        ("dead", pa.int64()),
        ("on_the_way", pa.int64()),
        ("unexplained", pa.int64()),
    ]
)
"""One row per domain, class and run of one audit, counted in readings.

`run` is null for direct messages. `open_tail` is null for a closed run; otherwise it counts accepted readings
without a known outcome at the last report. `dead` counts dead letters, which else count only in `accepted`.
`on_the_way` counts readings announced as stored beyond the other columns, null when unknown. `unexplained`
counts rows of `readings` and `quarantine` without a message in `bronze`.
"""

AUDIT_HOURS: Final = pa.schema(
    [
        ("at", TIME),
        ("domain", pa.string()),
        ("class", pa.string()),
        ("hour", TIME),
        ("state", pa.string()),
        ("in_bronze", pa.int64()),
        ("late", pa.int64()),
        ("pending", pa.int64()),
        ("in_readings", pa.int64()),
        ("quarantined", pa.int64()),
        ("dead", pa.int64()),
        ("missing", pa.int64()),
        ("doubled", pa.int64()),
        ("lost", pa.int64()),
        ("on_the_way", pa.int64()),
    ]
)
"""One row per domain, class and hour of one audit, counted in readings.

`lost` counts batches; `on_the_way` counts messages in their announcement hour. `state` is the first that
applies: `missing`, `doubled`, `pending`, `late`, `complete`.
"""

SETTLED: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("until", TIME),
        ("domain", pa.string()),
        ("class", pa.string()),
        ("run", pa.string()),
        ("hour", TIME),
        ("in_bronze", pa.int64()),
        ("late", pa.int64()),
        ("in_readings", pa.int64()),
        ("quarantined", pa.int64()),
        ("dead", pa.int64()),
        ("space", pa.string()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("detail", pa.string()),
    ]
)
"""Audited data that the next audit need not read: everything that arrived before `until`, equal in all rows.

By `kind`: `hour` is a domain, class and hour as in `audit_hours`; `run` and `direct` are the results of a run
and of a class without run. `range` has numbers of a space as in `seen`; `rows` has the bronze row count
(`last`) of stream `space`. `ledger`, `claims` and `table` hold JSON in `detail`: the leaves' claims and the
table versions below it.
"""

GAPS: Final = pa.schema(
    [
        ("at", TIME),
        ("kind", pa.string()),
        ("since", TIME),
        ("until", TIME),
        ("domain", pa.string()),
        ("device", pa.string()),
        ("metric", pa.string()),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("readings", pa.int64()),
        ("usual", pa.float64()),
        ("median", pa.float64()),
        ("p95", pa.float64()),
        ("holes", pa.int64()),
        ("missing", pa.int64()),
        ("open", pa.bool_()),
        ("series", pa.int64()),
        ("silent", pa.bool_()),
    ]
)
"""Results for one window of readings, by `kind`; intervals in seconds.

`series`: a series with readings between `since` and `until`, its count, `usual` interval, `median`, `p95`,
`holes` and estimated `missing` readings. `hole`: from the reading before it to the next, or to the window's
end when `open`. `device` (null `metric` and `tags`): from its last reading to the window's end, its number of
`series`, the shortest usual interval, and `silent`, null without a usual interval. Open holes of a silent
device are not listed again.
"""

ROLLUP: Final = pa.schema(
    [
        ("window", TIME),
        ("domain", pa.string()),
        ("device", pa.string()),
        ("metric", pa.string()),
        ("tags", pa.map_(pa.string(), pa.string())),
        ("count", pa.int64()),
        ("sum", pa.float64()),
        ("mean", pa.float64()),
        *((name, pa.float64()) for name in ("min", "max", "first")),
        ("first_ts", TIME),
        ("last", pa.float64()),
        ("last_ts", TIME),
        ("stddev", pa.float64()),
        ("increase", pa.float64()),
        ("rate", pa.float64()),
        *((name, pa.float64()) for name in ("p50", "p95", "p99")),
        ("sketch", pa.binary()),
    ]
)
"""One row per series and window; `window` is its start in UTC.

`stddev` is of the population. `increase` and `rate` (per second) are null except for counters. Quantiles and
their `sketch` are null unless requested.
"""

ROOTS: Final = pa.schema(
    [("domain", pa.string()), ("hour", TIME), ("number", pa.int64()), ("signed", pa.binary())],
)
"""The signed root of each leaf and settled hour, numbered from 1 (`hub_jobs.receipts.roots`)."""

SCHEMAS: Final = {
    "bronze": BRONZE,
    "readings": READINGS,
    "quarantine": QUARANTINE,
    "clocks": CLOCKS,
    "seen": SEEN,
    "audit": AUDIT,
    "audit_hours": AUDIT_HOURS,
    "settled": SETTLED,
    "roots": ROOTS,
    "gaps": GAPS,
    "rollup_1m": ROLLUP,
    "rollup_1h": ROLLUP,
    "rollup_1d": ROLLUP,
}


def bounded(schema: pa.Schema) -> list[str]:
    """Return the columns with bounds and null counts in the Delta log: all that support them.

    delta-rs 1.6.6 `to_pyarrow_dataset` finds nothing in a column without bounds.
    """
    return [field.name for field in schema if _has_bounds(field.type)]


def _has_bounds(kind: pa.DataType) -> bool:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    types = pa.types
    bounded_kinds = (
        types.is_string,
        types.is_integer,
        types.is_floating,
        types.is_temporal,
        types.is_boolean,
    )
    return any(is_kind(plain) for is_kind in bounded_kinds)


def digest(payload: bytes) -> bytes:
    """Return the BLAKE2b digest of a payload."""
    return hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest()


def digests(payloads: pa.Array) -> pa.Array:
    # To copy an empty hash costs less than to make one.
    empty, found = hashlib.blake2b(digest_size=_DIGEST_BYTES).copy, []
    for payload in payloads.to_pylist():
        own = empty()
        own.update(payload)
        found.append(own.digest())
    return pa.array(found, pa.binary())
