"""Requests that are repeated under their keys: at once, after a kill, in parallel, and with another body."""

from __future__ import annotations

from tests.faults.matrix.conftest import Worlds
from tests.faults.matrix.test_processes import WHOLE, ended_and_back, judged
from tests.faults.report import Case
from tests.faults.world.repeats import Forger, Hoarder, ManyHanded, Repeater


def test_every_request_is_repeated_under_its_key(world_of: Worlds, case: Case) -> None:
    case.expected = "each repeat is acknowledged, and stored once"
    with world_of(devices=0, direct=False) as w:
        one = Repeater(w.leaf.member, *w.load.series(w.leaf.member, "again-1"), w.load.notes)
        w.injected.add("each request is sent three times under its key", one.trace)
        w.load.start(one)
        w.load.flows(40)
        w.verdict()


def test_requests_are_repeated_under_their_keys_after_the_agent_was_killed(
    world_of: Worlds, case: Case
) -> None:
    case.expected = "each repeat is acknowledged, and stored once"
    with world_of(devices=1) as w:
        one = Hoarder(w.leaf.member, *w.load.series(w.leaf.member, "again-1"), w.load.notes)
        w.load.start(one)
        w.load.flows(40)
        w.leaf.agent.kill()
        ended_and_back(w, w.leaf)
        w.injected.add("all that was acknowledged before is sent again under its keys", one.trace)
        assert one.repeat_all() == []
        judged(w)


def test_a_request_is_sent_over_four_connections_at_once_under_one_key(world_of: Worlds, case: Case) -> None:
    case.expected = f"it is acknowledged on each of them, and stored once; {WHOLE}"
    with world_of(devices=0, direct=False) as w:
        one = ManyHanded(w.leaf.member, *w.load.series(w.leaf.member, "hands-1"), w.load.notes)
        w.injected.add("each request is sent over four connections at once", one.trace)
        w.load.start(one)
        w.load.flows(20)
        w.leaf.agent.kill()
        ended_and_back(w, w.leaf)
        w.load.flows(20)
        judged(w)


def test_a_key_is_used_again_for_another_request(world_of: Worlds, case: Case) -> None:
    case.expected = "it is refused (422), before and after a kill, and nothing of it is stored"
    with world_of(devices=1, direct=False) as w:
        one = Forger(w.leaf.member, *w.load.series(w.leaf.member, "forger-1"), w.load.notes)
        w.injected.add("each key is used again for another request", one.trace)
        w.load.start(one)
        w.load.flows(20)
        w.leaf.agent.kill()
        ended_and_back(w, w.leaf)
        w.load.flows(20)
        assert one.other == []
        judged(w)
