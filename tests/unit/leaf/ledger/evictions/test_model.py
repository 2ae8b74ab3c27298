"""What is discarded, against a model of a stream, its link consumer and the hub: nothing that is lost goes
unnamed, and where the link only flows nothing is named that the hub has."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent.contract import H_COUNT, H_MESSAGE_ID, batch_subject, ledger_subject, new_run
from agent.jetstream import ConsumerInfo, StreamInfo
from agent.jetstream.readers import StoredHeaders
from agent.leaf.ledger.evictions import IndexedMessage, StreamObservation
from agent.leaf.ledger.evictions.tracker import EvictionTracker

MAX_BYTES = 1000
STEPS = ("own", "own", "direct", "ledger", "discard", "deliver", "deliver", "look", "ask", "trim")
BREAKS = ("cut", "restore", "crash", "stop", "crash in a look", "failed trim", "epoch")
READS = ("crash, and read slowly", "stop, and read slowly", "read", "read", "read on")
"""An agent that comes back and reads what the stream holds, while all else goes on."""


@pytest.fixture(scope="module", autouse=True)
def _unsynced() -> Iterator[None]:
    """No power is cut here, and some thousand files are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda _descriptor: None)
        # So few are remembered while the stream is read that it often has to be read on.
        patch.setattr("agent.leaf.ledger.evictions.tracker.MAX_WAITING", 3)
        yield


