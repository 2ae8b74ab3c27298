"""The `nats` input on a real server, before a core that keeps what it is given in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from structlog.testing import capture_logs

from agent.base.metrics import Metrics
from agent.config import Size
from agent.config.keys import ensure_key
from agent.demo.loopback import LoopbackProxy
from agent.leaf.inputs.nats import NatsOptions, SubjectTemplate
from agent.leaf.inputs.nats.input import NatsInput
from agent.leaf.inputs.shared import LocalServer
from agent.leaf.intake import RefusalReason, RefusedError, UnknownOutcomeError
from tests.harness.intakes import RunningInput, stopped_in_time
from tests.harness.servers import Leaf, make_leaf
from tests.harness.wait import until

PLANT = SubjectTemplate(filter="plant.*.>", device="{2}", metric="{3+}")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Leaf]:
    """A leaf's server that lets local programs publish below `plant`; it has no hub."""
    link = tmp_path / "link"
    ensure_key(link)
    leaf = make_leaf(tmp_path, "edge-1", ("normal",), LoopbackProxy(9), link, heard=(PLANT.filter,))
    await leaf.start()
    yield leaf
    await leaf.close()


class Hearing(RunningInput):
    """A running input, its core, and a local program."""

    def __init__(self, server: Leaf, program: Client, options: NatsOptions) -> None:
        self.program, metrics = program, Metrics()
        local_server = LocalServer(f"nats://{server.config.listen}", server.keys["agent"])
        made = NatsInput(options, metrics, local_server)
        assert made.check() == []
        super().__init__(made, metrics)

    def rows(self) -> list[dict[str, Any]]:
        """All readings but their times, in order."""
        return [{name: value for name, value in row.items() if name != "ts"} for row in self.core.rows()]

    async def ask(self, payload: bytes, subject: str = "plant.pump-7.pressure", ident: str = "") -> Any:
        """What a request is answered."""
        headers = {"Nats-Msg-Id": ident} if ident else None
        return json.loads((await self.program.request(subject, payload, timeout=30, headers=headers)).data)


@contextlib.asynccontextmanager
async def hearing(server: Leaf, **options: Any) -> AsyncIterator[Hearing]:
    program = await server.connect("device")
    hears = Hearing(server, program, NatsOptions(**{"subjects": [PLANT], **options}))
    async with stopped_in_time(hears) as one:
        await until(lambda: one.value("petiole_input_up") == 1 or one.running.done(), "it hears")
        yield one


async def test_messages_become_readings_named_by_their_subject(server: Leaf) -> None:
    async with hearing(server) as one:
        for payload in (
            b"21.5",
            b' "open" ',
            b'{"value": true, "device": "other", "tags": {"a": "b"}}',
            b'{"low": 1, "high": {"a": 2}}',
            b'{"value": 3}\n\n{"value": 4, "metric": "m"}\n',
            b'{\n "value":\n 5\n}',
            b"nonsense",
            b'{"value": [1,"x"]}',
            b'{"a": 6, "errors": ["x"], "b": nan}',
            b"7\nbad row\n8",
        ):
            await one.program.publish("plant.pump-7.pressure.in", payload)
        await until(lambda: len(one.rows()) == 11 and len(one.core.letters) == 5, "all are taken")
        due = {"device": "pump-7", "metric": "pressure.in"}
        assert one.rows() == [
            {**due, "value": 21.5},
            {**due, "value": "open"},
            {**due, "device": "other", "value": True, "tags": {"a": "b"}},
            {**due, "metric": "pressure.in_low", "value": 1},
            {**due, "metric": "pressure.in_high_a", "value": 2},
            {**due, "value": 3},
            {**due, "metric": "m", "value": 4},
            {**due, "value": 5},
            {**due, "metric": "pressure.in_a", "value": 6},
            {**due, "value": 7},
            {**due, "value": 8},
        ]
        made = b'{"device":"pump-7","metric":"pressure.in%s","value":%s}'
        assert {letter.received for letter in one.core.letters} == {
            b"nonsense",
            made % (b"", b'[1,"x"]'),
            made % (b"_errors", b'["x"]'),
            made % (b"_b", b"nan"),
            b"bad row",
        }
        assert {letter.at for letter in one.core.letters} == {"plant.pump-7.pressure.in"}


