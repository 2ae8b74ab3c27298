"""Which requests may come in by their `Host`, `Origin` and token: a page in a browser on this machine must
not reach the input, neither by name (DNS rebinding) nor across sites. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from agent.base.http_access import Hosts, shows


class Guard:
    """The names of one listener, the origins that may post to it, and what they must show."""

    def __init__(
        self,
        listen_host: str,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        token: bytes | None = None,
    ) -> None:
        self._hosts = Hosts(listen_host, hosts)
        self._origins = frozenset(origins)
        self._token = token

    def admits_host(self, header: str | None) -> bool:
        """Whether a `Host` header names this listener; its port does not matter."""
        return self._hosts.admit(header)

    def admits_origin(self, header: str | None) -> bool:
        """Whether an `Origin` header may post; programs send none."""
        return header is None or header in self._origins

    def admits_token(self, header: str | None) -> bool:
        """Whether an `Authorization` header shows the token, where there is one."""
        return self._token is None or shows(header, self._token)
