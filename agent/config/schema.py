"""The schema of the configuration file: what may stand in it, and what holds when it does not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from agent import contract
from agent.base.supervisor import ConditionError
from agent.config.problem import Problem

_TIMES: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES: Final = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_YEAR: Final = 365 * 86400.0
_QUANTITY: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([A-Za-z]+)\Z")


class Seconds(float):
    """A duration in seconds, written as "100ms", "20s", "2m", "1h" or "1d"; above 0, at most a year."""

    @classmethod
    def parse(cls, value: object) -> Seconds:
        """Read what stands in the file; raises `ValueError`."""
        seconds = _quantity(value, _TIMES)
        if not 0 < seconds <= _YEAR:
            raise ValueError("out of range")
        return cls(seconds)


class Size(int):
    """A size in bytes, written as "16MiB", "1GiB", "500kB" or a whole number; at least 1."""

    @classmethod
    def parse(cls, value: object) -> Size:
        """Read what stands in the file; raises `ValueError`."""
        if isinstance(value, int) and not isinstance(value, bool):
            size = value
        else:
            size = int(_quantity(value, _SIZES))
        if not 1 <= size <= contract.MAX_INT:
            raise ValueError("out of range")
        return cls(size)


def _quantity(value: object, units: Mapping[str, float]) -> float:
    found = _QUANTITY.match(value) if isinstance(value, str) else None
    if found is None or found[2] not in units:
        raise ValueError("not a number with a unit")
    return float(found[1]) * units[found[2]]


class ConfigError(ConditionError):
    """What is wrong with the configuration, one sentence a problem; `found` are the same taken apart, where
    they were found in the file."""

    def __init__(
        self, problems: list[str], found: Sequence[Problem] = (), inputs: Sequence[Any] = ()
    ) -> None:
        super().__init__("\n".join(problems))
        self.problems, self.found, self.inputs = problems, found, inputs

    @classmethod
    def of(cls, found: Sequence[Problem], inputs: Sequence[Any] = ()) -> ConfigError:
        """The error of these problems of a file, with the options of those inputs that could be read."""
        return cls([str(one) for one in found], found, inputs)


Positive = Annotated[int, Meta(ge=1)]


class Log(Struct, forbid_unknown_fields=True):
    """What is logged and how; `auto` is the console's form on a terminal and JSON elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"


class MqttUserConfig(Struct, forbid_unknown_fields=True):
    """A user name of MQTT devices. The file, of mode 0600, holds the password, or its bcrypt hash."""

    name: str
    password_file: Path


class Mqtt(Struct, forbid_unknown_fields=True):
    """The local server's listener for MQTT devices (role leaf); there is none without users."""

    listen: str = "127.0.0.1:1883"
    users: list[MqttUserConfig] = []
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def on(self) -> bool:
        """Whether there is a listener."""
        return bool(self.users)


class Nats(Struct, forbid_unknown_fields=True):
    """The local nats-server: run by the agent (`embedded`) or there already (`external`). `apps` are programs
    on this machine that have commands of their own; `extra` is added to the embedded server's configuration,
    `remote` to a leaf's remote in it."""

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
    apps: list[str] = []
    extra: dict[str, Any] = {}
    remote: dict[str, Any] = {}
    mqtt: Mqtt = msgspec.field(default_factory=Mqtt)


class StreamClass(Struct, forbid_unknown_fields=True):
    """A class of readings: a stream of its own with a quota; when that is full it takes nothing more, or
    discards its oldest messages (`discard`). Over a link that is back the class with the smallest `priority`
    goes first, and where the disk is short it is stored to the last. `link_rate` is how many bytes a second
    the hub takes of it on average."""

    name: str = contract.DEFAULT_CLASS
    max_bytes: Size = Size(2**30)
    discard: Literal["new", "old"] = "new"
    priority: Annotated[int, Meta(ge=0, le=100)] = 10
    link_rate: Size | None = None


class LinkConfig(Struct, forbid_unknown_fields=True):
    """A leaf's link to its hub. `windows` are the times of day, by local time, in which it is open; empty:
    always. `thin` asks less of a link that is paid for by the byte. At the hub a `tenant`'s leaf is in an
    account of its tenant."""

    profile: Literal["normal", "thin"] = "normal"
    windows: list[str] = []
    tenant: bool = False

    @property
    def ping_seconds(self) -> int:
        """From ping to ping: a dead link is noticed after two to three of them (by the hub, whose pings are
        its own, in 20 s)."""
        return 30 if self.profile == "thin" else 5

    @property
    def announce_seconds(self) -> float:
        """From announcement to announcement while nothing happens."""
        return 60.0 if self.profile == "thin" else 10.0


class Publish(Struct, forbid_unknown_fields=True):
    """How readings become batches and how many may be under way."""

    linger: Seconds = Seconds(0.1)
    batch_bytes: Size = Size(contract.MAX_BATCH_BYTES)
    batch_readings: Positive = contract.MAX_BATCH_READINGS
    window: Annotated[int, Meta(ge=1, le=contract.MAX_WINDOW)] = 64
    in_flight: Size = Size(32 * 2**20)
    drain: Seconds = Seconds(20.0)


class Admin(Struct, forbid_unknown_fields=True):
    """The HTTP server of /metrics, /healthz, /readyz and /status, and at the hub /fleet. With a `token_file`
    only who shows the token is answered, with `tls_cert` and `tls_key` it speaks TLS."""

    listen: str = "127.0.0.1:9464"
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token_file: Path | None = None


