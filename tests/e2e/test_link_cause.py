"""A running agent names why its link is down, in the log, in `/status` and by the exit code of `status`, over
real servers, and until when the hub's certificate is valid."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.demo import plan
from agent.demo.loopback import free_port
from tests.harness.agent_process import Agent
from tests.harness.certificates import Authority
from tests.harness.check_cases import pair
from tests.harness.wait import until


def leaf_of(directory: Path, url: str, remote: str = "") -> Agent:
    """A leaf that dials this address."""
    member = plan.member(directory, "edge-1")
    text = plan.leaf_toml(member, free_port())
    before, _, after = text.partition("hub_urls = ")
    rest = after.partition("\n")[2].partition('[[input]]\ntype = "file"')[0]
    return Agent(member, f"{before}hub_urls = {json.dumps([url])}\n{remote}{rest}")


def caused(leaf: Agent) -> Callable[[], bool]:
    return lambda: bool(leaf.status()["link"]["cause"])


@pytest.mark.parametrize(
    ("url", "words", "code"),
    [
        ("nats-leaf://hub.invalid:7422", "the name hub.invalid cannot be resolved (DNS", 5),
        ("nats-leaf://127.0.0.1:{client}", "it is the port for clients of the hub's server", 3),
        ("nats-leaf://127.0.0.1:{leaf}", "it refuses the key of edge-1 (Authorization Violation)", 3),
        ("tls://127.0.0.1:{leaf}", "it speaks no TLS", 3),
        ("ws://127.0.0.1:{leaf}", "the websocket", 3),
    ],
)
async def test_the_cause_of_a_link_that_is_down_is_named(
    url: str, words: str, code: int, tmp_path: Path
) -> None:
    async with pair(tmp_path) as one:
        await one.start_hub()
        leaf = leaf_of(tmp_path / "leaf", url.format(client=one.hub_port, leaf=one.dial_port))
        try:
            leaf.start()
            await until(caused(leaf), "the cause is found")
            assert words in leaf.status()["link"]["cause"]
            said = leaf.petiole("status")
            assert said.returncode == code, said.stdout
            assert f"the link to the hub is down ({url.partition('{')[0]}" in said.stdout
            assert words in leaf.log.read_text()
        finally:
            leaf.close()


async def test_an_expired_certificate_of_the_hub_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.signed("hub", -30.0, begins=-90.0)
    async with pair(tmp_path) as one:
        tls = f', tls {{ cert_file: "{cert}", key_file: "{key}", handshake_first: true }}'
        await one.start_hub(more=tls)
        remote = f'[nats.remote.tls]\nca_file = "{authority.file}"\nhandshake_first = true\n'
        leaf = leaf_of(tmp_path / "leaf", f"tls://leaf:leaf@127.0.0.1:{one.dial_port}", remote)
        try:
            leaf.start()
            await until(caused(leaf), "the cause is found")
            assert (
                "does not trust the hub's certificate: certificate has expired"
                in leaf.status()["link"]["cause"]
            )
            assert leaf.petiole("status").returncode == 3
            found = json.loads(leaf.petiole("check", "--json").stdout)["findings"]
            assert any(
                "the certificate of tls://127.0.0.1" in row["sentence"] and "expired on" in row["sentence"]
                for row in found
            )
            assert not any(row["group"] == "link" and row["level"] != "ok" for row in found), "one cause"
        finally:
            leaf.close()
