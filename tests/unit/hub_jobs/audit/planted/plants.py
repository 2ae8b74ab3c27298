"""Each way in which a table can lie, and what the audit says of it. A plant changes a copy of the lake of
`planted.lake` behind the jobs' back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from agent.contract import Exit
from tests.spark.lakes import replaced
from tests.unit.hub_jobs.audit.planted.lake import (
    appended,
    back_by_log,
    deleted,
    newest,
    oldest,
    out_of_log,
    restored,
    twice_in_log,
)
from tests.unit.hub_jobs.damage import cut, flip
from tests.unit.hub_jobs.rows import OTHER_RUN

Change = Callable[[Path, str], None]
"""What is done to a lake's table of this name."""
Said = tuple[Exit, str]
"""The exit code, and what stands in the findings; nothing where there are none."""

PERSON: Final = "a person (SQL)"
TOOL: Final = "a tool"
BIT: Final = "a bit"
WELL: Final[Said] = (Exit.WELL, "")
CRC: Final = "CRC checksum verification failed"
OTHER: Final = "what is in readings and quarantine is not what their payloads hold"


@dataclass(frozen=True, slots=True)
class Plant:
    """A lie in a table, who tells it, and what the audit says of it."""

    table: str
    lie: str
    by: str
    what: str
    change: Change
    plain: Said
    more: Said | None
    """What is said with `--deep`, where it is more."""

    def plant(self, lake: Path) -> None:
        """Tell the lie."""
        self.change(lake, self.table)

    @property
    def deep(self) -> Said:
        """What is said with `--deep`."""
        return self.plain if self.more is None else self.more


def _plants(table: str, told: Mapping[tuple[str, str, str, Change], tuple[Said, Said | None]]) -> list[Plant]:
    return [Plant(table, *lie, *said) for lie, said in told.items()]


def _said(code: Exit, text: str) -> tuple[Said, None]:
    return (code, text), None


def _loss(text: str) -> tuple[Said, None]:
    return (Exit.LOSS, text), None


def _deep(text: str) -> tuple[Said, Said]:
    """A loss that only `--deep` finds."""
    return WELL, (Exit.LOSS, text)


def _sql(predicate: str) -> Change:
    def delete(lake: Path, table: str) -> None:
        DeltaTable(str(lake / table)).delete(predicate)

    return delete


def _updated(predicate: str, **updates: str) -> Change:
    def update(lake: Path, table: str) -> None:
        DeltaTable(str(lake / table)).update(updates=updates, predicate=predicate)

    return update


def _bit(column: str) -> Change:
    return lambda lake, table: flip((newest if table == "seen" else oldest)(lake, table), column)


def _again(chosen: pc.Expression) -> Change:
    return lambda lake, table: appended(lake, table, lambda rows: rows.filter(chosen))


def _with(rows: pa.Table, **values: object) -> pa.Table:
    """The rows with one value each in some columns."""
    for name, value in values.items():
        at = rows.column_names.index(name)
        kind = rows.schema.field(name).type
        rows = rows.set_column(at, name, pa.array([value] * rows.num_rows, kind))
    return rows


def _made(chosen: pc.Expression, **values: object) -> Change:
    return lambda lake, table: appended(lake, table, lambda rows: _with(rows.filter(chosen), **values))


def _file(do: Callable[[Path], None]) -> Change:
    return lambda lake, table: do(newest(lake, table))


def _swapped(rows: pa.Table) -> pa.Table:
    """Of batch 3 the readings 4 and 5 in each other's place."""
    other = {4: 5, 5: 4}
    pairs = zip(rows["n"].to_pylist(), rows["index"].to_pylist(), strict=True)
    places = [other.get(at, at) if n == 3 else at for n, at in pairs]
    return rows.set_column(rows.column_names.index("index"), "index", pa.array(places, pa.int32()))


