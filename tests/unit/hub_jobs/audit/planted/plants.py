"""Each way in which a table can lie, and what the audit says of it. A plant changes a copy of the lake of
`planted.lake` behind the jobs' back."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from agent.contract import Exit
from tests.unit.hub_jobs.audit.planted.lake import (
    appended,
    back_by_log,
    newest,
    oldest,
    out_of_log,
    replaced,
    restored,
    twice_in_log,
)
from tests.unit.hub_jobs.damage import cut, flip
from tests.unit.hub_jobs.rows import OTHER_RUN

Said = tuple[Exit, str]
"""The exit code, and what stands in the findings; nothing where there are none."""

PERSON: Final = "a person (SQL)"
TOOL: Final = "a tool"
BIT: Final = "a bit"
WELL: Final[Said] = (Exit.WELL, "")


@dataclass(frozen=True, slots=True)
class Plant:
    """A lie in a table, who tells it, and what the audit says of it."""

    table: str
    lie: str
    by: str
    what: str
    plant: Callable[[Path], None]
    plain: Said
    more: Said | None = None
    """What is said with `--deep`, where it is more."""

    @property
    def deep(self) -> Said:
        """What is said with `--deep`."""
        return self.plain if self.more is None else self.more


OTHER: Final = "what is in readings and quarantine is not what their payloads hold"


def _sql(table: str, predicate: str) -> Callable[[Path], None]:
    def plant(lake: Path) -> None:
        DeltaTable(str(lake / table)).delete(predicate)

    return plant


def _updated(table: str, predicate: str, **updates: str) -> Callable[[Path], None]:
    def plant(lake: Path) -> None:
        DeltaTable(str(lake / table)).update(updates=updates, predicate=predicate)

    return plant


def _bit(table: str, column: str) -> Callable[[Path], None]:
    chosen = newest if table == "seen" else oldest
    return lambda lake: flip(chosen(lake, table), column)


def _without(table: str, gone: pc.Expression) -> Callable[[Path], None]:
    return lambda lake: replaced(lake, table, lambda rows: rows.filter(~gone))


def _again(table: str, chosen: pc.Expression) -> Callable[[Path], None]:
    return lambda lake: appended(lake, table, lambda rows: rows.filter(chosen))


def _with(rows: pa.Table, **values: object) -> pa.Table:
    """The rows with one value each in some columns."""
    for name, value in values.items():
        at = rows.column_names.index(name)
        kind = rows.schema.field(name).type
        rows = rows.set_column(at, name, pa.array([value] * rows.num_rows, kind))
    return rows


def _made(table: str, chosen: pc.Expression, **values: object) -> Callable[[Path], None]:
    return lambda lake: appended(lake, table, lambda rows: _with(rows.filter(chosen), **values))


def _each(*plants: Callable[[Path], None]) -> Callable[[Path], None]:
    def plant(lake: Path) -> None:
        for plant in plants:
            plant(lake)

    return plant


def _file(table: str, do: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda lake: do(newest(lake, table))


def _swapped(rows: pa.Table) -> pa.Table:
    """Of batch 3 the readings 4 and 5 in each other's place."""
    other = {4: 5, 5: 4}
    pairs = zip(rows["n"].to_pylist(), rows["index"].to_pylist(), strict=True)
    places = [other.get(at, at) if n == 3 else at for n, at in pairs]
    return rows.set_column(rows.column_names.index("index"), "index", pa.array(places, pa.int32()))


F: Final = pc.field
BATCH_3: Final = F("n") == 3
ONE: Final = (F("n") == 3) & (F("index") == 4)
DEVICE: Final = (F("source_seq") == 4) & F("n").is_null()

