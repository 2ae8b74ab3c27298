"""`petiole map`: payloads of files, of a broker and of NATS become readings that are printed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from agent.cli.main import app
from agent.config.keys import ensure_key
from agent.demo.loopback import LoopbackProxy, free_port
from tests.harness.mqtt_broker import Mosquitto, publish
from tests.harness.servers import make_leaf

UP = {
    "time": "2026-01-01T00:00:00Z",
    "deviceInfo": {"devEui": "01"},
    "object": {"t": 1, "big": 2**64, "none": None},
}
READING = {"ts": "2026-01-01T00:00:00Z", "device": "01", "metric": "t", "value": 1}
PRESS = """
[[map]]
name = "press"
device = "{2}"
value = "v"
metric = "{3}"
time = "at"
time_format = "s"
[[map]]
name = "bad"
value = "v|"
"""


def asked(*command: str, given: bytes = b"") -> Result:
    return CliRunner().invoke(app, ["map", *command], input=given)


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_file_is_mapped_and_all_that_is_skipped_is_named(tmp_path: Path) -> None:
    path = tmp_path / "up.json"
    path.write_text(json.dumps(UP, indent=2))
    found = asked("--preset", "chirpstack", str(path))
    assert (found.exit_code, rows(found)) == (3, [READING])
    assert found.stderr.splitlines() == [
        f"petiole: {path}:1: big: a whole number beyond 64 bits",
        "petiole: 1 payloads: 1 readings, 1 members without value, 1 odd members, 0 payloads refused",
    ]


def test_a_file_of_cbor_is_one_payload_whatever_line_feeds_it_holds() -> None:
    pack = bytes.fromhex("81a300616102010a0a")  # [{0: "a", 2: 1, 10: 10}]
    found = asked("--preset", "senml", given=pack)
    assert (found.exit_code, [(row["metric"], row["value"]) for row in rows(found)]) == (0, [("a", 1)])
    cut = asked("--preset", "senml", given=pack[:-1] + b"\x19\n")
    assert (cut.exit_code, rows(cut)) == (3, [])
    assert cut.stderr.splitlines()[-1].startswith("petiole: 1 payloads: 0 readings")


def test_each_line_is_a_payload_and_a_map_of_the_configuration_is_used(tmp_path: Path) -> None:
    config = tmp_path / "petiole.toml"
    config.write_text(PRESS)
    lines = b'{"v": 1, "at": 1}\n\n{"v": 2, "at": 2}\n'
    press = ("-c", str(config), "--topic", "press/p1/oil", "--map")
    found = asked(*press, "press", given=lines)
    assert found.exit_code == 0
    assert [(row["ts"], row["device"], row["metric"], row["value"]) for row in rows(found)] == [
        ("1970-01-01T00:00:01Z", "p1", "oil", 1),
        ("1970-01-01T00:00:02Z", "p1", "oil", 2),
    ]
    table = asked(*press, "press", "--table", given=lines)
    assert table.stdout.splitlines()[0].split() == ["1970-01-01T00:00:01Z", "p1", "oil", "1"]
    strange = asked(*press, "press", given=b"{]\n")
    assert (strange.exit_code, "the payload is refused: not JSON" in strange.stderr) == (3, True)
    without = asked("-c", str(config), "--map", "press", given=lines)
    assert (without.exit_code, without.stderr.count("name a path, or give --topic")) == (2, 1)
    wrong = asked(*press, "bad", given=lines)
    assert (wrong.exit_code, "map bad: value: 'v|' is no path of JMESPath" in wrong.stderr) == (2, True)


def test_json_over_several_lines_with_a_fault_is_one_payload_and_a_faulty_line_costs_no_other() -> None:
    nodered = ("--preset", "nodered", "--topic", "x")
    for fault in (b'{\n "a": 1,\n}\n', b'[\n {"a": 1},\n]\n', b'{\n "a": {\n  "b": 1\n }\n'):
        found = asked(*nodered, given=fault)
        assert (found.exit_code, rows(found)) == (3, [])
        assert found.stderr.splitlines()[-1].startswith("petiole: 1 payloads: 0 readings")
    for lines in (b'{"a":\n{"a":2}\n', b'{"a":2}\n{"a":\n'):
        found = asked(*nodered, given=lines)
        assert (found.exit_code, [row["value"] for row in rows(found)]) == (3, [2])


@pytest.mark.parametrize(
    ("command", "code", "problem"),
    [
        ((), 2, "give one of --map, --preset and --propose"),
        (("--preset", "nope"), 2, "there is no preset 'nope'; take one of"),
        (("--map", "m", "-c", "/nonexistent"), 2, "/nonexistent"),
        (("--preset", "chirpstack", "/nonexistent"), 1, "/nonexistent cannot be read"),
        (("--preset", "chirpstack"), 1, "there is no payload in it"),
        (("--preset", "chirpstack", "--url", "http://x"), 2, "is no broker"),
        (("--preset", "chirpstack", "--url", "mqtt://a:b@x"), 2, "--url has a user in it"),
        (("--propose", "--url", "mqtt://127.0.0.1:9"), 2, "give --topic"),
        (("--propose", "--topic", "a", "--url", "mqtt://127.0.0.1:9"), 5, "127.0.0.1:9 cannot be used"),
        (("--propose", "--topic", "a", "--url", "nats://127.0.0.1:9"), 5, "127.0.0.1:9 cannot be used"),
    ],
)
def test_wrong_usage_is_told(command: tuple[str, ...], code: int, problem: str) -> None:
    found = asked(*command)
    assert (found.exit_code, problem in found.stderr) == (code, True), found.stderr


def test_presets_are_listed_and_a_mapping_is_proposed() -> None:
    assert "chirpstack: ChirpStack v4" in asked("--presets").stdout
    found = asked("--propose", given=json.dumps({"ts": 1_700_000_000, "values": {"a": 1}}).encode())
    assert found.exit_code == 0
    assert 'values = "values"\n' in found.stdout
    assert asked("--propose", given=b"{]").exit_code == 1


def heard(*words: str) -> Result:
    """What is told of what comes, at whichever try: on a busy machine none may come in a try's time."""
    while (found := asked(*words)).exit_code == 1 and "no payload came" in found.stderr:
        pass
    return found


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    one = Mosquitto(tmp_path / "mosquitto", free_port())
    one.start()
    yield one
    one.stop()