async def test_a_request_is_answered_and_stored_once_under_its_id(server: Leaf) -> None:
    async with hearing(server) as one:
        assert await one.ask(b"1\n2") == {"stored": 2}
        assert await one.ask(b"3", ident="k") == {"stored": 1}
        assert await one.ask(b"3", ident="k") == {"stored": 1}
        assert [row["value"] for row in one.rows()] == [1, 2, 3]
        assert "used for another" in (await one.ask(b"4", ident="k"))["refused"]
        assert set(await one.ask(b"5\nnonsense")) == {"refused"}
        assert set(await one.ask(b"")) == {"refused"}
        assert set(await one.ask(b"5", ident="a b")) == {"refused"}
        one.core.refuse = RefusedError(RefusalReason.FULL, "the stream is full", 7)
        assert await one.ask(b"5") == {"refused": "the stream is full", "retry": 7}
        one.core.refuse = UnknownOutcomeError("nobody knows")
        assert await one.ask(b"5") == {"unknown": "nobody knows"}
        assert len(one.rows()) == 3
        assert one.core.letters == []
        assert one.value("petiole_invalid_requests_total", reason="bad_message") == 3
        one.core.refuse = None
        one.core.open.clear()
        asked = asyncio.create_task(one.ask(b"6"))
        await until(lambda: one.core.waiting == 1, "it is under way")
        one.stopping.set()
        await asyncio.sleep(0.1)
        one.core.open.set()
        assert await asked == {"stored": 1}, "a stop answers what is under way"


async def test_each_subject_has_ids_of_its_own_and_none_is_taken_for_another_payload(server: Leaf) -> None:
    async with hearing(server) as one:
        for subject in (f"plant.pump-{pump}.alarm" for pump in "ABC"):
            assert await one.ask(b"false", subject, "1795334400") == {"stored": 1}
            assert await one.ask(b"false", subject, "1795334400") == {"stored": 1}
        assert [row["device"] for row in one.rows()] == ["pump-A", "pump-B", "pump-C"]
        first, second = b"37062098697", b"70036722576"
        assert zlib.crc32(first) == zlib.crc32(second)
        assert await one.ask(first, ident="k") == {"stored": 1}
        assert "used for another request" in (await one.ask(second, ident="k"))["refused"]


async def test_what_can_neither_be_stored_nor_kept_is_dropped_and_counted(server: Leaf) -> None:
    pending = 64 * 1024
    async with hearing(server, pending=Size(pending)) as one:
        one.core.open.clear()
        for number in range(20_000):
            await one.program.publish("plant.p.n", b"%d" % number)
        await one.program.flush()
        await until(lambda: one.value("petiole_dropped_messages_total") > 0, "drops are counted")
        assert (await one.ask(b"1"))["retry"] == 1
        one.core.open.set()
        await until(
            lambda: len(one.rows()) + one.value("petiole_dropped_messages_total") == 20_001,
            "each is stored or counted",
        )
        assert sum(len(chunk.payload) for chunk in one.core.stored) > 0.9 * pending, "the buffer was full"


async def test_garbage_is_dropped_and_counted_where_it_cannot_be_kept(server: Leaf) -> None:
    async with hearing(server, pending=Size(64 * 1024)) as one:
        one.core.refuse = RefusedError(RefusalReason.FULL, "the stream is full", 0.1)
        for _ in range(2_000):
            await one.program.publish("plant.p.n", b"x" * 1000)
        await one.program.flush()
        await until(lambda: one.value("petiole_dropped_messages_total") > 0, "drops are counted")
        one.core.refuse = None
        await until(
            lambda: len(one.core.letters) + one.value("petiole_dropped_messages_total") == 2_000,
            "each is kept or counted",
        )


async def test_a_server_that_restarts_is_heard_again_and_a_queue_group_shares(server: Leaf) -> None:
    async with hearing(server, queue="q") as one, hearing(server, queue="q") as two:
        await server.kill()
        await until(lambda: one.value("petiole_input_up") == two.value("petiole_input_up") == 0, "it is told")
        await server.start()
        await until(
            lambda: one.value("petiole_input_up") == two.value("petiole_input_up") == 1, "heard again"
        )
        program = await server.connect("device")
        for number in range(100):
            await program.publish("plant.p.n", b"%d" % number)
        await until(lambda: len(one.rows()) + len(two.rows()) == 100, "each is stored once")


async def test_a_subject_that_the_server_refuses_is_told(server: Leaf) -> None:
    options = NatsOptions(subjects=[SubjectTemplate(filter="elsewhere.>")])
    with capture_logs() as logged:
        one = Hearing(server, await server.connect("device"), options)
        await until(lambda: "user subscribe to the filters" in str(logged), "it is told")
        assert one.value("petiole_input_up") == 0
        one.stopping.set()
        await one.running


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subjects": []}, "there is no subject"),
        ({"subjects": [SubjectTemplate(filter="a.*"), SubjectTemplate(filter="a.b")]}, "overlap"),
        ({"subjects": [PLANT], "queue": "a b"}, "not a name of a queue group"),
        ({"subjects": [PLANT], "pending": Size(1)}, "take 64KiB at least"),
        ({"subjects": [SubjectTemplate(filter="a", device="{x}")]}, "is not a template"),
    ],
)
def test_what_stands_in_the_way_is_told_with_a_remedy(options: dict[str, Any], told: str) -> None:
    problems = NatsInput(NatsOptions(**options), Metrics()).check()
    assert len(problems) == 1
    assert told in problems[0]