@dataclass
class Model:
    """One class of a leaf, whose messages are numbers from 1 on; `mine` are the agent's."""

    directory: Path
    run: str = field(default_factory=new_run)
    n: int = 0
    last: int = 0
    held: list[int] = field(default_factory=list)
    mine: dict[int, IndexedMessage] = field(default_factory=dict)
    hub: set[int] = field(default_factory=set)
    cursor: int = 0
    confirmed: int = 0
    delivered: int = 0
    deliveries: int = 0
    linked: bool = True
    written: int = 0
    torn: set[int] = field(default_factory=set)
    above: int = 0
    end: int = 0
    trimmed: set[int] = field(default_factory=set)
    """What the agent trimmed."""
    forgotten: set[int] = field(default_factory=set)
    """What the hub lost that it had when it went from the stream."""
    epoch: str = "e"
    start: int = 1

    def __post_init__(self) -> None:
        self.begin()

    def begin(self, *, slowly: bool = False) -> None:
        """A new run of the agent, which reads what the stream holds: at once, or step by step."""
        self.run, self.n = new_run(now_ns=10**18 + len(self.mine) * 10**9), 0
        self.tracker = EvictionTracker(self.directory, "d", "c", self.run)
        above = self.tracker.load(self.info())
        assert above is not None
        # What went before it was written is named by its sequence alone.
        self.torn |= {seq for seq in self.mine if seq > self.written and seq not in self.held}
        self.above, self.end = above, self.last
        if not slowly:
            self.read_on()

    def read(self) -> bool:
        """Read the next message of the agent's own; whether there was one."""
        begin = max(self.above, self.tracker.top)
        left = [seq for seq in self.held if begin < seq <= self.end and seq in self.mine]
        if left and not self.tracker.loaded:
            self.above = left[0]
            self.tracker.read(self.message(left[0]))
        return bool(left)

    def read_on(self) -> None:
        """Read to the end."""
        while not self.tracker.loaded:
            while self.read():
                pass
            self.tracker.taken_up()  # what was stored since the reading began was not read
            self.end = self.last
            self.written = self.last if self.tracker.loaded else max(self.written, self.tracker.top)

    @property
    def first(self) -> int:
        """The stream's first sequence."""
        return self.held[0] if self.held else self.last + 1

    def info(self) -> StreamInfo:
        """The stream as its server reports it; always full."""
        return StreamInfo("TEL_d_c", "now", self.first, self.last, len(self.held), MAX_BYTES, {}, [])

    def message(self, seq: int) -> StoredHeaders:
        """A message as the stream holds it."""
        one = self.mine.get(seq)
        if one is None:
            return StoredHeaders(seq, 0.0, {}, "tel.d.c.device.metric")
        if not one.run:
            return StoredHeaders(seq, 0.0, {H_MESSAGE_ID: "ledger"}, ledger_subject("d", "c"))
        headers = {H_MESSAGE_ID: f"{one.run}-c-{one.n}", H_COUNT: str(one.readings)}
        return StoredHeaders(seq, 0.0, headers, batch_subject("d", "c", "http"))

    def own(self, run: str, n: int, readings: int) -> None:
        """Store a message of the agent."""
        self.direct()
        self.mine[self.last] = IndexedMessage(self.last, run, n, readings)
        self.tracker.stored(self.mine[self.last])

    def direct(self) -> None:
        """Store a message of a device."""
        self.last += 1
        self.held.append(self.last)

    def deliver(self) -> None:
        """The hub takes the next message."""
        waiting = [seq for seq in self.held if seq > self.delivered]
        if self.linked and waiting:
            self.delivered, self.deliveries = waiting[0], self.deliveries + 1
            self.hub.add(waiting[0])
            self.cursor = waiting[0]

    def save(self) -> None:
        """Have on disk what is known now."""
        self.tracker.save(self.tracker.content())
        self.written = self.last if self.tracker.loaded else max(self.written, self.tracker.top)

    def look(self, *, crash: bool = False) -> None:
        """As the service does; the agent may crash before what it found is saved."""
        if not self.tracker.loaded:
            return
        floor = max((seq for seq in self.hub if seq <= self.cursor - 1), default=0)
        reached = (self.delivered, self.deliveries, floor)
        consumer = ConsumerInfo("c", "", *reached, 0, 0, self.start, 0.0, True, {})
        seen = StreamObservation(self.info(), consumer, self.epoch, self.confirmed)
        self.tracker.look(seen, MAX_BYTES)
        data = self.tracker.content()
        self.written = self.last
        if crash:
            self.begin()
            return
        self.tracker.save(data)
        self.tracker.tidy()

    def step(self, what: str) -> None:
        """One thing happens."""
        match what:
            case "own":
                self.n += 1
                self.own(self.run, self.n, 10 + self.n % 3)
            case "ledger":
                self.own("", 0, 0)
            case "direct" | "deliver" | "look":
                getattr(self, what)()
            case "discard":
                # What is not read yet is named by its sequence alone.
                if not self.tracker.loaded:
                    self.torn |= {seq for seq in self.held[:2] if seq > self.tracker.top and seq in self.mine}
                del self.held[:2]
            case "ask" if self.linked:
                self.confirmed = self.cursor
            case "trim" | "failed trim" if self.linked and self.held and self.first < self.cursor:
                self.confirmed, up_to = self.cursor, self.cursor - 1
                self.tracker.trims(self.first, up_to, self.epoch)
                self.save()
                if what != "trim":
                    return
                self.trimmed |= {seq for seq in self.held if seq <= up_to}
                self.held = [seq for seq in self.held if seq > up_to]
            case "cut" if self.linked:
                # What is under way is lost.
                self.linked = False
                self.delivered += len([seq for seq in self.held if seq > self.delivered][:1])
                self.deliveries += 1
            case "epoch" if self.linked:
                # The hub is restored without its newest messages, and the link begins behind what it has.
                restored = set(sorted(self.hub)[:-2])
                self.forgotten |= {seq for seq in self.hub - restored if seq < self.first}
                self.hub = restored
                self.trimmed &= self.hub
                self.cursor = self.delivered = max(self.hub, default=0)
                self.epoch, self.start = f"{self.epoch}e", self.cursor + 1
                self.confirmed = self.deliveries = 0
            case "restore" if not self.linked:
                self.linked, self.delivered, self.deliveries = True, self.cursor, 0
            case "stop" | "stop, and read slowly":
                self.save()
                self.begin(slowly=what != "stop")
            case "crash, and read slowly":
                self.begin(slowly=True)
            case "read" if not self.tracker.loaded:
                self.read()
            case "read on":
                self.read_on()
            case "crash":
                self.begin()
            case "crash in a look":
                self.look(crash=True)

    def named(self) -> tuple[set[tuple[str, int]], set[int]]:
        """Numbers of runs, and sequences, that are said to be discarded or in doubt."""
        known = self.tracker.claims
        numbers = {
            (run, n)
            for run, one in known.runs.items()
            for first, last, _, _ in one.ranges
            for n in range(first, last + 1)
        } | {(run, n) for _, run, n, _ in known.doubtful if run}
        seqs = {seq for first, last, _, _ in known.gone for seq in range(first, last + 1)}
        return numbers, seqs | {seq for seq, _, _, _ in known.doubtful}


