"""What can go wrong on the wire, by what its caller can do about it."""

from __future__ import annotations


class WireError(Exception):
    """Reading from the hub failed."""


class Unreachable(WireError):  # noqa: N818
    """The server, or what should answer behind it, can't be reached or stopped answering. Trying again may
    help.
    """


class Denied(WireError):  # noqa: N818
    """The server refuses this identity, or what it asked for. Trying again does not help."""


class WrongPort(Denied):
    """A NATS server answers, but not its clients: the address is that of another listener."""


class UnknownIdentity(Denied):
    """The server does not know this identity at all."""


class ApiError(WireError):
    """JetStream's own answer that says no.

    `code` is the HTTP-like class (404, 400), `err_code` the exact reason (10059: no such stream).
    """

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(code, err_code, description)
        self.code = code
        self.err_code = err_code
        self.description = description

    def __str__(self) -> str:
        return f"{self.description} (JetStream error {self.err_code}, code {self.code})"


class RangeLost(WireError):  # noqa: N818
    """Rows of the range are gone, or the stream is another one than the range was planned on."""
