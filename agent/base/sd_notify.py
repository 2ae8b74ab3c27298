"""Speaks to the supervisor that started this process, where that is systemd or speaks as it does: datagrams
to the socket that `NOTIFY_SOCKET` names (sd_notify(3)). Decides nothing of what is said, and lets nothing
that goes wrong there reach the agent."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

_LONGEST: Final = 400
"""Characters of a sentence: what `systemctl status` shows is a line."""

log = structlog.get_logger("agent")


@dataclass(frozen=True, slots=True)
class Notifier:
    """Tells the supervisor. `address` is that of its socket, `watchdog` the seconds after which it ends a
    process that has not said that it is alive; None where it does not ask for that."""

    address: str | bytes
    watchdog: float | None = None

    def ready(self) -> None:
        """It does its work; after `reloading` too."""
        self._tell("READY=1")

    def reloading(self) -> None:
        """It takes its configuration anew, until `ready`."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._tell("RELOADING=1", f"MONOTONIC_USEC={now}")

    def stopping(self) -> None:
        """It ends in order."""
        self._tell("STOPPING=1", "STATUS=what is in flight is stored, then it ends")

    def says(self, words: str) -> None:
        """How it is, in one sentence."""
        self._tell(f"STATUS={_line(words)}")

    def alive(self) -> None:
        """Its work goes on."""
        self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as one:
                one.connect(self.address)
                one.send("\n".join(lines).encode())
        except OSError as error:
            log.debug("the supervisor does not hear", error=str(error))


def notifier(environment: Mapping[str, str]) -> Notifier | None:
    """What the supervisor asks for in the environment of this process; None where nobody listens."""
    address = environment.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@") or address in ("/", "@"):
        return None
    # A socket without a path: the kernel's names of these begin with a zero byte.
    where: str | bytes = b"\0" + os.fsencode(address[1:]) if address[0] == "@" else address
    return Notifier(where, _watchdog(environment))


def _watchdog(environment: Mapping[str, str]) -> float | None:
    whose, microseconds = environment.get("WATCHDOG_PID"), environment.get("WATCHDOG_USEC", "")
    if (whose is not None and whose != str(os.getpid())) or not microseconds.isdecimal():
        return None
    return int(microseconds) / 1e6 or None


def _line(words: str) -> str:
    """Words as one line of the protocol."""
    return " ".join(words.split())[:_LONGEST]
