"""`petiole check` and a server that says of itself that it is unhealthy: a finding only where that lasts."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from agent.cli.checks import local_probe
from tests.harness.check_cases import bad, check, config_of
from tests.harness.servers import Leaf, ServerPair
from tests.harness.streams import make_leaf_stream

STALL_SECONDS = 0.5
UNHEALTHY = "the server says of itself"


class Answers:
    """What the real server has answered to HEALTHZ; `after` runs after the first answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: Callable[[], None]) -> None:
        self.seen: list[int] = []
        self._after, self._ask = after, local_probe._ask
        monkeypatch.setattr(local_probe, "_ask", self.ask)

    async def ask(self, nc: Client, question: str, server: str) -> Mapping[str, Any] | None:
        answer = await self._ask(nc, question, server)
        if question == local_probe.HEALTH:
            self.seen.append(int((answer or {}).get("status_code", 200)))
            if len(self.seen) == 1:
                self._after()
        return answer


async def _unrecovered(leaf: Leaf) -> Path:
    """Make the server unhealthy: its store has the directory of a stream that it has not recovered. Returns
    that directory."""
    await make_leaf_stream(await leaf.connect("agent"), leaf.domain, "e")
    (stream,) = leaf.config.store_dir.rglob(f"streams/TEL_{leaf.domain}_normal")
    stray = stream.with_name("stray")
    stray.mkdir()
    return stray


async def test_one_bad_answer_and_a_stall_are_no_finding(
    servers: ServerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stray = await _unrecovered(servers.leaf)

    def recover_and_stall() -> None:
        shutil.rmtree(stray)
        servers.leaf.pause()
        asyncio.get_running_loop().call_later(STALL_SECONDS, servers.leaf.resume)

    answers = Answers(monkeypatch, recover_and_stall)
    found = await check(config_of(servers.leaf, tmp_path / "state"))
    assert answers.seen[0] >= 400
    assert answers.seen[-1] == 200
    assert not [one for one in bad(found) if one.startswith(UNHEALTHY)]


async def test_a_server_that_stays_unhealthy_is_a_finding(servers: ServerPair, tmp_path: Path) -> None:
    await _unrecovered(servers.leaf)
    found = await check(config_of(servers.leaf, tmp_path / "state"))
    assert [one for one in bad(found) if one.startswith(UNHEALTHY) and "stray" in one], bad(found)
