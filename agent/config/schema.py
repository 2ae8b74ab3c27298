"""Defines the configuration file with defaults, and derives aggregates, readers and digests of leaves and
users.

The number of aggregates follows from the configuration alone, because permissions name them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from agent import contract
from agent.config.server_schema import Nats
from agent.config.values import Linger, Positive, RestAfter, Seconds, Size, SyncInterval
from agent.mapping.schema import Map

_THIN_LINGER: Final = 1.0
_REST_AFTER: Final = {"normal": 1200.0, "thin": 60.0}  # one that reports each 15 minutes never rests


class Log(Struct, forbid_unknown_fields=True):
    """The log: its level and its form; `auto` is the console's form on a terminal and JSON elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"


class StreamClass(Struct, forbid_unknown_fields=True):
    """A class of readings: a stream of its own with a quota; when that is full it takes nothing more, or
    discards its oldest messages (`discard`). The class with the smallest `priority` goes first over a link
    that is back. On a short disk it is refused last. `link_rate` is how many bytes a second the hub takes of
    it on average. A leaf has 256 classes at most."""

    name: str = contract.DEFAULT_CLASS
    max_bytes: Size = Size(2**30)
    discard: Literal["new", "old"] = "new"
    priority: Annotated[int, Meta(ge=0, le=100)] = 10
    link_rate: Size | None = None
    linger: Linger | None = None
    rest_after: RestAfter | None = None
    """As `link.rest_after`, and `linger` as `publish.linger`, for this class."""


class LinkConfig(Struct, forbid_unknown_fields=True):
    """A leaf's link to its hub. `windows` are the times of day, by local time, in which it is open; empty:
    always. `thin` asks less of a link that is paid for by the byte. At the hub a `tenant`'s leaf is in an
    account of its tenant. With `report_time_to_loss` the time to loss is stored as a reading, too."""

    profile: Literal["normal", "thin"] = "normal"
    rest_after: RestAfter | None = None
    """After how long without readings a class rests; 0: never, None: as the profile."""
    windows: list[str] = []
    resume_port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    tenant: bool = False
    report_time_to_loss: bool = False

    @property
    def ping_seconds(self) -> int:
        """Ping interval; a dead link shows after two to three (at the hub, with its own pings, 20 s). A relay
        notices a dead line itself, and PONGs may wait behind seconds of data."""
        return 30 if self.profile == "thin" or self.resume_port is not None else 5

    @property
    def announce_seconds(self) -> float:
        """Announcement interval without changes."""
        return 60.0 if self.profile == "thin" else 10.0

    def rest_seconds(self, of_class: RestAfter | None = None) -> float | None:
        """Return the time without readings before a class rests, None for never."""
        chosen = self.rest_after if of_class is None else of_class
        return (_REST_AFTER[self.profile] if chosen is None else chosen) or None


class Publish(Struct, forbid_unknown_fields=True):
    """How readings become batches and how many may be under way."""

    linger: Linger | None = None
    """How long a batch waits for more readings although nothing is under way; None: as `Config.linger`."""
    batches_per_second: Annotated[int, Meta(ge=1, le=10_000)] = 2
    """Of each class, on average over a day; above it readings gather."""
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

    @property
    def tls(self) -> tuple[Path, Path] | None:
        """Certificate and key, or None."""
        cert, key = self.tls_cert, self.tls_key
        return None if cert is None or key is None else (cert, key)


class LeafMember(Struct, forbid_unknown_fields=True):
    """A leaf that the hub lets in (role hub): its domain, public key and classes; which of the hub's streams
    it may mirror or source (`takes`), and which of its own the hub may (`gives`). `revoked` are keys that it
    had and that are no longer accepted; without a `key` it is not let in. Of a leaf that is `forgotten` only
    these keys are known. With a `tenant` it is in the tenant's account, else in that of its `cell`, 0 being
    the first. `users` are the keys with which its server links the accounts of users, by the users' names.
    `receipt` are the keys that sign its ledger records, newest first; ` until ` and a time behind a key
    refuse later records."""

    domain: str
    key: str = ""
    classes: list[str] = msgspec.field(default_factory=lambda: [contract.DEFAULT_CLASS])
    takes: list[str] = []
    gives: list[str] = []
    revoked: list[str] = []
    forgotten: bool = False
    tenant: str = ""
    cell: Annotated[int, Meta(ge=0, le=9_999)] = 0
    users: dict[str, str] = {}
    receipt: list[str] = []

    @property
    def cell_name(self) -> str:
        """The name of its cell."""
        return str(self.cell) if self.cell else contract.HOME


