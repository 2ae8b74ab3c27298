"""What commands set on a running leaf: it holds for its time, also over a restart, and then the configuration
is back."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

from agent.base.metrics import Metrics
from agent.config import Seconds, Size, StreamClass
from agent.contract import link_consumer
from agent.demo.loopback import free_port
from agent.jetstream import ConsumerInfo, JetStreamError
from agent.leaf.inputs.host import HostOptions
from agent.leaf.inputs.host.input import HostInput
from tests.harness.agents import Agent, agent, chunk, leaf_config, refusal_of
from tests.harness.commands import Desk
from tests.harness.streams import AGGREGATE
from tests.harness.wait import until

HOLD: dict[str, Any] = {"for": "10m"}
SHORT: dict[str, Any] = {"for": "1s"}
SLOW: dict[str, Any] = {"rate_limit": 10}
OFF: dict[str, Any] = {"input.host": "off"}
ROOM = StreamClass(max_bytes=Size(2**28))


def _samples(one: Agent) -> float:
    return one.value("petiole_stored_readings_total", input="host", **{"class": "normal"})


async def test_a_rate_limit_refuses_what_is_above_it_until_its_time_is_over(
    desk: Desk, tmp_path: Path
) -> None:
    async with agent(leaf_config(desk.servers.leaf, tmp_path / "agent", stream=ROOM)) as one:
        await desk.send("set", **SLOW, **HOLD)
        await desk.answers(1)
        first, second = await asyncio.gather(
            one.submit(chunk("a", 10)), refusal_of(one.submit(chunk("b", 10, key="b")))
        )
        assert first is None
        assert second is not None
        assert "more readings come in" in str(second)
        assert 0 < (second.retry_after or 0) <= 1
        assert (
            one.value(
                "petiole_refused_readings_total", input="http", reason="rate_limit", **{"class": "normal"}
            )
            == 10
        )
        await desk.send("set", **SLOW, **SHORT)
        await desk.answers(2)
        await until(lambda: one.leaf.status()["settings"] == {}, "the configured value is back")
        for number in range(5):
            await one.submit(chunk(f"c{number}", 10))
        await one.submit(chunk("b", 10, key="b"))


async def test_an_input_that_was_turned_off_stays_off_over_a_restart_until_its_time_is_over(
    desk: Desk, tmp_path: Path
) -> None:
    config = leaf_config(desk.servers.leaf, tmp_path / "agent", stream=ROOM)
    options = HostOptions(interval=Seconds(0.1), collect=["memory"])
    async with agent(config, [HostInput(options, Metrics())]) as one:
        await until(lambda: _samples(one) > 0, "samples are stored")
        await desk.send("set", **OFF, **HOLD)
        (answer,) = await desk.answers(1)
        assert answer.text == "input.host set for 600 s"
        await until(lambda: one.value("petiole_input_up", input="host") == 0, "the input has ended")
    async with agent(config, [HostInput(options, Metrics())]) as one:
        assert one.leaf.status()["settings"]["input.host"]["value"] is False
        await asyncio.sleep(0.5)
        assert _samples(one) == 0
        await desk.send("set", **OFF, **SHORT)
        await until(lambda: _samples(one) > 0, "the input is back on")
        assert one.leaf.status()["settings"] == {}


async def test_a_link_that_is_held_lets_nothing_cross_until_it_is_let_go(desk: Desk, tmp_path: Path) -> None:
    async with agent(leaf_config(desk.servers.leaf, tmp_path / "agent", stream=ROOM)) as one:
        await one.submit(chunk("a"))
        await until(lambda: _crossed(desk), "all is at the hub")
        await desk.send("pause-link", **HOLD)
        await desk.answers(1)
        await until(lambda: _paused(desk, one), "the link consumer is paused")
        await until(lambda: _delivered(desk, one), "what was sent before is at the hub")
        before = (await desk.hub.stream_info(AGGREGATE)).last
        await one.submit(chunk("b"))
        await desk.send("ping")
        await desk.answers(2)
        assert (await desk.hub.stream_info(AGGREGATE)).last == before
        assert one.leaf.status()["settings"]["link"]["value"] == "paused"
        await desk.send("resume-link")
        assert (await desk.answers(3))[2].text == "link resumed"
        await until(lambda: _crossed(desk), "all is at the hub again")
        assert one.leaf.status()["settings"] == {}


async def test_reload_takes_a_valid_configuration_and_refuses_another(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "leaf.toml"
    admin, http, other = free_port(), free_port(), free_port()
    config = _leaf_toml(desk, tmp_path / "agent", admin, http)
    path.write_text(config)
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "petiole"), "run", "-c", str(path)
    )
    try:
        first = await _status(admin)
        path.write_text(config.replace("linger", "lingre"))
        await desk.send("reload")
        path_of = config.replace(f'domain = "{desk.domain}"', 'domain = "elsewhere"')
        assert "did you mean linger?" in (await desk.answers(1))[0].text
        path.write_text(path_of)
        await desk.send("reload")
        assert "elsewhere cannot take the place of edge-1" in (await desk.answers(2))[1].text
        assert (await _status(admin))["run"] == first["run"]
        path.write_text(config.replace(str(http), str(other)))
        await desk.send("reload")
        answers = await desk.answers(3)
        assert answers[2].text == "the configuration is valid; input restarted: http"
        assert [one.outcome.value for one in answers] == ["failed", "failed", "done"]
        await until(lambda: _listens(other), "it listens where it is told now")
        assert (await _status(admin))["run"] == first["run"]
        path.write_text(path.read_text().replace("linger", 'in_flight = "8MiB"\nlinger'))
        await desk.send("reload")
        assert (await desk.answers(4))[3].text.endswith("restarts, for publish changed")

        async def again() -> bool:
            return bool((await _status(admin))["run"] != first["run"])

        await until(again, "another run")
        assert process.returncode is None
        await desk.send("ping")
        assert (await desk.answers(5))[4].outcome == "done"
    finally:
        process.terminate()
        assert await process.wait() == 0


async def _crossed(desk: Desk) -> bool:
    """Whether the hub holds as much as the leaf's stream."""
    last = (await desk.leaf.js.stream_info(desk.leaf.stream)).last
    try:
        sources = (await desk.hub.stream_info(AGGREGATE)).sources
    except JetStreamError:
        return False
    return any(source.get("seq") == last for source in sources)


