"""What the connections of an HTTP input are for: between bytes and readings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from agent.leaf.inputs.http.bodies import Hold
from agent.leaf.inputs.http.head_reader import HttpRequest
from agent.leaf.inputs.http.responses import HttpError, Response
from agent.leaf.inputs.http.routes import AdmittedRequest

Reply = Callable[[Response, bool], None]
"""Sends the answer to the request under way; with True the connection closes: what follows is not read."""


class Service(Protocol):
    """What requests are for."""

    @property
    def is_stopping(self) -> bool:
        """Whether the input stops."""

    def hold(self) -> Hold:
        """What counts the bytes of a connection's bodies."""

    def known(self, head: bytes) -> AdmittedRequest | None:
        """The request of a head that was admitted before, None where it has to be read."""

    def admit(self, request: HttpRequest, head: bytes) -> AdmittedRequest | Response:
        """Let a request in, whose body may then come, or answer it. Raises `HttpError`."""

    def begin(self) -> None:
        """The body of an admitted request comes; `end` follows."""

    def take(self, admitted: AdmittedRequest, body: bytes, hold: Hold, reply: Reply) -> None:
        """Take in the body of an admitted request; `reply` is called once, now or later."""

    def end(self) -> None:
        """An admitted request is answered, or its body does not come."""

    def refusal(self, error: HttpError, request: HttpRequest | None) -> Response:
        """Count an error; the answer that says it."""
