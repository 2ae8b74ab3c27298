"""Decides which tables the jobs read and write, by an allow-list of Delta features.

Delta obliges writers and readers of some features (PROTOCOL.md of delta-io/delta 4.0, "Requirements for
Writers", "Table Features"). A feature that a table supports but does not use obliges no
reader or writer; its use is checked instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

_READER_VERSIONS: Final = range(1, 4)
_WRITER_VERSIONS: Final = (1, 2, 3, 4, 5, 7)
"""delta-rs cannot commit to version 6, which means identity columns."""
_FEATURES: Final = frozenset(
    {
        *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
        *("columnMapping", "deletionVectors", "timestampNtz", "variantType", "variantType-preview"),
    }
)
"""Features whose use is checked here and that delta-rs commits to. Others, such as row tracking or
clustering, oblige every commit.
"""
_HISTORY: Final = {"checkpointProtection": " TRUNCATE HISTORY"}
_ANY: Final = frozenset(
    {
        *("delta.logRetentionDuration", "delta.deletedFileRetentionDuration", "delta.checkpointInterval"),
        *("delta.enableExpiredLogCleanup", "delta.isolationLevel", "delta.targetFileSize"),
        *("delta.tuneFileSizesForRewrites", "delta.randomizeFilePrefixes", "delta.randomPrefixLength"),
        *("delta.autoOptimize", "delta.autoOptimize.autoCompact", "delta.autoOptimize.optimizeWrite"),
        *("delta.dataSkippingNumIndexedCols", "delta.dataSkippingStatsColumns"),
        *("delta.checkpoint.writeStatsAsStruct", "delta.parquet.compression.codec"),
        "delta.columnMapping.maxColumnId",
    }
)
"""Properties that only direct other writers or set a retention."""
_ONLY: Final = {
    "delta.columnMapping.mode": "none",
    "delta.checkpointPolicy": "classic",
    "delta.checkpoint.writeStatsAsJson": "true",
    **dict.fromkeys(
        (
            *("delta.appendOnly", "delta.enableChangeDataFeed", "delta.enableDeletionVectors"),
            *("delta.enableInCommitTimestamps", "delta.enableRowTracking", "delta.enableTypeWidening"),
            *("delta.enableIcebergCompatV1", "delta.enableIcebergCompatV2"),
            "delta.compatibility.symlinkFormatManifest.enabled",
        ),
        "false",
    ),
}
"""Properties allowed with one harmless value."""
_DELTA: Final = "delta."
"""Begins each property with a meaning; other properties are notes."""
_FIELD_NOTES: Final = frozenset({"comment"})
_MORE_TYPES: Final = frozenset(
    {"string", "long", "integer", "double", "boolean", "binary", "date", "timestamp"}
)
"""Types that the jobs write, and so accept in added columns."""


def why_refused(delta: DeltaTable, schema: pa.Schema) -> str | None:
    """Explains why the jobs would misread or miswrite a table with the columns of `schema`, with the remedy.

    None when they would not.
    """
    metadata = delta.metadata()
    found = [
        *_of_protocol(delta),
        *_of_properties(metadata.configuration),
        *_of_columns(_fields(delta.schema()), _fields(Schema.from_arrow(schema))),
    ]
    if metadata.partition_columns:
        names = ", ".join(metadata.partition_columns)
        found.append(f"it is partitioned (by {names}); write it again without partition columns")
    if _has_deletion_vectors(delta):
        found.append(
            "rows of it are deleted by deletion vectors; in Spark: ALTER TABLE … SET TBLPROPERTIES "
            "(delta.enableDeletionVectors = false), then REORG TABLE … APPLY (PURGE)"
        )
    return "; ".join(found) or None


def _of_protocol(delta: DeltaTable) -> Iterator[str]:
    protocol = delta.protocol()
    reader, writer = protocol.min_reader_version, protocol.min_writer_version
    if reader not in _READER_VERSIONS or writer not in _WRITER_VERSIONS:
        yield f"its protocol asks for reader {reader} and writer {writer}; use a newer Petiole, or a copy"
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    for name in sorted(features - _FEATURES):
        yield f"it has the feature {name}; ALTER TABLE … DROP FEATURE {name}{_HISTORY.get(name, '')}"


def _of_properties(given: Mapping[str, str]) -> Iterator[str]:
    for key, value in sorted(given.items()):
        if not key.startswith(_DELTA) or key in _ANY:
            continue
        if key.startswith("delta.constraints."):
            name = key.removeprefix("delta.constraints.")
            yield f"it has the constraint {name} ({value}); ALTER TABLE … DROP CONSTRAINT {name}"
        elif _ONLY.get(key) != value.lower():
            yield f"its property {key} is {value}; ALTER TABLE … {_undone(key)}"


def _undone(key: str) -> str:
    if key in _ONLY:
        return f"SET TBLPROPERTIES ({key} = {_ONLY[key]})"
    return f"UNSET TBLPROPERTIES ({key})"


def _fields(schema: Schema) -> dict[str, Mapping[str, Any]]:
    return {field["name"]: field for field in json.loads(schema.to_json())["fields"]}


def _of_columns(
    given: Mapping[str, Mapping[str, Any]], ours: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    lacking = [name for name in ours if name not in given]
    if lacking:
        yield f"it lacks the columns {', '.join(lacking)}; put it back from a copy"
    for name, wanted in ours.items():
        if name in given and given[name]["type"] != wanted["type"]:
            held, due = _named(given[name]["type"]), _named(wanted["type"])
            yield f"its column {name} is of type {held}, not {due}; put it back from a copy"
    for name, field in given.items():
        kind = _named(field["type"])
        if name not in ours and kind not in _MORE_TYPES:
            kinds = ", ".join(sorted(_MORE_TYPES))
            yield f"its column {name} is of type {kind}; an added column is of {kinds}"
        if not field["nullable"]:
            yield f"its column {name} may not be null; ALTER TABLE … ALTER COLUMN {name} DROP NOT NULL"
        for note in sorted({*field["metadata"]} - _FIELD_NOTES):
            yield f"its column {name} has {note}; write the table again without"


def _named(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)


def _has_deletion_vectors(delta: DeltaTable) -> bool:
    if "deletionVectors" not in (delta.protocol().reader_features or []):
        return False
    try:
        return any(batch.num_rows for batch in delta.deletion_vectors())
    except DeltaError:  # there is one that delta-rs can't read
        return True
