"""What `petiole test` and `petiole tap` show, without a server."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from agent.base.logs import harmless, shown
from agent.cli.main import app
from agent.cli.tap import Filter, filtered_batch
from agent.cli.test import Screen, run
from agent.contract import BatchHeaders, Clock, Letter, MessageId, batch_subject, new_run
from agent.jetstream import RawMessage
from agent.leaf.intake import Chunk, Intake
from tests.harness.agent_process import PETIOLE

LINES = b"".join(
    json.dumps({"ts": 1, "device": device, "metric": metric, "value": 1.5, "tags": {"a": "b"}}).encode()
    + b"\n"
    for device, metric in (("pump-1", "pressure"), ("pump-2", "rpm"), ("\x1b[2Jevil\u202e", "rpm"))
)


def message(payload: bytes, input_name: str = "http", *, compressed: bool = True) -> RawMessage:
    """A batch as it is stored."""
    headers = BatchHeaders(MessageId(new_run(0), "normal", 7), 3, 10**18, Clock(True, "b", 1), compressed)
    data = zstandard.compress(payload) if compressed else payload
    return RawMessage(9, batch_subject("edge-1", "normal", input_name), headers.encode(), data, "")


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (Filter(), 3),
        (Filter(frozenset({"http", "file"})), 3),
        (Filter(frozenset({"file"})), 0),
        (Filter(devices=("pump-?",)), 2),
        (Filter(devices=("pump-1", "pump-2"), metrics=("r*",)), 1),
        (Filter(metrics=("x*",)), 0),
    ],
)
def test_a_filter_keeps_the_readings_that_fit_each_of_its_parts(wanted: Filter, count: int) -> None:
    passed = filtered_batch(message(LINES), wanted)

    assert (0 if passed is None else len(passed.readings)) == count


def test_a_batch_is_shown_for_people_and_for_programs() -> None:
    passed = filtered_batch(message(LINES, compressed=False), Filter(devices=("pump-1",)))
    assert passed is not None

    assert passed.as_text().splitlines() == [
        "01:46:40.000 normal http seq 9 batch 7: 1 of 3 readings",
        "  1 pump-1 pressure = 1.5 {a=b}",
    ]
    row = json.loads(passed.as_json())
    assert (row["class"], row["input"], row["seq"], row["n"], row["count"]) == ("normal", "http", 9, 7, 3)
    assert [reading["device"] for reading in row["readings"]] == ["pump-1"]


def test_what_is_not_a_batch_is_left_out_and_a_broken_one_is_told() -> None:
    ledger = RawMessage(1, "tel.edge-1.normal._ledger", {}, b"{}", "")
    assert filtered_batch(ledger, Filter()) is None

    broken = message(b"no json\n")
    for one in (broken, RawMessage(1, broken.subject, broken.headers, b"no zstd", "")):
        passed = filtered_batch(one, Filter())
        assert passed is not None
        assert "can't be read" in passed.as_text()
        assert "problem" in json.loads(passed.as_json())


@given(st.text())
def test_no_name_reaches_a_terminal_as_anything_but_text(name: str) -> None:
    assert all(char.isprintable() for char in shown(name))
    line = json.dumps({"device": name}, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"
    assert json.loads(harmless(line).decode(errors="surrogatepass")) == {"device": name}
    assert not any(char in "\x7f\x9b\x1b" for char in harmless(line).decode(errors="surrogatepass"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("test", "--input", "fiel"),
            "--input fiel: there is no such input; the configuration has host, mqtt",
        ),
        (("test", "--for", "soon"), "--for 'soon' is not a duration"),
        (("test", "--input", "mqtt"), "input mqtt is not run"),
        (("tap", "--class", "other"), "--class other: there is no such class; it has normal"),
    ],
)
def test_a_wrong_command_line_is_told(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    config = tmp_path / "petiole.toml"
    config.write_text(
        f'domain = "edge-1"\nstate_dir = "{tmp_path}"\n[nats]\nhub_urls = ["nats-leaf://127.0.0.1:1"]\n'
        '[[input]]\ntype = "host"\n[[input]]\ntype = "mqtt"\nurl = "mqtt://127.0.0.1:1"\n'
        'topics = [{ filter = "plant/+/+" }]\n'
    )

    ended = CliRunner().invoke(app, [*words, "-c", str(config)])

    assert (ended.exit_code, said in ended.stderr) == (2, True), ended.stderr


class Speaker:
    """An input that hands in what it has and then waits, or fails."""

    def __init__(self, name: str, *chunks: Chunk, failure: Exception | None = None) -> None:
        self.name, self.chunks, self.failure = name, chunks, failure

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Hand it in."""
        for chunk in self.chunks:
            await intake.submit(self.name, "normal", chunk)
        if self.failure is not None:
            raise self.failure
        await stopping.wait()


async def look(*inputs: Speaker, seconds: float = 20.0, once: bool = True) -> tuple[bytes, list[str], bool]:
    """What is shown and told, and whether all was well."""
    lines = b""
    told: list[str] = []

    def show(more: bytes) -> None:
        nonlocal lines
        lines += more

    screen = Screen("edge-1", show, told.append)
    well = await run(inputs, screen, asyncio.Event(), told.append, seconds=seconds, once=once)
    return lines, told, well


async def test_a_look_ends_when_each_input_has_said_something() -> None:
    first, second = Speaker("one", Chunk(b"1\n", 1)), Speaker("two", Chunk(b"2\n", 1))

    assert await look(first, second) == (b"1\n2\n", [], True)


async def test_a_look_does_not_end_with_a_position_whose_lines_are_still_to_come() -> None:
    screen = Screen("edge-1", lambda _: None, lambda _: None)
    await screen.submit("file", "normal", Chunk(b"", 0, position="before"))
    assert screen.heard == set()

    await screen.submit("file", "normal", Chunk(b"1\n", 1, position="behind"))
    assert screen.heard == {"file"}


async def test_a_look_ends_in_time_where_an_input_says_nothing() -> None:
    assert await look(Speaker("one", Chunk(b"1\n", 1)), Speaker("mute"), seconds=0.05) == (b"1\n", [], True)


async def test_an_input_that_fails_is_told_and_takes_no_other_with_it() -> None:
    lines, told, well = await look(
        Speaker("one", Chunk(b"1\n", 1)), Speaker("broken", failure=OSError("no such\x1b[2J bus"))
    )

    assert (lines, well) == (b"1\n", False)
    assert told == ["input broken: OSError: no such\\x1b[2J bus"]


async def test_rules_apply_to_what_is_shown(tmp_path: Path) -> None:
    lines, config = tmp_path / "lines", tmp_path / "petiole.toml"
    lines.write_text('{"metric":"noise","value":1}\n{"metric":"m","value":1}\n')
    config.write_text(
        f'domain = "edge-1"\nstate_dir = "{tmp_path}"\n[nats]\nhub_urls = ["nats-leaf://127.0.0.1:1"]\n'
        f'[[input]]\ntype = "file"\npath = "{lines}"\n[[rule]]\nmetric = "noise"\ndrop = true\n'
    )
    command = [PETIOLE, "test", "-c", str(config), "--from-start"]
    ended = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
    )

    assert [json.loads(line)["metric"] for line in ended.stdout.splitlines()] == ["m"], ended.stderr


async def test_what_could_not_be_taken_is_told_with_its_place() -> None:
    letter = Letter(b"x", "file:7", "not JSON")

    _, told, well = await look(Speaker("one", Chunk(b"", 0, position="p", letters=(letter,))))

    assert (told, well) == (["input one: file:7: not JSON"], True)
