"""Defines the options of the input `socket`, and parses and opens its address."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import re
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from agent.base.files import UnseenError, mode_at
from agent.base.listen_sockets import LISTEN_SOCKETS, cannot_listen
from agent.config import ConfigError, Seconds, Size, listen_address
from agent.leaf.inputs.shared import LineOptions

_MODE: Final = re.compile(r"0?[0-7]{3}\Z").match


class SocketOptions(LineOptions, tag="socket", kw_only=True):
    """The options of one `socket` input. deploy/reference.toml says what each means."""

    name: str = "socket"
    listen: str = "tcp://127.0.0.1:8094"
    reply: bool = False
    line: Size = Size(64 * 1024)
    max_connections: Annotated[int, Meta(ge=1, le=10_000)] = 128
    idle: Seconds = Seconds(3600.0)
    buffer: Size = Size(16 * 2**20)
    receive_buffer: Size = Size(4 * 2**20)
    mode: str = "0660"
    user: str | None = None
    group: str | None = None

    @property
    def listens(self) -> str:
        return self.listen


def mode_of(options: SocketOptions) -> int:
    """Return a Unix socket's mode; raises `ValueError`."""
    if not _MODE(options.mode):
        raise ValueError(f'mode is {options.mode!r:.20}; write it in octal, as "0660"')
    return int(options.mode, 8)


def owner_of(options: SocketOptions) -> tuple[int, int]:
    """Return numeric owner and group, -1 for the agent's. Raises `ValueError` for unknown names."""
    return _number(options.user, "user"), _number(options.group, "group")


def _number(name: str | None, label: str) -> int:
    if name is None:
        return -1
    try:
        return pwd.getpwnam(name).pw_uid if label == "user" else grp.getgrnam(name).gr_gid
    except KeyError:
        raise ValueError(f"there is no {label} {name!r} on this machine") from None


Scheme = Literal["tcp", "udp", "unix", "unixgram"]
SCHEMES: Final[tuple[Scheme, ...]] = ("tcp", "udp", "unix", "unixgram")
_BACKLOG: Final = 128
_MAX_PATH: Final = 100
"""Linux allows 107 bytes; a socket is first bound under a longer name."""


class Address(Struct, frozen=True):
    """A `host` and `port`, or the `path` of a Unix socket."""

    scheme: Scheme
    host: str = ""
    port: int = 0
    path: Path = Path()

    @property
    def text(self) -> str:
        return f"{self.scheme}://{self.path}" if self.is_path else f"{self.scheme}://{self.host}:{self.port}"

    @property
    def is_path(self) -> bool:
        return self.scheme in ("unix", "unixgram")

    @property
    def is_stream(self) -> bool:
        return self.scheme in ("tcp", "unix")


def parse_listen(text: str) -> Address:
    """Parse `tcp://host:port`, `udp://host:port`, `unix:///path` or `unixgram:///path`;
    raises `ValueError`.
    """
    scheme, _, rest = text.partition("://")
    for known_scheme in SCHEMES:
        if scheme != known_scheme:
            continue
        if known_scheme in ("tcp", "udp"):
            host, port = listen_address(rest)
            return Address(known_scheme, host, port)
        if not rest.startswith("/") or len(os.fsencode(rest)) > _MAX_PATH or "\0" in rest:
            raise ValueError(f"{rest!r:.120} is not an absolute path of at most {_MAX_PATH} bytes")
        return Address(known_scheme, path=Path(rest))
    raise ValueError(f"{text!r:.120} does not begin with {', '.join(f'{scheme}://' for scheme in SCHEMES)}")


def obstacles(address: Address) -> Iterator[str]:
    """Yield what prevents listening, a sentence each."""
    if LISTEN_SOCKETS.is_free(address.text):
        return
    if address.is_path:
        yield from _path_obstacles(address.path)
        return
    try:
        _open_port(address).close()
    except OSError as error:
        yield cannot_listen((address.host, address.port), error)


def _path_obstacles(path: Path) -> Iterator[str]:
    try:
        mode = mode_at(path.parent)
    except UnseenError as error:
        yield f"the directory {path.parent} cannot be looked at ({error}); let the agent's user enter it"
        return
    if mode is None or not stat.S_ISDIR(mode):
        yield f"the directory {path.parent} is not there; make it"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        yield f"no socket can be made in {path.parent}; let the agent's user write there"
    elif (why := taken(path)) is not None:
        yield why


def taken(path: Path) -> str | None:
    """Return why a socket can't be created there, None if free or abandoned."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return None
    if not stat.S_ISSOCK(mode):
        return f"{path} is there and is not a socket; remove it or choose another path"
    for socket_type in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_UNIX, socket_type) as client:
            client.setblocking(False)
            try:
                client.connect(str(path))
            except (ConnectionRefusedError, FileNotFoundError):
                return None
            except OSError:
                continue  # of the other kind, or so busy that somebody must be there
            break
    return f"{path} is listened on by another program; stop it or choose another path"


def open_socket(address: Address, options: SocketOptions) -> socket.socket:
    """Return a bound nonblocking socket, listening if stream; reuses a kept one. Raises `ConfigError`.

    Replaces an abandoned path atomically, with its mode set.
    """
    try:
        for kept in LISTEN_SOCKETS.take(address.text):
            return _taken_over(kept, address, options)
        return _open_path(address, options) if address.is_path else _open_port(address)
    except OSError as error:
        if address.is_path:
            raise ConfigError([f"{address.path}: {error.strerror or error}"]) from None
        raise ConfigError([cannot_listen((address.host, address.port), error)]) from None
    except ValueError as error:
        raise ConfigError([str(error)]) from None


def _taken_over(listening: socket.socket, address: Address, options: SocketOptions) -> socket.socket:
    listening.setblocking(False)
    if address.is_path:
        try:
            os.chown(address.path, *owner_of(options))
            address.path.chmod(mode_of(options))
        except FileNotFoundError:  # removed: no client could reach it
            listening.close()
            return _open_path(address, options)
    return listening


def _open_port(address: Address) -> socket.socket:
    kind = socket.SOCK_STREAM if address.is_stream else socket.SOCK_DGRAM
    family, _, _, _, where = socket.getaddrinfo(
        address.host, address.port, type=kind, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, kind)
    try:
        listening.setblocking(False)
        if address.is_stream:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        if address.is_stream:
            listening.listen(_BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _open_path(address: Address, options: SocketOptions) -> socket.socket:
    path = address.path
    if (why := taken(path)) is not None:
        raise ValueError(why)
    kind = socket.SOCK_STREAM if address.is_stream else socket.SOCK_DGRAM
    # Under its name it appears with its mode, and in place of what stood there.
    hidden = path.with_name(f".{os.getpid():x}")
    listening = socket.socket(socket.AF_UNIX, kind)
    try:
        listening.setblocking(False)
        hidden.unlink(missing_ok=True)
        listening.bind(str(hidden))
        os.chown(hidden, *owner_of(options))
        hidden.chmod(mode_of(options))
        if address.is_stream:
            listening.listen(_BACKLOG)
        hidden.rename(path)
    except BaseException:
        listening.close()
        with contextlib.suppress(OSError):
            hidden.unlink()
        raise
    return listening


def remove_socket(path: Path, inode: int) -> None:
    """Remove a Unix socket unless replaced meanwhile."""
    with contextlib.suppress(OSError):
        if path.lstat().st_ino == inode:
            path.unlink()
