"""Readings as they are stored, posted to `/v1/readings`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from agent import contract
from agent.base.clock import wall_ns
from agent.base.wait import Pacer
from agent.leaf.inputs.formats.ndjson import (
    BadLinesError,
    BodyTooLargeError,
    Decoded,
    decode_array_slices,
    decode_slice,
    decode_slices,
    join_decoded,
)
from agent.leaf.inputs.http.bodies import Body, Hold, dense
from agent.leaf.inputs.http.limits import BodyLimits, reading_limits
from agent.leaf.inputs.http.request import RequestHead
from agent.leaf.inputs.http.responses import at_fault, bad_lines
from agent.leaf.inputs.http.route import DecodedBody, Route

_EMPTY: Final = 'the body holds no reading; send at least one, such as {"metric": "pressure", "value": 21.5}'


class ReadingsRoute(Route[DecodedBody]):
    """Readings as they are stored: NDJSON, a JSON array, or one JSON object."""

    media_type = contract.NDJSON
    size_hint = f"; a JSON array may not be larger, {contract.NDJSON} may"

    def limits(self, *, is_json: bool) -> BodyLimits:
        return reading_limits(self._settings.body, is_json=is_json)

    def decode_at_once(self, body: bytes, head: RequestHead) -> DecodedBody | None:
        decoded = None if head.is_json else decode_slice(body, self._settings.domain, wall_ns())
        return DecodedBody(decoded.payload, decoded.count) if decoded is not None and decoded.count else None

    async def decode(self, body: Body, head: RequestHead, hold: Hold) -> DecodedBody:
        domain = self._settings.domain
        try:
            if head.is_json:
                if not body.data.strip():
                    raise at_fault(400, "empty", _EMPTY, unread=False)
                slices = decode_array_slices(body.data, domain, wall_ns())
            else:
                slices = decode_slices(body.data, domain, wall_ns(), body.room)
            decoded = await _join(slices)
        except BadLinesError as error:
            raise bad_lines(error) from None
        except BodyTooLargeError:
            raise dense("its readings have") from None
        if not decoded.count:
            raise at_fault(400, "empty", _EMPTY, unread=False)
        return DecodedBody(decoded.payload, decoded.count)


async def _join(slices: Iterator[Decoded]) -> Decoded:
    parts: list[Decoded] = []
    pacer = Pacer()
    for part in slices:
        if part.count:
            parts.append(part)
        await pacer.give_way()
    return join_decoded(parts)
