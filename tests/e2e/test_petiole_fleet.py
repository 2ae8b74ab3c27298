"""`petiole status --links` and `petiole fleet` beside a running hub and leaf."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from typer.testing import CliRunner, Result

from agent.cli.main import app
from tests.harness.agent_process import PETIOLE, Agent, hub_and_leaf
from tests.harness.hub_lakes import PLACE, report_lake
from tests.harness.wait import WAIT_SECONDS, wait_for

READING = b'{"device":"pump-7","metric":"pressure","value":2.4}'
STREAM = "TEL_edge-1_normal"
ROWS, COLUMNS = 24, 80


class Pair:
    """A hub with its agent and the leaf `edge-1`; a leaf `edge-2` that is enrolled and never comes."""

    def __init__(self, hub: Agent, leaf: Agent) -> None:
        self.hub, self.leaf = hub, leaf

    def says(self, side: Agent, *words: str) -> Result:
        """What a command says in this process, which saves its start."""
        return CliRunner().invoke(app, [*words, "-c", str(side.member.config)])

    def lag(self, side: Agent) -> tuple[int | None, bool]:
        """That of the leaf's telemetry as a side shows it, and whether it is a bound only."""
        rows = json.loads(self.says(side, "status", "--links", "--json").stdout)["lags"]["rows"]
        return next((one["lag"], one["bound"]) for one in rows if one["origin"] == "TEL_edge-1_normal")

    def fleet(self, *options: str) -> tuple[int, list[dict[str, Any]]]:
        """The exit code and the rows."""
        ended = self.says(self.hub, "fleet", "--json", *options)
        return ended.exit_code, json.loads(ended.stdout)["leaves"]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """Running, and what the leaf stores flows."""
    with hub_and_leaf(tmp_path, strangers=1) as (hub, leaf):
        hub.start()
        leaf.start()
        wait_for(lambda: leaf.status()["link"]["state"] == "flowing", "the link flows")
        yield Pair(hub, leaf)


def test_lags_are_those_of_both_ends_and_the_fleet_shows_trouble_first(pair: Pair) -> None:
    _what_flows_has_no_lag(pair)
    _the_screen_fits_a_small_terminal_and_knows_no_colour(pair)
    _it_is_shown_again_and_again_until_interrupted(pair)
    _a_pause_shows_as_a_lag_on_both_sides(pair)
    _a_leaf_that_went_is_told_with_what_it_last_said(pair)
    _a_key_that_cannot_be_read_is_told(pair)


def _what_flows_has_no_lag(pair: Pair) -> None:
    assert pair.leaf.post(READING, "a-1") == 204
    wait_for(lambda: pair.lag(pair.hub) == (0, False), "the hub has it")
    wait_for(lambda: pair.lag(pair.leaf) == (0, False), "the leaf knows")
    wait_for(lambda: [one["state"] for one in pair.fleet()[1]] == ["never", "flowing"], "it flows")
    code, rows = pair.fleet()
    assert (code, [one["domain"] for one in rows]) == (0, ["edge-2", "edge-1"])
    unheard, heard = (one["loss"] for one in rows)
    assert unheard is None
    assert heard is None or heard > 86_400, "a few readings do not fill a stream in a day"
    assert [one["domain"] for one in pair.fleet("edge-?", "--only", "flowing")[1]] == ["edge-1"]
    with urllib.request.urlopen(f"http://127.0.0.1:{pair.hub.member.admin_port}/fleet") as page:
        assert re.findall(rb'href="/fleet/([^"]+)"', page.read()) == [b"edge-2", b"edge-1"]
    plain = pair.says(pair.hub, "fleet")
    assert plain.stdout.splitlines()[0] == "hub: well; 1 never, 1 flowing"
    assert "\x1b" not in plain.stdout


def _the_screen_fits_a_small_terminal_and_knows_no_colour(pair: Pair) -> None:
    for words in (("status", "--links"), ("fleet",)):
        printed = _on_a_terminal(pair.hub, *words).replace("\x1b[2m", "").replace("\x1b[0m", "")
        assert "\x1b" not in printed
        found = printed.splitlines()
        assert 2 < len(found) < ROWS
        assert max(map(len, found)) <= COLUMNS, found


