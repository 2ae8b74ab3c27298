"""Reads a leaf's stream, queries the hub, and republishes, with bounded waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, NoRespondersError

from agent.base.wait import loop_time
from agent.cli.resend.plan import Copies, Copy, Plan, Runs, Verified, resent_headers
from agent.contract import (
    H_MESSAGE_ID,
    ContractError,
    Ledger,
    MessageId,
    VerifyAnswer,
    VerifyRequest,
    leaf_stream,
    ledger_subject,
    numbered_subjects,
    parse_ledger,
    parse_verify_answer,
    verify_subject,
)
from agent.jetstream import JetStream, RawMessage, UnavailableError, request
from agent.jetstream.readers import StoredHeaders, read_headers
from agent.leaf.intake import RefusalReason
from agent.leaf.publish.batch import NotStored, PublishAnswer, StoredAck, parse_ack

_ANSWER_SECONDS: Final = 10.0
_PAGES: Final = 200
_PUBLISH_SECONDS: Final = 5.0
_TRIES: Final = 3
_AGAIN_SECONDS: Final = 2.0
_LONGEST_WINDOW: Final = 150.0
"""Longest duplicate window waited for; the default is two minutes."""

_ROOM: Final = "wait until the agent has trimmed what the hub confirmed, or raise max_bytes of the class"


class HubQueryError(Exception):
    """The hub did not answer; the text has the reason."""


@dataclass(slots=True)
class ResendResult:
    """Results by batch number."""

    again: list[int] = field(default_factory=list)
    """Sent again."""
    repeated: list[int] = field(default_factory=list)
    """Dropped as repeats."""
    gone: list[int] = field(default_factory=list)
    """Removed before reading."""
    refused: str | None = None
    """Why the stream refused the rest."""


class LeafStream:
    """A class's stream. All methods raise `ApiError` or `UnavailableError`."""

    def __init__(self, nc: Client, domain: str, cls: str) -> None:
        self._nc, self._domain, self._cls = nc, domain, cls
        self._js = JetStream(nc)
        self._name = leaf_stream(domain, cls)

    async def runs(self) -> Runs:
        """Return the stream's numbers by run."""
        runs = Runs()
        await self._headers(numbered_subjects(self._domain, self._cls), runs.take)
        return runs

    async def find(self, copies: Copies) -> Copies:
        """Search copies in the stream."""
        await self._headers(numbered_subjects(self._domain, self._cls), copies.take)
        return copies

    async def ledger(self, run: str) -> Ledger | None:
        """Return a run's newest ledger record in the stream."""
        newest: StoredHeaders | None = None

        def take(message: StoredHeaders) -> None:
            nonlocal newest
            if message.headers.get(H_MESSAGE_ID, "").startswith(f"{run}-"):
                newest = message

        await self._headers([ledger_subject(self._domain, self._cls)], take)
        message = None if newest is None else await self._js.get_message(self._name, seq=newest.seq)
        try:
            return None if message is None else parse_ledger(message.data)
        except ContractError:
            return None

    async def _headers(self, subjects: list[str], take: Callable[[StoredHeaders], None]) -> None:
        start = {"deliver_policy": "all", "filter_subjects": subjects}
        await read_headers(self._nc, self._js, self._name, start, take)

    async def verify(self, run: str, last: int, say: Callable[[str], None]) -> Verified:
        """Ask the hub for missing numbers 1 to `last`; `say` reports progress. Raises `HubQueryError`."""
        lacking: list[tuple[int, int]] = []
        unknown: list[tuple[int, int]] = []
        question = VerifyRequest(self._cls, run, 1, last)
        cursor: int | None = None
        for _ in range(_PAGES):
            answer = await self._ask(question)
            # The link moves on meanwhile: only what had come before the hub looked first is sure to be seen.
            cursor = answer.cursor if cursor is None else cursor
            question = replace(question, last=answer.last, found=answer.found)
            if not answer.complete:
                say(f"the hub has looked up to sequence {answer.found.next} of {answer.end}")
                continue
            if answer.last is None or not question.first <= answer.last <= last:
                raise HubQueryError("the hub's answer is not for the numbers that were asked for")
            lacking += answer.lacking
            unknown += answer.unknown
            if answer.last == last:
                return Verified(tuple(lacking), tuple(unknown), answer.found.edge, cursor)
            question = VerifyRequest(self._cls, run, answer.last + 1, last)
        raise HubQueryError(
            f"the hub has looked up to its sequence {answer.found.next} of {answer.end} and is not done; "
            "retry later"
        )

    async def _ask(self, question: VerifyRequest) -> VerifyAnswer:
        try:
            reply = await request(self._nc, verify_subject(self._domain), question.encode(), _ANSWER_SECONDS)
            answer = parse_verify_answer(reply.data)
        except NatsError:
            raise UnavailableError(
                "the hub does not answer: the link is down or its registrar does not run"
            ) from None
        except ContractError as error:
            raise HubQueryError(f"the hub's answer is not understood: {error}") from None
        if answer.refused is not None:
            raise HubQueryError(f"the hub does not say what it lacks: {answer.refused}")
        return answer

    async def send(self, plan: Plan, sent: ResendResult, say: Callable[[str], None]) -> None:
        """Republish a plan under its ids and note results in `sent`. Retries within the `duplicate_window`,
        announced by `say`.
        """
        waiting, announced = list(plan.send), False
        window = (await self._js.stream_info(self._name)).config.get("duplicate_window", 0) / 1e9
        until = loop_time() + min(window + _AGAIN_SECONDS, _LONGEST_WINDOW)
        while waiting:
            repeated = await self._send_each(plan.run, waiting, sent)
            if not repeated or sent.refused is not None or loop_time() >= until:
                sent.repeated = [copy.n for copy in repeated]
                break
            if not announced:
                say(
                    f"{len(repeated)} batches were stored less than {window:.0f} s ago, and until then the "
                    "stream drops what comes under their ids: waiting"
                )
            announced = True
            await asyncio.sleep(_AGAIN_SECONDS)
            waiting = repeated

    async def _send_each(self, run: str, copies: Sequence[Copy], sent: ResendResult) -> list[Copy]:
        """Publish each copy; returns those dropped as repeats. Stops at a refusal."""
        repeated = []
        for copy in copies:
            message = await self._js.get_message(self._name, seq=copy.seq)
            ident = str(MessageId(run, self._cls, copy.n))
            if message is None or message.headers.get(H_MESSAGE_ID) != ident:
                sent.gone.append(copy.n)
                continue
            match await self._publish(message, copy.first):
                # A repeat of what came behind the copy that was read is itself what was to be sent.
                case StoredAck(seq, duplicate) if not duplicate or (
                    seq > copy.seq and await self._holds(seq, message)
                ):
                    sent.again.append(copy.n)
                case StoredAck():
                    repeated.append(copy)
                case NotStored(text, reason):
                    sent.refused = f"{text}; {_ROOM}" if reason is RefusalReason.FULL else text
                    break
        return repeated

    async def _holds(self, seq: int, copy: RawMessage) -> bool:
        """Tell whether a message is this batch; devices may use its id."""
        message = await self._js.get_message(self._name, seq=seq)
        return message is not None and (message.subject, message.data) == (copy.subject, copy.data)

    async def _publish(self, message: RawMessage, first: int) -> PublishAnswer:
        headers = resent_headers(message.headers, first)
        for _ in range(_TRIES):
            try:
                reply = await request(self._nc, message.subject, message.data, _PUBLISH_SECONDS, headers)
            except MaxPayloadError:
                return NotStored(f"message {message.seq} is larger than the server takes now", None)
            except NoRespondersError:
                break
            except NatsError:
                continue  # under the same id, so that it is stored once
            return parse_ack(reply.data)
        raise UnavailableError(f"the local server did not answer a message on {message.subject}")
