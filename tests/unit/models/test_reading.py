"""The plan of a streaming read beside a set of sequences: through growth, purges, recreated streams, batches
that are run again after a crash, and streams that come later, nothing is read twice, left out or invented."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from hub_jobs.source.plan import OffsetLost, Range, parse_offsets, resolve, split
from hub_jobs.source.progress import (
    StreamPositions,
    advance,
    begun,
    check,
    decode,
    encode,
    ends,
    ranges,
    remaining,
)
from hub_jobs.source.streams import HubStream
from tests.harness.examples import machine

NAMES = ("A", "B")
Read = tuple[str, str, int]


@dataclass
class Held:
    """A stream as its server has it: sequences `first` to `last` of the incarnation `made`."""

    made: int = 1
    first: int = 1
    last: int = 0


class Reading(RuleBasedStateMachine):
    """One query over two streams, that goes on with what is there or stops at a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = {NAMES[0]: Held()}
        self.ever: set[Read] = set()
        self.gone: set[Read] = set()
        self.read: set[Read] = set()
        self.places: StreamPositions = begun({name: self.resolved(name, "earliest") for name in self.streams})
        self.planned: list[Range] | None = None
        self.after: StreamPositions = {}

    def infos(self) -> dict[str, HubStream]:
        return {
            name: HubStream(name, f"made {one.made}", one.first, one.last, 0, 0, 0)
            for name, one in self.streams.items()
        }

    def resolved(self, name: str, start: str) -> Range:
        return resolve(self.infos()[name], parse_offsets(start, "s"), parse_offsets("latest", "e"), True)

    def held(self, name: str) -> set[Read]:
        one = self.streams[name]
        return {(name, f"made {one.made}", seq) for seq in range(one.first, one.last + 1)}

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 30))
    def messages_come(self, name: str, count: int) -> None:
        self.streams.setdefault(name, Held()).last += count
        self.ever |= self.held(name)

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 40))
    def messages_are_purged(self, name: str, count: int) -> None:
        if name in self.streams:
            one = self.streams[name]
            before = self.held(name)
            one.first = min(one.first + count, one.last + 1)
            self.gone |= before - self.held(name)

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 30))
    def the_stream_is_made_anew(self, name: str, count: int) -> None:
        if name in self.streams:
            self.gone |= self.held(name)
            self.streams[name] = Held(self.streams[name].made + 1, last=count)
            self.ever |= self.held(name)

    @precondition(lambda self: self.planned is None)
    @rule(most=st.none() | st.integers(1, 20), fail=st.booleans())
    def a_batch_is_planned(self, most: int | None, fail: bool) -> None:
        infos = self.infos()
        due = set().union(*(self.held(name) for name in self.streams)) - self.read
        try:
            after = advance(self.places, infos, ends(infos), most, fail)
        except OffsetLost:
            assert fail
            return
        self.after = decode(json.loads(json.dumps(encode(after))))
        self.planned = ranges(self.places, self.after)
        rows = self.rows(self.planned)
        assert len(rows) == sum(one.size for one in self.planned), "no sequence twice"
        assert not rows & self.read
        assert rows <= due | self.gone, "nothing that never was"
        assert most is None or len(rows - self.gone) <= most
        if not rows and self.after == self.places:
            assert not due, "whoever has nothing to do has read all"

    def rows(self, parts: list[Range]) -> set[Read]:
        return {(one.stream, one.created, seq) for one in parts for seq in range(one.first, one.last + 1)}

    @precondition(lambda self: self.planned is not None)
    @rule(least=st.integers(1, 5), most=st.integers(1, 9), fail=st.booleans(), crash=st.booleans())
    def it_is_read(self, least: int, most: int, fail: bool, crash: bool) -> None:
        """A batch that is not committed stays as it was planned."""
        assert self.planned is not None
        infos, planned = self.infos(), self.planned
        if fail:
            try:
                for one in planned:
                    check(one, infos.get(one.stream))
            except OffsetLost:
                assert self.rows(planned) & self.gone, "what is there can be read"
                return
            assert not self.rows(planned) & self.gone
        else:
            planned = [remaining(one, infos.get(one.stream)) for one in planned]
        parts = split(planned, least, most)
        assert self.rows(parts) == self.rows(planned)
        assert sum(one.size for one in parts) == len(self.rows(parts))
        found = {row for row in self.rows(parts) if row in self.held(row[0])}
        assert found == self.rows(self.planned) - self.gone
        assert self.rows(parts) - found <= self.gone
        assert all(infos[one.stream].created == one.created for one in parts), "else it could not be read"
        if not crash:
            self.read |= found
            self.places, self.planned = self.after, None

    def teardown(self) -> None:
        for _ in range(60):
            if self.planned is None:
                self.a_batch_is_planned(None, False)
            self.it_is_read(2, 9, False, False)
        assert self.ever - self.gone <= self.read, "all that is there is read in the end"
        assert self.read <= self.ever, "nothing is invented"
        for name in self.streams:
            assert self.rows([self.resolved(name, "earliest")]) == self.held(name)


TestReading = Reading.TestCase
TestReading.settings = machine(100, 30)
