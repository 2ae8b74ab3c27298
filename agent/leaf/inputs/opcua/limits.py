"""Limits request sizes by the server's statement (OPC 10000-5, 6.3.11), its message size and its past
answers.

A request refused as too large is repeated in halves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from asyncua import ua
from asyncua.common.connection import TransportLimits
from asyncua.ua.status_codes import StatusCodes
from msgspec import Struct

T = TypeVar("T")
R = TypeVar("R")

_MESSAGE_BYTES: Final = 64 * 2**20
"""Largest answer; a larger one ends the connection."""
_CHUNK_BYTES: Final = 65_535
_HEAD_BYTES: Final = 512
"""Request bytes beside its list."""
_TOO_LARGE: Final = frozenset(
    (
        StatusCodes.BadTooManyOperations,
        StatusCodes.BadRequestTooLarge,
        StatusCodes.BadResponseTooLarge,
        StatusCodes.BadEncodingLimitsExceeded,
        StatusCodes.BadTcpMessageTooLarge,
        StatusCodes.BadOutOfMemory,
        StatusCodes.BadResourceUnavailable,
    )
)


class OpcuaError(Exception):
    """The server refused or is gone; the text has the reason."""

    def __init__(self, text: str, cause: BaseException | None = None) -> None:
        super().__init__(text)
        self.is_too_large = getattr(cause, "code", None) in _TOO_LARGE
        """Whether a smaller request may work."""
        self.is_cut = isinstance(cause, ConnectionError)
        """Whether the connection ended, as some servers do on large requests."""
        self.code = getattr(cause, "code", None)
        """Status code of the answer, if any."""


class CallLimit(Struct):
    """Most nodes per kind of request. Outlives a session."""

    most: int

    def state(self, stated: object) -> None:
        """Set the server's statement; 0 for no limit."""
        if isinstance(stated, int) and 0 < stated < self.most:
            self.most = stated

    async def ask(
        self,
        items: Sequence[T],
        request: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
        room: int = _MESSAGE_BYTES,
    ) -> list[R]:
        """Return answers for all items in as many requests as needed; `room` fit a message. Raises
        `OpcuaError`.
        """
        answers: list[R] = []
        while len(answers) < len(items):
            some = items[len(answers) : len(answers) + min(self.most, max(1, room))]
            try:
                found = await request(some)
            except OpcuaError as error:
                if error.is_too_large or error.is_cut:
                    self.most = max(1, len(some) // 2)
                if not error.is_too_large or len(some) == 1:
                    raise
                continue
            if len(found) != len(some):
                raise OpcuaError(f"the server answers {len(found)} of {len(some)} questions")
            answers += found
        return answers


class CallLimits(Struct):
    browse: CallLimit
    items: CallLimit
    read: CallLimit
    history: CallLimit


class MessageLimits(TransportLimits):
    """Message limits of a connection.

    asyncua 2.1.0 takes the sizes in the server's acknowledgement for its own directions, so it sends too much
    and drops large answers (`findings/asyncua-takes-the-sizes-of-a-server-for-its-own.sh`). This class may go
    once it does not.
    """

    request_bytes = 0
    """Largest accepted request, 0 for no limit."""

    def __init__(self) -> None:
        super().__init__(_CHUNK_BYTES, _CHUNK_BYTES, 0, _MESSAGE_BYTES)

    def update_client_limits(self, msg: ua.Acknowledge) -> None:
        self.max_send_buffer = min(self.max_send_buffer, int(msg.ReceiveBufferSize))
        # node-opcua sends larger chunks than it was asked for.
        self.max_recv_buffer = min(_MESSAGE_BYTES, max(self.max_recv_buffer, int(msg.SendBufferSize)))
        chunks = int(msg.MaxChunkCount) * self.max_send_buffer
        self.request_bytes = min((size for size in (int(msg.MaxMessageSize), chunks) if size), default=0)

    def room(self, size: int) -> int:
        """Return how many items of `size` bytes fit a request."""
        return (self.request_bytes - _HEAD_BYTES) // size if self.request_bytes else _MESSAGE_BYTES


def bounded(client: Any) -> MessageLimits:
    """Apply these limits to a client's next connection.

    The server is told the largest answer, so it refuses a request with a larger answer.
    """
    client.max_messagesize = _MESSAGE_BYTES
    limits, make = MessageLimits(), client.uaclient._make_protocol

    def make_bounded() -> Any:
        protocol = make()
        protocol._connection._limits = limits
        return protocol

    client.uaclient._make_protocol = make_bounded
    return limits
