"""What of a configuration changed, and what follows; a file that cannot be judged changes nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent.config import Config, LeafMember, Linger, Log, Nats, Publish, Rule, User
from agent.leaf.inputs import OPTIONS
from agent.leaf.inputs.http import HttpOptions
from agent.leaf.inputs.socket import SocketOptions
from agent.leaf.intake import CheckedInput
from agent.mapping.schema import Map
from agent.process.reload import Applied, ConfigChange, Reloader, ReloadError, change, parts


def config(*inputs: Any, **rest: Any) -> Config:
    return Config("edge-1", input=list(inputs), **rest)


def between(before: Config, after: Config, *reserved: str) -> ConfigChange:
    return change(parts(before), parts(after), frozenset(reserved))


HTTP = HttpOptions()
SOCKET = SocketOptions()


def test_the_same_configuration_is_no_change() -> None:
    found = between(config(HTTP, SOCKET), config(SOCKET, HTTP))
    assert not found
    assert str(found) == "nothing in it has changed"


def test_inputs_that_came_went_and_changed_are_told_apart() -> None:
    other = replace(SOCKET, name="lines")
    found = between(config(HTTP, SOCKET), config(replace(HTTP, body=1_000), other))
    assert found == ConfigChange(end=("http", "socket"), begin=("http", "lines"))
    assert str(found) == "input restarted: http; input ended: socket; input begun: lines"


def test_rules_and_logging_are_taken_in_and_all_else_takes_a_new_start() -> None:
    rules = between(config(), config(rule=[Rule(drop=True)], log=Log("debug")))
    assert rules == ConfigChange(live=frozenset({"rule", "log"}))
    assert str(rules) == "rules taken in; logging taken in"
    found = between(config(HTTP), config(publish=Publish(linger=Linger(1.0)), rule=[Rule(drop=True)]))
    assert found.restart == ("publish",)
    assert str(found) == "the agent restarts, for publish changed"


def test_a_changed_mapping_restarts_the_inputs_that_name_it_and_no_other() -> None:
    before, after = (Map(name="press", value=path) for path in ("v", "w"))
    found = between(
        config(replace(HTTP, map=before), SOCKET, map=[before]),
        config(replace(HTTP, map=after), SOCKET, map=[after]),
    )
    assert found == ConfigChange(end=("http",), begin=("http",))


def test_the_leaves_of_a_hub_are_taken_in_while_it_runs() -> None:
    found = between(config(leaf=[LeafMember("edge-1", "U1")]), config(leaf=[LeafMember("edge-1", "U2")]))
    assert found == ConfigChange(live=frozenset({"leaf"}))
    assert str(found) == "leaves taken in"


def test_users_are_taken_in_by_a_running_hub_and_take_a_new_start_of_a_leaf() -> None:
    before, after = parts(config()), parts(config(user=[User("app", "U1")]))
    assert change(before, after, hub=True) == ConfigChange(live=frozenset({"user"}))
    assert str(change(before, after, hub=True)) == "users taken in"
    assert change(before, after).restart == ("user",)


def test_an_input_that_the_local_server_knows_of_takes_a_new_start() -> None:
    assert between(config(), config(HTTP), "http").restart == ("input.http",)


def test_a_file_that_is_named_counts_with_what_is_in_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    one = config(replace(HTTP, token_file=token))
    without = parts(one)
    token.write_text("first")
    first = parts(one)
    token.write_text("other")
    assert change(without, first).begin == ("http",)
    assert change(first, parts(one)).begin == ("http",)
    assert not change(parts(one), parts(one))


def test_a_certificate_that_is_added_to_the_server_counts_with_what_is_in_it(tmp_path: Path) -> None:
    cert = tmp_path / "hub.crt"
    for nats in (
        Nats(extra={"leafnodes": {"tls": {"cert_file": str(cert)}}}),
        Nats(remote={"tls": {"ca_file": str(cert)}}),
    ):
        cert.write_text("first")
        first = parts(config(nats=nats))
        assert not change(first, parts(config(nats=nats)))
        cert.write_text("other")
        assert change(first, parts(config(nats=nats))).restart == ("nats",)


@pytest.mark.parametrize("kind", list(OPTIONS))
def test_the_options_of_every_input_can_be_compared(kind: str) -> None:
    needed: dict[str, dict[str, Any]] = {
        "exec": {"command": ["true"]},
        "file": {"path": "/x"},
        "modbus": {"url": "tcp://h", "registers": []},
        "mqtt": {"url": "mqtt://h", "topics": ["x/#"]},
        "nats": {"subjects": ["x.>"]},
        "opcua": {"url": "opc.tcp://h", "nodes": []},
        "prometheus": {"urls": ["http://h/metrics"]},
    }
    one: Any = OPTIONS[kind](**needed.get(kind, {}))
    renamed = replace(one, name="another")
    assert between(config(one), config(renamed)) == ConfigChange(end=(one.name,), begin=("another",))


class Files:
    """A file that is judged with an error until it is good."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.judged = threading.Event()
        self.config = Config("edge-1", log=Log("debug"))

    def read(self) -> Config:
        return self.config

    def make(self, config: Config, names: Sequence[str]) -> list[CheckedInput]:
        return []

    def problems(self, config: Config, inputs: Sequence[CheckedInput], *, restart: bool) -> list[str]:
        error = self.error
        self.judged.set()
        if error is not None:
            raise error
        return []


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied", "/root/x"), UnicodeError("label empty"), KeyError("a")]
)
async def test_an_error_in_the_check_is_a_refusal_and_a_good_file_is_taken_afterwards(
    error: Exception,
) -> None:
    files = Files(error)
    reloader = Reloader(Config("edge-1"), files)
    with pytest.raises(ReloadError, match=type(error).__name__):
        reloader.plan()
    files.judged.clear()
    applied: asyncio.Queue[Applied] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(reloader.run(applied.put, lambda: None))
        reloader.wanted()
        await asyncio.to_thread(files.judged.wait, 10)
        files.error = None
        reloader.wanted()
        assert (await applied.get()).config.log.level == "debug"
        running.cancel()


async def test_a_plan_that_another_reload_overtook_begins_no_input_a_second_time() -> None:
    files = Files()
    files.config = config(SOCKET)
    reloader = Reloader(config(), files)
    planned = reloader.plan()
    applied: asyncio.Queue[Applied] = asyncio.Queue()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(reloader.run(applied.put, lambda: None))
        reloader.wanted()
        assert (await applied.get()).change.begin == ("socket",)
        reloader.wanted(planned)
        files.config = config(SOCKET, HTTP)
        assert (await applied.get()).change == ConfigChange(begin=("http",))
        running.cancel()