BRONZE: Final = [
    Plant(
        "bronze",
        "lost",
        PERSON,
        "the row of a batch is deleted",
        _sql("bronze", "n = 3"),
        (
            Exit.LOSS,
            "10 rows of readings are of batches 3, whose messages are not in bronze",
        ),
    ),
    Plant(
        "bronze",
        "lost",
        PERSON,
        "the row of a device's message is deleted",
        _sql("bronze", "source_seq = 4"),
        (
            Exit.LOSS,
            "sequences 4 were in bronze, and bronze no longer has them",
        ),
    ),
    Plant(
        "bronze",
        "lost",
        PERSON,
        "the newest rows are deleted",
        _sql("bronze", "seq > 9"),
        (Exit.LOSS, "sequences 10-11 were in bronze, and bronze no longer has them"),
    ),
    Plant(
        "bronze",
        "lost",
        TOOL,
        "its log no longer names a file",
        lambda lake: out_of_log(lake, "bronze", newest(lake, "bronze")),
        (Exit.LOSS, "sequences 6-11 were in bronze, and bronze no longer has them"),
    ),
    Plant(
        "bronze",
        "lost",
        TOOL,
        "a file is deleted",
        _file("bronze", Path.unlink),
        (Exit.LOSS, "can't be read: it is gone"),
    ),
    Plant(
        "bronze",
        "lost",
        TOOL,
        "restored to an older version",
        lambda lake: restored(lake, "bronze", 1),
        (Exit.LOSS, "sequences 6-11 were in bronze, and bronze no longer has them"),
    ),
    Plant(
        "bronze",
        "lost",
        TOOL,
        "the last entry of its log is deleted",
        lambda lake: back_by_log(lake, "bronze"),
        (Exit.LOSS, "sequences 6-11 were in bronze, and bronze no longer has them"),
    ),
    Plant(
        "bronze",
        "doubled",
        TOOL,
        "its log names the same rows twice",
        lambda lake: twice_in_log(lake, "bronze", newest(lake, "bronze")),
        (Exit.LOSS, "bronze holds sequences 6-11 of TELEMETRY_0/2026-11-21T00:00:00Z more than once"),
    ),
    Plant(
        "bronze",
        "invented",
        PERSON,
        "a batch that was never sent",
        _made("bronze", BATCH_3, n=99, seq=12, source_seq=12),
        (Exit.LOSS, "bronze holds sequences 12 of TELEMETRY_0/2026-11-21T00:00:00Z, which no ingest"),
    ),
    Plant(
        "bronze",
        "altered",
        PERSON,
        "a payload",
        _updated("bronze", "n = 3", payload="arrow_cast('x', 'Binary')"),
        WELL,
        (Exit.LOSS, "the payloads of sequences 3 of TELEMETRY_0/2026-11-21T00:00:00Z are not those of"),
    ),
    Plant(
        "bronze",
        "altered",
        PERSON,
        "a digest",
        _updated("bronze", "n = 3", digest="arrow_cast('x', 'Binary')"),
        WELL,
        (Exit.LOSS, "the payloads of sequences 3 of TELEMETRY_0/2026-11-21T00:00:00Z are not those of"),
    ),
    Plant(
        "bronze",
        "altered",
        PERSON,
        "how many readings a batch holds",
        _updated("bronze", "n = 3", count="11"),
        (Exit.WELL, "batch 3: bronze says that it holds 11 readings; its payload holds 10"),
    ),
    Plant(
        "bronze",
        "altered",
        PERSON,
        "the number of a batch",
        _updated("bronze", "n = 3", n="99"),
        (Exit.LOSS, "batches 99 are in bronze, and its agent gave out no number above 7"),
    ),
    Plant(
        "bronze",
        "altered",
        BIT,
        "in a payload",
        _bit("bronze", "payload"),
        WELL,
        (Exit.LOSS, "CRC checksum verification failed"),
    ),
    Plant(
        "bronze",
        "altered",
        BIT,
        "in the number of a batch",
        _bit("bronze", "n"),
        (Exit.LOSS, "CRC checksum verification failed"),
    ),
    Plant(
        "bronze",
        "moved",
        PERSON,
        "a batch to another leaf",
        _updated("bronze", "n = 3", domain="'edge-2'"),
        (
            Exit.LOSS,
            "edge-2, class normal, run 01890a5d-ac96-774b-bcce-b302099a8057, batch 3: indexes 0-9 of 10",
        ),
    ),
]

