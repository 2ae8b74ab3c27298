"""`petiole run` with rules: a file and requests whose lines go to several classes, to dead letters and to
nowhere, while the agent is killed."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from agent import contract
from agent.demo import plan
from agent.demo.ports import free_port
from agent.jetstream import RawMessage
from tests.harness.agent_process import Agent
from tests.harness.agents import StreamProbe, ask_stream, lines_of
from tests.harness.input_contract import post
from tests.harness.wait import WAIT_SECONDS, wait_for

RULES = """
[[class]]
name = "critical"
max_bytes = "64MiB"
[[rule]]
metric = "alarm"
class = "critical"
[[rule]]
name = "debug"
metric = "debug"
drop = true
[[rule]]
tags = { site = "north" }
"""
METRICS = ("alarm", "flow", "debug", "flow", "bad")
POSTED = 10**6
"""The values that are posted begin here; those below stand in the file."""


class Stored(NamedTuple):
    """What the streams hold: how often each value is there by class, and where each dead letter stood."""

    values: dict[str, Counter[int]]
    letters: Counter[str]


@pytest.fixture
def leaf(tmp_path: Path) -> Iterator[Agent]:
    """A leaf with rules, a file and an http input, whose hub does not run."""
    member = plan.member(tmp_path, "edge-1")
    base = plan.leaf_toml(member, free_port()).partition("[[input]]")[0]
    inputs = (
        f'[[input]]\ntype = "file"\npath = {json.dumps(str(member.lines))}\npoll = "10ms"\n'
        f'[[input]]\ntype = "http"\nlisten = "127.0.0.1:{member.http_port}"\n'
    )
    agent = Agent(member, f'{base}[publish]\nlinger = "5ms"\n{RULES}{inputs}')
    yield agent
    agent.close()


def metric_of(number: int) -> str:
    return METRICS[number % len(METRICS)]


def lines(numbers: range) -> bytes:
    rows = (
        f'{{"device":"d","metric":"{metric_of(one)}","value":{one}}}'
        if metric_of(one) != "bad"
        else f"bad {one}"
        for one in numbers
    )
    return "".join(f"{row}\n" for row in rows).encode()


class Writer:
    """Appends to the file and posts, until it is ended; `written` and `posted` are how far it came."""

    def __init__(self, leaf: Agent) -> None:
        self._leaf = leaf
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=one) for one in (self._write, self._post)]
        self.written = self.posted = 0
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        while not self._ended.wait(0.02):
            with self._leaf.member.lines.open("ab") as file:
                file.write(lines(range(self.written, self.written + 20)))
            self.written += 20

    def _post(self) -> None:
        while not self._ended.is_set():
            numbers = range(POSTED + self.posted, POSTED + self.posted + 10)
            good = [one for one in numbers if metric_of(one) != "bad"]
            body = b"".join(lines(range(one, one + 1)) for one in good)
            deadline = time.monotonic() + WAIT_SECONDS
            key = f"k{numbers.start}"
            while post(self._leaf, "/v1/readings", body, **_headers(key)) != 204:
                assert time.monotonic() < deadline, "never stored"
                time.sleep(0.02)
            self.posted += 10


def _headers(key: str) -> dict[str, str]:
    return {"Content_Type": "application/x-ndjson", "Idempotency_Key": key}


def stored(leaf: Agent) -> Stored:
    values, letters = dict[str, Counter[int]](), Counter[str]()

    async def read(probe: StreamProbe) -> list[RawMessage]:
        rows = [row for batch in await probe.rows(cls) for row in batch if row["device"] == "d"]
        assert all(row["tags"] == {"site": "north"} for row in rows)
        values[cls] = Counter(row["value"] for row in rows)
        return await probe.messages()

    for cls in ("normal", "critical"):
        for message in ask_stream(leaf.member, read, cls):
            if message.subject == contract.dead_subject(leaf.member.domain, cls, "file"):
                letters.update(contract.parse_letter(line).at for line in lines_of(message))
    return Stored(values, letters)


def test_each_line_is_stored_once_in_its_class_over_kills_between_the_parts_of_what_was_read(
    leaf: Agent,
) -> None:
    chance = random.Random(7)
    leaf.start()
    writer = Writer(leaf)
    try:
        for _ in range(2):
            before = leaf.metric("petiole_stored_readings_total", input="file")
            wait_for(
                lambda before=before: (  # type: ignore[misc]
                    leaf.metric("petiole_stored_readings_total", input="file") > before
                ),
                "the file is read",
            )
            time.sleep(chance.uniform(0.05, 0.3))
            leaf.end(signal.SIGKILL)
            leaf.start()
    finally:
        writer.end()
    numbers = [*range(writer.written), *range(POSTED, POSTED + writer.posted)]
    due = {
        "normal": Counter(one for one in numbers if metric_of(one) == "flow"),
        "critical": Counter(one for one in numbers if metric_of(one) == "alarm"),
    }
    wait_for(lambda: _is_there(stored(leaf), due), "all lines are stored")
    found = stored(leaf)
    assert found.values == due, "lost or doubled"
    assert set(found.letters.values()) == {1}
    bad = sum(metric_of(one) == "bad" for one in range(writer.written))
    kept = len(found.letters)
    assert kept == bad or leaf.metric("petiole_omitted_letters_total") > 0
    assert leaf.metric("petiole_dropped_readings_total", rule="debug", reason="drop") > 0
    assert leaf.metric("petiole_unaccounted_readings") == 0


def _is_there(found: Stored, due: dict[str, Counter[int]]) -> bool:
    return all(due[cls].keys() <= values.keys() for cls, values in found.values.items())
