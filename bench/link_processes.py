"""A nats-server in which the product's account stands beside one for raw JetStream, and the product's agent,
each a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import nats
from msgspec.structs import replace
from nats.aio.client import Client

from agent.base.files import write_private
from agent.base.nats_server import find_binary
from agent.config.keys import seed_line
from agent.contract import inbox_prefix
from agent.server.render import LINK_INCLUDE, render
from agent.server.values import LeafConfig, ServerConfig
from bench.agents import Running, started, wait_ready

RAW: Final = "RAW"
_PASSWORD: Final = "raw"
OURS: Final = "PETIOLE"
_RAW_ACCOUNT = (
    f"accounts: {{\n  {RAW}: {{ jetstream: enabled, users: [ {{ user: raw, password: {_PASSWORD} }} ] }}\n"
)
_TIMEOUTS = 'dial_timeout: "10s", first_info_timeout: "10s"'
RAW_PLAIN: Final = f"account: {RAW}, compression: off,"
"""Stands in the leaf's raw remote: not compressed, as the product's is not."""
_RAW_REMOTE = f'remotes: [\n      {{ urls: [ "%s" ], {RAW_PLAIN} {_TIMEOUTS} }}\n'
_RECONNECT_SECONDS: Final = 0.02
_START_SECONDS: Final = 60.0
_LINK = re.compile(
    r"\[\d+\] (?P<at>\S+ \S+) \[INF\] \S+ - lid:(?P<link>\d+) - "
    r"Leafnode connection (?:created for account: (?P<account>\S+)|closed)"
)


class Server(Running):
    """A nats-server process with a rendered configuration to which the account of raw JetStream is added."""

    def __init__(self, config: ServerConfig, directory: Path, keys: dict[str, Path]) -> None:
        super().__init__()
        self.config = replace(config, log_file=directory / "nats-server.log")
        self.directory = directory
        self.keys = keys
        self._path = directory / "nats-server.conf"
        self._path.write_text(_with_raw(self.config))
        if isinstance(config, LeafConfig):
            write_private(directory / LINK_INCLUDE, seed_line("nkey", config.link_key_file).encode())

    @property
    def url(self) -> str:
        return f"nats://{self.config.listen}"

    def start(self) -> float:
        """Start the process; returns when that was, in seconds since 1970."""
        with (self.directory / "output").open("ab") as output:
            began = time.time()
            self._process = subprocess.Popen(
                [find_binary(), "-c", self._path], stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
        return began

    def link_ups(self, account: str, since: float) -> Iterator[float]:
        """When links of an account came up at or after a time, by this server's own log."""
        return (at for at, of, up in self._links() if up and of == account and at >= since)

    def link_downs(self, account: str, since: float) -> Iterator[float]:
        """When links of an account ended at or after a time, by this server's own log."""
        return (at for at, of, up in self._links() if not up and of == account and at >= since)

    async def raw(self) -> Client:
        """A client in the account of raw JetStream."""
        return await nats.connect(self.url, user="raw", password=_PASSWORD, **forever())

    async def ours(self, identity: str, inbox: str) -> Client:
        """A client with one of the product's identities."""
        seed, prefix = str(self.keys[identity]), inbox_prefix(inbox)
        return await nats.connect(self.url, nkeys_seed=seed, inbox_prefix=prefix, **forever())

    def _links(self) -> Iterator[tuple[float, str, bool]]:
        """When a link came up or ended, and that of which account it was."""
        accounts: dict[str, str] = {}
        for line in self._log():
            if (found := _LINK.match(line)) is None:
                continue
            at = datetime.strptime(found["at"], "%Y/%m/%d %H:%M:%S.%f").timestamp()
            if found["account"]:
                accounts[found["link"]] = found["account"]
            yield at, accounts.get(found["link"], ""), bool(found["account"])

    def _log(self) -> list[str]:
        assert self.config.log_file is not None
        files = sorted(self.directory.glob("nats-server.log*"), key=lambda one: one.stat().st_mtime)
        return [line for file in files for line in file.read_text(errors="replace").splitlines()]


@dataclass(slots=True)
class AgentProcess(Running):
    """The product's agent: one `petiole run` beside a server that it does not own."""

    directory: Path
    toml: str
    admin_port: int
    http_port: int = 0

    def start(self) -> None:
        """Start it; returns when it is ready. Raises `RuntimeError`."""
        (self.directory / "petiole.toml").write_text(self.toml)
        self._process = started(self.directory)
        wait_ready(self._process, self.directory, self.admin_port, _START_SECONDS, 0.05)

    def status(self) -> dict[str, Any]:
        """What `/status` shows, empty where nothing answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/status", timeout=2) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return {}
        return found


async def link_port(system: Client, account: str) -> int:
    """From which port the one link of an account comes, by the hub's server."""
    message = await system.request("$SYS.REQ.SERVER.PING.LEAFZ", b"", timeout=5)
    leafs = json.loads(message.data)["data"]["leafs"]
    (port,) = (leaf["port"] for leaf in leafs if leaf["account"] == account)
    return int(port)


def forever() -> dict[str, Any]:
    return {
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": _RECONNECT_SECONDS,
        "error_cb": _ignore,
    }


async def _ignore(_: Exception) -> None:
    """Faults are what is measured; the library would print each."""


def _with_raw(config: ServerConfig) -> str:
    text = _once(render(config), "accounts: {\n", _RAW_ACCOUNT)
    if isinstance(config, LeafConfig):
        dialled = config.hub_urls[0].removeprefix("nats-leaf://")
        text = _once(text, "remotes: [\n", _RAW_REMOTE % f"nats-leaf://raw:{_PASSWORD}@{dialled}")
    return text


def _once(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the configuration"
    return text.replace(old, new)