async def _consumer(desk: Desk, one: Agent) -> ConsumerInfo:
    name = link_consumer(one.leaf.status()["classes"]["normal"]["epoch"])
    return await desk.leaf.js.consumer_info(desk.leaf.stream, name)


async def _paused(desk: Desk, one: Agent) -> bool:
    return (await _consumer(desk, one)).pause_remaining > 0


async def _delivered(desk: Desk, one: Agent) -> bool:
    sent, sources = (await _consumer(desk, one)).delivered, (await desk.hub.stream_info(AGGREGATE)).sources
    return any(source.get("seq") == sent for source in sources)


def _leaf_toml(desk: Desk, state_dir: Path, admin: int, http: int) -> str:
    server = desk.servers.leaf
    for key in ("agent", "agent_system"):
        server.keys[key].chmod(0o600)
    return f"""\
domain = "{server.domain}"
state_dir = "{state_dir}"

[nats]
server = "external"
listen = "{server.config.listen}"
seed_file = "{server.keys["agent"]}"
system_seed_file = "{server.keys["agent_system"]}"

[publish]
linger = "10ms"

[admin]
listen = "127.0.0.1:{admin}"

[[class]]
max_bytes = "256MiB"

[[input]]
type = "http"
listen = "127.0.0.1:{http}"
"""


async def _status(port: int) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def answered() -> bool:
        try:
            found.update(await asyncio.to_thread(_get, f"http://127.0.0.1:{port}/status"))
        except OSError:
            return False
        return True

    await until(answered, "the agent's status")
    return found


def _get(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=2) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
