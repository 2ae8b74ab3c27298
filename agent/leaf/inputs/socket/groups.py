"""Answers senders that close groups of lines by `#<key>`; each group is stored whole, once per key, or
refused.
"""

from __future__ import annotations

import math
from typing import Final

from agent import contract
from agent.base.clock import wall_ns
from agent.leaf.inputs.formats import LineParser, parse_lines
from agent.leaf.inputs.shared import InputOptions
from agent.leaf.inputs.shared.gatherer import GatheredSource
from agent.leaf.inputs.socket.streams import Connections, LineConnection
from agent.leaf.intake import Chunk, Intake, RefusedError, UnknownOutcomeError

_GROUP: Final = 1024
"""Assumed bytes of a group beside its lines."""
_MAX_UNREAD: Final = 64 * 1024
"""Most bytes of unread answers."""
_MAX_TEXT: Final = 300


class GroupRefusedError(Exception):
    """A group is refused; `reason` is the label."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Groups(LineConnection):
    """A connection with groups of at most `limit` bytes."""

    def __init__(
        self, connections: Connections, parser: LineParser, options: InputOptions, intake: Intake, limit: int
    ) -> None:
        super().__init__(connections)
        self._parser = parser
        self.source = GatheredSource(connections.buffer, self.pause, self.resume)
        self._options, self._intake, self._limit = options, intake, limit
        self._parts: list[bytes] = []
        self._size = 0
        self._under_way = 0
        self._last = False

    def take(self, lines: bytes) -> None:
        offset = 0
        while offset < len(lines) and not self._transport.is_closing():
            mark = offset if lines.startswith(b"#", offset) else lines.find(b"\n#", offset) + 1
            if not mark and not lines.startswith(b"#", offset):
                self._gather(lines[offset:])
                return
            self._gather(lines[offset:mark])
            end = lines.index(b"\n", mark) + 1
            self._close(lines[mark + 1 : end].strip())
            offset = end

    def passed_over(self, count: int) -> None:
        text = f"a line is longer than {self.terms.line} bytes (option line)"
        self._refuse("-", GroupRefusedError("too_long", text))
        self.close()

    def ended(self) -> bool:
        self._last = True
        return self._under_way > 0

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # Lines without a key belong to no group: held on, they would stop all other connections in the end.
        self.source.hold(-len(self._drop()))

    def _gather(self, lines: bytes) -> None:
        if self._size + len(lines) >= self._limit:
            self._refuse("-", GroupRefusedError("too_large", f"a group has {self._limit} bytes at most"))
            self.close()
            return
        self._parts.append(lines)
        self._size += len(lines)
        self.source.hold(len(lines))

    def _drop(self) -> bytes:
        body = b"".join(self._parts)
        self._parts, self._size = [], 0
        return body

    def _close(self, raw: bytes) -> None:
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > _MAX_UNREAD:
            self.give_up("unread", "its answers are not read; the connection is closed")
            return
        body = self._drop()
        self.source.hold(_GROUP)
        self._under_way += 1
        self.connections.buffer.group.create_task(self._settle(raw, body))

    async def _settle(self, raw: bytes, body: bytes) -> None:
        key = "-"
        try:
            key = contract.check_request_key(raw.decode("ascii", "backslashreplace"))
            self.say(b"ok %s %d\n" % (key.encode(), await self._store(key, body)))
        except contract.ContractError as error:
            self._refuse(key, GroupRefusedError("key", str(error)))
        except GroupRefusedError as refusal:
            self._refuse(key, refusal)
        except RefusedError as refusal:
            if refusal.retry_after is None:
                self._refuse(key, GroupRefusedError(str(refusal.reason), str(refusal)))
            else:
                self._later(key, refusal.retry_after, str(refusal))
        except UnknownOutcomeError as error:
            self._later(key, 1.0, f"{error}; the same group under its key is stored once")
        finally:
            self._under_way -= 1
            self.source.hold(-_GROUP - len(body))
            if self._last and not self._under_way:
                self.close()

    async def _store(self, key: str, body: bytes) -> int:
        parsed = await parse_lines(self._parser, body, wall_ns())
        if parsed.bad:
            offset, reason = parsed.bad[0]
            number = body.count(b"\n", 0, offset) + 1
            more = f" (and {len(parsed.bad) - 1} more)" if len(parsed.bad) > 1 else ""
            raise GroupRefusedError("bad_lines", f"line {number}{more}: {reason}")
        if not parsed.count:
            raise GroupRefusedError("empty", "the group holds no reading")
        self.terms.submitter.miss(parsed.no_value)
        scope = contract.request_scope(self._options.name, self.sender)
        request = contract.make_request(key, scope, body)
        chunk = Chunk(parsed.payload, parsed.count, request)
        await self._intake.submit(self._options.name, self._options.class_, chunk)
        return parsed.count

    def _refuse(self, key: str, refusal: GroupRefusedError) -> None:
        self.terms.submitter.skip(refusal.reason, self.peer, str(refusal))
        self.say(b"refused %s %s\n" % (key.encode(), _one_line(str(refusal))))

    def _later(self, key: str, seconds: float, text: str) -> None:
        self.say(b"later %s %d %s\n" % (key.encode(), max(1, math.ceil(seconds)), _one_line(text)))


def _one_line(text: str) -> bytes:
    """Return text safe for one terminal line."""
    return text[:_MAX_TEXT].encode("unicode_escape")
