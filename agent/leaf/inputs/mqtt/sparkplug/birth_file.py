"""Keeps the births and `seq` of edge nodes in a file, so that a restarted agent need not ask for all births.

The file is a log of JSON lines, written after a message is stored and not synced. It counts only if it surely
has the newest state: written since the machine was started, or ended by `close`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from structlog.typing import FilteringBoundLogger

from agent.base.files import private_directory, write_private
from agent.base.logs import LogEdge
from agent.leaf.inputs.mqtt.sparkplug.nodes import Births, EdgeNode, MetricType, NodeId, NodeTable

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_ROOM: Final = 4 * 2**20
"""Most bytes of the log beyond those of its state."""


class _Head(Struct, tag="head", omit_defaults=True):
    boot: str
    v: int = 1


class _Node(Struct, tag="node", omit_defaults=True):
    """The state of a node after a message; `births` has those that changed, None for a forgotten birth."""

    ident: NodeId
    expected: int | None = None
    bd_seq: int | None = None
    connections: int = 0
    after_gap: bool = False
    said: list[str] = []
    is_complete: bool = False
    """Whether `births` has all births."""
    births: dict[str, list[tuple[str, int | None, int]] | None] = {}


class _End(Struct, tag="end"):
    """The log was closed and synced."""


_Line = _Head | _Node | _End
_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(_Line)


class BirthFile:
    """The file of one input, or only a table in memory."""

    def __init__(self, path: Path | None, log: FilteringBoundLogger) -> None:
        self._path, self._log = path, log
        self.table = NodeTable()
        self._size: int | None = None
        self._most = _ROOM
        self._writing = LogEdge(log, "births are kept again")

    def load(self) -> None:
        """Read the table; a file that may lack the newest state counts as empty."""
        self.table = NodeTable()
        if self._path is None:
            return
        try:
            lines = self._path.read_bytes().splitlines()
            self._play([_decoder.decode(line) for line in lines])
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            self.table = NodeTable()
            self._log.warning("births not read", reason=str(error)[:200])
        for _, node in self.table.items():
            node.kept = True
        self._rewrite()

    def save(self) -> None:
        """Append what changed since the last call."""
        changed = self.table.take_changed()
        if self._path is None or not changed:
            return
        if self._size is None or self._size > self._most:
            self._rewrite()
            return
        self._append(self._path, b"".join(self._lines(changed)))

    def close(self) -> None:
        """Note that the table is whole, and sync the file."""
        if self._path is not None and self._size is not None:
            self._append(self._path, _encode(_End()) + b"\n", sync=True)

    def _play(self, lines: Iterable[_Line]) -> None:
        is_whole = False
        for line in lines:
            match line:
                case _Head():
                    if line.v != 1:
                        raise ValueError(f"the file of births is of version {line.v}, this release reads 1")
                    is_whole = line.boot == _boot()
                case _End():
                    is_whole = True
                case _Node():
                    self._put(line)
        if not is_whole:
            self.table = NodeTable()

    def _put(self, line: _Node) -> None:
        node = self.table.node(line.ident, 0.0)
        if line.is_complete:
            node.forget_all()
        for device, metrics in line.births.items():
            node.forget(device or None)
            if metrics is not None:
                births = Births()
                for name, alias, datatype in metrics:
                    births.types[name] = datatype
                    if alias is not None:
                        births.aliases[alias] = MetricType(name, datatype)
                node.keep(device or None, births)
        node.expected, node.bd_seq, node.connections = line.expected, line.bd_seq, line.connections
        node.after_gap, node.said = line.after_gap, set(line.said)
        self.table.take_changed()

    def _lines(self, changed: Iterable[tuple[NodeId, EdgeNode, set[str | None], bool]]) -> Iterable[bytes]:
        for ident, node, devices, is_complete in changed:
            births = {device or "": _listed(node.births.get(device)) for device in devices}
            yield (
                _encode(
                    _Node(
                        ident,
                        node.expected,
                        node.bd_seq,
                        node.connections,
                        node.after_gap,
                        sorted(node.said),
                        is_complete,
                        births,
                    )
                )
                + b"\n"
            )

    def _append(self, path: Path, data: bytes, *, sync: bool = False) -> None:
        assert self._size is not None, "the file was rewritten after an error"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if os.pwrite(descriptor, data, self._size) < len(data):
                    raise OSError("the disk is full")
                if sync:
                    os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._fail(error)
        else:
            self._size += len(data)

    def _rewrite(self) -> None:
        if self._path is None:
            return
        nodes = [(ident, node, set(node.births), True) for ident, node in self.table.items()]
        data = b"".join([_encode(_Head(_boot())) + b"\n", *self._lines(nodes)])
        try:
            private_directory(self._path.parent)
            write_private(self._path, data)
        except OSError as error:
            self._fail(error)
        else:
            self._size, self._most = len(data), len(data) + _ROOM
            self._writing.end()

    def _fail(self, error: OSError) -> None:
        """Remove a file that lacks the newest state."""
        self._size = None
        self._writing.begin("births may be requested again after a restart", error=str(error))
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()


def _listed(births: Births | None) -> list[tuple[str, int | None, int]] | None:
    if births is None:
        return None
    named: dict[str, list[int]] = {}
    for alias, metric in births.aliases.items():
        named.setdefault(metric.name, []).append(alias)
    return [
        (name, alias, datatype)
        for name, datatype in births.types.items()
        for alias in named.get(name) or [None]  # type: ignore[list-item]
    ]


def _boot() -> str:
    """Return what changes when the machine is started; unknown, it never matches."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return os.urandom(8).hex()
