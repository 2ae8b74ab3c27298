"""What a leaf's server is told of its MQTT listener. Pure; passwords stand in files beside the configuration,
which includes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class MqttUser:
    """A user of MQTT devices, and the file with its password."""

    name: str
    password_file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttListener:
    """Where devices connect and as whom; with `tls`, a certificate's chain and its key, encrypted. Unless it
    is `open`, nobody is let in: a server without the agent's streams would answer for readings that it drops.
    """

    listen: str
    users: tuple[MqttUser, ...]
    tls: tuple[Path, Path] | None = None
    open: bool = True

    def includes(self) -> list[tuple[str, MqttUser]]:
        """The files that hold the passwords, each with its user."""
        return [(f"mqtt-{number}.conf", user) for number, user in enumerate(self.users)]

    def block(self) -> dict[str, Any]:
        """The server's `mqtt` block."""
        head: dict[str, Any] = {"listen": self.listen}
        if self.tls is not None:
            cert, key = self.tls
            head["tls"] = {"cert_file": str(cert), "key_file": str(key), "timeout": 10}
        return head