READINGS: Final = [
    Plant(
        "readings",
        "lost",
        PERSON,
        "a reading is deleted",
        _sql("readings", "n = 3 AND index = 4"),
        (Exit.LOSS, "batch 3: indexes 4 of 10 are missing from readings"),
    ),
    Plant(
        "readings",
        "lost",
        PERSON,
        "a device's message is deleted",
        _sql("readings", "source_seq = 4"),
        (Exit.LOSS, "message 4 of TEL_edge-1_normal (abc) is missing from readings"),
    ),
    Plant(
        "readings",
        "lost",
        TOOL,
        "its log no longer names a file",
        lambda lake: out_of_log(lake, "readings", newest(lake, "readings")),
        (Exit.LOSS, "batch 4: indexes 0-9 of 10 are missing from readings"),
    ),
    Plant(
        "readings",
        "lost",
        TOOL,
        "a file is deleted",
        _file("readings", Path.unlink),
        (Exit.LOSS, "2 batches, of which 20 readings are missing, may have them in files that can't be read"),
    ),
    Plant(
        "readings",
        "lost",
        TOOL,
        "a file is cut off",
        _file("readings", cut),
        (Exit.LOSS, "Parquet magic bytes not found"),
    ),
    Plant(
        "readings",
        "lost",
        TOOL,
        "restored to an older version",
        lambda lake: restored(lake, "readings", 1),
        (Exit.LOSS, "batch 4: indexes 0-9 of 10 are missing from readings"),
    ),
    Plant(
        "readings",
        "lost",
        TOOL,
        "the last entry of its log is deleted",
        lambda lake: back_by_log(lake, "readings"),
        (Exit.FAILED, "readings is older than it was"),
    ),
    Plant(
        "readings",
        "doubled",
        PERSON,
        "a reading is inserted again",
        _again("readings", ONE),
        (Exit.LOSS, "batch 3: indexes 4 are in readings more than once"),
    ),
    Plant(
        "readings",
        "doubled",
        TOOL,
        "its log names the same rows twice",
        lambda lake: twice_in_log(lake, "readings", newest(lake, "readings")),
        (Exit.LOSS, "batch 4: indexes 0-9 are in readings more than once"),
    ),
    Plant(
        "readings",
        "invented",
        PERSON,
        "readings of an unknown run",
        _made("readings", BATCH_3, run=OTHER_RUN),
        (Exit.LOSS, "10 rows of readings are of batches 3, which no message of bronze explains"),
    ),
    Plant(
        "readings",
        "invented",
        PERSON,
        "readings of a batch that its run never had",
        _made("readings", BATCH_3, n=99),
        (Exit.LOSS, "10 rows of readings are of batches 99, which no message of bronze explains"),
    ),
    Plant(
        "readings",
        "invented",
        PERSON,
        "more readings than a batch has",
        _made("readings", ONE, index=10),
        (Exit.LOSS, "batch 3: indexes 10 are in readings and it has 10 only"),
    ),
    Plant(
        "readings",
        "invented",
        PERSON,
        "a message that no device sent",
        _made("readings", DEVICE, source_seq=99),
        (Exit.LOSS, "1 readings are said to be the messages 99 of TEL_edge-1_normal (abc)"),
    ),
    Plant(
        "readings",
        "invented",
        PERSON,
        "a reading of no batch and no message",
        _made("readings", DEVICE, source_seq=None, source_stream=None, source_identity=None),
        (Exit.LOSS, "1 readings are of no batch and of no message"),
    ),
    *(
        Plant(
            "readings",
            "altered",
            PERSON,
            what,
            _updated("readings", predicate, **{column: new}),
            WELL,
            (Exit.LOSS, of if "index" in of else f"{of}: {OTHER}"),
        )
        for what, column, new, predicate, of in (
            (
                "a value",
                "value",
                "1000.0",
                "n = 3 AND index = 4",
                "batch 3, index 4: value is 1000.0, and 304.5 in its payload",
            ),
            ("a text", "text", "'shut'", "n = 6 AND index = 4", "batches 6"),
            ("a time", "ts", "ts + INTERVAL '1 second'", "n = 3 AND index = 4", "batches 3"),
            (
                "a device",
                "device",
                "'pump-9'",
                "n = 3 AND index = 4",
                "batch 3, index 4: device is pump-9, and pump-3 in its payload",
            ),
            ("a metric", "metric", "'m9'", "n = 3 AND index = 4", "batches 3"),
            ("the tags", "tags", "MAP(['at'], ['9'])", "n = 3 AND index = 4", "batches 3"),
            ("the day", "event_date", "DATE '2026-11-22'", "n = 3 AND index = 4", "batches 3"),
            ("a device's value", "value", "9.0", "source_seq = 4", "messages 4 of TEL_edge-1_normal (abc)"),
        )
    ),
    Plant(
        "readings",
        "altered",
        BIT,
        "in a value",
        _bit("readings", "value"),
        WELL,
        (Exit.LOSS, "CRC checksum verification failed"),
    ),
    Plant(
        "readings",
        "moved",
        PERSON,
        "two readings of a batch have changed places",
        lambda lake: replaced(lake, "readings", _swapped),
        WELL,
        (Exit.LOSS, f"batches 3: {OTHER}"),
    ),
    Plant(
        "readings",
        "altered",
        BIT,
        "in the index of a reading",
        _bit("readings", "index"),
        (Exit.LOSS, "CRC checksum verification failed"),
    ),
    Plant(
        "readings",
        "moved",
        PERSON,
        "a batch to another leaf",
        _updated("readings", "n = 3", domain="'edge-2'"),
        (Exit.LOSS, "10 rows of readings are of batches 3, which no message of bronze explains"),
    ),
]

