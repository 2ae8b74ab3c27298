"""`petiole check` reaches the hub the way that the leaf's server does, over real servers and a proxy: where
the link is up it finds no fault, and where it is not it names the cause."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvloop

from agent.cli.checks import Finding, Level
from agent.demo.loopback import free_port
from agent.server import dialling
from agent.server.dialling import Nowhere, greet, resolved
from agent.server.hub_route import Route, route_of
from agent.server.joining import LetIn, dial
from tests.e2e.test_added_to_servers import linked
from tests.harness.certificates import Authority
from tests.harness.check_cases import check, config_of, hub_config_of, of, pair
from tests.harness.connect_proxy import connect_proxy


def wrong(found: list[Finding]) -> list[str]:
    """What is wrong, but that no registrar runs at this hub."""
    return [one.sentence for one in found if one.level is Level.FAILURE and "registrar" not in one.sentence]


@dataclass
class Way:
    """How a leaf reaches its hub in a test."""

    scheme: str
    proxied: bool = False
    first: bool = False
    mutual: bool = False


WAYS = [
    Way("tls", first=True),
    Way("tls", mutual=True),
    Way("tls", first=True, mutual=True),
    Way("ws"),
    Way("wss"),
    Way("nats-leaf", proxied=True),
    Way("tls", proxied=True),
    Way("wss", proxied=True),
]


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_where_the_link_is_up_a_check_finds_no_fault(
    way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_PASSWORD", "secret")
    authority = Authority(tmp_path)
    cert, key = authority.signed("hub", 3600)
    mine, mine_key = authority.signed("leaf", 3600)
    websocket = way.scheme in ("ws", "wss")
    secured = {"cert_file": str(cert), "key_file": str(key)}
    extra: dict[str, Any] = {}
    remote: dict[str, Any] = {}
    port = free_port() if websocket else None
    if websocket:
        plain: dict[str, Any] = {"no_tls": True}
        extra["websocket"] = {
            "listen": f"127.0.0.1:{port}",
            **(plain if way.scheme == "ws" else {"tls": secured}),
        }
    elif way.scheme == "tls":
        tls = secured | ({"handshake_first": True} if way.first else {})
        tls |= {"ca_file": str(authority.file), "verify": True} if way.mutual else {}
        extra["leafnodes"] = {"tls": tls}
    if way.scheme in ("tls", "wss"):
        remote["tls"] = {"ca_file": str(authority.file)}
        remote["tls"] |= {"handshake_first": True} if way.first else {}
        remote["tls"] |= {"cert_file": str(mine), "key_file": str(mine_key)} if way.mutual else {}
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(connect_proxy("me:secret"))
        if way.proxied:
            remote["proxy"] = {"url": proxy.url, "username": "me", "password": "$PROXY_PASSWORD"}
        hub, leaf = await stack.enter_async_context(linked(tmp_path, extra, remote, way.scheme, port))
        by_the_server = len(proxy.asked)
        config = config_of(leaf, tmp_path / "state")
        config.nats.remote = remote
        found = await check(config)
        assert wrong(found) == []
        assert of(found, "knows this leaf's key").level is Level.OK
        assert (len(proxy.asked) > by_the_server) is way.proxied, "the check took the proxy, too"
        here = hub_config_of(hub, tmp_path / "hub-state")
        assert of(await check(here), "leaves can dial").level is Level.OK
        here.nats.server, here.nats.extra = "embedded", extra
        assert of(await check(here), "leaves can dial").level is Level.OK


async def test_a_proxy_that_refuses_is_named_with_its_answer(tmp_path: Path) -> None:
    async with pair(tmp_path) as one:
        await one.start_hub()
        for login, status, words in (
            ("me:secret", "", "407 Proxy Authentication Required"),
            ("", "403 Forbidden", "403 Forbidden"),
        ):
            async with connect_proxy(login, status) as proxy:
                remote = {"proxy": {"url": proxy.url}}
                (url,) = one.config.nats.hub_urls
                outcome = (await dial(url, None, route_of(url, remote, [url]))).greeting
            assert isinstance(outcome, Nowhere)
            assert f"the proxy at 127.0.0.1:{proxy.port} refuses to connect to 127.0.0.1" in outcome.why
            assert words in outcome.why
            gone = (await dial(url, None, route_of(url, remote, [url]))).greeting
            assert isinstance(gone, Nowhere)
            assert f"the proxy at 127.0.0.1:{proxy.port} cannot be reached" in gone.why


CERTIFICATES = {
    "expired": (
        {"seconds": -30.0, "begins": -90.0},
        "this leaf does not trust the hub's certificate: certificate has expired",
    ),
    "early": ({"seconds": 7200.0, "begins": 3600.0}, "certificate is not yet valid"),
    "host": ({"seconds": 3600.0, "host": "elsewhere.example"}, "mismatch"),
}


@pytest.mark.parametrize("fault", [*CERTIFICATES, "authority"])
async def test_a_certificate_of_the_hub_that_no_leaf_trusts_is_named_with_the_reason(
    fault: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    made, words = CERTIFICATES.get(fault, ({"seconds": 3600.0}, "signature failure"))
    cert, key = authority.signed("hub", **made)  # type: ignore[arg-type]
    trusted = other if fault == "authority" else authority
    async with pair(tmp_path) as one:
        await one.start_hub(more=f', tls {{ cert_file: "{cert}", key_file: "{key}" }}')
        (url,) = one.config.nats.hub_urls
        remote = {"tls": {"ca_file": str(trusted.file)}}
        seen = await dial(url, None, route_of(url, remote, [url]))
    assert isinstance(seen.greeting, Nowhere)
    assert words in seen.greeting.why
    assert seen.certificate is not None, "its validity is judged by itself"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("fault", ["none", "expired", "authority"])
async def test_a_certificate_of_the_leaf_that_the_hub_refuses_is_named(
    fault: str, first: bool, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    cert, key = authority.signed("hub", 3600)
    signer = other if fault == "authority" else authority
    mine, mine_key = (
        signer.signed("leaf", -30.0, begins=-90.0) if fault == "expired" else signer.signed("leaf", 3600)
    )
    remote: dict[str, Any] = {"tls": {"ca_file": str(authority.file), "handshake_first": first}}
    if fault != "none":
        remote["tls"] |= {"cert_file": str(mine), "key_file": str(mine_key)}
    tls = f'cert_file: "{cert}", key_file: "{key}", ca_file: "{authority.file}", verify: true'
    async with pair(tmp_path) as one:
        await one.start_hub(more=f", tls {{ {tls}, handshake_first: {str(first).lower()} }}")
        (url,) = one.config.nats.hub_urls
        seen = await dial(url, None, route_of(url, remote, [url]))
    why = seen.greeting.why if isinstance(seen.greeting, Nowhere) else getattr(seen.outcome, "why", "")
    expected = dialling.WANTS_CERTIFICATE if fault == "none" else "the hub refuses this leaf's certificate"
    assert expected in why


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("at_the_hub", [True, False])
def test_a_handshake_that_begins_at_another_moment_is_named(
    at_the_hub: bool, run: Callable[[Coroutine[Any, Any, None]], None], tmp_path: Path
) -> None:
    run(_handshakes_at_two_moments(at_the_hub, tmp_path))


async def _handshakes_at_two_moments(at_the_hub: bool, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.signed("hub", 3600)
    async with pair(tmp_path) as one:
        tls = f'cert_file: "{cert}", key_file: "{key}", handshake_first: {str(at_the_hub).lower()}'
        await one.start_hub(more=f", tls {{ {tls} }}")
        (url,) = one.config.nats.hub_urls
        remote = {"tls": {"ca_file": str(authority.file), "handshake_first": not at_the_hub}}
        greeting = (await dial(url, None, route_of(url, remote, [url]))).greeting
    assert isinstance(greeting, Nowhere)
    assert ("waits for TLS before it greets" if at_the_hub else "it greets before TLS") in greeting.why
    assert "handshake_first" in greeting.remedy


async def test_a_name_is_dialled_at_each_of_its_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    async with pair(tmp_path) as one:
        await one.start_hub()
        (url,) = one.config.nats.hub_urls

        async def known(host: str, port: int, **_: Any) -> list[Any]:
            return [(socket.AF_INET, 1, 6, "", (address, port)) for address in ("127.0.0.2", "127.0.0.1")]

        monkeypatch.setattr(loop, "getaddrinfo", known)
        url = url.replace("127.0.0.1", "hub.example")
        seen = await dial(url, None, route_of(url, {}, [url]))
    assert isinstance(seen.outcome, LetIn)
    assert list(seen.dead) == ["127.0.0.2"]


async def test_a_name_that_is_not_known_is_named_as_that() -> None:
    outcome = await resolved("hub.invalid", 7422)
    assert isinstance(outcome, Nowhere)
    assert "the name hub.invalid cannot be resolved (DNS" in outcome.why


async def test_a_hub_that_has_only_ipv6_is_reached(tmp_path: Path) -> None:
    async with pair(tmp_path) as one:
        await one.start_hub()
        inside = one.dial_port

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", inside)
            writer.write(await there.readline())
            back.close()
            writer.close()

        async with await asyncio.start_server(pass_on, "::1", 0) as six:
            port = six.sockets[0].getsockname()[1]
            greeting = await greet(("::1", port), Route(), "::1")
            assert not isinstance(greeting, Nowhere)
            greeting.close()
