"""A server is told the largest answer, and is sent no more than it can receive."""

from __future__ import annotations

import asyncio
import struct

import pytest
from asyncua.client.client import Client

from agent.leaf.inputs.opcua.limits import bounded


@pytest.mark.parametrize("receives", [8192, 2**31 - 1])
async def test_a_hello_states_the_largest_answer_and_the_answer_bounds_what_is_sent(receives: int) -> None:
    hello, ended = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (size,) = struct.unpack("<4xI", await reader.readexactly(8))
        hello.set_result(struct.unpack("<5I", (await reader.readexactly(size - 8))[:20]))
        writer.write(b"ACKF" + struct.pack("<6I", 28, 0, receives, 65_536, 0, 0))
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        client = Client(f"opc.tcp://{host}:{port}/")
        limits = bounded(client)
        await client.connect_socket()
        try:
            await client.send_hello()
        finally:
            client.disconnect_socket()
            await ended.wait()
        _, _, _, largest, chunks = await hello
        assert (largest, chunks) == (64 * 2**20, 0)
        assert limits.max_send_buffer == min(receives, 65_535)
        assert limits.max_recv_buffer >= 65_536
