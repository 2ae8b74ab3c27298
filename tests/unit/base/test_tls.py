from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.base.tls import client_context
from hub_jobs.source.server import Server
from tests.harness.certificates import Authority


def _of_the_jobs(ca: Path) -> ssl.SSLContext:
    return Server("nats://127.0.0.1:4222", ca_file=str(ca)).tls_context()


@pytest.mark.parametrize("context", [client_context, _of_the_jobs], ids=["agent", "jobs"])
async def test_a_certificate_without_an_authority_key_identifier_is_accepted_on_every_python(
    tmp_path: Path, context: Callable[[Path], ssl.SSLContext]
) -> None:
    authority = Authority(tmp_path)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(*authority.signed("server", 3600))
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=own)
    async with server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context(authority.file))
        assert await reader.read() == b""
        writer.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", port, ssl=client_context(None))
