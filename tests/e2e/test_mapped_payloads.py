"""The six inputs that accept a mapping, each with its real sender: what they store, name and answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from nats.aio.client import Client

from agent.base.metrics import Metrics
from agent.config import Seconds
from agent.config.keys import ensure_key
from agent.demo.loopback import LoopbackProxy, free_port
from agent.leaf.inputs import OPTIONS, make_inputs
from agent.leaf.inputs.exec import ExecOptions
from agent.leaf.inputs.file import FileOptions
from agent.leaf.inputs.http import HttpOptions
from agent.leaf.inputs.mqtt import MqttOptions, TopicTemplate
from agent.leaf.inputs.nats import NatsOptions, SubjectTemplate
from agent.leaf.inputs.shared import NO_SERVER, InputOptions, LocalServer
from agent.leaf.inputs.socket import SocketOptions
from agent.leaf.intake import RefusalReason, RefusedError
from agent.mapping.schema import Map
from tests.harness.intakes import RunningInput, stopped_in_time
from tests.harness.mqtt_broker import Mosquitto, publish
from tests.harness.servers import Leaf, make_leaf
from tests.harness.wait import until

PRESS = Map(
    name="press",
    device="{$.device}",
    at="tags",
    metric="{id}",
    value="v",
    unit="{u}",
    time="$.at",
    time_format="ms",
    words={"ON": True},
)
GOOD = {"id": "oil", "v": 21.5, "u": "bar"}, {"id": "pump", "v": "ON"}, {"id": "none", "v": None}
WHOLE = {"device": "p1", "at": 1_700_000_000_123, "tags": [*GOOD]}
ODD = {**WHOLE, "tags": [*GOOD, {"id": "big", "v": 2**64}]}
READINGS = [
    {
        "ts": "2023-11-14T22:13:20.123Z",
        "device": "p1",
        "metric": "oil",
        "value": 21.5,
        "tags": {"unit": "bar"},
    },
    {"ts": "2023-11-14T22:13:20.123Z", "device": "p1", "metric": "pump", "value": True},
]
REASON = "record 3: a whole number beyond 64 bits (2 readings of the payload are stored)"
OTHER = {"something": "else"}


def text(payload: object) -> bytes:
    return json.dumps(payload).encode()


@contextlib.asynccontextmanager
async def running(options: InputOptions, server: LocalServer = NO_SERVER) -> AsyncIterator[RunningInput]:
    metrics = Metrics()
    (made,) = make_inputs([options], metrics, server)
    assert made.check() == []
    async with stopped_in_time(RunningInput(made, metrics)) as one:
        yield one


async def kept(one: RunningInput, letters: int = 2, no_value: int = 2) -> None:
    """Return once both payloads are stored, with the odd member and the strange payload as dead letters."""
    await until(lambda: len(one.core.rows()) >= 4 and len(one.core.letters) >= letters, "all is taken")
    assert one.core.rows() == READINGS * 2
    reasons = [letter.reason for letter in one.core.letters]
    assert reasons == [REASON, "nothing at tags"][:letters]
    assert json.loads(one.core.letters[0].received) == ODD
    assert one.value("petiole_missing_values_total") == no_value


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    one = Mosquitto(tmp_path / "mosquitto", free_port())
    one.start()
    yield one
    one.stop()


def mqtt(broker: Mosquitto, **options: Any) -> MqttOptions:
    given = {"topics": [TopicTemplate(filter="press/#", map=PRESS)], **options}
    return MqttOptions(url=f"mqtt://127.0.0.1:{broker.port}", **given)


async def test_messages_of_a_broker_are_mapped(broker: Mosquitto) -> None:
    async with running(mqtt(broker)) as one:
        await until(lambda: one.value("petiole_input_up") == 1, "it hears")
        for payload in (WHOLE, ODD, OTHER):
            await asyncio.to_thread(publish, broker.port, "press/1/data", text(payload))
        await kept(one)
        assert [letter.at for letter in one.core.letters] == ["press/1/data"] * 2
        assert one.invalid("bad_message") == 2


async def test_a_preset_brings_its_topics_and_retained_values_with_a_time_have_no_mark(
    broker: Mosquitto,
) -> None:
    up = {"time": "2026-01-01T00:00:00Z", "deviceInfo": {"devEui": "01"}, "object": {"t": 1}}
    topic = "application/a/device/01/event/up"
    await asyncio.to_thread(publish, broker.port, topic, text(up), retain=True)
    options = mqtt(broker, topics=[], preset=Map(name="chirpstack", preset="chirpstack"))
    assert options.filters == ["application/+/device/+/event/+"]
    for _ in range(2):
        async with running(options) as one:
            await one.stored(1)
            assert one.core.rows() == [
                {"ts": "2026-01-01T00:00:00Z", "device": "01", "metric": "t", "value": 1}
            ]


async def test_a_retained_payload_without_time_is_marked(broker: Mosquitto) -> None:
    await asyncio.to_thread(publish, broker.port, "press/1/state", b"ON", retain=True)
    state = Map(name="state", device="{2}", metric="{3}", words={"ON": True})
    async with running(mqtt(broker, topics=[TopicTemplate(filter="press/#", map=state)])) as one:
        await one.stored(1)
        (row,) = one.core.rows()
        assert (row["device"], row["metric"], row["value"]) == ("1", "state", True)
        assert row["tags"] == {"retained": "true"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Leaf]:
    link = tmp_path / "link"
    ensure_key(link)
    leaf = make_leaf(tmp_path, "edge-1", ("normal",), LoopbackProxy(9), link, heard=("press.>",))
    await leaf.start()
    yield leaf
    await leaf.close()


async def test_messages_and_requests_of_nats_are_mapped(server: Leaf) -> None:
    options = NatsOptions(subjects=[SubjectTemplate(filter="press.>")], map=PRESS)
    local = LocalServer(f"nats://{server.config.listen}", server.keys["agent"])
    program: Client = await server.connect("device")
    async with running(options, local) as one:
        await until(lambda: one.value("petiole_input_up") == 1, "it hears")
        for payload in (WHOLE, ODD, OTHER):
            await program.publish("press.1.data", text(payload))
        await kept(one)

        async def ask(payload: object) -> Any:
            return json.loads((await program.request("press.1.data", text(payload), timeout=30)).data)

        assert await ask(WHOLE) == {"stored": 2}
        assert await ask(ODD) == {"stored": 2, "odd": REASON}
        assert await ask(OTHER) == {"refused": "nothing at tags"}
        assert len(one.core.letters) == 3


async def test_bodies_over_http_are_mapped_and_stored_once() -> None:
    port = free_port()
    async with (
        running(HttpOptions(listen=f"127.0.0.1:{port}", map=PRESS)) as one,
        aiohttp.ClientSession() as session,
    ):

        async def post(body: bytes, path: str = "", kind: str = "application/json") -> tuple[int, str]:
            url = f"http://127.0.0.1:{port}/v1/readings{path}"
            async with session.post(url, data=body, headers={"Content-Type": kind}) as answer:
                return answer.status, await answer.text()

        async with asyncio.timeout(30):
            while True:
                with contextlib.suppress(aiohttp.ClientConnectionError):
                    assert await post(text(WHOLE)) == (204, "")
                    break
        assert await post(text(WHOLE)) == (204, "")
        assert one.core.rows() == READINGS
        assert (await post(text(ODD), "/press/1"))[0] == 204
        await kept(one, letters=1, no_value=3)
        assert one.core.letters[0].at == "press/1"
        status, answer = await post(text(OTHER))
        assert (status, "no reading is in it: nothing at tags" in answer) == (400, True)
        assert (await post(b"", kind="application/x-ndjson"))[0] == 400
        lines = text({**WHOLE, "at": 1}) + b"\n\n" + text({**WHOLE, "at": 2})
        assert (await post(lines, kind="application/x-ndjson"))[0] == 204
        assert len(one.core.rows()) == 8
        one.core.refuse = RefusedError(RefusalReason.FULL, "the stream is full")
        assert (await post(text({**ODD, "at": 3})))[0] == 429
        assert len(one.core.letters) == 1


async def test_lines_of_a_file_are_payloads(tmp_path: Path) -> None:
    path = tmp_path / "press.json"
    path.write_bytes(b"\n".join((text(WHOLE), b"", text(ODD), text(OTHER))) + b"\n")
    async with running(FileOptions(path=str(path), poll=Seconds(0.02), map=PRESS)) as one:
        await kept(one)
        with path.open("ab") as file:
            file.write(text(WHOLE))
        assert one.invalid("bad_line") == 2


async def test_lines_of_a_socket_are_payloads(tmp_path: Path) -> None:
    place = tmp_path / "lines.sock"
    async with running(SocketOptions(listen=f"unix://{place}", map=PRESS)) as one:
        await until(place.exists, "it listens")
        _, writer = await asyncio.open_unix_connection(str(place))
        writer.write(b"\n".join((text(WHOLE), text(ODD), text(OTHER))) + b"\n")
        await kept(one)
        writer.close()


async def test_lines_that_a_command_prints_are_payloads() -> None:
    code = f"print({text(WHOLE).decode()!r}); print({text(ODD).decode()!r}); print({text(OTHER).decode()!r})"
    async with running(
        ExecOptions(command=[sys.executable, "-c", code], interval=Seconds(3600), map=PRESS)
    ) as one:
        await kept(one)


async def test_the_indented_output_of_a_command_is_one_payload() -> None:
    code = f"import json; print(json.dumps(json.loads({text(WHOLE).decode()!r}), indent=1)); exit(1)"
    command = [sys.executable, "-c", code]
    async with running(ExecOptions(command=command, interval=Seconds(3600), map=PRESS, whole=True)) as one:
        await one.stored(2)
        assert one.core.rows() == READINGS
    (made,) = make_inputs([ExecOptions(command=["true"], whole=True)], Metrics(), NO_SERVER)
    assert "give map or preset, and interval" in " ".join(made.check())


@pytest.mark.parametrize("kind", ["file", "socket", "exec"])
def test_an_input_of_lines_refuses_a_mapping_that_needs_a_topic(kind: str) -> None:
    keys: dict[str, Any] = {"map": Map(name="m", device="{2}"), "format": "influx"}
    keys |= {"path": "/x"} if kind == "file" else {"command": ["true"]} if kind == "exec" else {}
    options = OPTIONS[kind](**keys)
    (made,) = make_inputs([options], Metrics(), NO_SERVER)
    told = " ".join(made.check())
    assert 'format = "influx" stands beside a mapping' in told
    assert "map m: device: a template has a part of the topic" in told
