"""A table that the jobs would read or write wrongly is refused in words, before anything is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from agent.contract import Exit
from hub_jobs.audit import run as audit
from hub_jobs.gaps import run as gaps
from hub_jobs.maintain import run as maintain
from hub_jobs.refine import run as refine
from hub_jobs.replay import run as replay
from hub_jobs.rollup import run as rollup
from hub_jobs.tables.allowed import _FEATURES
from hub_jobs.tables.delta import TableError, ensure_table, open_table
from hub_jobs.where import open_lake
from tests.harness.foreign import before_commit
from tests.spark.lakes import add_bronze, commit, contents
from tests.unit.hub_jobs.rows import batch_row

LINE = b'{"ts":1,"device":"d","metric":"m","value":1}\n'
DELETED = {
    "storageType": "i",
    "pathOrInlineDv": "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L",
    "sizeInBytes": 40,
    "cardinality": 6,
}
"""The deletion vector that Delta's protocol shows: rows 3, 4, 7, 11, 18 and 29."""
READER_FEATURES = _FEATURES - {
    *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
}
Field = dict[str, Any]


def definition(path: Path) -> dict[str, Any]:
    """The newest definition of a table, as its log has it."""
    entries = [
        json.loads(line)
        for file in sorted((path / "_delta_log").glob("*.json"))
        for line in file.read_text().splitlines()
    ]
    found: dict[str, Any] = [entry["metaData"] for entry in entries if "metaData" in entry][-1]
    return found


def log_entry(path: Path, *actions: dict[str, Any]) -> None:
    """Another program commits actions."""
    log = path / "_delta_log"
    newest = max(int(file.stem) for file in log.glob("*.json"))
    (log / f"{newest + 1:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def supporting(*features: str, readers: tuple[str, ...] = ()) -> dict[str, Any]:
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    return {"protocol": {**versions, "readerFeatures": [*readers], "writerFeatures": [*features]}}


def with_property(key: str, value: str) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        metadata = definition(path)
        metadata["configuration"][key] = value
        log_entry(path, {"metaData": metadata})

    return act


def with_features(*features: str, readers: tuple[str, ...] = ()) -> Callable[[Path], None]:
    return lambda path: log_entry(path, supporting(*features, readers=readers))


def with_versions(reader: int, writer: int) -> Callable[[Path], None]:
    return lambda path: log_entry(
        path, {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer}}
    )


def with_fields(change: Callable[[list[Field]], object]) -> Callable[[Path], None]:
    def act(path: Path) -> None:
        metadata = definition(path)
        schema = json.loads(metadata["schemaString"])
        change(schema["fields"])
        metadata["schemaString"] = json.dumps(schema)
        log_entry(path, {"metaData": metadata})

    return act


def field(name: str, kind: Any = "string", *, nullable: bool = True, **metadata: Any) -> Field:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def with_column(*given: Any, **how: Any) -> Callable[[Path], None]:
    return with_fields(lambda fields: fields.append(field(*given, **how)))


def with_note(name: str, value: Any) -> Callable[[Path], None]:
    return with_fields(lambda fields: fields[0]["metadata"].update({name: value}))


def partitioned(path: Path) -> None:
    """delta-rs gives a table partition columns, with all its rows and properties."""
    table = DeltaTable(path)
    write_deltalake(
        path,
        table.to_pyarrow_table(),
        mode="overwrite",
        schema_mode="overwrite",
        partition_by=["domain"],
        configuration=dict(table.metadata().configuration),
    )


def mapped(path: Path) -> None:
    """Another program maps the columns by their names: what Delta's protocol says of it is in the log."""
    metadata = definition(path)
    schema = json.loads(metadata["schemaString"])
    for number, column in enumerate(schema["fields"], 1):
        numbered = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": column["name"]}
        column["metadata"] |= numbered
    metadata["schemaString"] = json.dumps(schema)
    top = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(len(schema["fields"]))}
    metadata["configuration"] |= top
    log_entry(path, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, {"metaData": metadata})


def deleted(path: Path) -> None:
    """Another program deletes rows by a deletion vector."""
    newest = max((path / "_delta_log").glob("*.json"))
    (added,) = (entry["add"] for entry in map(json.loads, newest.read_text().splitlines()) if "add" in entry)
    protocol = supporting("deletionVectors", readers=("deletionVectors",))
    log_entry(path, protocol, {"add": {**added, "deletionVector": DELETED}})