F: Final = pc.field
BATCH_3: Final = F("n") == 3
ONE: Final = (F("n") == 3) & (F("index") == 4)
AT_4: Final = "n = 3 AND index = 4"
DEVICE: Final = (F("source_seq") == 4) & F("n").is_null()


def _called_bad(lake: Path, _tables: str) -> None:
    replaced(lake, "readings", lambda rows: rows.filter(~ONE))
    _made(F("n") == 2, n=3, line=4, seq=3)(lake, "quarantine")


def _message_lost(lake: Path, _tables: str) -> None:
    for table in ("bronze", "readings"):
        _sql("source_seq = 4")(lake, table)


def _message_forgotten(lake: Path, _tables: str) -> None:
    _message_lost(lake, "")
    deleted(lake, "seen")


BRONZE: Final = _plants(
    "bronze",
    {
        ("lost", PERSON, "the row of a batch is deleted", _sql("n = 3")): _loss(
            "10 rows of readings are of batches 3, whose messages are not in bronze"
        ),
        ("lost", PERSON, "the row of a device's message is deleted", _sql("source_seq = 4")): _loss(
            "sequences 4 were in bronze, and bronze no longer has them"
        ),
        ("lost", PERSON, "the newest rows are deleted", _sql("seq > 9")): _loss(
            "sequences 10-11 were in bronze, and bronze no longer has them"
        ),
        ("lost", TOOL, "its log no longer names a file", out_of_log): _loss(
            "sequences 6-11 were in bronze, and bronze no longer has them"
        ),
        ("lost", TOOL, "a file is deleted", _file(Path.unlink)): _loss("can't be read: it is gone"),
        ("lost", TOOL, "restored to an older version", restored): _loss(
            "sequences 6-11 were in bronze, and bronze no longer has them"
        ),
        ("lost", TOOL, "the last entry of its log is deleted", back_by_log): _loss(
            "sequences 6-11 were in bronze, and bronze no longer has them"
        ),
        ("doubled", TOOL, "its log names the same rows twice", twice_in_log): _loss(
            "bronze holds sequences 6-11 of TELEMETRY_0/2026-11-21T00:00:00Z more than once"
        ),
        (
            "invented",
            PERSON,
            "a batch that was never sent",
            _made(BATCH_3, n=99, seq=12, source_seq=12),
        ): _loss("bronze holds sequences 12 of TELEMETRY_0/2026-11-21T00:00:00Z, which no ingest"),
        ("altered", PERSON, "a payload", _updated("n = 3", payload="arrow_cast('x', 'Binary')")): _deep(
            "the payloads of sequences 3 of TELEMETRY_0/2026-11-21T00:00:00Z are not those of"
        ),
        ("altered", PERSON, "a digest", _updated("n = 3", digest="arrow_cast('x', 'Binary')")): _deep(
            "the payloads of sequences 3 of TELEMETRY_0/2026-11-21T00:00:00Z are not those of"
        ),
        ("altered", PERSON, "how many readings a batch holds", _updated("n = 3", count="11")): _said(
            Exit.WELL, "batch 3: bronze says that it holds 11 readings; its payload holds 10"
        ),
        ("altered", PERSON, "the number of a batch", _updated("n = 3", n="99")): _loss(
            "batches 99 are in bronze, and its agent gave out no number above 7"
        ),
        ("altered", BIT, "in a payload", _bit("payload")): _deep(CRC),
        ("altered", BIT, "in the number of a batch", _bit("n")): _loss(CRC),
        ("moved", PERSON, "a batch to another leaf", _updated("n = 3", domain="'edge-2'")): _loss(
            "edge-2, class normal, run 01890a5d-ac96-774b-bcce-b302099a8057, batch 3: indexes 0-9 of 10"
        ),
    },
)

