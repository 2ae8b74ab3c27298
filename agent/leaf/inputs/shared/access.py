"""Shares listening, token and TLS among inputs."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from agent.base.http.access import AccessError, is_loopback, read_token, tls_context
from agent.base.listen_sockets import obstacle
from agent.config import listen_address
from agent.leaf.inputs.shared import ConfiguredInput, InputOptions


class ListenOptions(InputOptions, kw_only=True):
    """Where an input listens. deploy/reference.toml says what each means."""

    listen: str
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def listens(self) -> str:
        return self.listen


class AccessOptions(ListenOptions, kw_only=True):
    """Listen address and sender authentication."""

    token_file: Path | None = None


_Listens = TypeVar("_Listens", bound=ListenOptions)
_Options = TypeVar("_Options", bound=AccessOptions)


class ListenInput(ConfiguredInput[_Listens]):
    """An input that listens."""

    def _mistakes(self) -> Iterator[str]:
        try:
            listen_address(self._options.listen)
        except ValueError as error:
            yield f'listen: {error}; write it as "127.0.0.1:8080"'
        if (self._options.tls_cert is None) != (self._options.tls_key is None):
            yield "tls_cert and tls_key go together; give both or none"

    def _obstacles(self) -> Iterator[str]:
        with contextlib.suppress(ValueError):  # a mistake
            if (problem := obstacle(listen_address(self._options.listen))) is not None:
                yield problem
        try:
            self._tls()
        except AccessError as error:
            yield str(error)

    def _tls(self) -> ssl.SSLContext | None:
        """Return the TLS context or None. Raises `AccessError`."""
        cert, key = self._options.tls_cert, self._options.tls_key
        return None if cert is None or key is None else tls_context(cert, key)


class AccessInput(ListenInput[_Options]):
    """An input that listens and checks a token."""

    def _obstacles(self) -> Iterator[str]:
        yield from super()._obstacles()
        try:
            self._token()
        except AccessError as error:
            yield str(error)

    def _token(self) -> bytes | None:
        """Return the token. Raises `AccessError`."""
        path = self._options.token_file
        return None if path is None else read_token(path)

    def _warn(self, host: str) -> None:
        """Log who may send, unless only local programs."""
        if is_loopback(host):
            return
        log = self._log.bind(listen=self._options.listen)
        if self._options.token_file is None:
            log.warning(
                "any client that reaches this address may post readings; set token_file or listen on loopback"
            )
        elif self._options.tls_cert is None:
            log.warning("the token is sent in clear text; give tls_cert and tls_key")
