"""The configuration file (TOML): its schema, and reading it with all of its problems at once.

Every problem names its key, what stood there and what to do. The options of an input are declared by the input's own
module and handed in, so that the core knows no input.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from agent import contract

_UNITS_TIME = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNITS_SIZE = {
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)\Z")


class Seconds(float):
    """A duration in seconds, written as "100ms", "20s", "2m", "1h" or "1d"."""


class Size(int):
    """A size in bytes, written as "16MiB", "1GiB", "500kB" or a whole number."""


class ConfigError(Exception):
    """What is wrong with the configuration, one sentence a problem."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


Positive = Annotated[int, Meta(ge=1)]


class Log(Struct, forbid_unknown_fields=True):
    """What is logged and how; `auto` is the console's form on a terminal and JSON elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"


class Nats(Struct, forbid_unknown_fields=True):
    """The local nats-server: run by the agent (`embedded`) or there already (`external`)."""

    server: Literal["embedded", "external"] = "embedded"
    listen: str = "127.0.0.1:4222"
    seed_file: Path | None = None
    system_seed_file: Path | None = None
    store_dir: Path | None = None
    max_file_store: Size = Size(8 * 2**30)
    hub_urls: list[str] = []
    link_seed_file: Path | None = None
    leaf_listen: str = "127.0.0.1:7422"
    jobs_seed_file: Path | None = None
    device_seed_file: Path | None = None


class StreamClass(Struct, forbid_unknown_fields=True):
    """A class of readings: a stream of its own with a quota and a policy for when that is full."""

    name: str = contract.DEFAULT_CLASS
    max_bytes: Size = Size(2**30)
    discard: Literal["new", "old"] = "new"


class Publish(Struct, forbid_unknown_fields=True):
    """How readings become batches and how many may be under way."""

    linger: Seconds = Seconds(0.1)
    batch_bytes: Size = Size(contract.MAX_BATCH_BYTES)
    batch_readings: Positive = contract.MAX_BATCH_READINGS
    window: Positive = 64
    in_flight: Size = Size(32 * 2**20)
    drain: Seconds = Seconds(20.0)


class Admin(Struct, forbid_unknown_fields=True):
    """The HTTP server of /metrics, /healthz, /readyz and /status."""

    listen: str = "127.0.0.1:9464"


class LeafMember(Struct, forbid_unknown_fields=True):
    """A leaf that the hub lets in (role hub): its domain, public key and classes."""

    domain: str
    key: str
    classes: list[str] = [contract.DEFAULT_CLASS]


class Registrar(Struct, forbid_unknown_fields=True):
    """The hub's registrar (role hub). `keep` is how many committed messages the aggregate retains, so that
    checkpoints can still be checked."""

    keep: Annotated[int, Meta(ge=0)] = 10_000
    max_bytes: Size = Size(4 * 2**30)


class Config(Struct, forbid_unknown_fields=True):
    """The whole configuration of one agent. `input` holds the options of each input, as its module declares."""

    domain: str
    role: Literal["leaf", "hub"] = "leaf"
    state_dir: Path = Path("/var/lib/petiole")
    log: Log = msgspec.field(default_factory=Log)
    nats: Nats = msgspec.field(default_factory=Nats)
    class_: list[StreamClass] = msgspec.field(name="class", default_factory=lambda: [StreamClass()])
    publish: Publish = msgspec.field(default_factory=Publish)
    admin: Admin = msgspec.field(default_factory=Admin)
    leaf: list[LeafMember] = []
    registrar: Registrar = msgspec.field(default_factory=Registrar)
    input: list[Any] = []


def listen_address(text: str) -> tuple[str, int]:
    """`host:port` as a pair; raises `ValueError`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is not host:port")
    return host.strip("[]"), int(port)
