"""Which `Host` a request to one of our HTTP servers may name. A page in a browser on this machine must not
reach it under a name of its own that it lets point here (DNS rebinding). No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from agent.base.listening import EVERYWHERE

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERYWHERE: Final = EVERYWHERE | {""}


class Hosts:
    """The names of a server that listens on `listen`: that address, the loopback's, and `more`. A server that
    listens everywhere goes by any address of its machine: rebinding needs a name."""

    def __init__(self, listen: str, more: Iterable[str] = ()) -> None:
        self._names = _LOOPBACK | {name.lower() for name in (listen, *more) if name not in _EVERYWHERE}
        self._any_address = listen in _EVERYWHERE

    def admit(self, header: str | None) -> bool:
        """Whether a `Host` header names this server; its port does not matter."""
        name = _host(header or "")
        return name in self._names or (self._any_address and _is_address(name))


def _host(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