READINGS: Final = _plants(
    "readings",
    {
        ("lost", PERSON, "a reading is deleted", _sql(AT_4)): _loss(
            "batch 3: indexes 4 of 10 are missing from readings"
        ),
        ("lost", PERSON, "a device's message is deleted", _sql("source_seq = 4")): _loss(
            "message 4 of TEL_edge-1_normal (abc) is missing from readings"
        ),
        ("lost", TOOL, "its log no longer names a file", out_of_log): _loss(
            "batch 4: indexes 0-9 of 10 are missing from readings"
        ),
        ("lost", TOOL, "a file is deleted", _file(Path.unlink)): _loss(
            "2 batches, of which 20 readings are missing, may have them in files that can't be read"
        ),
        ("lost", TOOL, "a file is cut off", _file(cut)): _loss("Parquet magic bytes not found"),
        ("lost", TOOL, "restored to an older version", restored): _loss(
            "batch 4: indexes 0-9 of 10 are missing from readings"
        ),
        ("lost", TOOL, "the last entry of its log is deleted", back_by_log): _said(
            Exit.FAILED, "readings is older than it was"
        ),
        ("doubled", PERSON, "a reading is inserted again", _again(ONE)): _loss(
            "batch 3: indexes 4 are in readings more than once"
        ),
        ("doubled", TOOL, "its log names the same rows twice", twice_in_log): _loss(
            "batch 4: indexes 0-9 are in readings more than once"
        ),
        ("invented", PERSON, "readings of an unknown run", _made(BATCH_3, run=OTHER_RUN)): _loss(
            "10 rows of readings are of batches 3, which no message of bronze explains"
        ),
        ("invented", PERSON, "readings of a batch that its run never had", _made(BATCH_3, n=99)): _loss(
            "10 rows of readings are of batches 99, which no message of bronze explains"
        ),
        ("invented", PERSON, "more readings than a batch has", _made(ONE, index=10)): _loss(
            "batch 3: indexes 10 are in readings and it has 10 only"
        ),
        ("invented", PERSON, "a message that no device sent", _made(DEVICE, source_seq=99)): _loss(
            "1 readings are said to be the messages 99 of TEL_edge-1_normal (abc)"
        ),
        (
            "invented",
            PERSON,
            "a reading of no batch and no message",
            _made(DEVICE, source_seq=None, source_stream=None, source_identity=None),
        ): _loss("1 readings are of no batch and of no message"),
        **{
            ("altered", PERSON, what, _updated(predicate, **{column: new})): _deep(
                of if "index" in of else f"{of}: {OTHER}"
            )
            for what, column, new, predicate, of in (
                (
                    "a value",
                    "value",
                    "1000.0",
                    AT_4,
                    "batch 3, index 4: value is 1000.0, and 304.5 in its payload",
                ),
                ("a text", "text", "'shut'", "n = 6 AND index = 4", "batches 6"),
                ("a time", "ts", "ts + INTERVAL '1 second'", AT_4, "batches 3"),
                (
                    "a device",
                    "device",
                    "'pump-9'",
                    AT_4,
                    "batch 3, index 4: device is pump-9, and pump-3 in its payload",
                ),
                ("a metric", "metric", "'m9'", AT_4, "batches 3"),
                ("the tags", "tags", "MAP(['at'], ['9'])", AT_4, "batches 3"),
                ("the day", "event_date", "DATE '2026-11-22'", AT_4, "batches 3"),
                (
                    "a device's value",
                    "value",
                    "9.0",
                    "source_seq = 4",
                    "messages 4 of TEL_edge-1_normal (abc)",
                ),
            )
        },
        ("altered", BIT, "in a value", _bit("value")): _deep(CRC),
        (
            "moved",
            PERSON,
            "two readings of a batch have changed places",
            lambda lake, table: replaced(lake, table, _swapped),
        ): _deep(f"batches 3: {OTHER}"),
        ("altered", BIT, "in the index of a reading", _bit("index")): _loss(CRC),
        ("moved", PERSON, "a batch to another leaf", _updated("n = 3", domain="'edge-2'")): _loss(
            "10 rows of readings are of batches 3, which no message of bronze explains"
        ),
    },
)

