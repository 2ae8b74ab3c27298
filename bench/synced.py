"""What syncing costs: two leaves alike but for `sync_interval`, each a nats-server with an agent, loaded in
turns. Readings a second that were answered as stored, by the wall clock, for a disk costs waiting."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final

from bench.loading import loading
from bench.relink_world import AgentProcess, Server, link_world

_SYNCED: Final = "synced"
_NOT: Final = "not"
_WARM_SECONDS: Final = 1.0
_SECONDS: Final = 3.0
_ROOM: Final = "64GiB"
"""Nobody takes from these streams, and one that is full refuses, which ends the load."""
_ALWAYS: Final = 'sync_interval: "always"'


def rates(connections: int, readings: int, rounds: int) -> tuple[list[float], list[float]]:
    """Readings a second on a server that syncs every message, and on one that does so each two minutes, its
    own default; round by round."""
    found: dict[str, list[float]] = {_SYNCED: [], _NOT: []}
    with (
        tempfile.TemporaryDirectory(prefix="petiole-bench-") as directory,
        link_world(Path(directory), list(found), stream=_ROOM) as servers,
    ):
        _no_sync(servers.leaves[_NOT])
        for domain in found:
            servers.leaves[domain].start()
            servers.agents[domain].start()
        for _ in range(rounds):
            for domain, of in found.items():
                of.append(_rate(servers.agents[domain], connections, readings))
    return found[_SYNCED], found[_NOT]


def _no_sync(server: Server) -> None:
    path = server.directory / "nats-server.conf"
    text = path.read_text()
    assert text.count(_ALWAYS) == 1
    path.write_text(text.replace(_ALWAYS, ""))


def _rate(agent: AgentProcess, connections: int, readings: int) -> float:
    with loading(agent.http_port, connections, readings, "ndjson") as load:
        time.sleep(_WARM_SECONDS)
        began, first = time.monotonic(), load.answered()
        time.sleep(_SECONDS)
        return (load.answered() - first) * readings / (time.monotonic() - began)