class User(Struct, forbid_unknown_fields=True):
    """A program with an account of its own on this server, in which it makes streams and buckets as it likes:
    its public key, what of Petiole's it may read (`reads`: classes on a leaf, aggregates at the hub) and how
    much its streams may take. `linked` joins the account on a leaf with that of the same name at the hub."""

    name: str
    key: str = ""
    revoked: list[str] = []
    forgotten: bool = False
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
    """Copies another stream, sequences included; when it is full the oldest messages of
    the copy go. `recreate` lets the agent delete and recreate it where nothing else helps."""

    name: str
    max_bytes: Size = Size(256 * 2**20)
    recreate: bool = False


class SourceConfig(Struct, forbid_unknown_fields=True, kw_only=True):
    """A stream here that gathers other streams; when it is full they wait."""

    name: str
    from_: list[OriginConfig] = msgspec.field(name="from", default_factory=list)
    max_bytes: Size = Size(256 * 2**20)


class RegistrarConfig(Struct, forbid_unknown_fields=True):
    """The hub's registrar (role hub). `keep` is how many committed messages an aggregate retains, so that
    checkpoints can still be checked; `max_sources` how many classes of leaves it takes; `aggregates` how many
    there are at least in the first cell; `cell_leaves` how many leaves `petiole fleet add` puts into a cell;
    `bytes_per_hour` what a domain may send (None: as much as it likes); `replicas` on how
    many servers of a cluster the hub's streams stand; `sync_interval` how often an embedded server syncs its
    disk. Leaves that match one of the patterns `metrics` have
    metrics of their own, at most `metrics_leaves` of them."""

    keep: Annotated[int, Meta(ge=0)] = 10_000
    max_bytes: Size = Size(4 * 2**30)
    max_sources: Annotated[int, Meta(ge=1, le=2_000)] = 200
    aggregates: Annotated[int, Meta(ge=1, le=100)] = 1
    cell_leaves: Annotated[int, Meta(ge=1, le=2_000)] = 200
    bytes_per_hour: Size | None = None
    replicas: Literal[1, 3] = 1
    sync_interval: SyncInterval = SyncInterval(1.0)
    metrics: list[str] = msgspec.field(default_factory=lambda: ["*"])
    metrics_leaves: Annotated[int, Meta(ge=0, le=100_000)] = 1_000


class Rule(Struct, forbid_unknown_fields=True, kw_only=True):
    """Changes readings before they are stored (role leaf). Their metric, device and input match a given
    pattern, and none that begins with `!`. `name` is a label of metrics. A rule has at least one of `class`,
    `drop`, `tags`, `deadband`, `sample` and `aggregate`. A deadband leaves a reading out unless its value
    moved by more from the last stored value of its series, or `after` has passed. `sample` leaves it out
    unless its `ts` is in another span of that length than the last stored reading. `aggregate` sends the
    results of its functions in place of the readings of a series in each `window`, `late` after its end."""

    name: str = ""
    metric: str | list[str] = "*"
    device: str | list[str] = "*"
    input: str | list[str] = "*"
    class_: str | None = msgspec.field(name="class", default=None)
    drop: bool = False
    tags: dict[str, str] = {}
    deadband: Annotated[float, Meta(ge=0)] | None = None
    after: Seconds | None = None
    sample: Seconds | None = None
    aggregate: list[Literal["mean", "min", "max", "last", "count"]] = []
    window: Seconds | None = None
    late: Seconds | None = None


