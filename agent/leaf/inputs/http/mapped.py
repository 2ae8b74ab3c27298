"""Accepts payloads of another shape at `/v1/readings` and below, of an input with a mapping."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from agent.base.clock import wall_ns
from agent.base.wait import Pacer
from agent.leaf.inputs.http.bodies import Body, Hold, dense
from agent.leaf.inputs.http.readings import ReadingsRoute
from agent.leaf.inputs.http.request import READINGS_PATH, RequestHead
from agent.leaf.inputs.http.responses import at_fault
from agent.leaf.inputs.http.route import DecodedBody, RouteSettings
from agent.leaf.inputs.shared.mapped import MappedPayload, PayloadMapper

_SMALL: Final = 16 * 1024
"""Bytes of a body that is mapped within a millisecond."""
_FAULT: Final = "bad_message"


class MappedRoute(ReadingsRoute):
    """A JSON body is one payload, and each line of NDJSON; the path below `/v1/readings/` is the topic.

    Odd members become dead letters, and the answer is that of the rest. A body without a usable member is
    400. A body whose readings all have a time of their own is its own idempotency key.
    """

    is_repeat_by_body = True

    def __init__(self, settings: RouteSettings) -> None:
        super().__init__(settings)
        assert settings.mapping is not None
        self._mapper = PayloadMapper(settings.mapping, settings.domain)

    def decode_at_once(self, body: bytes, head: RequestHead) -> DecodedBody | None:
        if not head.is_json or len(body) > _SMALL:
            return None
        found = self._mapper.take(body, _topic(head), wall_ns())
        return _decoded([found]) if found.letter is None else None

    async def decode(self, body: Body, head: RequestHead, hold: Hold) -> DecodedBody:
        topic, found, pacer = _topic(head), list[MappedPayload](), Pacer()
        size = 0
        for payload in [body.data] if head.is_json else body.data.split(b"\n"):
            if not payload.strip():
                continue
            found.append(self._mapper.take(payload, topic, wall_ns()))
            if (size := size + len(found[-1].payload)) > body.room:
                raise dense("its readings have")
            await pacer.give_way()
        if not found:
            raise at_fault(400, "empty", "the body holds no payload; send at least one", unread=False)
        refused = [one.letter for one in found if one.letter is not None]
        if refused and not any(one.count or one.no_value for one in found):
            raise at_fault(400, _FAULT, f"no reading is in it: {refused[0].reason}", unread=False)
        hold.add(size, unread=False)
        return _decoded(found)


def _topic(head: RequestHead) -> str:
    path = head.target.partition("?")[0]
    return unquote(path.removeprefix(READINGS_PATH).removeprefix("/"), errors="replace")


def _decoded(found: list[MappedPayload]) -> DecodedBody:
    return DecodedBody(
        b"".join(one.payload for one in found),
        sum(one.count for one in found),
        is_dated=all(one.is_dated for one in found),
        letters=tuple(one.letter for one in found if one.letter is not None),
        odd=sum(one.odd for one in found),
        no_value=sum(one.no_value for one in found),
    )
