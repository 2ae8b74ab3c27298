"""Devices that number what they send, each a thread with one request after the other, as a good client does:
what is not answered, or refused for now, is sent again under the same key until it is acknowledged."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError

from agent.contract import direct_subject, inbox_prefix
from agent.demo.plan import Member
from tests.faults.oracle.journal import Sent
from tests.faults.oracle.numbered import Series, reading

ANSWER_SECONDS = 15.0
CANNOT_BE_TOLD = "is unknown"
"""Stands in an answer when the store that held the readings is gone: no repeat under their key is answered
otherwise."""
RETRY_SECONDS = 0.2
_LATE_SECONDS = 3.0
"""An answer that takes longer is noted: a process that stands still for seconds leaves no other trace."""


@dataclass(slots=True)
class Notes:
    """What devices met, in epoch seconds: requests without an answer or with a late one, and refusals with
    their code."""

    unanswered: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    refused: list[tuple[float, int, str]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Answers that no good request should get."""

    def since(self, moment: float) -> str | None:
        """What was met from a moment on."""
        count = sum(at >= moment for at in self.unanswered)
        late = sum(at >= moment for at in self.late)
        codes = sorted({code for at, code, _ in self.refused if at >= moment})
        if not count and not late and not codes:
            return None
        return f"{count} requests unanswered, {late} answered late, refusals {codes}"