class LeafMember(Struct, forbid_unknown_fields=True):
    """A leaf that the hub lets in (role hub): its domain, public key and classes; which of the hub's streams
    it may mirror or source (`takes`), and which of its own the hub may (`gives`). `revoked` are keys that it
    had and that are let in no more; without a `key` it is not let in. With a `tenant` it is in that one's
    account. `users` are the keys with which its server links the accounts of users, by the users' names."""

    domain: str
    key: str = ""
    classes: list[str] = msgspec.field(default_factory=lambda: [contract.DEFAULT_CLASS])
    takes: list[str] = []
    gives: list[str] = []
    revoked: list[str] = []
    tenant: str = ""
    users: dict[str, str] = {}


class User(Struct, forbid_unknown_fields=True):
    """A program with an account of its own on this server, in which it makes streams and buckets as it likes:
    its public key, what of Petiole's it may read (`reads`: classes on a leaf, aggregates at the hub) and how
    much its streams may take. `linked` joins the account on a leaf with that of the same name at the hub."""

    name: str
    key: str = ""
    revoked: list[str] = []
    reads: list[str] = []
    max_bytes: Size = Size(256 * 2**20)
    linked: bool = False


class Transform(Struct, forbid_unknown_fields=True):
    """Subjects that are taken over under another name, as JetStream's subject transforms."""

    src: str
    dest: str


class OriginConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """The stream from which a declared link takes messages: in another `domain`, or behind an `api` prefix
    (another account, with the `deliver` prefix that it exports)."""

    of: str = ""
    domain: str = ""
    api: str = ""
    deliver: str = ""
    start_sequence: Positive | None = None
    start_time: datetime | None = None
    filter: str = ""
    transforms: list[Transform] = []


class MirrorConfig(OriginConfig, forbid_unknown_fields=True, kw_only=True):
    """A stream here that is a copy of another one, sequences included; when it is full the oldest messages of
    the copy go. `recreate` lets the agent delete it and make it anew where nothing else helps."""

    name: str
    max_bytes: Size = Size(256 * 2**20)
    recreate: bool = False


class SourceConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """A stream here that gathers others; when it is full they wait."""

    name: str
    from_: list[OriginConfig] = msgspec.field(name="from", default_factory=list)
    max_bytes: Size = Size(256 * 2**20)


class RegistrarConfig(Struct, forbid_unknown_fields=True):
    """The hub's registrar (role hub). `keep` is how many committed messages an aggregate retains, so that
    checkpoints can still be checked; `max_sources` how many classes of leaves it takes; `aggregates` how many
    there are at least; `bytes_per_hour` what a domain may send (None: as much as it likes); `replicas` on how
    many servers of a cluster the hub's streams stand."""

    keep: Annotated[int, Meta(ge=0)] = 10_000
    max_bytes: Size = Size(4 * 2**30)
    max_sources: Annotated[int, Meta(ge=1, le=2_000)] = 200
    aggregates: Annotated[int, Meta(ge=1, le=100)] = 1
    bytes_per_hour: Size | None = None
    replicas: Literal[1, 3] = 1


class Rule(Struct, forbid_unknown_fields=True, kw_only=True):
    """What is made of some readings before they are stored (role leaf): of those whose metric, device and
    input match one of the patterns given, and none that begins with `!`. `name` stands in metrics. One of
    `class`, `drop`, `tags` and `deadband` at least; under a deadband a reading is left out unless its value
    moved by more than that since the one that was stored last of its series, or `after` has passed."""

    name: str = ""
    metric: str | list[str] = "*"
    device: str | list[str] = "*"
    input: str | list[str] = "*"
    class_: str | None = msgspec.field(name="class", default=None)
    drop: bool = False
    tags: dict[str, str] = {}
    deadband: Annotated[float, Meta(ge=0)] | None = None
    after: Seconds | None = None


class Config(Struct, forbid_unknown_fields=True):
    """The whole configuration of one agent. `input` holds the options of each input, as its module declares
    them."""

    domain: str
    role: Literal["leaf", "hub"] = "leaf"
    state_dir: Path = Path("/var/lib/petiole")
    log: Log = msgspec.field(default_factory=Log)
    nats: Nats = msgspec.field(default_factory=Nats)
    link: LinkConfig = msgspec.field(default_factory=LinkConfig)
    class_: list[StreamClass] = msgspec.field(name="class", default_factory=lambda: [StreamClass()])
    publish: Publish = msgspec.field(default_factory=Publish)
    admin: Admin = msgspec.field(default_factory=Admin)
    leaf: list[LeafMember] = []
    user: list[User] = []
    mirror: list[MirrorConfig] = []
    source: list[SourceConfig] = []
    registrar: RegistrarConfig = msgspec.field(default_factory=RegistrarConfig)
    rule: list[Rule] = []
    input: list[Any] = []


def listen_address(text: str) -> tuple[str, int]:
    """`host:port` as a pair; raises `ValueError`."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is not host:port")
    host = host.removeprefix("[").removesuffix("]")
    if not host.isprintable() or not _is_name(host):
        raise ValueError(f"{text!r} is not host:port")
    return host, int(port)


def _is_name(host: str) -> bool:
    """Whether a resolver takes it: `socket.getaddrinfo` raises `UnicodeError` for an empty or too long
    label."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True
