"""What refine decides and the audit counts beside sets and counters: messages that come again over another
epoch, history or aggregate, other content under a known number, gaps, increments cut anywhere, a cache that
is lost, and readings that are lost or doubled behind refine's back."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from agent.contract.ranges import holes
from hub_jobs.audit.rows import count_rows as counted
from hub_jobs.audit.rows import mismatches, reconcile
from hub_jobs.audit.rows.count_rows import RowCounts, Share
from hub_jobs.refine.dedup import decide
from hub_jobs.refine.messages import QuarantineReason
from hub_jobs.tables.ranges import runs_of
from hub_jobs.tables.schemas import BRONZE, QUARANTINE, READINGS
from hub_jobs.tables.seen import SeenTable
from hub_jobs.tables.spaces import ID_COLUMNS, Places, SeenNumbers, lacking
from tests.harness.examples import machine
from tests.unit.hub_jobs.refined import earlier
from tests.unit.hub_jobs.rows import RUN, batch_row, direct_row

SCHEMA = pa.schema([BRONZE.field(name) for name in ID_COLUMNS])
History = tuple[str, str]
Row = dict[str, Any]
Batch = tuple[str, int]
"""Run and number."""


class Lake(RuleBasedStateMachine):
    """Two aggregates, one of which may be put back; bronze, and what is known of it."""

    def __init__(self) -> None:
        super().__init__()
        self.now: dict[str, History] = {name: (name, "made") for name in ("TELEMETRY_0", "TELEMETRY_1")}
        self.next: dict[History, int] = dict.fromkeys(self.now.values(), 1)
        self.bronze: list[Row] = []
        self.waiting: list[Row] = []
        self.seen = SeenTable()
        self.first: dict[Any, bytes] = {}
        self.messages: set[Any] = set()
        self.kept: list[Row] = []
        self.clashes: list[Row] = []
        self.readings: list[tuple[Batch, int]] = []
        self.quarantine: list[tuple[Batch, int]] = []

    # what comes

    def arrive(self, stream: str, row: Row) -> None:
        history = self.now[stream]
        row |= {"stream": history[0], "created": history[1], "seq": self.next[history]}
        self.next[history] += 1
        self.bronze.append(row)
        self.waiting.append(row)

    @rule(
        stream=st.sampled_from(["TELEMETRY_0", "TELEMETRY_1"]),
        run=st.sampled_from([RUN, RUN[:-1] + "8"]),
        n=st.integers(1, 6),
        place=st.integers(1, 9),
        content=st.sampled_from([b"a", b"a", b"a", b"b"]),
    )
    def a_batch_comes(self, stream: str, run: str, n: int, place: int, content: bytes) -> None:
        text = b"\n".join([content] * (n + 1)) + b"\n"
        self.arrive(stream, batch_row(text, n, run=run, source_seq=place))

    @rule(
        stream=st.sampled_from(["TELEMETRY_0", "TELEMETRY_1"]),
        place=st.integers(1, 9),
        identity=st.sampled_from(["abc", "def"]),
        content=st.sampled_from([b"1", b"2"]),
    )
    def a_device_message_comes(self, stream: str, place: int, identity: str, content: bytes) -> None:
        self.arrive(stream, direct_row(content, source_seq=place, source_identity=identity))

    @rule(stream=st.sampled_from(["TELEMETRY_0", "TELEMETRY_1"]), count=st.integers(1, 5))
    def messages_go_at_the_hub(self, stream: str, count: int) -> None:
        self.next[self.now[stream]] += count

    @rule(back=st.integers(0, 9))
    def the_hub_is_put_back(self, back: int) -> None:
        """Its sequences come again, in a history of their own."""
        before = self.now["TELEMETRY_0"]
        self.refine(0)
        after = ("TELEMETRY_0", f"made~{len(self.next)}")
        self.now["TELEMETRY_0"] = after
        self.next[after] = max(1, self.next[before] - back)

    # what refine does

    @rule(turn=st.integers(0, 5))
    def refine(self, turn: int) -> None:
        """One increment; its rows come in any order."""
        rows, self.waiting = self.waiting, []
        if not rows:
            return
        turned = rows[turn % len(rows) :] + rows[: turn % len(rows)]
        table = pa.Table.from_pylist([{name: row[name] for name in ID_COLUMNS} for row in turned], SCHEMA)
        decision = decide(table, Places.of(table), self.seen.ranges, partial(earlier, self.refined(rows)))
        self.seen.add(table)
        assert decision.unverified == 0
        for row in sorted(rows, key=lambda one: (one["stream"], one["created"], one["seq"])):
            history = (row["stream"], row["created"])
            due = self.due(row)
            assert (row["seq"] in decision.repeated.get(history, ())) == (due == "repeat")
            assert (row["seq"] in decision.other_content.get(history, {})) == (due == "other content")
            if due == "kept":
                self.keep(row)
            elif due == "other content":
                self.clashes.append(row)

    def due(self, row: Row) -> str:
        """What a set of what came says of a row."""
        if row["n"] is None:
            message = (row["source_stream"], row["source_identity"], row["source_seq"], row["digest"])
            known = message in self.messages
            self.messages.add(message)
            return "repeat" if known else "kept"
        batch, content = (row["run"], row["n"]), row["digest"]
        came = (*batch, content)
        known, first = came in self.messages, self.first.setdefault(batch, content)
        self.messages.add(came)
        return "repeat" if known else "kept" if first == content else "other content"

    def keep(self, row: Row) -> None:
        self.kept.append(row)
        if row["n"] is not None:
            batch = (row["run"], row["n"])
            for place in range(row["count"]):
                (self.quarantine if place == 1 else self.readings).append((batch, place))

    def refined(self, rows: list[Row]) -> list[Row]:
        """What was refined before these rows."""
        new = {id(row) for row in (*rows, *self.waiting)}
        return [row for row in self.bronze if id(row) not in new]

    # what may go wrong with the tables

    @rule(cut=st.integers(1, 7))
    def the_cache_is_lost(self, cut: int) -> None:
        """It is made again from bronze, some rows at a time, and is the same."""
        again = SeenTable()
        new = {id(row) for row in self.waiting}
        done = [row for row in self.bronze if id(row) not in new]
        for at in range(0, len(done), cut):
            rows = [{name: row[name] for name in ID_COLUMNS} for row in reversed(done[at : at + cut])]
            again.add(pa.Table.from_pylist(rows, SCHEMA))
        assert again.numbers().spaces == self.seen.numbers().spaces
        self.seen = again

    @rule(which=st.integers(0, 50), twice=st.booleans())
    def a_reading_is_lost_or_doubled(self, which: int, twice: bool) -> None:
        if self.readings:
            at = which % len(self.readings)
            self.readings[at : at + 1] = [self.readings[at]] * (2 if twice else 0)

    @rule(run=st.sampled_from([RUN, RUN[:-1] + "9"]), n=st.integers(1, 200_000), bad=st.booleans())
    def a_row_is_invented(self, run: str, n: int, bad: bool) -> None:
        (self.quarantine if bad else self.readings).append(((run, n), 0))

    @rule(of=st.integers(1, 3), groups=st.integers(1, 3), which=st.integers(0, 30))
    def the_audit_counts(self, of: int, groups: int, which: int) -> None:
        """And bronze may have lost a batch."""
        self.refine(0)
        held = Counter(self.readings) + Counter(self.quarantine)
        counts = {(row["run"], row["n"]): row["count"] for row in self.kept if row["n"] is not None}
        lost = dict(enumerate(counts)).get(which)
        if lost is not None:
            counts.pop(lost)
        bronze = [row for row in self.bronze if (row["run"], row["n"]) != lost or lost is None]
        self.compare_with_the_cache(bronze, lost)
        there: set[Batch] = set()
        strays: Counter[Batch] = Counter()
        for share in (Share(which, of) for which in range(of)):
            found = reconcile.batches(*self.counted(bronze, share, groups))
            for at, n in enumerate(found.strays.number.tolist()):
                batch = (str(found.strays.owners[found.strays.owner[at]][2]), n)
                strays[batch] += int(found.strays.readings[at] + found.strays.quarantined[at])
            for at, n in enumerate(found.n.tolist()):
                batch = (str(found.runs[found.run[at]][2]), n)
                assert batch not in there
                there.add(batch)
                places = [place for (of_batch, place), times in held.items() if of_batch == batch] + [
                    place for (of_batch, place), times in held.items() if of_batch == batch and times > 1
                ]
                whole = Counter(places) == Counter(range(counts[batch]))
                assert bool(found.complete[at]) == whole
                mismatches.look_again(found, at, np.array(sorted(places), dtype=np.int64))
                assert found.missing[at] == counts[batch] - len(set(places))
                assert found.doubled[at] == len(places) - len(set(places))
        assert there == counts.keys()
        assert strays == Counter(batch for batch, _ in held.elements() if batch not in counts)

    def compare_with_the_cache(self, bronze: list[Row], lost: Batch | None) -> None:
        here = SeenNumbers()
        here.add(pa.Table.from_pylist([{name: row[name] for name in ID_COLUMNS} for row in bronze], SCHEMA))
        seen = self.seen.numbers()
        gone = lacking(seen, here)
        assert lacking(here, seen).spaces == {}
        batches = {name: ranges for name, ranges in gone.spaces.items() if name.startswith("batch/")}
        assert batches == ({} if lost is None else {f"batch/edge-1/normal/{lost[0]}": [(lost[1], lost[1])]})
        assert bool(gone.spaces) == (lost is not None)

    def counted(self, bronze: list[Row], share: Share, groups: int) -> tuple[RowCounts, RowCounts, RowCounts]:
        offsets = dict.fromkeys(self.next, 10**9)
        named = [
            {"stream": row["stream"], "created": row["created"], "seq": row["seq"], "line": None}
            | {"domain": "edge-1", "class": "normal", "run": row["run"], "n": row["n"]}
            | {"reason": str(QuarantineReason.OTHER_CONTENT)}
            for row in self.clashes
        ]
        named += [{**_place(batch, place, "line"), "reason": "bad line"} for batch, place in self.quarantine]
        for row in named:
            row |= {"stream": "TELEMETRY_0", "created": "made", "seq": 1} if "seq" not in row else {}
        read = [_place(batch, place, "index") for batch, place in self.readings]
        cuts = np.array_split(np.arange(len(read)), groups)
        return (
            counted.merged("bronze", [counted.bronze(_table(bronze, BRONZE), offsets, share)]),
            counted.merged(
                "readings",
                [counted.readings(_table([read[at] for at in cut], READINGS), share) for cut in cuts],
            ),
            counted.merged("quarantine", [counted.quarantine(_table(named, QUARANTINE), offsets, {}, share)]),
        )

    def teardown(self) -> None:
        self.refine(0)
        self.the_cache_is_lost(3)
        self.the_audit_counts(2, 2, 99)
        for history, after in self.next.items():
            came = {row["seq"] for row in self.bronze if (row["stream"], row["created"]) == history}
            ranges = self.seen.numbers().ranges(f"hub/{history[0]}/{history[1]}")
            assert ranges == runs_of(np.array(sorted(came), dtype=np.int64))
            gone = {seq for first, last in holes(ranges) for seq in range(first, last + 1)}
            assert gone == (set(range(min(came), max(came) + 1)) - came if came else set())
            assert all(seq < after for seq in came)


def _place(batch: Batch, place: int, name: str) -> Row:
    return {"domain": "edge-1", "class": "normal", "run": batch[0], "n": batch[1], name: place}


def _table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    table = pa.Table.from_pylist(rows, schema)
    for at, name in enumerate(table.column_names):
        if name in counted.TEXTS:
            table = table.set_column(at, name, table[name].dictionary_encode())
    return table


TestLake = Lake.TestCase
TestLake.settings = machine(15, 25)
