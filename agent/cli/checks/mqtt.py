"""Checks that the MQTT listener asks for a password. Its refusal keeps no session (MQTT 3.1.1, 3.1 and
3.2.2.3).
"""

from __future__ import annotations

import asyncio
from typing import Final

from agent.base.wait import timeout
from agent.cli.checks import Cause, Finding, Group
from agent.server.hub_route import reading

GROUP: Final = Group("mqtt")
_SECONDS: Final = 2.0
_NAME: Final = b"petiole-check"
_CONNECT: Final = b"\x00\x04MQTT\x04\x02\x00\x0a" + len(_NAME).to_bytes(2, "big") + _NAME
_CONNACK: Final = 0x20
_BAD_USER, _NOT_AUTHORISED = 4, 5


async def look(address: tuple[str, int], secure: bool) -> Finding:
    """Connect without password."""
    where = f"{address[0]}:{address[1]}"
    start = "restart the agent, whose server has this listener, and see nats/nats-server.log"
    try:
        async with timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(*address, ssl=reading() if secure else None)
    except (OSError, TimeoutError) as error:
        why = str(error) or "it does not answer"
        finding = GROUP.failure(f"no MQTT device can connect to {where} ({why})", start)
        return finding.after(Cause.AGENT, Cause.SERVER, Cause.DISK)
    try:
        async with timeout(_SECONDS):
            writer.write(bytes([0x10, len(_CONNECT)]) + _CONNECT)
            answer = await reader.readexactly(4)
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return GROUP.failure(f"what listens at {where} does not answer as an MQTT server does", start)
    finally:
        writer.transport.abort()
    if answer[0] != _CONNACK:
        return GROUP.failure(f"what listens at {where} is no MQTT server", start)
    if answer[3] not in (_BAD_USER, _NOT_AUTHORISED):
        return GROUP.failure(f"{where} lets MQTT devices in without a password", start)
    return GROUP.ok(f"MQTT devices are asked for their password at {where}")
