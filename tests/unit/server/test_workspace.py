"""The directory of an embedded server, and whether a hub's server may start with what is in its store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent.contract import COMMANDS
from agent.server.values import ClusterConfig, HubConfig
from agent.server.workspace import Workspace, store_problem
from tests.unit.server.test_render import HUB


def hub(directory: Path, *, several: bool) -> HubConfig:
    return replace(HUB, store_dir=directory, cluster=ClusterConfig("127.0.0.1:6222") if several else None)


def stored(directory: Path, stream: str, text: bytes) -> None:
    meta = directory / "jetstream" / "PETIOLE" / "streams" / stream / "meta.inf"
    meta.parent.mkdir(parents=True, exist_ok=True)
    meta.write_bytes(text)


@pytest.mark.parametrize("stream", ["TELEMETRY_0", COMMANDS, "KV_petiole_fleet"])
def test_a_store_is_taken_by_as_many_servers_as_have_stored_it(tmp_path: Path, stream: str) -> None:
    alone, together = hub(tmp_path, several=False), hub(tmp_path, several=True)
    assert store_problem(alone) is None, "an empty store is anybody's"
    stored(tmp_path, stream, json.dumps({"name": stream, "num_replicas": 3}).encode())
    assert store_problem(together) is None
    assert "of several machines, and this hub is one of one" in str(store_problem(alone))
    stored(tmp_path, stream, json.dumps({"name": stream, "num_replicas": 1}).encode())
    assert store_problem(alone) is None
    assert "of one machine, and this hub is one of several" in str(store_problem(together))


def test_streams_of_users_and_a_store_that_is_encrypted_say_nothing(tmp_path: Path) -> None:
    stored(tmp_path, "OWN", b'{"num_replicas": 1}')
    stored(tmp_path, COMMANDS, b"\x00\xff encrypted")
    assert store_problem(hub(tmp_path, several=True)) is None


def test_what_is_logged_from_now_on_is_read_also_when_the_log_begins_anew(tmp_path: Path) -> None:
    files = Workspace(tmp_path)
    files.log.write_text("old old old\n")
    read = files.log_reader()
    assert read() == ""
    with files.log.open("a") as log:
        log.write("new\n")
    assert read() == "new\n"
    files.log.write_text("anew\n")
    assert read() == "anew\n"
    with files.log.open("a") as log:
        log.write("a link was cut\n" * 50_000 + "Reloaded server configuration\n")
    assert read().endswith("cut\nReloaded server configuration\n"), "of much the end"


def test_what_was_applied_is_known_again_and_nonsense_is_not(tmp_path: Path) -> None:
    files = Workspace(tmp_path)
    assert files.applied() is None
    files.note_applied(7, "digest")
    assert files.applied() == (7, "digest")
    (tmp_path / "applied").write_text("x")
    assert files.applied() is None