def without_zone(path: Path) -> None:
    """Another program adds a column of times without a zone."""
    with_features("timestampNtz", readers=("timestampNtz",))(path)
    with_column("local", "timestamp_ntz")(path)


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "partitions": (partitioned, "it is partitioned (by domain)"),
    "mapping": (mapped, "delta.columnMapping.mode is name"),
    "vectors": (deleted, "deleted by deletion vectors"),
    "constraint": (
        lambda path: DeltaTable(path).alter.add_constraint({"young": "run IS NULL"}),
        "it has the constraint young (run IS NULL); ALTER TABLE … DROP CONSTRAINT young",
    ),
    "row tracking": (with_features("rowTracking", "domainMetadata"), "it has the feature rowTracking"),
    "clustering": (with_features("clustering", "domainMetadata"), "it has the feature clustering"),
    "a feature of the future": (with_features("teleport"), "teleport"),
    "catalogue": (with_features("catalogManaged", readers=("catalogManaged",)), "catalog"),
    "checkpoints": (with_features("v2Checkpoint", readers=("v2Checkpoint",)), "v2Checkpoint"),
    "a newer protocol": (
        lambda path: log_entry(path, {"protocol": {"minReaderVersion": 9, "minWriterVersion": 9}}),
        "",
    ),
    **{
        key: (with_property(key, value), key)
        for key, value in {
            "delta.appendOnly": "true",
            "delta.enableChangeDataFeed": "true",
            "delta.enableDeletionVectors": "true",
            "delta.enableInCommitTimestamps": "true",
            "delta.enableTypeWidening": "true",
            "delta.setTransactionRetentionDuration": "interval 7 days",
            "delta.checkpointPolicy": "v2",
            "delta.checkpoint.writeStatsAsJson": "false",
            "delta.compatibility.symlinkFormatManifest.enabled": "true",
            "delta.universalFormat.enabledFormats": "iceberg",
            "delta.enableIcebergCompatV2": "true",
            "delta.unheardOf": "1",
        }.items()
    },
    "invariant": (with_note("delta.invariants", '{"expression":{"expression":"x > 1"}}'), "delta.invariants"),
    "generated": (with_note("delta.generationExpression", "upper(domain)"), "delta.generationExpression"),
    "default": (with_note("CURRENT_DEFAULT", "'a'"), "CURRENT_DEFAULT"),
    "char": (with_note("__CHAR_VARCHAR_TYPE_STRING", "varchar(3)"), "__CHAR_VARCHAR_TYPE_STRING"),
    "collation": (with_note("__COLLATIONS", {"domain": "ICU.en"}), "__COLLATIONS"),
    "widened": (
        with_note("delta.typeChanges", [{"toType": "long", "fromType": "integer"}]),
        "delta.typeChanges",
    ),
    "identity": (with_column("id", "long", **{"delta.identity.start": 1}), "delta.identity.start"),
    "not null": (with_fields(lambda fields: fields[0].update(nullable=False)), "may not be null"),
    "another type": (
        with_fields(lambda fields: fields[-1].update(type="integer")),
        "is of type integer, not",
    ),
    "a column less": (with_fields(lambda fields: fields.pop()), "it lacks the columns"),
    "twice for Spark": (with_column("Domain"), "Domain"),
    "a type of another": (with_column("price", "decimal(10,2)"), "price is of type decimal(10,2)"),
    "a time without zone": (without_zone, "timestamp_ntz"),
    "a struct": (with_column("place", {"type": "struct", "fields": [field("x")]}), "place is of type"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("name", ["readings", "audit"])
def test_a_table_that_would_be_read_or_written_wrongly_is_refused(
    tmp_path: Path, case: str, name: str
) -> None:
    act, said = REFUSED[case]
    commit(tmp_path, name, [{"domain": "edge-1"}, {"domain": None}])
    act(tmp_path / name)

    with pytest.raises(TableError) as refused:
        open_table(tmp_path, name)

    assert said in str(refused.value)
    assert f"table {tmp_path / name} can't be " in str(refused.value)


def test_every_job_refuses_such_a_table_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_bronze(tmp_path, [batch_row(LINE, 1, source_seq=1)])
    ensure_table(tmp_path, "readings").commit([], {"refine": 1})
    partitioned(tmp_path / "readings")
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    lake = ["--lake", str(tmp_path)]
    some = ["--stream", "TELEMETRY_0", "--from-seq", "1"]

    for job, options in ((refine, []), (audit, []), (maintain, []), (rollup, []), (gaps, []), (replay, some)):
        assert job.main([*lake, *options]) is Exit.FAILED
        assert f"table {tmp_path / 'readings'} can't be used: it is partitioned" in capsys.readouterr().err
    with pytest.raises(TableError, match="it is partitioned"):
        open_lake(tmp_path)
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before


@pytest.mark.parametrize(
    "act",
    [
        with_property("delta.logRetentionDuration", "interval 30 days"),
        with_property("delta.appendOnly", "false"),
        with_property("owner", "anybody"),
        *(with_versions(*versions) for versions in ((1, 2), (1, 3), (1, 4), (2, 5))),
        *(
            with_features(name, readers=(name,) if name in READER_FEATURES else ())
            for name in sorted(_FEATURES)
        ),
        with_column("site", comment="where it is"),
        with_column("floor", "integer"),
    ],
)
def test_a_table_is_taken_where_nothing_of_a_feature_is_used(
    tmp_path: Path, act: Callable[[Path], None]
) -> None:
    commit(tmp_path, "readings", [{"domain": "edge-1"}])
    act(tmp_path / "readings")

    commit(tmp_path, "readings", [{"domain": "edge-2"}])

    assert contents(tmp_path, "readings", "domain") == ["edge-1", "edge-2"]


def test_a_table_that_is_partitioned_while_a_commit_is_planned_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path, "readings", [{"domain": "edge-1"}])
    happened = before_commit(monkeypatch, "readings", partitioned)

    with pytest.raises(TableError, match="it is partitioned"):
        commit(tmp_path, "readings", [{"domain": "edge-2"}])

    assert happened
    assert DeltaTable(tmp_path / "readings").to_pyarrow_table()["domain"].to_pylist() == ["edge-1"]
