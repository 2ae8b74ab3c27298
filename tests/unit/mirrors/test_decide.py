"""Declared links: what is made of the configuration, and what is said and done in each state."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec.structs import replace

from agent import config as settings
from agent.config import Config, Transform
from agent.config.mirrors import Declared, ResolvedOrigin, declared, key_of
from agent.jetstream.info import STALLED, CopyStatus
from agent.mirrors.controller import required_permissions
from agent.mirrors.decide import (
    BY_ITSELF,
    MirrorMemory,
    MirrorState,
    StreamAction,
    decide_link,
    decide_stream,
    remember,
)
from agent.mirrors.observation import LocalStream, RemoteStream
from agent.server.setup import link_rights

CREATED, OTHER = "2026-11-21T06:00:00Z", "2026-11-21T07:00:00Z"
HUB = ResolvedOrigin("PLANS", "hub", "$JS.hub.API", "petiole.link.hub.edge-1.PLANS")
MIRROR = Declared("PLANS", "mirror", (HUB,), 1000)
SOURCE = Declared("ALL", "source", (HUB,), 1000)
WELL = RemoteStream("answers", CREATED, first=1, last=50, newest=50)
AWAY = RemoteStream("silent", problem="the link is down")


def local(copy: Declared, entry: CopyStatus, **changes: Any) -> LocalStream:
    """The stream as it was made, with its one link in this state."""
    local_stream = LocalStream(copy.kind, copy.made(CREATED), 50, 1, entry.seq, CREATED, {HUB.key: entry})
    return replace(local_stream, **changes)


ALIVE, DEAD = CopyStatus(50, 0.5), CopyStatus(40, 30.0)


NEW = MirrorMemory()


@dataclass(frozen=True)
class Case:
    """What is seen of a link, and the state, lag and words that follow."""

    name: str
    copy: Declared
    entry: CopyStatus
    remote: RemoteStream
    state: MirrorState
    lag: int | None
    words: str
    nudge: bool = False
    memory: MirrorMemory = NEW


CASES = [
    Case("all is here", MIRROR, ALIVE, WELL, MirrorState.FLOWING, 0, "all messages of PLANS of domain hub"),
    Case("behind", MIRROR, replace(ALIVE, seq=47), WELL, MirrorState.LAGGING, 3, "3 messages"),
    Case(
        "behind a filter",
        MIRROR,
        replace(ALIVE, seq=40),
        replace(WELL, newest=45, exact=False),
        MirrorState.LAGGING,
        5,
        "at most 5 messages",
    ),
    Case(
        "what was purged at the origin is not missing",
        SOURCE,
        replace(ALIVE, seq=3),
        replace(WELL, first=49),
        MirrorState.LAGGING,
        2,
        "2 messages",
    ),
    Case(
        "the origin does not answer, messages come",
        SOURCE,
        ALIVE,
        AWAY,
        MirrorState.UNKNOWN,
        None,
        "not known",
    ),
    Case("the link is down", SOURCE, DEAD, AWAY, MirrorState.DOWN, None, "the link is down"),
    Case(
        "never heard, and nobody answers",
        SOURCE,
        CopyStatus(0, None),
        AWAY,
        MirrorState.DOWN,
        None,
        "link is down",
    ),
    Case("the link has just come up", SOURCE, DEAD, WELL, MirrorState.WAITING, 10, "asks again by itself"),
    Case(
        "silence with nothing missing is not well",
        SOURCE,
        replace(DEAD, seq=50),
        WELL,
        MirrorState.WAITING,
        0,
        "was not heard from",
    ),
    Case(
        "a source that was not heard for a second is added again",
        SOURCE,
        DEAD,
        WELL,
        MirrorState.WAITING,
        10,
        "asks again",
        nudge=True,
        memory=MirrorMemory(unheard_since=99.0),
    ),
    Case(
        "what did not help is repeated more rarely",
        SOURCE,
        DEAD,
        WELL,
        MirrorState.WAITING,
        10,
        "asks again",
        memory=MirrorMemory(unheard_since=90.0, nudges=3, nudged_at=95.0),
    ),
    Case(
        "a lasting silence names the permissions",
        MIRROR,
        DEAD,
        WELL,
        MirrorState.WAITING,
        10,
        "$JS.hub.API.CONSUMER.CREATE.PLANS",
        nudge=True,
        memory=MirrorMemory(unheard_since=100.0 - BY_ITSELF),
    ),
    Case(
        "flow control does not come back",
        SOURCE,
        replace(ALIVE, seq=20, error_code=STALLED, error="stalled on flow control"),
        WELL,
        MirrorState.REFUSED,
        30,
        "$JS.FC.PLANS.>",
    ),
    Case(
        "the origin refuses",
        SOURCE,
        replace(ALIVE, error="no such thing"),
        WELL,
        MirrorState.REFUSED,
        0,
        "no such thing",
    ),
    Case(
        "there is no origin", SOURCE, DEAD, RemoteStream("absent"), MirrorState.ABSENT, None, "does not exist"
    ),
    Case(
        "the origin of a mirror was recreated",
        MIRROR,
        ALIVE,
        replace(WELL, created=OTHER),
        MirrorState.RECREATED,
        None,
        "set recreate = true",
    ),
    Case(
        "the origin of a mirror was restored",
        MIRROR,
        ALIVE,
        replace(WELL, last=20, newest=20),
        MirrorState.RECREATED,
        None,
        "restored from a backup",
    ),
    Case(
        "the origin of a source was restored",
        SOURCE,
        ALIVE,
        replace(WELL, last=20, newest=20),
        MirrorState.RECREATED,
        None,
        "ends at 20",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda copy: copy.name)
def test_each_state_of_a_link_has_its_sentence_and_its_lag(case: Case) -> None:
    verdict = decide_link(case.copy, HUB, local(case.copy, case.entry), case.remote, case.memory, 100.0)
    assert (verdict.state, verdict.lag, verdict.nudge) == (case.state, case.lag, case.nudge)
    assert case.words in verdict.sentence


def test_nobody_elses_stream_is_touched() -> None:
    foreign = local(MIRROR, ALIVE, kind="")
    assert decide_stream(MIRROR, foreign, WELL, 0.0) is None
    verdict = decide_link(MIRROR, HUB, foreign, WELL, MirrorMemory(), 0.0)
    assert verdict.state is MirrorState.FOREIGN


FRESH = replace(MIRROR, recreate=True)
ELSEWHERE = replace(MIRROR, origins=(replace(HUB, filter="plans.b"),))


@pytest.mark.parametrize(
    ("name", "copy", "local_stream", "remote", "waited", "action"),
    [
        ("a source is made at once", SOURCE, None, AWAY, 0.0, "make"),
        ("a mirror waits for its origin", MIRROR, None, AWAY, 1.0, None),
        ("but not for ever", MIRROR, None, AWAY, 9.0, "make"),
        ("a mirror whose origin answers is made", MIRROR, None, WELL, 0.0, "make"),
        ("all is well", MIRROR, local(MIRROR, ALIVE), WELL, 0.0, None),
        ("a limit was changed", replace(MIRROR, max_bytes=7), local(MIRROR, ALIVE), WELL, 0.0, "update"),
        ("its origin is noted", MIRROR, local(MIRROR, ALIVE, origin_created=""), WELL, 0.0, "update"),
        ("an origin was added", replace(SOURCE, origins=(HUB, replace(HUB, stream="B"))),
         local(SOURCE, ALIVE), WELL, 0.0, "update"),
        ("a mirror that may hold the only copy stays", MIRROR, local(MIRROR, ALIVE),
         replace(WELL, created=OTHER), 0.0, None),
        ("an empty mirror is recreated", MIRROR, local(MIRROR, ALIVE, messages=0),
         replace(WELL, created=OTHER), 0.0, "recreate"),
        ("one that may be deleted is recreated", FRESH, local(FRESH, ALIVE),
         replace(WELL, created=OTHER), 0.0, "recreate"),
        ("another filter does not delete it", ELSEWHERE, local(MIRROR, ALIVE), WELL, 0.0, None),
        ("unless it may go", replace(ELSEWHERE, recreate=True), local(MIRROR, ALIVE), WELL, 0.0, "recreate"),
        ("and never while the origin is away", replace(ELSEWHERE, recreate=True),
         local(MIRROR, ALIVE), AWAY, 0.0, None),
    ],
)  # fmt: skip
def test_a_stream_is_created_changed_or_left(
    name: str,
    copy: Declared,
    local_stream: LocalStream | None,
    remote: RemoteStream,
    waited: float,
    action: StreamAction | None,
) -> None:
    assert decide_stream(copy, local_stream, remote, waited) == action, name


def test_what_is_remembered_ends_when_the_link_is_heard() -> None:
    waiting = decide_link(SOURCE, HUB, local(SOURCE, DEAD), WELL, MirrorMemory(), 5.0)
    first = remember(MirrorMemory(), waiting, 5.0)
    assert first == MirrorMemory(5.0, 0, 0.0)
    due = decide_link(SOURCE, HUB, local(SOURCE, DEAD), WELL, first, 7.0)
    assert remember(first, due, 7.0) == MirrorMemory(5.0, 1, 7.0)
    well = decide_link(SOURCE, HUB, local(SOURCE, ALIVE), WELL, first, 8.0)
    assert remember(first, well, 8.0) == MirrorMemory()


def test_the_configuration_becomes_streams_and_their_origins() -> None:
    start = datetime(2026, 11, 21, 7, 0, 0, 500000, tzinfo=timezone(timedelta(hours=1)))
    config = Config(
        domain="edge-1",
        mirror=[
            settings.MirrorConfig(name="PLANS", start_time=start),
            settings.MirrorConfig(
                name="B", of="PLANS", api="JS.acc@hub.API", deliver="d.x", start_sequence=7
            ),
        ],
        source=[
            settings.SourceConfig(
                name="ALL",
                from_=[
                    settings.OriginConfig(of="HERE", domain="edge-1"),
                    settings.OriginConfig(of="PLANS", transforms=[Transform("a.>", "b.>")]),
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
    assert [key_of(row) for row in (own, hub)] == [copy.key for copy in everything.origins]
    assert everything.link(everything.origins[1]) == "ALL from PLANS@hub"
    assert datetime.fromisoformat(plans.origins[0].start_time).astimezone(UTC) == start


def test_an_external_server_is_given_every_subject_that_a_link_needs() -> None:
    config = Config(domain="edge-1", mirror=[settings.MirrorConfig(name="HERE", of="PLANS")])
    own, way = required_permissions(declared(config), link_rights(config))
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


def test_an_agent_without_declared_links_does_not_hold_their_controller_in_memory() -> None:
    program = "import agent.process.leaf, sys; sys.exit('agent.mirrors.controller' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