def _it_is_shown_again_and_again_until_interrupted(pair: Pair) -> None:
    command = [PETIOLE, "status", "--watch", "--json", "-c", str(pair.hub.member.config)]
    with subprocess.Popen([*command, "--interval", "0.5"], stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert [json.loads(watching.stdout.readline())["role"] for _ in range(2)] == ["hub", "hub"]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(WAIT_SECONDS) == 0


def _a_pause_shows_as_a_lag_on_both_sides(pair: Pair) -> None:
    pause = ("command", "edge-1", "pause-link", "for=10m", "--wait", "0s")
    assert pair.says(pair.hub, *pause).exit_code == 0
    wait_for(lambda: pair.leaf.status()["link"]["state"] == "paused", "the leaf has paused its link")
    for number in range(5):
        assert pair.leaf.post(READING, f"b-{number}") == 204

    def shown() -> bool:
        return all((lag or 0) >= 5 and not bound for lag, bound in map(pair.lag, (pair.hub, pair.leaf)))

    wait_for(shown, "both sides know what the leaf keeps")
    assert "TELEMETRY_0" in pair.says(pair.leaf, "status", "--links").stdout


def _a_leaf_that_went_is_told_with_what_it_last_said(pair: Pair) -> None:
    pair.leaf.end(signal.SIGTERM)
    assert pair.says(pair.leaf, "server", "stop").exit_code == 0
    wait_for(lambda: pair.fleet("--only", "away")[1] != [], "the hub knows that the leaf is away")
    assert pair.lag(pair.hub)[1] is True, "only a bound is known"
    said = pair.says(pair.hub, "status", "--links").stdout
    assert "≥ " in said
    assert "not linked; last announced at" in said


def _a_key_that_cannot_be_read_is_told(pair: Pair) -> None:
    key = pair.hub.member.state / "keys" / "registrar.nk"
    seed = key.read_bytes()
    key.write_bytes(b"nonsense\n")
    ended = pair.says(pair.hub, "status", "--links")
    key.write_bytes(seed)
    assert ended.exit_code == 2
    assert f"seed file {key} does not hold the seed of a user's NKey" in ended.stderr
    assert seed.decode().strip() not in ended.stderr


def _on_a_terminal(side: Agent, *words: str) -> str:
    """What a command prints on a terminal of 80 columns and 24 rows, with NO_COLOR."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    with pytest.MonkeyPatch.context() as patch, os.fdopen(secondary, "w") as screen:
        patch.setenv("TERM", "xterm-256color")
        patch.setenv("NO_COLOR", "1")
        patch.delenv("COLUMNS", raising=False)
        patch.setattr(sys, "stdout", screen)
        app([*words, "-c", str(side.member.config)], standalone_mode=False)
    printed = b""
    with contextlib.suppress(OSError):  # the end of a terminal whose other side is closed
        while piece := os.read(primary, 65_536):
            printed += piece
    os.close(primary)
    return printed.decode()


def rows(pair: Pair, side: Agent) -> dict[str, dict[str, Any]]:
    """The rows of one side by the consumer's name."""
    found = json.loads(pair.says(side, "status", "--consumers", "--json").stdout)["consumers"]
    assert found["problem"] == ""
    return {row["name"]: row for row in found["rows"]}


async def read(url: str, seed: Path) -> None:
    """A consumer that begins at the second message, is handed it and does not acknowledge it."""
    nc = await nats.connect(url, nkeys_seed=str(seed), inbox_prefix="_INBOX_edge-1")
    js = nc.jetstream()
    config = ConsumerConfig(
        name="slow",
        durable_name="slow",
        ack_policy=AckPolicy.EXPLICIT,
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=2,
    )
    await js.add_consumer(STREAM, config)
    commands = await js.pull_subscribe_bind("slow", stream=STREAM)
    await commands.fetch(1, timeout=WAIT_SECONDS)
    await nc.close()


def test_each_consumer_is_shown_with_how_far_it_is_and_what_is_left(pair: Pair) -> None:
    for number in range(3):
        assert pair.leaf.post(READING, f"a-{number}") == 204
    member = pair.leaf.member
    asyncio.run(read(member.nats_url, member.state / "keys" / "agent.nk"))
    slow = rows(pair, pair.leaf)["slow"]
    assert (slow["stream"], slow["filter"], slow["ack_floor"], slow["delivered"]) == (STREAM, ">", 1, 2)
    assert (slow["ack_pending"], slow["redelivered"]) == (1, 0)
    assert slow["lag"] == slow["pending"] + 1 >= 2
    assert 0 <= slow["active"] < 60
    assert any(name.startswith("hub-") for name in rows(pair, pair.leaf))
    assert rows(pair, pair.hub)["cmd-edge-1"]["filter"] == "cmd.edge-1.>"
    head, *printed = pair.says(pair.leaf, "status", "--consumers").stdout.splitlines()[1:]
    assert head.split()[:2] == ["STREAM", "CONSUMER"]
    assert [STREAM, "slow", "1", "2"] in [line.split()[:4] for line in printed]
    assert pair.says(pair.leaf, "status", "--consumers", "--watch").exit_code == 2


def test_a_lake_is_shown_and_replaced_by_a_person_at_the_hub_alone(pair: Pair) -> None:
    first, second = (f"00000000-0000-4000-8000-00000000000{n}" for n in (1, 2))
    assert "knows no lake yet" in pair.says(pair.hub, "lake", "show").stdout
    adopt = ("lake", "adopt", second, "--instead-of")
    for side, words, code, said in (
        (pair.leaf, (*adopt, first), 2, "name the hub's configuration"),
        (pair.hub, ("lake", "adopt", "mine", "--instead-of", first), 2, "is not the id of a lake"),
        (pair.hub, (*adopt, first), 4, "knows no lake yet"),
    ):
        ended = pair.says(side, *words)
        assert (ended.exit_code, said in ended.stderr) == (code, True), ended.stderr
    pair.leaf.post(READING, "one")
    report_lake(pair.hub, first)
    shown = json.loads(pair.says(pair.hub, "lake", "show", "--json").stdout)
    assert (shown["id"], shown["place"]) == (first, PLACE)
    assert pair.says(pair.hub, *adopt, second).exit_code == 4, "the hub's lake is another one"
    assert pair.says(pair.hub, *adopt, first).exit_code == 0
    assert second in pair.says(pair.hub, "lake", "show").stdout
    assert "lake adopted" in pair.hub.log.read_text()