class Device(threading.Thread):
    """One sender. `pace` is the time between two requests, `size` the readings of each."""

    def __init__(self, series: Series, sent: Sent, notes: Notes, size: int, pace: float) -> None:
        super().__init__(name=str(series), daemon=True)
        self.series, self.sent, self.notes = series, sent, notes
        self.size, self.pace = size, pace
        self._ending, self._giving_up = threading.Event(), threading.Event()

    def run(self) -> None:
        """Send until told to end; what is under way then is still sent to its end."""
        while not self._ending.is_set():
            numbers = self.sent.request(self.size, time.time_ns() // 1000)
            if not self._insist(numbers):
                return
            self.sent.answered()
            self._ending.wait(self.pace)

    def end(self) -> None:
        """Send nothing new."""
        self._ending.set()

    @property
    def ends(self) -> bool:
        """Whether it sends nothing new."""
        return self._ending.is_set()

    def give_up(self) -> None:
        """Do not even send again what is under way."""
        self._giving_up.set()

    def _insist(self, numbers: range) -> bool:
        while not self._giving_up.is_set():
            wait = self._attempt(numbers)
            if wait is None:
                return True
            self._giving_up.wait(wait)
        return False

    def _attempt(self, numbers: range) -> float | None:
        """Send once. None: acknowledged; otherwise after how many seconds to send again."""
        raise NotImplementedError

    def lines(self, numbers: range) -> list[bytes]:
        """These readings, a line each."""
        rows = (reading(self.series, n, self.sent.ts_us(n)) for n in numbers)
        return [json.dumps(row).encode() + b"\n" for row in rows]


class HttpDevice(Device):
    """Posts to the `http` input."""

    path, content_type = "/v1/readings", "application/x-ndjson"

    def __init__(self, member: Member, series: Series, sent: Sent, notes: Notes, size: int, pace: float):
        super().__init__(series, sent, notes, size, pace)
        self._port = member.http_port
        self._connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        super().run()
        self._hang_up()

    def post(self, key: str, body: bytes) -> tuple[int, str, float] | None:
        """Send a request once: its status, what it says, and after how many seconds to send again; None
        without an answer."""
        headers = {"Content-Type": self.content_type, "Idempotency-Key": key}
        begun = time.monotonic()
        try:
            if self._connection is None:
                self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_SECONDS)
            self._connection.request("POST", self.path, body, headers)
            answer = self._connection.getresponse()
            code, text, after = answer.status, answer.read().decode(), answer.headers.get("Retry-After")
        except (OSError, http.client.HTTPException):
            self.notes.unanswered.append(time.time())
            self._hang_up()
            return None
        if time.monotonic() - begun > _LATE_SECONDS:
            self.notes.late.append(time.time())
        return code, text, float(after or RETRY_SECONDS)

    def key(self, numbers: range) -> str:
        """Under which a request is sent."""
        return f"{self.series.device}-{self.series.life}-{numbers.start}"

    def _attempt(self, numbers: range) -> float | None:
        answer = self.post(self.key(numbers), b"".join(self.lines(numbers)))
        if answer is None:
            return RETRY_SECONDS
        code, text, after = answer
        if code in (202, 204):
            return None
        if code == 504 and CANNOT_BE_TOLD in text:
            self.sent.unknown.update(numbers)
            return None
        if code in (429, 503, 504):
            self.notes.refused.append((time.time(), code, text))
            return min(after, 1.0)
        self.notes.wrong.append(f"{self.series}, {numbers}: {code} {text}")
        return 1.0

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class NatsDevice(Device):
    """Asks the leaf's own server, over a connection that is made anew after a silence; a subclass says what,
    and reads the answer."""

    patience = ANSWER_SECONDS
    """Seconds to wait for an answer."""

    def __init__(self, member: Member, series: Series, sent: Sent, notes: Notes, size: int, pace: float):
        super().__init__(series, sent, notes, size, pace)
        self._member = member
        self._loop = asyncio.new_event_loop()
        self._client: Client | None = None

    def run(self) -> None:
        with closing(self._loop):
            super().run()
            self._loop.run_until_complete(self._hang_up())

    def message(self, numbers: range) -> tuple[str, bytes]:
        """The subject and the payload of these readings."""
        raise NotImplementedError

    def answered(self, numbers: range, said: dict[str, Any]) -> float | None:
        """What `_attempt` returns for this answer."""
        raise NotImplementedError

    def headers(self, numbers: range) -> dict[str, str]:
        """What goes with a message, its key among them."""
        return {"Nats-Msg-Id": f"{self.series.device}-{self.series.life}-{numbers.start}"}

    def _attempt(self, numbers: range) -> float | None:
        return self._loop.run_until_complete(self._ask(numbers))

    async def _ask(self, numbers: range) -> float | None:
        subject, payload = self.message(numbers)
        try:
            if self._client is None:
                self._client = await nats.connect(
                    self._member.nats_url,
                    nkeys_seed=str(self._member.state / "keys" / "device.nk"),
                    inbox_prefix=inbox_prefix("device").encode(),
                    allow_reconnect=False,
                    connect_timeout=2,
                    error_cb=_quiet,
                )
            headers = self.headers(numbers)
            answer = await self._client.request(subject, payload, timeout=self.patience, headers=headers)
        except (NatsError, OSError, TimeoutError):
            self.notes.unanswered.append(time.time())
            self.sent.repeated.add(numbers.start)
            await self._hang_up()
            return RETRY_SECONDS
        return self.answered(numbers, json.loads(answer.data))

    async def _hang_up(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None


class DirectDevice(NatsDevice):
    """Publishes to the leaf's own server, without the agent; a message is a reading."""

    patience = 3.0

    def message(self, numbers: range) -> tuple[str, bytes]:
        told = reading(self.series, numbers.start, self.sent.ts_us(numbers.start))
        metric = told.pop("metric")
        del told["device"]  # both stand in the subject
        subject = direct_subject(self.series.domain, self.series.cls, self.series.device, metric)
        return subject, json.dumps(told).encode()

    def answered(self, numbers: range, said: dict[str, Any]) -> float | None:
        if "error" not in said:
            self.sent.sequences[numbers.start] = int(said["seq"])
            return None
        self.notes.refused.append((time.time(), int(said["error"]["code"]), str(said["error"])))
        return RETRY_SECONDS


async def _quiet(_error: Exception) -> None:
    """Errors are those that a request raises."""
