"""Which requests may come in by their `Host` and `Origin`: a page in a browser on this machine must not reach
the input, neither by name (DNS rebinding) nor across sites. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - recognised, not bound


class Guard:
    """The names of one listener. Where it listens on every address, any address is a good `Host`: rebinding
    needs a name."""

    def __init__(self, listen_host: str, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._names = _LOOPBACK | {listen_host.lower()} | {one.lower() for one in hosts}
        self._any_address = listen_host in _EVERYWHERE
        self._origins = frozenset(origins)

    def admits_host(self, header: str | None) -> bool:
        """Whether a `Host` header names this listener; its port does not matter."""
        if header is None:
            return False
        name = _without_port(header).lower()
        return name in self._names or (self._any_address and _is_address(name))

    def admits_origin(self, header: str | None) -> bool:
        """Whether an `Origin` header may post; programs send none."""
        return header is None or header in self._origins


def _without_port(header: str) -> str:
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