def test_a_topic_of_a_broker_is_listened_to(broker: Mosquitto) -> None:
    topic = "application/a/device/01/event/up"
    publish(broker.port, topic, json.dumps(UP).encode(), retain=True)
    url = f"mqtt://127.0.0.1:{broker.port}"
    found = heard("--preset", "chirpstack", "--url", url, "--for", "2s")
    assert (found.exit_code, rows(found)) == (3, [READING])
    assert f"petiole: {topic}: big:" in found.stderr
    nothing = asked("--preset", "chirpstack", "--url", url, "--topic", "other/#", "--for", "100ms")
    assert (nothing.exit_code, "no payload came" in nothing.stderr) == (1, True)


async def test_a_subject_of_nats_is_listened_to(tmp_path: Path) -> None:
    link = tmp_path / "link"
    ensure_key(link)
    leaf = make_leaf(tmp_path, "edge-1", ("normal",), LoopbackProxy(9), link, heard=("press.>",))
    await leaf.start()
    config = tmp_path / "press.toml"
    config.write_text(PRESS)
    program = await leaf.connect("device")
    command = (
        "--map",
        "press",
        "-c",
        str(config),
        "--url",
        f"nats://{leaf.config.listen}",
        "--topic",
        "press.>",
    )
    listening = asyncio.create_task(
        asyncio.to_thread(heard, *command, "--seed-file", str(leaf.keys["agent"]), "--for", "3s")
    )
    while not listening.done():
        await program.publish("press.p1.oil", b'{"v": 1, "at": 1}')
        await asyncio.wait((listening,), timeout=0.2)
    found = await listening
    assert found.exit_code == 0, found.stderr
    assert rows(found)[0] == {"ts": "1970-01-01T00:00:01Z", "device": "p1", "metric": "oil", "value": 1}
    await leaf.close()
