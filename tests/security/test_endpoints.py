"""Every page and path of the HTTP listeners, with every way to show a token, with and without TLS: without
the token of this listener nothing is said but that it is there, and nothing is stored."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import aiohttp
import pytest

from agent.hub.web import FleetPages
from agent.leaf.inputs.http.handler import OPEN_PATHS
from agent.leaf.inputs.http.routes import ROUTES
from agent.server.hub_route import reading
from tests.e2e.test_admin import Agent
from tests.e2e.test_admin import serving as admin_serving
from tests.harness.certificates import self_signed
from tests.harness.http_harness import NDJSON, serving

TOKENS = {"admin": "t0ken-of-admin", "input": "t0ken-of-the-input"}
Kind = Literal["admin", "input"]
OPEN = {"admin": {"/healthz"}, "input": {"/ping", "/health", "/ready"}}
"""What says nothing but that it is there."""
READING = b'{"ts":1,"device":"d","metric":"m","value":1}\n'
NO_ANSWER = 0


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def ways(token: str, other: str) -> dict[str, tuple[bool, str, dict[str, str]]]:
    """Each way to show something: whether it is good, what is added to the path, and the headers."""
    shown = {
        "nothing": (False, ""),
        "the token of another": (False, f"Bearer {other}"),
        "a part of it": (False, f"Bearer {token[:-1]}"),
        "more than it": (False, f"Bearer {token}x"),
        "it without a scheme": (False, token),
        "it as a user": (False, basic(token, "")),
        "it under a foreign scheme": (False, f"Negotiate {token}"),
        "it as Bearer": (True, f"Bearer {token}"),
        "it as Token": (True, f"Token {token}"),
        "it as a password": (True, basic("anybody", token)),
    }
    headers = {
        name: (good, "", {"Authorization": value} if value else {}) for name, (good, value) in shown.items()
    }
    return headers | {
        "it in the address": (False, f"?token={token}&access_token={token}", {}),
        "it in a cookie": (False, "", {"Cookie": f"token={token}"}),
        "it in a header of another name": (
            False,
            "",
            {"X-Api-Key": token, "Proxy-Authorization": f"Bearer {token}"},
        ),
    }


@dataclass
class Listening:
    """One listener: its port, its paths, and how much it has stored."""

    kind: Kind
    port: int
    paths: list[str]
    stored: Sequence[object]


@asynccontextmanager
async def listening(kind: Kind, directory: Path, *, tls: bool) -> AsyncIterator[Listening]:
    """A listener with a token."""
    token = directory / f"{kind}.token"
    token.touch(0o600)
    token.write_text(TOKENS[kind])
    access: dict[str, Path] = {"token_file": token}
    if tls:
        access["tls_cert"], access["tls_key"] = self_signed(directory)
    if kind == "admin":
        fleet = FleetPages(lambda: {"fleet": {"state": "well", "leaves": {}}}, lambda _: None)
        async with admin_serving(Agent(), fleet=fleet, access=access) as server:
            paths = [*(one.replace("<domain>", "a") for one in server.paths), "/none"]
            yield Listening(kind, server.address[1], paths, [])
    else:
        async with serving(**access) as served:
            yield Listening(kind, served.port, [*ROUTES, *OPEN_PATHS, "/none"], served.core.stored)


async def answer(
    session: aiohttp.ClientSession, one: Listening, scheme: str, path: str, headers: Mapping[str, str]
) -> tuple[int, str]:
    posts = one.kind == "input" and path.partition("?")[0] not in OPEN["input"]
    try:
        async with session.request(
            "POST" if posts else "GET",
            f"{scheme}://127.0.0.1:{one.port}{path}",
            data=READING if posts else None,
            headers={**(NDJSON if posts else {}), **headers},
        ) as found:
            return found.status, await found.text()
    except aiohttp.ClientError:
        return NO_ANSWER, ""


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("kind", ["admin", "input"])
async def test_without_its_token_a_listener_says_nothing(kind: Kind, tls: bool, tmp_path: Path) -> None:
    own, other = TOKENS[kind], TOKENS["input" if kind == "admin" else "admin"]
    async with (
        listening(kind, tmp_path, tls=tls) as one,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=reading())) as session,
    ):
        assert len(one.paths) >= 7
        for path in one.paths:
            for name, (good, added, headers) in ways(own, other).items():
                right, wrong = ("https", "http") if tls else ("http", "https")
                before = len(one.stored)
                status, text = await answer(session, one, right, path + added, headers)
                let_in = good or path in OPEN[kind]
                assert let_in or len(one.stored) == before, (path, name)
                assert (status != 401) is let_in, (path, name, status)
                assert status != NO_ANSWER, (path, name)
                assert own not in text, (path, name)
                assert let_in or "petiole_" not in text, (path, name)
            shown = {"Authorization": f"Bearer {own}"}
            assert (await answer(session, one, wrong, path, shown))[0] == NO_ANSWER
