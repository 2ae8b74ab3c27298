"""`petiole check` and what listens: a hub behind TLS and its certificate, and MQTT devices' listener."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.cli.checks import Level, machine, mqtt
from agent.config import Config
from agent.config.server_schema import Mqtt, MqttUserConfig
from agent.demo.loopback import free_port
from agent.leaf.inputs.file import FileOptions
from tests.harness.certificates import self_signed
from tests.harness.check_cases import check, of, pair
from tests.harness.configured import ConfiguredServer


@pytest.mark.parametrize("first", [False, True])
async def test_the_certificate_of_a_hub_is_judged_by_a_clock_that_may_not_be_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    cert, key = self_signed(tmp_path, 365)
    tls = f'tls {{ cert_file: "{cert}", key_file: "{key}", handshake_first: {str(first).lower()} }}'
    async with pair(tmp_path) as one:
        await one.start_hub(more=f", {tls}")
        config = one.config
        config.nats.remote = {"tls": {"ca_file": str(cert), "handshake_first": first}}
        found = await check(config)
        assert of(found, "the certificate of nats-leaf://127.0.0.1").level is Level.OK
        assert of(found, "knows this leaf's key").level is Level.OK
        monkeypatch.setattr(machine, "right_now", lambda: datetime(2099, 1, 1, tzinfo=UTC))
        (expired,) = [one for one in await check(config) if "of nats-leaf://" in one.sentence]
        assert "expired on" in expired.sentence
        monkeypatch.setattr(machine, "right_now", lambda: datetime(1970, 1, 1, tzinfo=UTC))
        found = await check(config)
        assert of(found, "it is not set").level is Level.FAILURE
        assert not any("certificate of" in one.sentence for one in found), "the clock is the cause"


def test_files_of_the_configuration_are_looked_at_without_a_server(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path, 365)
    other = tmp_path / "other"
    other.mkdir()
    _, foreign = self_signed(other)
    password = tmp_path / "password"
    for path in (key, foreign, password):
        path.touch()
        path.chmod(0o644)
    users = [MqttUserConfig("plant", password)]
    config = Config(domain="edge-1", state_dir=tmp_path)
    config.nats.mqtt = Mqtt(users=users, tls_cert=cert, tls_key=key)
    config.nats.remote = {"tls": {"ca_file": str(password)}}
    now = machine.right_now()
    found = machine.look(config, now)
    assert of(found, f"tls_cert of nats.mqtt ({cert})").level is Level.OK
    assert of(found, "ca_file").sentence.endswith("holds no certificate in PEM")
    for path in (key, password):
        assert f"chmod 600 {path}" in of(found, f"{path} may be read by others").remedy
        path.chmod(0o600)
    assert not any("may be read" in one.sentence for one in machine.look(config, now))
    config.nats.mqtt.tls_key = foreign
    words = "certificate and key of nats.mqtt cannot be used together"
    assert of(machine.look(config, now), words).level is Level.FAILURE
    cert.write_text("no certificate")
    assert of(machine.look(config, now), words).sentence.endswith("together: one of them is no PEM")
    cert.unlink()
    assert of(machine.look(config, now), f"{cert} cannot be read (No such file").level is Level.FAILURE


def test_a_path_of_an_input_at_which_no_file_is_draws_a_warning(tmp_path: Path) -> None:
    there, gone = tmp_path / "a.ndjson", tmp_path / "gone"
    there.touch()
    paths = [str(there), f"{tmp_path}/*.ndjson", f"{gone}/*.ndjson", str(gone)]
    config = Config(domain="edge-1", state_dir=tmp_path, input=[FileOptions(path=paths)])
    found = [one for one in machine.look(config, machine.right_now()) if one.level is Level.WARNING]
    assert [one.sentence.split(" is at ")[1].split(",")[0] for one in found] == paths[2:]


@contextlib.asynccontextmanager
async def listener(directory: Path, users: str, tls: str = "") -> AsyncIterator[tuple[str, int]]:
    """A server with an MQTT listener."""
    port, devices = free_port(), free_port()
    text = (
        f'server_name: one\nlisten: "127.0.0.1:{port}"\njetstream {{ store_dir: "{directory}" }}\n'
        f'mqtt {{ listen: "127.0.0.1:{devices}"{tls} }}\n{users}'
    )
    server = ConfiguredServer(directory, "the server", port, text)
    await server.start()
    try:
        yield "127.0.0.1", devices
    finally:
        await server.kill()


async def test_the_listener_of_devices_asks_for_a_password(tmp_path: Path) -> None:
    cert, key = self_signed(tmp_path, 365)
    tls = f', tls {{ cert_file: "{cert}", key_file: "{key}" }}'
    users = "authorization { users: [ { user: a, password: b } ] }"
    async with listener(tmp_path, users, tls) as address:
        assert (await mqtt.look(address, secure=True)).level is Level.OK
        plain = await mqtt.look(address, secure=False)
        assert "does not answer as an MQTT server" in plain.sentence
    async with listener(tmp_path, "") as address:
        assert "without a password" in (await mqtt.look(address, secure=False)).sentence
    gone = await mqtt.look(address, secure=False)
    assert "no MQTT device can connect" in gone.sentence
