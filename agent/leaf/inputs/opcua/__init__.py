"""Defines and checks the options of the input `opcua`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct, field

from agent.base.files import open_regular
from agent.base.http.access import is_loopback
from agent.config import Seconds
from agent.config.keys import check_password
from agent.leaf.inputs.formats.message import TopicNames, fill_template, template_problem
from agent.leaf.inputs.shared import InputOptions, missing_extra, url_problem
from agent.leaf.inputs.shared.samples import MAX_INTERVAL

Security = Literal["none", "sign", "encrypt"]
_NODE_ID: Final = re.compile(
    r"(ns=\d{1,5};)?(i=\d{1,10}|s=.+|g=[0-9a-fA-F-]{36}|b=[A-Za-z0-9+/=]+)", re.DOTALL
)
_MAX_QUEUE: Final = 100_000
_MIN_PUBLISH: Final = 0.01
_MIN_KEEP, _MAX_KEEP = 10.0, 7 * 86_400.0


class OpcuaOptions(InputOptions, tag="opcua", kw_only=True):
    """The options of one `opcua` input. deploy/reference.toml says what each means."""

    name: str = "opcua"
    url: Annotated[
        str,
        Meta(
            examples=["opc.tcp://127.0.0.1:4840"], extra={"also": ("server", "endpoint", "host", "address")}
        ),
    ]
    nodes: list[NodeSelection]
    events: list[str] = field(default_factory=list)
    interval: Seconds | None = None
    publish: Seconds = Seconds(1.0)
    queue: int = 100
    keep: Seconds = Seconds(600.0)
    security: Security = "none"
    cert: Path | None = None
    key: Path | None = None
    server_cert: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    pulls: ClassVar[bool] = True


class NodeSelection(Struct, forbid_unknown_fields=True, kw_only=True):
    """Variables to follow by `id` or `path`, with device and metric templates.

    `{1}` is the first name below Objects, `{2+}` the second and later joined by dots, `{0}` the path; for an
    `id` the path is the browse name.
    """

    id: str | None = None
    path: str | None = None
    device: str = ""
    metric: str = "{1+}"

    def problems(self) -> Iterator[str]:
        if (self.id is None) == (self.path is None):
            yield 'a node has neither or both of id and path; write id = "ns=2;s=Line1.Speed" or path'
        elif self.id is not None and _NODE_ID.fullmatch(self.id) is None:
            yield f"id {self.id!r:.80} is not a node id, such as ns=2;s=Line1.Speed or ns=3;i=1001"
        elif self.path is not None and not all(self.path.split("/")):
            yield f"path {self.path!r:.80} is not a path below Objects, such as Line*/Motor/Speed"
        for name, template in (("device", self.device), ("metric", self.metric)):
            if (problem := template_problem(template)) is not None:
                yield f"{name} {problem}"
        if not self.metric:
            yield 'metric is empty; leave it out, or write metric = "{2+}"'

    def names(self, path: str) -> TopicNames:
        return TopicNames(
            fill_template(self.device, path, "/") or None, fill_template(self.metric, path, "/")
        )


def problems(options: OpcuaOptions) -> Iterator[str]:
    yield from _values(options)
    yield from _secrets(options)
    yield from missing_extra("opcua", "asyncua")


def _values(options: OpcuaOptions) -> Iterator[str]:
    if (problem := url_problem(options.url, ("opc.tcp",), "opc.tcp://<host>:4840")) is not None:
        yield problem
    if not options.nodes and not options.events:
        yield 'nodes is empty; write nodes = [{ path = "Line1/*" }]'
    for node in options.nodes:
        yield from node.problems()
    for ident in options.events:
        if _NODE_ID.fullmatch(ident) is None:
            yield f"events has {ident!r:.80}, which is not a node id; i=2253 is the server, with all events"
    if options.interval is not None and options.interval > MAX_INTERVAL:
        yield f"interval is {options.interval} s; take at most 1d, or leave it out for each change"
    if not _MIN_PUBLISH <= options.publish <= 3600:
        yield f"publish is {options.publish} s; take 10ms to 1h"
    if not 1 <= options.queue <= _MAX_QUEUE:
        yield f"queue is {options.queue}; take 1 to {_MAX_QUEUE} values"
    if not _MIN_KEEP <= options.keep <= _MAX_KEEP:
        yield f"keep is {options.keep} s; take 10s to 7d"


def _secrets(options: OpcuaOptions) -> Iterator[str]:
    files = (options.cert, options.key, options.server_cert)
    if options.security == "none" and any(file is not None for file in files):
        yield 'cert, key and server_cert stand without security; write security = "encrypt"'
    if options.security != "none" and None in files:
        yield f'security = "{options.security}" needs cert, key and server_cert; name all three'
    if (options.user is None) != (options.password_file is None):
        yield "user and password_file go together; give both, or none"
    elif (
        options.user is not None
        and options.security == "none"
        and not is_loopback(urlsplit(options.url).hostname or "")
    ):
        yield 'the password would go unprotected over the network; write security = "encrypt"'


def file_problems(options: OpcuaOptions) -> Iterator[str]:
    """Yield faults of the named files."""
    if options.password_file is not None and (wrong := check_password(options.password_file)) is not None:
        yield wrong
    for path in (options.cert, options.key, options.server_cert):
        if path is not None:
            try:
                open_regular(path).close()
            except OSError as error:
                yield f"a file of security cannot be read: {error}; put it there in PEM or DER"


class Position(Struct, frozen=True):
    """The stored part of a subscription: all before `sequence`, and its first `parts` pieces."""

    server: str
    """Server start time; after a restart subscriptions are numbered afresh."""
    subscription: int
    nodes: str
    """Digest of the handles' meaning."""
    sequence: int
    parts: int
    v: int = 1
    n: int = 0
    """Number of the last piece, as in the log of source times."""
    cut: str | msgspec.UnsetType = msgspec.UNSET
    """Digest of the last piece, if it omits values stored earlier or is of the server's history: read again,
    it may be another piece.
    """

    def encode(self) -> str:
        """Return the text stored with the readings."""
        return msgspec.json.encode(self).decode()


def parse_position(text: str) -> Position:
    """Parse a position; raises `ValueError` for a later version."""
    position = msgspec.json.decode(text, type=Position)
    if position.v != 1:
        raise ValueError(f"the position is of version {position.v}, this release reads 1")
    return position
