"""The life of a device, from its first key to its end."""

from __future__ import annotations

import signal
import tomllib

from agent.contract import Exit
from tests.faults.report import Case
from tests.harness.keyed import Pair, pair
from tests.harness.wait import wait_for

__all__ = ["pair"]


def test_a_device_is_let_in_shut_out_let_in_with_another_key_and_forgotten(case: Case, pair: Pair) -> None:
    case.expected = "who has no key any more is cut off, and nothing is lost or doubled"
    server = pair.hub.server()
    assert "edge-1 is let in" in pair.fleet("add", "-", stdin=pair.key())
    pair.leaf.start()
    pair.post()
    pair.arrives(2)  # with the ledger of the start

    assert "edge-1 is shut out" in pair.fleet("revoke", "edge-1")
    wait_for(lambda: not pair.linked(), "its link is cut")
    assert "revoked" in pair.hub.status()["fleet"]["leaves"]["edge-1"]["state"]
    pair.post()
    old = tomllib.loads(pair.key())["leaf"][0]["key"]
    assert "was revoked" in pair.fleet("replace", "edge-1", old, code=Exit.USAGE)

    new = tomllib.loads(pair.key("--new"))["leaf"][0]["key"]
    assert "its new key only" in pair.fleet("replace", "edge-1", new)
    assert not pair.linked()
    assert pair.held() == 2
    assert pair.leaf.end(signal.SIGTERM) == 0
    pair.leaf.start()
    pair.arrives(5)  # the second reading, and the ledgers of the stop and the start

    assert "its readings stay" in pair.fleet("forget", "edge-1")
    fleet = pair.hub.status()["fleet"]
    assert fleet["leaves"] == {}
    wait_for(lambda: pair.hub.status()["fleet"]["aggregates"]["TELEMETRY_0"]["sources"] == 0, "its source")
    wait_for(lambda: not pair.linked(), "its link is cut")
    assert pair.held() == 5
    assert "the hub has no record of 'edge-1'" in pair.fleet("forget", "edge-1"), "it may be forgotten again"
    assert pair.hub.server() == server, "all that by reloading the hub's server"
