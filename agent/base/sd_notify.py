"""Notifications to systemd, or a supervisor with its protocol: datagrams to the socket that `NOTIFY_SOCKET`
names (sd_notify(3)). Errors are logged and never reach the agent."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

_LONGEST: Final = 400
"""Characters of a status, of which `systemctl status` shows one line."""

log = structlog.get_logger("agent")


@dataclass(frozen=True, slots=True)
class Notifier:
    """Sends notifications to the supervisor."""

    address: str | bytes
    """The address of its socket."""
    watchdog: float | None = None
    """Seconds without `alive` after which it kills the process, None if it has no watchdog."""

    def ready(self) -> None:
        """The process is ready, or has reloaded."""
        self._send("READY=1")

    def reloading(self) -> None:
        """The process reloads its configuration, until `ready`."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now}")

    def stopping(self) -> None:
        """The process shuts down."""
        self._send("STOPPING=1", "STATUS=what is in flight is stored, then it ends")

    def status(self, text: str) -> None:
        """The state of the process in one sentence."""
        self._send(f"STATUS={_line(text)}")

    def alive(self) -> None:
        """The process is alive."""
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as notify:
                notify.connect(self.address)
                notify.send("\n".join(lines).encode())
        except OSError as error:
            log.debug("sd_notify failed", error=str(error))


def notifier(environment: Mapping[str, str]) -> Notifier | None:
    """The notifier that the environment of this process asks for, None without a supervisor."""
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


def _line(text: str) -> str:
    """Text as one line of the protocol."""
    return " ".join(text.split())[:_LONGEST]