class Config(Struct, forbid_unknown_fields=True):
    """The whole configuration of an agent. `input` holds each input's options as its module declares them."""

    domain: Annotated[str, Meta(examples=["edge-1"])]
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
    map: list[Map] = []
    input: list[Any] = []

    @property
    def identity(self) -> str:
        """The agent's name in its inbox prefix and connections."""
        return self.domain if self.role == "leaf" else contract.REGISTRAR

    @property
    def class_names(self) -> list[str]:
        """Readable class names."""
        return [cls.name for cls in self.class_ if cls is not None]

    @property
    def leaves(self) -> list[LeafMember]:
        """Readable leaves, without forgotten ones."""
        return [leaf for leaf in self.leaf if leaf is not None and not leaf.forgotten]

    @property
    def users(self) -> list[User]:
        """Readable users."""
        return [user for user in self.user if user is not None and not user.forgotten]

    @property
    def heard(self) -> tuple[str, ...]:
        """Local subjects of inputs."""
        return tuple(subject for input_ in self.input for subject in input_.subscribe_subjects)

    @property
    def resume_listen(self) -> str:
        """Where this agent's relay listens, "" if it has none."""
        port = self.link.resume_port
        default = "" if port is None or self.role == "hub" else f"127.0.0.1:{port}"
        return self.nats.resume_listen or default

    @property
    def remote(self) -> dict[str, Any]:
        """Return additions to a leaf's remote, with the agent's relay as its proxy."""
        if self.link.resume_port is None:
            return self.nats.remote
        return {**self.nats.remote, "proxy": {"url": f"http://{self.resume_listen}"}}

    @property
    def hub_sync_seconds(self) -> float:
        """The hub server's sync interval; 0 for before acks.

        External and clustered servers must sync first, since a registrar syncs only its own disk.
        """
        alone = self.nats.server == "embedded" and not self.nats.cluster.on
        return self.registrar.sync_interval if alone else 0.0

    @property
    def linger(self) -> float:
        """Default linger in seconds."""
        if self.publish.linger is None:
            return _THIN_LINGER if self.link.profile == "thin" else 0.0
        return self.publish.linger


def cells(config: Config) -> dict[str, list[LeafMember]]:
    """The leaves of each cell, the first cell in front. A cell stays when all its leaves are forgotten, for
    its aggregates may hold readings."""
    found: dict[str, list[LeafMember]] = {contract.HOME: []}
    for leaf in sorted(config.leaf, key=lambda leaf: 0 if leaf is None else leaf.cell):
        if leaf is not None:
            found.setdefault(leaf.cell_name, []).append(leaf)
    return {cell: [leaf for leaf in leaves if not leaf.forgotten] for cell, leaves in found.items()}


def aggregates(config: Config) -> tuple[str, ...]:
    """Return the aggregates' names: in each cell for all classes of its leaves, and in the first cell at
    least `[registrar] aggregates`."""
    names = []
    for cell, leaves in cells(config).items():
        needed = -(-sum(len(leaf.classes) for leaf in leaves) // config.registrar.max_sources)
        least = 1 if cell else config.registrar.aggregates
        names += [contract.aggregate(number, cell) for number in range(max(1, needed, least))]
    return tuple(names)


def aggregates_of(config: Config, cell: str) -> tuple[str, ...]:
    """Return the names of a cell's aggregates."""
    return tuple(name for name in aggregates(config) if contract.cell_of(name) == cell)


def cell_of_leaf(config: Config, domain: str) -> str:
    """Return the cell of a leaf, the first cell for an unknown domain."""
    return next((leaf.cell_name for leaf in config.leaf if leaf.domain == domain), contract.HOME)


def readers(config: Config, what: str) -> list[str]:
    """Return consumers of users that may read a class or aggregate."""
    return [contract.user_consumer(user.name) for user in config.user if user.key and what in user.reads]


def members_digest(leaves: Iterable[LeafMember]) -> str:
    """Return a digest of [[leaf]], to see whether an agent applied it."""
    return _digest(sorted(leaves, key=attrgetter("domain")))


def users_digest(users: Iterable[User]) -> str:
    """Return a digest of [[user]]."""
    return _digest(sorted(users, key=attrgetter("name")))


def _digest(tables: Sequence[msgspec.Struct]) -> str:
    return hashlib.sha256(msgspec.json.encode(tables, enc_hook=int)).hexdigest()[:16]
