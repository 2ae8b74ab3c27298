"""Declared links: what is made of the configuration, and what is said and done in each state."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from agent import config as settings
from agent.config import Config, Transform
from agent.config.mirrors import Declared, Origin, declared, key_of
from agent.mirrors.decide import (
    BY_ITSELF,
    LinkState,
    Memory,
    StreamAction,
    decide_link,
    decide_stream,
    remember,
)
from agent.mirrors.observation import STALLED, Entry, Here, There
from agent.mirrors.service import needs
from agent.server.setup import link_rights

CREATED, OTHER = "2026-11-21T06:00:00Z", "2026-11-21T07:00:00Z"
HUB = Origin("PLANS", "hub", "$JS.hub.API", "petiole.link.hub.edge-1.PLANS")
MIRROR = Declared("PLANS", "mirror", (HUB,), 1000)
SOURCE = Declared("ALL", "source", (HUB,), 1000)
WELL = There("answers", CREATED, first=1, last=50, newest=50)
AWAY = There("silent", problem="the link is down")


def here(one: Declared, entry: Entry, **changes: Any) -> Here:
    """The stream as it was made, with its one link in this state."""
    seen = Here(one.kind, one.made(CREATED), 50, 1, entry.seq, CREATED, {HUB.key: entry})
    return replace(seen, **changes)


ALIVE, DEAD = Entry(0.5, 50), Entry(30.0, 40)


NEW = Memory()


@dataclass(frozen=True)
class Case:
    """What is seen of a link, and the state, lag and words that follow."""

    name: str
    one: Declared
    entry: Entry
    there: There
    state: LinkState
    lag: int | None
    words: str
    nudge: bool = False
    memory: Memory = NEW


CASES = [
    Case("all is here", MIRROR, ALIVE, WELL, LinkState.FLOWING, 0, "all messages of PLANS of domain hub"),
    Case("behind", MIRROR, replace(ALIVE, seq=47), WELL, LinkState.LAGGING, 3, "3 messages"),
    Case(
        "behind a filter",
        MIRROR,
        replace(ALIVE, seq=40),
        replace(WELL, newest=45, exact=False),
        LinkState.LAGGING,
        5,
        "at most 5 messages",
    ),
    Case(
        "what was purged at the origin is not missing",
        SOURCE,
        replace(ALIVE, seq=3),
        replace(WELL, first=49),
        LinkState.LAGGING,
        2,
        "2 messages",
    ),
    Case(
        "the origin does not answer, messages come", SOURCE, ALIVE, AWAY, LinkState.UNKNOWN, None, "not known"
    ),
    Case("the link is down", SOURCE, DEAD, AWAY, LinkState.DOWN, None, "the link is down"),
    Case(
        "never heard, and nobody answers", SOURCE, Entry(None, 0), AWAY, LinkState.DOWN, None, "link is down"
    ),
    Case("the link has just come up", SOURCE, DEAD, WELL, LinkState.WAITING, 10, "asks again by itself"),
    Case(
        "silence with nothing missing is not well",
        SOURCE,
        replace(DEAD, seq=50),
        WELL,
        LinkState.WAITING,
        0,
        "was not heard from",
    ),
    Case(
        "a source that was not heard for a second is added again",
        SOURCE,
        DEAD,
        WELL,
        LinkState.WAITING,
        10,
        "asks again",
        nudge=True,
        memory=Memory(unheard_since=99.0),
    ),
    Case(
        "what did not help is repeated more rarely",
        SOURCE,
        DEAD,
        WELL,
        LinkState.WAITING,
        10,
        "asks again",
        memory=Memory(unheard_since=90.0, nudges=3, nudged_at=95.0),
    ),
    Case(
        "a lasting silence names the permissions",
        MIRROR,
        DEAD,
        WELL,
        LinkState.WAITING,
        10,
        "$JS.hub.API.CONSUMER.CREATE.PLANS",
        nudge=True,
        memory=Memory(unheard_since=100.0 - BY_ITSELF),
    ),
    Case(
        "flow control does not come back",
        SOURCE,
        replace(ALIVE, seq=20, err_code=STALLED, error="stalled on flow control"),
        WELL,
        LinkState.REFUSED,
        30,
        "$JS.FC.PLANS.>",
    ),
    Case(
        "the origin refuses",
        SOURCE,
        replace(ALIVE, error="no such thing"),
        WELL,
        LinkState.REFUSED,
        0,
        "no such thing",
    ),
    Case("there is no origin", SOURCE, DEAD, There("absent"), LinkState.ABSENT, None, "does not exist"),
    Case(
        "the origin of a mirror was made again",
        MIRROR,
        ALIVE,
        replace(WELL, created=OTHER),
        LinkState.RECREATED,
        None,
        "set recreate = true",
    ),
    Case(
        "the origin of a mirror was put back",
        MIRROR,
        ALIVE,
        replace(WELL, last=20, newest=20),
        LinkState.RECREATED,
        None,
        "older copy",
    ),
    Case(
        "the origin of a source was put back",
        SOURCE,
        ALIVE,
        replace(WELL, last=20, newest=20),
        LinkState.RECREATED,
        None,
        "ends at 20",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda one: one.name)
def test_each_state_of_a_link_has_its_sentence_and_its_lag(case: Case) -> None:
    verdict = decide_link(case.one, HUB, here(case.one, case.entry), case.there, case.memory, 100.0)
    assert (verdict.state, verdict.lag, verdict.nudge) == (case.state, case.lag, case.nudge)
    assert case.words in verdict.sentence


def test_nobody_elses_stream_is_touched() -> None:
    foreign = here(MIRROR, ALIVE, kind="")
    assert decide_stream(MIRROR, foreign, WELL, 0.0) is None
    verdict = decide_link(MIRROR, HUB, foreign, WELL, Memory(), 0.0)
    assert verdict.state is LinkState.FOREIGN


FRESH = replace(MIRROR, recreate=True)
ELSEWHERE = replace(MIRROR, origins=(replace(HUB, filter="plans.b"),))


@pytest.mark.parametrize(
    ("name", "one", "seen", "there", "waited", "action"),
    [
        ("a source is made at once", SOURCE, None, AWAY, 0.0, "make"),
        ("a mirror waits for its origin", MIRROR, None, AWAY, 1.0, None),
        ("but not for ever", MIRROR, None, AWAY, 9.0, "make"),
        ("a mirror whose origin answers is made", MIRROR, None, WELL, 0.0, "make"),
        ("all is well", MIRROR, here(MIRROR, ALIVE), WELL, 0.0, None),
        ("a limit was changed", replace(MIRROR, max_bytes=7), here(MIRROR, ALIVE), WELL, 0.0, "update"),
        ("its origin is noted", MIRROR, here(MIRROR, ALIVE, origin_created=""), WELL, 0.0, "update"),
        ("an origin was added", replace(SOURCE, origins=(HUB, replace(HUB, stream="B"))),
         here(SOURCE, ALIVE), WELL, 0.0, "update"),
        ("a mirror that may hold the only copy stays", MIRROR, here(MIRROR, ALIVE),
         replace(WELL, created=OTHER), 0.0, None),
        ("an empty one is made anew", MIRROR, here(MIRROR, ALIVE, messages=0),
         replace(WELL, created=OTHER), 0.0, "recreate"),
        ("one that may go is made anew", FRESH, here(FRESH, ALIVE),
         replace(WELL, created=OTHER), 0.0, "recreate"),
        ("another filter does not delete it", ELSEWHERE, here(MIRROR, ALIVE), WELL, 0.0, None),
        ("unless it may go", replace(ELSEWHERE, recreate=True), here(MIRROR, ALIVE), WELL, 0.0, "recreate"),
        ("and never while the origin is away", replace(ELSEWHERE, recreate=True),
         here(MIRROR, ALIVE), AWAY, 0.0, None),
    ],
)  # fmt: skip
def test_a_stream_is_made_changed_or_left(
    name: str, one: Declared, seen: Here | None, there: There, waited: float, action: StreamAction | None
) -> None:
    assert decide_stream(one, seen, there, waited) == action, name


def test_what_is_remembered_ends_when_the_link_is_heard() -> None:
    waiting = decide_link(SOURCE, HUB, here(SOURCE, DEAD), WELL, Memory(), 5.0)
    first = remember(Memory(), waiting, 5.0)
    assert first == Memory(5.0, 0, 0.0)
    due = decide_link(SOURCE, HUB, here(SOURCE, DEAD), WELL, first, 7.0)
    assert remember(first, due, 7.0) == Memory(5.0, 1, 7.0)
    well = decide_link(SOURCE, HUB, here(SOURCE, ALIVE), WELL, first, 8.0)
    assert remember(first, well, 8.0) == Memory()


def test_the_configuration_becomes_streams_and_their_origins() -> None:
    start = datetime(2026, 11, 21, 7, 0, 0, 500000, tzinfo=timezone(timedelta(hours=1)))
    config = Config(
        domain="edge-1",
        mirror=[
            settings.Mirror(name="PLANS", start_time=start),
            settings.Mirror(name="B", of="PLANS", api="JS.acc@hub.API", deliver="d.x", start_sequence=7),
        ],
        source=[
            settings.Source(
                name="ALL",
                from_=[
                    settings.Origin(of="HERE", domain="edge-1"),
                    settings.Origin(of="PLANS", transforms=[Transform("a.>", "b.>")]),
                ],
            )
        ],
    )
    plans, b, everything = declared(config)
    assert plans.made(CREATED)["mirror"] == {
        "name": "PLANS",
        "external": {"api": "$JS.hub.API", "deliver": "petiole.link.hub.edge-1.PLANS"},
        "opt_start_time": "2026-11-21T06:00:00.5Z",
    }
    assert b.made("")["mirror"] == {
        "name": "PLANS",
        "external": {"api": "JS.acc@hub.API", "deliver": "d.x"},
        "opt_start_seq": 7,
    }
    own, hub = everything.made("")["sources"]
    assert own == {"name": "HERE"}
    assert hub["subject_transforms"] == [{"src": "a.>", "dest": "b.>"}]
    assert [key_of(row) for row in (own, hub)] == [one.key for one in everything.origins]
    assert everything.link(everything.origins[1]) == "ALL from PLANS@hub"
    assert datetime.fromisoformat(plans.origins[0].start_time).astimezone(UTC) == start


def test_an_external_server_is_told_every_subject_that_a_link_needs() -> None:
    config = Config(domain="edge-1", mirror=[settings.Mirror(name="HERE", of="PLANS")])
    own, way = needs(declared(config), link_rights(config))
    for subject in (
        "$JS.API.STREAM.CREATE.HERE",
        "$JS.API.STREAM.DELETE.HERE",
        "$JS.hub.API.STREAM.INFO.PLANS",
    ):
        assert subject in own
    for subject in (
        "$JS.hub.API.CONSUMER.CREATE.PLANS.>",
        "$JS.FC.PLANS.>",
        "petiole.link.hub.edge-1.HERE.>",
    ):
        assert subject in way


def test_an_agent_without_declared_links_does_not_hold_their_keeper_in_memory() -> None:
    program = "import agent.process.leaf, sys; sys.exit('agent.mirrors.controller' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
