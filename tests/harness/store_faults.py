"""A proxy before an object store that applies what is put there and loses or spoils the answer.

It is a process of its own: delta-rs keeps Python's lock while it waits for some answers. A test tells it what
to do by requests that begin with `/_faults/`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import unquote

COMMITS: Final = r"_delta_log/\d{20}\.json$"
DATA: Final = r"\.parquet$"
_CONTROL: Final = "/_faults/"
HOP: Final = {"connection", "transfer-encoding", "content-length", "keep-alive"}
_SECONDS: Final = 60.0
_HELD_SECONDS: Final = 600.0
_FAILED: Final = (
    b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"
)


class Fault(StrEnum):
    """What becomes of a put."""

    FAILED = "failed"
    """Applied, and answered 500."""
    CUT = "cut"
    """Applied, and the connection is closed without an answer."""
    SILENT = "silent"
    """Applied, and not answered before `StoreFaults.release`."""
    LATE = "late"
    """The connection is closed, and it is applied at `StoreFaults.release`."""
    HELD = "held"
    """The connection stays open, and it is applied and answered at `StoreFaults.release`."""


@dataclass(frozen=True, slots=True)
class StoreFaults:
    """A proxy that runs at `endpoint`."""

    endpoint: str

    def strike(self, pattern: str, fault: Fault, times: int = 1) -> None:
        """So many of the next puts of objects whose name matches go wrong."""
        self._tell("strike", pattern=pattern, fault=fault, times=times)

    def ignore(self, header: str) -> None:
        """The store does not get this header any more."""
        self._tell("ignore", header=header)

    def release(self) -> None:
        """No more faults; return when what was late is applied."""
        self._tell("release")

    def seen(self) -> Seen:
        """What went wrong and what was applied since it was last asked."""
        return Seen(**self._tell("seen"))

    def _tell(self, verb: str, **what: Any) -> Any:
        conn = HTTPConnection(self.endpoint.removeprefix("http://"), timeout=_SECONDS)
        try:
            conn.request("PUT", f"{_CONTROL}{verb}", json.dumps(what))
            return json.loads(conn.getresponse().read())
        finally:
            conn.close()


@dataclass(frozen=True, slots=True)
class Seen:
    """The names of the objects whose puts went wrong, and of those that the store took."""

    struck: list[str]
    applied: list[str]


@contextmanager
def store_faults(store: str) -> Iterator[StoreFaults]:
    """A proxy before the store at this URL."""
    with in_front(store, __name__) as url:
        yield StoreFaults(url)


@contextmanager
def in_front(server: str, module: str) -> Iterator[str]:
    """The URL of a proxy before the server at this one: a module that serves, run as a process."""
    command = [sys.executable, "-m", module, server.removeprefix("http://")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@dataclass(slots=True)
class _Rule:
    pattern: re.Pattern[str]
    fault: Fault
    left: int


@dataclass(slots=True)
class _State:
    rules: list[_Rule] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)
    applied: list[str] = field(default_factory=list)
    ignored: set[str] = field(default_factory=set)
    late: list[threading.Thread] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    released: threading.Event = field(default_factory=threading.Event)

    def fault_of(self, name: str) -> Fault | None:
        with self.lock:
            for rule in self.rules:
                if rule.left and rule.pattern.search(name):
                    rule.left -= 1
                    self.struck.append(name)
                    return rule.fault
        return None

    def strike(self, pattern: str, fault: str, times: int) -> None:
        self.released.clear()
        self.rules.append(_Rule(re.compile(pattern), Fault(fault), times))

    def ignore(self, header: str) -> None:
        self.ignored.add(header.lower())

    def release(self) -> None:
        self.rules.clear()
        self.released.set()
        for thread in self.late:
            thread.join(_SECONDS)
        self.late.clear()

    def seen(self) -> dict[str, list[str]]:
        told = {"struck": self.struck, "applied": self.applied}
        self.struck, self.applied = [], []
        return told


class AnsweringHandler(BaseHTTPRequestHandler):
    """A handler of HTTP/1.1 that says nothing and answers with the headers of another server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def answer(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value  # that of the object
            elif name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        with suppress(ConnectionError):  # a client that has given up
            self.wfile.write(body)


class _Handler(AnsweringHandler):
    upstream: str
    state = _State()

    def do_PUT(self) -> None:
        body = self._body()
        if self.path.startswith(_CONTROL):
            told = getattr(self.state, self.path.removeprefix(_CONTROL))(**json.loads(body))
            self.answer(200, [], json.dumps(told).encode())
        else:
            self._pass(body)

    do_GET = do_HEAD = do_POST = do_DELETE = do_PUT  # noqa: N815

    def _pass(self, body: bytes) -> None:
        is_put = self.command == "PUT" or (self.command == "POST" and "uploadId=" in self.path)
        fault = self.state.fault_of(unquote(self.path.partition("?")[0])) if is_put else None
        if fault is Fault.LATE:
            thread = threading.Thread(target=self._apply_later, args=(body,))
            self.state.late.append(thread)
            thread.start()
            self.close_connection = True
            return
        if fault is Fault.HELD:
            self.state.late.append(threading.current_thread())
            self.close_connection = True
            self.state.released.wait(_HELD_SECONDS)
            fault = None
        answer = self._forward(body)
        if fault is Fault.SILENT:
            self.state.released.wait(_SECONDS)
        if fault is Fault.FAILED:
            self.answer(500, [], _FAILED)
        elif fault is None:
            self.answer(*answer)
        else:
            self.close_connection = True

    def _apply_later(self, body: bytes) -> None:
        self.state.released.wait(_SECONDS)
        self._forward(body)

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        conn = HTTPConnection(self.upstream, timeout=_SECONDS)
        try:
            given = {
                name: value
                for name, value in self.headers.items()
                if name.lower() not in HOP | self.state.ignored
            }
            conn.request(self.command, self.path, body, given)
            answer = conn.getresponse()
            if self.command == "PUT" and answer.status in (200, 201):
                self.state.applied.append(unquote(self.path.partition("?")[0]))
            return answer.status, answer.getheaders(), answer.read()
        finally:
            conn.close()

    def _body(self) -> bytes:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)


def serve(handler: type[BaseHTTPRequestHandler]) -> None:
    """Serve on loopback until the process is ended; the port is written first."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    _Handler.upstream = sys.argv[1]
    serve(_Handler)
