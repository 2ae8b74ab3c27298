"""The columns of the tables, as every job writes and reads them. Part of the contract: a column is never
renamed or given another meaning; a new one is added at the end and `VERSION` is raised.

Numbers of readings inside a batch (`index`, `line`) count from 0. No table is partitioned: readings carry
the time of their device, so a partition by date would let one bad clock make a file for every day it names.
Files are found by the minimum and maximum of their columns instead.
"""

from __future__ import annotations

import hashlib
from typing import Final

import pyarrow as pa

_DIGEST_BYTES: Final = 16

VERSION: Final = 6
"""The version of all tables of a lake; a table of a newer one is refused."""

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
"""A row a message as it came. `stream`, `created` and `seq` are the hub's; `created` names one history
of the stream. `domain` is null for a message that no source of the stream wrote; `class` is null too where
the subject is not of that domain; `run`, `n` and `count` are set for a batch with a valid message id.
`digest` is BLAKE2b of the payload, 16 bytes."""

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
"""A row a reading. Its key is (domain, class, run, n, index) from an agent's batch; a direct message has no
run and is known by its source's stream, identity and sequence, which a batch's readings leave null.
`ts_source` says whose clock `ts` is: `device`, `agent` (that of the agent's machine) or `hub`; or that it is
`corrected`, for the machine's clock was found to have been wrong: what that had said is in `ts_original`,
which is null otherwise. A bool is value 0 or 1 and text `true` or `false`. A whole number that a double does
not hold exactly (beyond 2^53) is rounded in value, and text has its digits. An array of numbers is in
`value_array` and bytes are in `value_bytes`, up to 1 MiB each; value and text are null then."""

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
"""What could not be taken, by (stream, created, seq, line); `line` is null for a whole message, whose
`count` is what its header says. A dead letter says in `place` where at the edge it stood (a file and the
byte, a topic, a sender), in `detail` why its input did not take it. `reason` is one of
`hub_jobs.refine.messages.QuarantineReason`."""

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
"""What agents said of clocks that were wrong, as in `agent.contract.Correction`, in the order in which it
came. A cache like `seen`."""

SEEN: Final = pa.schema(
    [("space", pa.string()), ("first", pa.int64()), ("last", pa.int64()), ("run", pa.string())],
)
"""Ranges of numbers that bronze holds, which may overlap, by space: `batch/<domain>/<class>/<run>` of batch
numbers, `source/<stream>/<identity>` of source sequences, `hub/<stream>/<created>` of hub sequences. A cache:
it can be made again from bronze. The hub sequence up to which it does is the table's `txn` of each stream.
`run` is that of the space, "" of other spaces, and null in files that are not yet put in order
(`hub_jobs.tables.seen_files`)."""

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
"""A row a domain, class and run of one audit, in readings. `run` is null for direct messages. `open_tail`
is null for a run that is closed; otherwise how many readings were accepted and not yet known as stored,
refused, discarded or dead when it was last heard of. `dead` counts dead letters, which are in no other
column but `accepted`. `on_the_way` is what the leaf announced as stored beyond what is in the other columns;
null where that is not known. `unexplained` are rows of `readings` and `quarantine` whose message is not in
`bronze`."""

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
"""A row a domain, class and hour of one audit, in readings; `lost` in batches, `on_the_way` in messages, at
the hour in which they were announced. `state` is the worst that holds of `missing`, `doubled`, `pending`,
`late`, or else `complete`."""

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
"""What an audit found in order and the next one need not read again: all that arrived at the hub before
`until`, the same in every row. By `kind`: `hour`, a domain, class and hour as in `audit_hours`; `run` and
`direct`, what came of a run, and of a class without one; `range`, numbers of a space as in `seen`; `rows`,
how many rows (`last`) bronze has of the stream `space`; `ledger`, `claims` and `table`, as JSON in `detail`,
what the leaves said, and the versions of the tables on which all of it rests."""

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
"""What one look at a window of readings found, by `kind`; intervals in seconds. `series`: one with readings
in the window, which is from `since` to `until`; how many, its `usual` interval, the `median` and `p95`, its
`holes` and about how many readings are `missing` in them. `hole`: from the reading before it to the one
after it, or to the end of the window where it is `open`. `device` (`metric` and `tags` are null): from its
last reading to the end of the window; how many `series` it has, the usual interval of the quickest, and
whether it is `silent`, null where nothing is usual; the holes in which its series end are then not listed
again."""

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
"""A row a series and window; `window` is its first moment, UTC. `stddev` is of the whole population.
`increase` and `rate` (a second) are of counters, null for other metrics. The quantiles and the `sketch` that
they come from are null unless they were asked for."""

SCHEMAS: Final = {
    "bronze": BRONZE,
    "readings": READINGS,
    "quarantine": QUARANTINE,
    "clocks": CLOCKS,
    "seen": SEEN,
    "audit": AUDIT,
    "audit_hours": AUDIT_HOURS,
    "settled": SETTLED,
    "gaps": GAPS,
    "rollup_1m": ROLLUP,
    "rollup_1h": ROLLUP,
    "rollup_1d": ROLLUP,
}


def bounded(schema: pa.Schema) -> list[str]:
    """The columns whose minimum, maximum and number of nulls go into the Delta log: all that can have them.
    `DeltaTable.to_pyarrow_dataset` of delta-rs 1.6.6 finds nothing in a column without bounds."""
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
    """What tells two payloads apart."""
    return hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest()


def digests(payloads: pa.Array) -> pa.Array:
    """`digest` of each."""
    # To copy an empty hash costs less than to make one.
    empty, found = hashlib.blake2b(digest_size=_DIGEST_BYTES).copy, []
    for payload in payloads.to_pylist():
        own = empty()
        own.update(payload)
        found.append(own.digest())
    return pa.array(found, pa.binary())
