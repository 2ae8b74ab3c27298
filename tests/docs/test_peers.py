"""What the benchmark of peers counts as lost and as doubled, and how it speaks RELP."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from agent.demo.proxy import Proxy
from bench import peer_faults, telegraf
from bench.load import body
from bench.peer_faults import Outcome
from bench.peer_requests import json_array
from bench.peer_sides import Seen, Side
from bench.relink_load import Load, NotStoredError
from bench.relp import Relp


async def nothing(_: int) -> None:
    return


def side(seen: Seen) -> Side:
    return Side("one", Proxy(0), 0, nothing, list, lambda: None, lambda: None, seen)


def test_lost_is_acknowledged_and_not_there_and_doubled_there_twice() -> None:
    seen = Seen(
        numbered=True, counts=Counter({10: 1, 11: 2, 12: 2, 14: 1}), first={10: 5.0, 11: 9.0, 14: 99.0}
    )
    load = Load(nothing, 1.0, acknowledged={9, 10, 11, 13, 14})
    # 9 is of another fault, 12 was never acknowledged, 14 only after the fault was mended.
    outcome = peer_faults.outcome(side(seen), load, range(10, 15), mended=6.0, before={10, 11, 13})
    assert outcome == Outcome(acknowledged=4, lost=1, doubled=2, seconds=3.0)


def test_each_fault_stands_beside_every_peer() -> None:
    outcomes = [Outcome(100, 0, 0, 1.0)] * 3
    rows = peer_faults.rows(outcomes, {"a": [Outcome(90, 7, 0, 2.0)] * 3, "b": outcomes})
    assert len(rows) == 18
    assert [(row.value, row.against and row.against.value) for row in rows[:2]] == [(0, 7), (0, 0)]
    assert rows[0].against is not None
    assert rows[0].against.what == "a (90 acknowledged)"


async def test_a_message_is_acknowledged_by_its_own_answer_and_none_by_a_lost_connection() -> None:
    received: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b" "):
            command, size = (await reader.readuntil(b" ")).strip(), int(await reader.readuntil(b" "))
            received.append((await reader.readexactly(size + 1))[:-1])
            if received[-1].endswith(b"bye"):
                writer.close()
                return
            said = b"200 OK relp_version=0\nx=y" if command == b"open" else b"200 OK"
            writer.write(b"%brsp %d %b\n" % (head, len(said), said))

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    relp = Relp(server.sockets[0].getsockname()[1])
    await asyncio.gather(*(relp.send(b"line %d" % number) for number in range(20)))
    with pytest.raises(NotStoredError):
        await relp.send(b"bye")
    await relp.send(b"again")
    assert received[-1].endswith(b"again")
    await relp.close()
    server.close()


def test_telegraf_gets_the_same_readings_as_an_array() -> None:
    lines = [json.loads(line) for line in body(10, seed=3).splitlines()]
    assert json.loads(json_array(10, seed=3)) == lines


def test_what_telegraf_needs_is_said_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(telegraf, "_BUILT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert telegraf.built(telegraf.program) == 1
    assert "there is no Go: install" in capsys.readouterr().err