def play(steps: list[str]) -> Model:
    """What the model is like when all of this has happened and was looked at."""
    with tempfile.TemporaryDirectory() as directory:
        model = Model(Path(directory))
        for step in [*steps, "read on", "look"]:
            model.step(step)
        return model


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(STEPS + BREAKS + READS), max_size=60))
@example(["own", "own", "discard", "crash in a look"])
@example([*["own"] * 3, "crash, and read slowly", "read", "own", "own", "read on", *["discard"] * 3])
@example([*["own"] * 3, "crash, and read slowly", "read", *["own"] * 9, "read on", *["discard"] * 6])
@example(["own", "crash", "discard", "crash"])
@example([*["own"] * 6, *["deliver"] * 5, "look", "cut", "restore", "trim", "crash"])
@example(["own", "deliver", "own", "look", "discard", "crash in a look", "own", "discard", "look", "crash"])
@example([*["own", "deliver"] * 5, "look", "failed trim", "epoch", "discard", "discard", "look"])
@example([*["own", "deliver"] * 5, "look", "trim", "epoch", "look", "own", "deliver", "trim", "look"])
@example([*["own", "deliver"] * 5, "failed trim", "epoch", "deliver", "trim", "discard", "look"])
def test_whatever_is_lost_is_named(steps: list[str]) -> None:
    model = play(steps)
    numbers, seqs = model.named()
    lost = {seq for seq in range(1, model.first) if seq not in model.hub} - model.forgotten
    assert lost <= seqs
    assert not model.trimmed & seqs, "what was trimmed is at the hub"
    assert (
        not {(model.mine[seq].run, model.mine[seq].n) for seq in model.trimmed & model.mine.keys()} & numbers
    )
    unnamed = {
        seq
        for seq in lost & model.mine.keys() - model.torn
        if model.mine[seq].run and (model.mine[seq].run, model.mine[seq].n) not in numbers
    }
    assert not unnamed
    for run, one in model.tracker.claims.runs.items():
        named = [n for first, last, _, _ in one.ranges for n in range(first, last + 1)]
        assert one.readings == sum(readings for _, _, readings, _ in one.ranges)
        assert one.readings == sum(10 + n % 3 for n in named), run


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_named_that_the_hub_took_while_its_link_flowed(seed: int) -> None:
    choose = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        model = Model(Path(directory))
        for _ in range(60):
            step = choose.choice([one for one in (*STEPS, "stop") if one != "discard"])
            model.step("look" if not model.tracker.claims.epoch else step)
            if model.held and choose.random() < 0.3 and model.first <= model.delivered:
                del model.held[:1]  # the stream discards, and never what the link had yet to take
        model.step("ask")
        model.step("look")
        numbers, seqs = model.named()
        assert not numbers
        assert not seqs


def test_what_is_trimmed_after_others_were_evicted_over_another_connection_is_not_named() -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = Model(Path(directory))
        for step in [*["own"] * 6, *["deliver"] * 5, "look", "cut", "restore", "discard", "trim", "look"]:
            model.step(step)
        numbers, seqs = model.named()
        assert model.trimmed == {3, 4}
        assert (numbers, seqs) == ({(model.run, 1), (model.run, 2)}, {1, 2}), "of these it is not known"
        assert model.tracker.claims.runs[model.run].readings == 10 + 1 + 10 + 2


def test_a_purge_that_fails_leaves_what_is_discarded_later_at_the_hub() -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = Model(Path(directory))
        for step in [*["own"] * 5, *["deliver"] * 5, "look", "cut", "restore"]:
            model.step(step)
        model.tracker.trims(1, 3, model.epoch)
        model.tracker.trims(1, 4, model.epoch)
        for step in ["look", "discard", "look", "cut", "restore", "discard", "look"]:
            model.step(step)
        assert model.named() == (set(), set())


def test_a_cut_names_exactly_what_went_and_counts_it() -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = Model(Path(directory))
        for step in ["own", "own", "deliver", "deliver", "ask", "look", "cut", *["own", "direct"] * 3]:
            model.step(step)
        for _ in range(3):
            model.step("discard")
        model.step("look")
        claims = model.tracker.claims
        assert [(first, last) for first, last, _, _ in claims.runs[model.run].ranges] == [(3, 4)]
        assert claims.runs[model.run].readings == sum(10 + n % 3 for n in (3, 4))
        assert [(first, last, direct) for first, last, direct, _ in claims.gone] == [(3, 6, 2)]


@pytest.mark.parametrize("end", ["stop", "crash"])
def test_what_went_while_the_agent_was_away_is_named_for_its_run(end: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        model = Model(Path(directory))
        for step in ["own", "deliver", "ask", "own", "own", "own", "look", "cut"]:
            model.step(step)
        before = model.run
        if end == "stop":
            model.tracker.save(model.tracker.content())
        for _ in range(5):
            model.direct()
        del model.held[:3]
        model.begin()
        model.step("look")
        found = model.tracker.claims
        assert [one[:3] for one in found.runs[before].ranges] == [(3, 3, 10)]
        assert [seq for seq, _, _, _ in found.doubtful] == [2], "it was under way when the link was cut"
        for step in ["restore", "deliver", "look"]:
            model.step(step)
        assert [one[:3] for one in model.tracker.claims.runs[before].ranges] == [(2, 3, 12 + 10)]
        assert not model.tracker.claims.doubtful