QUARANTINE: Final = _plants(
    "quarantine",
    {
        ("lost", PERSON, "a line is deleted", _sql("n = 2")): _loss(
            "batch 2: indexes 4 of 10 are missing from readings"
        ),
        ("lost", PERSON, "a whole batch is deleted", _sql("n = 5")): _loss(
            "batch 5: indexes 0-9 of 10 are missing from readings"
        ),
        ("lost", PERSON, "a device's message is deleted", _sql("reason = 'bad message'")): _loss(
            "message 5 of TEL_edge-1_normal (abc) is missing from readings"
        ),
        ("lost", TOOL, "a file is deleted", _file(Path.unlink)): _loss("can't be read: it is gone"),
        ("lost", TOOL, "the table is deleted", deleted): _loss(
            "batch 5: indexes 0-9 of 10 are missing from readings"
        ),
        ("doubled", PERSON, "a line is inserted again", _again(F("n") == 2)): _loss(
            "batch 2: indexes 4 are in readings more than once"
        ),
        ("doubled", PERSON, "a whole batch is inserted again", _again(F("n") == 5)): _loss(
            "batch 5: is in quarantine as a whole, 1 times more than once"
        ),
        (
            "doubled",
            PERSON,
            "a device's message is inserted again",
            _again(F("reason") == "bad message"),
        ): _loss("message 5 of TEL_edge-1_normal (abc) is in readings or quarantine more than once"),
        ("invented", PERSON, "a line of a batch that was never sent", _made(F("n") == 2, n=99)): _loss(
            "1 of quarantine are of batches 99, which no message of bronze explains"
        ),
        ("invented", PERSON, "a message that never came", _made(F("reason") == "bad message", seq=99)): _loss(
            "1 rows of quarantine are of sequences 99 of TELEMETRY_0 (2026-11-21T00:00:00Z)"
        ),
        ("altered", PERSON, "what a line was", _updated("n = 2", excerpt="arrow_cast('x', 'Binary')")): _deep(
            f"batches 2: {OTHER}"
        ),
        ("altered", BIT, "in what a line was", _bit("excerpt")): _deep(CRC),
    },
)

CACHE: Final = _plants(
    "seen",
    {
        ("lost", PERSON, "a range is deleted", _sql("space LIKE 'batch/%'")): _said(
            Exit.FAILED, "the cache `seen` does not know 1-7 of batch/edge-1/normal/"
        ),
        ("lost", PERSON, "all rows are deleted", _sql("TRUE")): _said(
            Exit.FAILED, "the cache `seen` does not know 1-11 of source/TEL_edge-1_normal/abc"
        ),
        ("lost", TOOL, "the table is deleted", deleted): (WELL, None),
        ("lost", TOOL, "a file is deleted", _file(Path.unlink)): _said(
            Exit.FAILED, "can't be read: it is gone. The next refine"
        ),
        (
            "invented",
            PERSON,
            "batches that were never sent",
            _made(pc.starts_with(F("space"), "batch/"), first=8, last=20),
        ): _loss("bronze held batches 8-20, and bronze no longer does"),
        ("altered", BIT, "in a range", _bit("last")): _said(Exit.FAILED, CRC),
    },
)

MOVED: Final = [
    *_plants(
        "readings and quarantine",
        {
            ("moved", PERSON, "a reading is deleted, and called a bad line", _called_bad): _deep(
                f"batches 3: {OTHER}"
            ),
        },
    ),
    *_plants(
        "bronze and readings",
        {
            ("lost", PERSON, "a device's message is deleted from both", _message_lost): _loss(
                "source TEL_edge-1_normal/abc: sequences 4 were in bronze"
            ),
        },
    ),
    *_plants(
        "bronze, readings, seen",
        {
            (
                "lost",
                PERSON,
                "a device's message is deleted from both, and the cache",
                _message_forgotten,
            ): _loss("source TEL_edge-1_normal/abc: sequences 4 never came"),
        },
    ),
]

PLANTS: Final = [*BRONZE, *READINGS, *QUARANTINE, *CACHE, *MOVED]
