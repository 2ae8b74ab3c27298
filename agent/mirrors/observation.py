"""Observes both ends of declared links. Pure except the probe.

The server's `lag` stays 0 while the origin is unreachable, so it is unused. `active` is the time since a
message or heartbeat, -1 for none since start.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any, Final, Literal

import nats.errors
from msgspec import Struct
from msgspec.structs import replace
from nats.aio.client import Client

from agent import contract
from agent.config.mirrors import KIND_METADATA, ORIGIN_METADATA, Key, ResolvedOrigin, key_of
from agent.jetstream import (
    MESSAGE_NOT_FOUND,
    STREAM_NOT_FOUND,
    ApiError,
    JetStream,
    JetStreamError,
    UnavailableError,
    end_if_cancelled,
    request,
    unless_refused,
)
from agent.jetstream.info import CopyStatus, check_refusal, copy_status, reason_of


class LocalStream(Struct, frozen=True):
    """The stream here."""

    kind: str
    """"mirror", "source", or "" if not from the configuration."""
    config: Mapping[str, Any]
    messages: int
    first: int
    last: int
    origin_created: str
    """The origin's creation time at the mirror's creation."""
    entries: Mapping[Key, CopyStatus]


class RemoteStream(Struct, frozen=True):
    kind: Literal["answers", "absent", "silent", "forbidden"]
    created: str = ""
    first: int = 0
    last: int = 0
    newest: int = 0
    """Newest taken sequence."""
    exact: bool = True
    """Whether every sequence is taken."""
    problem: str = ""
    """Why there was no answer."""


def local_stream(answer: Mapping[str, Any]) -> LocalStream:
    """Parse STREAM.INFO of the stream here."""
    config, state = answer["config"], answer["state"]
    metadata = config.get("metadata") or {}
    rows = list(answer.get("sources") or [])
    entries = {key_of(row): copy_status(row) for row in rows}
    if (mirror := answer.get("mirror")) is not None:
        entries[key_of(mirror)] = replace(copy_status(mirror), seq=state["last_seq"])
    return LocalStream(
        kind=metadata.get(KIND_METADATA, ""),
        config=config,
        messages=state["messages"],
        first=state["first_seq"],
        last=state["last_seq"],
        origin_created=metadata.get(ORIGIN_METADATA, ""),
        entries=entries,
    )


ASK_SECONDS: Final = 2.0


class StreamProbe:
    """Queries over one connection; `refused` notes permission errors, since refused requests get
    no answer.
    """

    def __init__(self, domain: str, identity: str) -> None:
        self._domain, self._identity = domain, identity
        self._refused: set[str] = set()

    def refused(self, violation: str) -> None:
        """Note a violation's subject in nats-py's wording."""
        if "permissions violation for publish" in violation.lower() and len(self._refused) < 1000:
            self._refused.add(violation.lower())

    def may_not_ask(self, subject: str) -> bool:
        """Tell whether requests to this subject were refused."""
        return any(f'"{subject.lower()}"' in violation for violation in self._refused)

    async def local(self, js: JetStream, name: str) -> LocalStream | None:
        """Return the stream here, or None. Raises `JetStreamError`."""
        with unless_refused(STREAM_NOT_FOUND):
            return local_stream(await js.api(f"STREAM.INFO.{name}"))
        return None

    async def remote(self, nc: Client, origin: ResolvedOrigin) -> RemoteStream:
        """Return the origin, or why it can't be asked."""
        api = origin.api or "$JS.API"
        subject = f"{api}.STREAM.INFO.{origin.stream}"
        try:
            info = await self._api(nc, origin, subject, b"")
            newest = info["state"]["last_seq"]
            if origin.subjects:
                subject = f"{api}.STREAM.MSG.GET.{origin.stream}"
                newest = max(
                    [await self._newest(nc, origin, subject, filter_) for filter_ in origin.subjects]
                )
        except ApiError as error:
            if error.err_code == STREAM_NOT_FOUND:
                return RemoteStream("absent")
            return RemoteStream("silent", problem=str(error))
        except JetStreamError as error:
            if self.may_not_ask(subject):
                return RemoteStream(
                    "forbidden", problem=f"this side may not ask it; allow it to publish {subject}"
                )
            return RemoteStream("silent", problem=_why(origin, subject, error))
        state = info["state"]
        # A message that was deleted in the middle has a sequence, and is never sent.
        exact = not origin.subjects and not state.get("num_deleted")
        return RemoteStream("answers", info["created"], state["first_seq"], state["last_seq"], newest, exact)

    async def time_at(self, nc: Client, origin: ResolvedOrigin, seq: int) -> str | None:
        """Return when the origin stored a sequence, None if missing or forbidden.
        Raises `UnavailableError`.
        """
        subject = f"{origin.api or '$JS.API'}.STREAM.MSG.GET.{origin.stream}"
        try:
            answer = await self._api(nc, origin, subject, json.dumps({"seq": seq}).encode())
        except ApiError:
            return None
        except UnavailableError:
            if self.may_not_ask(subject):
                return None
            raise
        return str(answer["message"]["time"])

    async def _newest(self, nc: Client, origin: ResolvedOrigin, subject: str, filter_subject: str) -> int:
        body = json.dumps({"last_by_subj": filter_subject}).encode()
        with unless_refused(MESSAGE_NOT_FOUND):
            return int((await self._api(nc, origin, subject, body))["message"]["seq"])
        return 0

    async def _api(self, nc: Client, origin: ResolvedOrigin, subject: str, body: bytes) -> dict[str, Any]:
        try:
            if origin.domain and self._domain == contract.HUB_DOMAIN != origin.domain:
                data = await self._by_own_inbox(nc, origin.domain, subject, body)
            else:
                data = (await request(nc, subject, body, ASK_SECONDS)).data
        except nats.errors.Error as error:
            raise UnavailableError(reason_of(error)) from error
        except TimeoutError:
            raise UnavailableError(f"no answer within {ASK_SECONDS:.0f} s") from None
        answer: dict[str, Any] = json.loads(data)
        check_refusal(answer, subject)
        return answer

    async def _by_own_inbox(self, nc: Client, domain: str, subject: str, body: bytes) -> bytes:
        """Ask with a reply below the leaf's part of the inbox, which its server may use."""
        inbox = f"{contract.inbox_prefix(self._identity)}.leaf.{domain}.{secrets.token_hex(8)}"
        subscription = await nc.subscribe(inbox, max_msgs=1)
        try:
            await nc.publish(subject, body, reply=inbox)
            message = await subscription.next_msg(timeout=ASK_SECONDS)
        finally:
            await subscription.unsubscribe()
            end_if_cancelled()
        if message.headers and message.headers.get("Status") == "503":
            raise nats.errors.NoRespondersError
        return message.data


def _why(origin: ResolvedOrigin, subject: str, error: Exception) -> str:
    if origin.domain == contract.HUB_DOMAIN:
        allow = f"or the hub does not let this leaf take {origin.stream} (`takes` of its [[leaf]] there)"
    elif origin.domain:
        allow = f"or that leaf does not give {origin.stream} (`gives` of its [[leaf]] here)"
    else:
        allow = f"or {subject} is not exported and imported"
    return f"the link is down, {allow} ({error})"
