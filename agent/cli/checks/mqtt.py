"""Checks that the leaf server's MQTT listener speaks MQTT and asks for a password. It refuses the client of
this check before there is a session, so nothing of it is kept (MQTT 3.1.1, 3.1 and 3.2.2.3)."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from agent.cli.checks import Finding, failure, ok

GROUP: Final = "mqtt"
_SECONDS: Final = 2.0
_NAME: Final = b"petiole-check"
_CONNECT: Final = b"\x00\x04MQTT\x04\x02\x00\x0a" + len(_NAME).to_bytes(2, "big") + _NAME
_CONNACK: Final = 0x20
_BAD_USER, _NOT_AUTHORISED = 4, 5


async def look(address: tuple[str, int], secure: bool) -> Finding:
    """Connect as a device without a password."""
    where = f"{address[0]}:{address[1]}"
    start = "restart the agent, whose server has this listener, and see nats/nats-server.log"
    tls = None
    if secure:
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(*address, ssl=tls)
    except (OSError, TimeoutError) as error:
        why = str(error) or "it does not answer"
        return failure(GROUP, f"no MQTT device can connect to {where} ({why})", start)
    try:
        async with asyncio.timeout(_SECONDS):
            writer.write(bytes([0x10, len(_CONNECT)]) + _CONNECT)
            answer = await reader.readexactly(4)
    except (OSError, TimeoutError, asyncio.IncompleteReadError):
        return failure(GROUP, f"what listens at {where} does not answer as an MQTT server does", start)
    finally:
        writer.transport.abort()
    if answer[0] != _CONNACK:
        return failure(GROUP, f"what listens at {where} is no MQTT server", start)
    if answer[3] not in (_BAD_USER, _NOT_AUTHORISED):
        return failure(GROUP, f"{where} lets MQTT devices in without a password", start)
    return ok(GROUP, f"MQTT devices are asked for their password at {where}")
