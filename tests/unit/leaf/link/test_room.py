"""Seconds to loss, from what a stream shows; and which class is stored while the disk runs short."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.base.files import Room
from agent.base.metrics import Metrics
from agent.config import Size, StreamClass
from agent.contract import parse_reading
from agent.jetstream import StreamInfo
from agent.leaf.intake import Chunk, RefusalReason, RefusedError, ResumePoint
from agent.leaf.link.room import FARTHEST, DiskQuota, TimeToLoss, TimeToLossReport
from tests.harness.intakes import NoLetters
from tests.harness.wait import until

SIZE = 1000
MAX_BYTES = 1_000_000


def stream(last: int, first: int = 1, created: str = "c", size: int = SIZE) -> StreamInfo:
    messages = last - first + 1
    return StreamInfo("TEL", created, first, last, messages, messages * size, {}, [])


def after(horizon: TimeToLoss, looks: int, rate: int, *, behind: float = 1.0, cls: str = "normal") -> float:
    """What is said after so many looks at 10 s with `rate` messages each; the hub takes `1 - behind` of
    them."""
    seconds = math.inf
    for look in range(looks):
        last = 1 + look * rate
        seconds = horizon.observe(cls, stream(last), round(last * (1 - behind)), 10.0 * look)
    return seconds


def test_a_leaf_whose_hub_is_away_says_when_its_stream_is_full() -> None:
    horizon = TimeToLoss({"normal": MAX_BYTES})
    # 500 of 1,000 messages are there, ten more come each ten seconds.
    assert after(horizon, 50, 10) == pytest.approx((1000 - 491) / 1.0, rel=0.05)


def test_a_first_look_says_nothing_and_a_full_stream_says_nought() -> None:
    horizon = TimeToLoss({"normal": MAX_BYTES})
    assert horizon.observe("normal", stream(900), 0, 0.0) == math.inf
    assert horizon.observe("normal", stream(1000), 0, 10.0) == 0.0


@pytest.mark.parametrize("messages", [951, 1000])
def test_a_backlog_that_leaves_no_room_for_a_batch_says_nought_at_the_first_look_and_ever_after(
    messages: int,
) -> None:
    horizon = TimeToLoss({"normal": MAX_BYTES})
    assert [horizon.observe("normal", stream(messages), 0, 1e5 * look) for look in range(5)] == [0.0] * 5
    assert TimeToLoss({"normal": MAX_BYTES}).observe("normal", stream(1000), 999, 0.0) == math.inf, "trimmed"


def test_a_stream_that_refuses_everything_says_nought_until_what_it_refused_would_have_room() -> None:
    horizon = TimeToLoss({"normal": MAX_BYTES})
    horizon.observe("normal", stream(700), 0, 0.0)
    horizon.refused("normal", 400_000, 1.0)
    horizon.refused("normal", 10_000, 2.0)
    assert horizon.left("normal") == 0.0
    assert {horizon.observe("normal", stream(700 + look), 0, 1e3 * look) for look in range(1, 90)} == {0.0}
    horizon.trimmed("normal")
    assert horizon.observe("normal", stream(790, first=500), 0, 1e6) > 0.0


def test_a_refusal_for_another_limit_than_those_known_here_says_nought_for_a_minute() -> None:
    horizon = TimeToLoss({"normal": MAX_BYTES})
    horizon.refused("normal", 1000, 0.0)
    assert horizon.observe("normal", stream(100), 0, 59.0) == 0.0
    assert horizon.observe("normal", stream(100), 0, 61.0) == math.inf
    horizon.refused("normal", 1000, 62.0)
    horizon.trimmed("normal")
    assert horizon.observe("normal", stream(100), 0, 63.0) == math.inf


def test_a_class_that_takes_nothing_in_for_another_reason_says_nought_meanwhile() -> None:
    horizon, reasons = TimeToLoss({"normal": MAX_BYTES}), {"normal": "the disk is short"}
    horizon.refusing = reasons.get
    assert horizon.left("normal") == 0.0
    reasons.clear()
    assert horizon.left("normal") == math.inf


def test_a_disk_without_room_says_nought_though_nothing_comes() -> None:
    horizon = TimeToLoss({"normal": MAX_BYTES})
    assert horizon.observe("normal", stream(100), 0, 0.0, free=0) == 0.0
    assert horizon.observe("normal", stream(100), 100, 10.0, free=0) == math.inf, "all can be trimmed"


def test_a_stream_that_discards_goes_on_losing_and_one_that_is_trimmed_does_not() -> None:
    losing, trimmed = TimeToLoss({"normal": MAX_BYTES}), TimeToLoss({"normal": MAX_BYTES})
    seconds = {"losing": math.inf, "trimmed": 0.0}
    for look in range(100):
        last = 1000 + 10 * look
        info = stream(last, first=last - 999)
        seconds["losing"] = losing.observe("normal", info, 0, 10.0 * look)
        seconds["trimmed"] = trimmed.observe("normal", info, last - 5, 10.0 * look)
    assert seconds == {"losing": 0.0, "trimmed": math.inf}


def test_a_stream_that_drains_loses_nothing() -> None:
    horizon = TimeToLoss({"normal": MAX_BYTES})
    after(horizon, 50, 10)
    confirmed, last, seconds = 0, 491, 0.0
    for look in range(50, 80):
        last, confirmed = last + 10, min(last, confirmed + 300)
        seconds = horizon.observe("normal", stream(last), confirmed, 10.0 * look)
    assert seconds == math.inf


def test_a_stream_that_is_caught_up_between_two_announcements_loses_nothing() -> None:
    horizon = TimeToLoss({"normal": MAX_BYTES})
    for look in range(1, 100):
        # Each look sees another part of what came since the last one still under way.
        behind = (look * 7) % 10
        last = look * 10
        assert horizon.observe("normal", stream(last), last - behind, 10.0 * look) == math.inf


def test_a_link_that_is_too_slow_is_told_though_it_flows() -> None:
    horizon = TimeToLoss({"normal": MAX_BYTES})
    assert after(horizon, 60, 10, behind=0.6) == pytest.approx((1000 - 0.6 * 591) / 0.6, rel=0.1)


def test_what_stops_coming_is_no_threat() -> None:
    horizon = TimeToLoss({"normal": MAX_BYTES})
    after(horizon, 50, 10)
    seconds = [horizon.observe("normal", stream(491), 0, 500.0 + 10 * look) for look in range(60)]
    assert seconds == sorted(seconds), "ever later"
    assert seconds[-1] > 1e5


def test_a_stream_that_was_made_again_begins_anew() -> None:
    horizon = TimeToLoss({"normal": MAX_BYTES})
    after(horizon, 50, 10)
    assert horizon.observe("normal", stream(1, created="d"), 0, 500.0) == math.inf


def test_a_disk_with_less_room_than_the_stream_may_take_is_what_ends_first() -> None:
    horizon = TimeToLoss({"normal": MAX_BYTES})
    horizon.observe("normal", stream(100), 0, 0.0, free=50_000)
    seconds = horizon.observe("normal", stream(110), 0, 10.0, free=40_000)
    assert seconds == pytest.approx(40.0)


def test_what_is_confirmed_and_not_trimmed_yet_is_room() -> None:
    horizon = TimeToLoss({"normal": MAX_BYTES})
    horizon.observe("normal", stream(500), 400, 0.0, free=0)
    assert horizon.observe("normal", stream(600), 400, 10.0, free=0) == pytest.approx(40.0)


def test_two_classes_share_the_store() -> None:
    horizon = TimeToLoss({"normal": MAX_BYTES, "alarms": MAX_BYTES}, max_file_store=300_000)
    for name in ("normal", "alarms"):
        horizon.observe(name, stream(100), 0, 0.0)
    horizon.observe("normal", stream(110), 0, 10.0)
    assert horizon.observe("alarms", stream(110), 0, 10.0) == pytest.approx(40.0)


@given(
    st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(0, 10_000), st.floats(0.0, 1000.0)),
        min_size=1,
        max_size=30,
    )
)
def test_whatever_is_seen_it_says_no_negative_number(looks: list[tuple[int, int, float]]) -> None:
    horizon, now = TimeToLoss({"normal": MAX_BYTES}, MAX_BYTES), 0.0
    for last, confirmed, pause in looks:
        now += pause
        assert horizon.observe("normal", stream(last), confirmed, now, free=confirmed) >= 0.0


class Taken(NoLetters):
    """An intake that keeps what it is given, or refuses it."""

    domain = "edge-1"

    def __init__(self) -> None:
        self.chunks: list[tuple[str, str, Chunk]] = []
        self.refuses = False

    async def submit(self, input_name: str, cls: str, chunk: Chunk) -> None:
        self.chunks.append((input_name, cls, chunk))
        if self.refuses:
            raise RefusedError(RefusalReason.FULL, "full", 1.0)

    async def position(self, input_name: str) -> ResumePoint:
        return ResumePoint()


async def test_a_minute_in_which_something_moved_is_told_and_one_in_which_nothing_did_is_not() -> None:
    horizon, metrics, taken = TimeToLoss({"alarms": 10**6, "normal": 10**6}), Metrics(), Taken()
    report = TimeToLossReport(horizon, "alarms", metrics, seconds=0.02)
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(report.run(taken, stopping))
        await asyncio.sleep(0.1)
        assert not taken.chunks
        horizon.observe("normal", stream(100), 0, 0.0)
        horizon.observe("normal", stream(110), 0, 10.0)
        await until(lambda: len(taken.chunks) == 1, "it is told")
        horizon.observe("normal", stream(113), 0, 13.0)  # two ledger records and the report itself
        await asyncio.sleep(0.1)
        assert len(taken.chunks) == 1
        taken.refuses = True
        horizon.observe("normal", stream(120), 0, 20.0)
        await until(lambda: len(taken.chunks) == 2, "it goes on after a refusal")
        stopping.set()
    name, cls, chunk = taken.chunks[0]
    assert (name, cls, chunk.count) == ("agent", "alarms", 2)
    told = {one.tags["class"]: one for one in map(parse_reading, chunk.payload.splitlines())}
    assert told["alarms"].value == FARTHEST
    assert told["normal"].value == (1000 - 110) / 1.0
    assert told["normal"].metric == "petiole_seconds_to_loss"
    assert metrics.registry.get_sample_value("petiole_seconds_to_loss", {"class": "alarms"}) == math.inf


MIB = 2**20
CLASSES = {
    "critical": StreamClass(name="critical", max_bytes=Size(10 * MIB), priority=1),
    "normal": StreamClass(name="normal", max_bytes=Size(20 * MIB)),
    "other": StreamClass(name="other", max_bytes=Size(20 * MIB)),
    "bulk": StreamClass(name="bulk", max_bytes=Size(100 * MIB), priority=50),
}


class Disk:
    """A disk with a reserve of 5 MiB, and what the streams on it hold."""

    def __init__(self) -> None:
        self.room: Room | None = None
        self.held = dict.fromkeys(CLASSES, 0.0)
        self.quotas = DiskQuota(CLASSES, self.held.__getitem__, lambda: self.room)

    def refused(self, free: int) -> set[str]:
        """The classes that are held back with so many MiB free."""
        self.room = Room(free * MIB, 5 * MIB)
        return {name for name in CLASSES if self.quotas.refusal(name) is not None}


def test_each_class_leaves_what_those_before_it_may_still_need() -> None:
    disk = Disk()
    assert disk.refused(60) == set()
    assert disk.refused(59) == {"bulk"}
    assert disk.refused(19) == {"bulk", "normal", "other"}
    assert disk.refused(1) == {"bulk", "normal", "other"}, "critical is refused by the reserve alone"


def test_what_a_stream_holds_already_needs_no_room_any_more() -> None:
    disk = Disk()
    disk.held |= {"critical": 9.0 * MIB, "normal": 25.0 * MIB, "other": 10.0 * MIB}
    assert disk.refused(21) == set()
    assert disk.refused(20) == {"bulk"}


def test_a_class_that_was_held_back_begins_again_with_a_reserve_to_spare() -> None:
    disk = Disk()
    assert disk.refused(50) == {"bulk"}
    assert disk.refused(62) == {"bulk"}
    assert disk.refused(65) == set()
    assert disk.refused(62) == set()


def test_nobody_is_held_back_while_nothing_is_known_of_the_disk() -> None:
    disk = Disk()
    assert disk.quotas.refusal("bulk") is None
    disk.refused(1)
    disk.room = None
    assert disk.quotas.refusal("bulk") is None


def test_the_sentence_names_who_the_room_is_for_and_what_to_do() -> None:
    disk = Disk()
    disk.refused(20)
    said = disk.quotas.refusal("bulk") or ""
    assert "the 50 MiB that class critical, normal, other may still need are reserved for it" in said
    assert "class bulk is stored again when there is more room: free some" in said
