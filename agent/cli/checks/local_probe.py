"""Queries the local server over the agent's two connections, and tries each permission without
side effects.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from agent.base.wait import timeout
from agent.cli.checks.permissions import PROBE, sample, violated
from agent.cli.checks.streams import Streams, Trace, parse_trace, trace_headers
from agent.jetstream import request
from agent.jetstream.connection import EXPECTED, connected
from agent.server.health import TroubleKind, diagnose
from agent.server.permissions import Permissions
from agent.server.watch import ask_server

HEALTH: Final = "HEALTHZ"
QUESTIONS: Final = ("VARZ", "LEAFZ", HEALTH)
SILENCE: Final = "it does not answer"
_SECONDS: Final = 2.0
_TRACES: Final = 1.0
_CONNECT: Final = 2.0
_MOST_SUBJECTS: Final = 500
HEALTH_SECONDS: Final = 2.0
"""Time that unhealthiness must last, unless the server does not write; a start or a busy CPU causes single
answers.
"""
_HEALTH_PAUSE: Final = 0.2


@dataclass(frozen=True, slots=True)
class AccountProbe:
    """The agent user's view."""

    closed: str = ""
    """Why it was refused."""
    info: Mapping[str, Any] | None = None
    """JetStream's answer."""
    refusals: tuple[str, ...] = ()
    """Errors on tried subjects."""
    streams: Streams | None = None
    answered: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class System:
    """The system user's view: answers to `QUESTIONS`."""

    closed: str = ""
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


async def account(
    url: str,
    seed: Path,
    identity: str,
    needed: Permissions,
    destination: str,
    own: Mapping[str, str],
    questions: Mapping[str, tuple[str, str]],
) -> AccountProbe:
    """Probe as the agent's user.

    Args:
        destination: Where servers send traces: a subject that this user may use and that is unused.
        own: Streams to look for, with their subjects, if this user may not list all.
        questions: A question for each domain, and where to answer it.
    """
    refusals: list[str] = []
    try:
        async with timeout(_CONNECT + 2 * _SECONDS), _open(url, seed, identity, refusals) as link:
            nc = link.nc
            info, streams, answered = await asyncio.gather(
                _info(nc), _streams(nc, own, refusals), _answered(nc, questions)
            )
            refusals.clear()
            for subject in needed.subscribe:
                await nc.subscribe(sample(subject))
            for subject in needed.publish:
                await nc.publish(sample(subject), b"", headers=trace_headers(destination))
            await _settled(nc)
            return AccountProbe("", info, tuple(refusals), streams, answered)
    except EXPECTED as error:
        return AccountProbe(closed=_why(error, refusals))


async def system(url: str, seed: Path, identity: str, server: str) -> System:
    """Query a server of this name as system user."""
    refusals: list[str] = []
    try:
        longest = _CONNECT + HEALTH_SECONDS + _SECONDS
        async with timeout(longest), _open(url, seed, identity, refusals) as link:
            answers = await asyncio.gather(
                *(
                    _health(link.nc, server)
                    if question == HEALTH
                    else ask_server(link.nc, question, server, _SECONDS)
                    for question in QUESTIONS
                )
            )
            pairs = zip(QUESTIONS, answers, strict=True)
            return System(answers={question: answer for question, answer in pairs if answer is not None})
    except EXPECTED as error:
        return System(closed=_why(error, refusals))


async def _settled(nc: Client) -> None:
    """Wait until all published messages were judged: an error precedes a later pong.

    The library's ping may overtake its buffer (nats-py 2.16, `Client._send_ping`).
    """
    await nc._flush_pending(force_flush=True)
    await nc.flush(int(_SECONDS))


def _open(url: str, seed: Path, identity: str, refusals: list[str]) -> Any:
    return connected(url, seed, identity, refused=refusals.append)


def _why(error: BaseException, refusals: Sequence[str]) -> str:
    reasons = [refusal for refusal in (*refusals, str(error)) if refusal]
    return reasons[0].removeprefix("nats: ").strip("'\"") if reasons else SILENCE


async def _health(nc: Client, server: str) -> Mapping[str, Any] | None:
    """Return the first healthy or final answer, else the last within `HEALTH_SECONDS`."""
    loop = asyncio.get_running_loop()
    until = loop.time() + HEALTH_SECONDS
    healthz = await ask_server(nc, HEALTH, server, _SECONDS)
    while healthz is not None and _is_doubtful(healthz) and loop.time() < until:
        await asyncio.sleep(_HEALTH_PAUSE)
        healthz = await ask_server(nc, HEALTH, server, _SECONDS) or healthz
    return healthz


def _is_doubtful(healthz: Mapping[str, Any]) -> bool:
    trouble = diagnose(healthz)
    return trouble is not None and trouble.kind is TroubleKind.OTHER


async def _info(nc: Client) -> Mapping[str, Any] | None:
    info = await _api(nc, "INFO")
    return None if info is None or "error" in info else info


async def _answered(nc: Client, questions: Mapping[str, tuple[str, str]]) -> dict[str, int]:
    """Count the servers that answer each question."""
    counts = dict.fromkeys(questions, 0)
    for domain, (subject, inbox) in questions.items():

        async def count(_: Msg, domain: str = domain) -> None:
            counts[domain] += 1

        await nc.subscribe(inbox, cb=count)
        await nc.publish(subject, b"", reply=inbox)
    if questions:
        await asyncio.sleep(_TRACES)  # an absent server sends nothing
    return counts


async def _api(nc: Client, verb: str) -> Mapping[str, Any] | None:
    try:
        reply = json.loads((await request(nc, f"$JS.API.{verb}", b"", _SECONDS)).data)
    except (*EXPECTED, ValueError):
        return None
    return reply if isinstance(reply, dict) else None


async def _streams(nc: Client, own: Mapping[str, str], refusals: Collection[str]) -> Streams:
    """Return which streams would store messages, as far as visible."""
    inbox = nc.new_inbox()
    traces: dict[str, list[Trace]] = {}

    async def take(msg: Msg) -> None:
        if (trace := parse_trace(msg.data)) is not None:
            traces.setdefault(msg.subject, []).append(trace)

    await nc.subscribe(f"{inbox}.*", cb=take)
    await nc.publish(PROBE, b"", headers=trace_headers(f"{inbox}.{PROBE}"))
    await _settled(nc)
    if violated(f"{inbox}.{PROBE}", refusals):
        return Streams({name: (subject,) for name, subject in own.items()}, None)
    listed = (await _api(nc, "STREAM.LIST") or {}).get("streams") or []
    subjects = {stream["config"]["name"]: tuple(stream["config"].get("subjects") or ()) for stream in listed}
    subjects = subjects or {name: (subject,) for name, subject in own.items()}
    literal = [
        sample(subject) for many in subjects.values() for subject in many if not subject.startswith("$")
    ]
    for number, subject in enumerate(literal[:_MOST_SUBJECTS]):
        await nc.publish(subject, b"", headers=trace_headers(f"{inbox}.{number}"))
    if literal:
        await asyncio.sleep(_TRACES)  # the number of answers is not known
    by_subject = {subject: traces.get(f"{inbox}.{number}", []) for number, subject in enumerate(literal)}
    return Streams(subjects, {subject: tuple(many) for subject, many in by_subject.items()})