QUARANTINE: Final = [
    Plant(
        "quarantine",
        "lost",
        PERSON,
        "a line is deleted",
        _sql("quarantine", "n = 2"),
        (Exit.LOSS, "batch 2: indexes 4 of 10 are missing from readings"),
    ),
    Plant(
        "quarantine",
        "lost",
        PERSON,
        "a whole batch is deleted",
        _sql("quarantine", "n = 5"),
        (Exit.LOSS, "batch 5: indexes 0-9 of 10 are missing from readings"),
    ),
    Plant(
        "quarantine",
        "lost",
        PERSON,
        "a device's message is deleted",
        _sql("quarantine", "reason = 'bad message'"),
        (Exit.LOSS, "message 5 of TEL_edge-1_normal (abc) is missing from readings"),
    ),
    Plant(
        "quarantine",
        "lost",
        TOOL,
        "a file is deleted",
        _file("quarantine", Path.unlink),
        (Exit.LOSS, "can't be read: it is gone"),
    ),
    Plant(
        "quarantine",
        "lost",
        TOOL,
        "the table is deleted",
        lambda lake: shutil.rmtree(lake / "quarantine"),
        (Exit.LOSS, "batch 5: indexes 0-9 of 10 are missing from readings"),
    ),
    Plant(
        "quarantine",
        "doubled",
        PERSON,
        "a line is inserted again",
        _again("quarantine", F("n") == 2),
        (Exit.LOSS, "batch 2: indexes 4 are in readings more than once"),
    ),
    Plant(
        "quarantine",
        "doubled",
        PERSON,
        "a whole batch is inserted again",
        _again("quarantine", F("n") == 5),
        (Exit.LOSS, "batch 5: is in quarantine as a whole, 1 times more than once"),
    ),
    Plant(
        "quarantine",
        "doubled",
        PERSON,
        "a device's message is inserted again",
        _again("quarantine", F("reason") == "bad message"),
        (Exit.LOSS, "message 5 of TEL_edge-1_normal (abc) is in readings or quarantine more than once"),
    ),
    Plant(
        "quarantine",
        "invented",
        PERSON,
        "a line of a batch that was never sent",
        _made("quarantine", F("n") == 2, n=99),
        (Exit.LOSS, "1 of quarantine are of batches 99, which no message of bronze explains"),
    ),
    Plant(
        "quarantine",
        "invented",
        PERSON,
        "a message that never came",
        _made("quarantine", F("reason") == "bad message", seq=99),
        (Exit.LOSS, "1 rows of quarantine are of sequences 99 of TELEMETRY_0 (2026-11-21T00:00:00Z)"),
    ),
    Plant(
        "quarantine",
        "altered",
        PERSON,
        "what a line was",
        _updated("quarantine", "n = 2", excerpt="arrow_cast('x', 'Binary')"),
        WELL,
        (Exit.LOSS, f"batches 2: {OTHER}"),
    ),
    Plant(
        "quarantine",
        "altered",
        BIT,
        "in what a line was",
        _bit("quarantine", "excerpt"),
        WELL,
        (Exit.LOSS, "CRC checksum verification failed"),
    ),
]

