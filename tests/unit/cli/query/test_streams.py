"""Looking at a hub that is none, or answers nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.cli.query import streams
from agent.cli.query.streams import HubBacklogError, look
from agent.config import Config, Nats
from agent.config.keys import ensure_key
from agent.jetstream.readers import StoredHeaders

INFO = b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"headers":true,"nonce":"abc"}\r\n'


@contextmanager
def _server(greeting: bytes, answer: bytes | None = None) -> Iterator[int]:
    """Greets every connection so, and answers each request with `answer`, if it answers at all."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            sid = b"1"
            with contextlib.suppress(OSError):
                self.wfile.write(greeting)
                while line := self.rfile.readline():
                    words = line.split()
                    if words[:1] == [b"PING"]:
                        self.wfile.write(b"PONG\r\n")
                    elif words[:1] == [b"SUB"]:
                        sid = words[-1]
                    elif words[:1] == [b"PUB"] and answer is not None:
                        self.rfile.read(int(words[-1]) + 2)
                        self.wfile.write(b"MSG %s %s %d\r\n%s\r\n" % (words[2], sid, len(answer), answer))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def _look(tmp_path: Path, port: int) -> str:
    key = tmp_path / "key"
    ensure_key(key)
    nats = Nats(server="external", listen=f"127.0.0.1:{port}", seed_file=key)
    config = Config(role="hub", domain="hub", state_dir=tmp_path, nats=nats)
    with pytest.raises(HubBacklogError) as told:
        asyncio.run(look(config, "edge-1", ["TELEMETRY_0"], ["normal"], lambda _stream, _created: 0))
    return str(told.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"<html>", "is not JetStream"),
        (b"[1]", "is not JetStream"),
        (b"{}", "it answers what no JetStream answers (KeyError: 'state')"),
        (b'{"error": {"description": "no"}}', "JetStream refused STREAM.INFO.TELEMETRY_0: no"),
        (json.dumps({"state": 7}).encode(), "it answers what no JetStream answers"),
    ],
)
def test_a_hub_that_answers_nonsense_is_told(tmp_path: Path, answer: bytes, said: str) -> None:
    with _server(INFO, answer) as port:
        assert said in _look(tmp_path, port)


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"INFO {nonsense\r\n", b""])
def test_who_is_no_nats_server_is_told(
    tmp_path: Path, greeting: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_SECONDS", 1.0)
    with _server(greeting) as port:
        assert f"127.0.0.1:{port} cannot be asked" in _look(tmp_path, port)


def test_a_port_where_nobody_listens_is_told(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert "cannot be asked" in _look(tmp_path, free.getsockname()[1])


@pytest.mark.parametrize(("count", "readings"), [("35", 35), ("2147483648", 0), ("-1", 0), ("", 0)])
def test_a_count_that_no_batch_can_have_is_none(count: str, readings: int) -> None:
    run = "01890a5d-ac96-774b-bcce-b302099a8057"
    headers = {"Nats-Msg-Id": f"{run}-normal-7", "Petiole-Count": count}
    held = streams._held("edge-1", StoredHeaders(1, 0.0, headers, "tel.edge-1.normal._batch.http"))

    assert held is not None
    assert (held.n, held.readings) == (7, readings)
