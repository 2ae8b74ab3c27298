"""Keys are taken in by a running hub, or refused."""

from __future__ import annotations

import signal
import tomllib

from agent.contract import Exit
from tests.harness.keyed import Pair, pair
from tests.harness.wait import wait_for

__all__ = ["pair"]


def test_a_running_hub_takes_a_leaf_in_and_shuts_it_out(pair: Pair) -> None:
    server = pair.hub.server()
    assert "edge-1 is let in" in pair.fleet("add", "-", stdin=pair.key())
    assert pair.hub.status()["fleet"]["leaves"]["edge-1"]["state"] == "never seen"
    assert "edge-1 is let in no more" in pair.fleet("revoke", "edge-1")
    assert "is revoked" in pair.hub.status()["fleet"]["leaves"]["edge-1"]["state"]
    assert pair.hub.server() == server, "all that by reloading the hub's server"


def test_what_cannot_be_taken_in_leaves_the_file_and_the_running_hub_as_they_are(pair: Pair) -> None:
    before = pair.hub.member.config.read_text()
    assert "not a public key" in pair.fleet("add", "edge-1", "UX", code=Exit.USAGE)
    key = tomllib.loads(pair.key())["leaf"][0]["key"]
    assert "petiole itself" in pair.fleet("add", "jobs", key, code=Exit.USAGE)
    seed = (pair.leaf.member.state / "keys" / "link.nk").read_text().strip()
    said = pair.fleet("add", "edge-1", seed, code=Exit.USAGE)
    assert "private key" in said
    assert seed not in said
    assert pair.hub.member.config.read_text() == before
    pair.hub.member.config.write_text(before + "nonsense = 1\n")
    assert pair.hub.process is not None
    server = pair.hub.server()
    pair.hub.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "configuration rejected" in pair.hub.log.read_text(), "the hub has refused it")
    wait_for(lambda: pair.hub.status_of("/readyz") == 200, "the hub goes on")
    assert pair.hub.server() == server
    pair.hub.member.config.write_text(before)
    pair.hub.end(signal.SIGTERM)
    assert "applies it when it starts" in pair.fleet("add", "edge-1", key)