CACHE: Final = [
    Plant(
        "seen",
        "lost",
        PERSON,
        "a range is deleted",
        _sql("seen", "space LIKE 'batch/%'"),
        (Exit.FAILED, "the cache `seen` does not know 1-7 of batch/edge-1/normal/"),
    ),
    Plant(
        "seen",
        "lost",
        PERSON,
        "all rows are deleted",
        _sql("seen", "TRUE"),
        (Exit.FAILED, "the cache `seen` does not know 1-11 of source/TEL_edge-1_normal/abc"),
    ),
    Plant(
        "seen",
        "lost",
        TOOL,
        "the table is deleted",
        lambda lake: shutil.rmtree(lake / "seen"),
        WELL,
    ),
    Plant(
        "seen",
        "lost",
        TOOL,
        "a file is deleted",
        _file("seen", Path.unlink),
        (Exit.FAILED, "can't be read: it is gone. The next refine"),
    ),
    Plant(
        "seen",
        "invented",
        PERSON,
        "batches that were never sent",
        _made("seen", pc.starts_with(F("space"), "batch/"), first=8, last=20),
        (Exit.LOSS, "bronze held batches 8-20, and bronze no longer does"),
    ),
    Plant(
        "seen",
        "altered",
        BIT,
        "in a range",
        _bit("seen", "last"),
        (Exit.FAILED, "CRC checksum verification failed"),
    ),
]

MOVED: Final = [
    Plant(
        "readings and quarantine",
        "moved",
        PERSON,
        "a reading is deleted, and called a bad line",
        _each(_without("readings", ONE), _made("quarantine", F("n") == 2, n=3, line=4, seq=3)),
        WELL,
        (Exit.LOSS, f"batches 3: {OTHER}"),
    ),
    Plant(
        "bronze and readings",
        "lost",
        PERSON,
        "a device's message is deleted from both",
        _each(_sql("bronze", "source_seq = 4"), _sql("readings", "source_seq = 4")),
        (Exit.LOSS, "source TEL_edge-1_normal/abc: sequences 4 were in bronze"),
    ),
    Plant(
        "bronze, readings, seen",
        "lost",
        PERSON,
        "a device's message is deleted from both, and the cache",
        _each(
            _sql("bronze", "source_seq = 4"),
            _sql("readings", "source_seq = 4"),
            lambda lake: shutil.rmtree(lake / "seen"),
        ),
        (Exit.LOSS, "source TEL_edge-1_normal/abc: sequences 4 never came"),
    ),
]

PLANTS: Final = [*BRONZE, *READINGS, *QUARANTINE, *CACHE, *MOVED]
