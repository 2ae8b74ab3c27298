"""The admin server over real connections."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from agent.base.metrics import Metrics
from agent.base.supervisor import ConditionError
from agent.cli.checks import agent_status
from agent.cli.query import AdminStatusError, status_of
from agent.config import Admin, Config
from agent.hub.web import FleetPages
from agent.process import admin_server as admin
from agent.process.admin_server import AdminServer
from tests.harness.certificates import self_signed
from tests.harness.wait import until


class Agent:
    """What the admin server asks."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.ready = (True, "the local stream takes readings")

    def status(self) -> Mapping[str, Any]:
        link = {"linked": True, "state": "flowing", "sentence": "data flows", "attention": False}
        return {
            "role": "leaf",
            "domain": "edge-1",
            "link": link,
            "classes": {},
            "links": [],
            "inputs": [],
        }


@asynccontextmanager
async def serving(
    agent: Agent,
    host: str = "127.0.0.1",
    fleet: FleetPages | None = None,
    access: Mapping[str, Path] | None = None,
) -> AsyncIterator[AdminServer]:
    settings = Admin(f"{host}:0", **access or {})
    server = AdminServer(settings, agent.metrics, agent.status, lambda: agent.ready, fleet)
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run(stopping))
        await until(lambda: server.address[1] != 0, "the admin server listens")
        yield server
        stopping.set()


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest_asyncio.fixture
async def port(agent: Agent) -> AsyncIterator[int]:
    async with serving(agent) as server:
        yield server.address[1]


async def ask(
    port: int, path: str, method: str = "GET", **headers: str
) -> tuple[int, str, Mapping[str, str]]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{port}{path}", headers=headers) as response,
    ):
        return response.status, await response.text(), response.headers


async def test_metrics_are_what_prometheus_reads(agent: Agent, port: int) -> None:
    agent.metrics.stored.labels("http", "normal").inc(500)
    agent.metrics.publish_seconds.labels("normal").observe(0.003)
    status, text, headers = await ask(port, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    families = parse_text(text)
    samples = {sample.name: sample for family in families for sample in family.samples}
    assert samples["petiole_stored_readings_total"].value == 500
    assert samples["petiole_stored_readings_total"].labels == {"input": "http", "class": "normal"}
    assert samples["petiole_publish_seconds_count"].value == 1


async def test_metrics_are_openmetrics_for_whoever_asks_for_it(agent: Agent, port: int) -> None:
    agent.metrics.stored.labels("http", "normal").inc()
    _, text, headers = await ask(port, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    families = parse_openmetrics(text)  # type: ignore[no-untyped-call]
    assert "petiole_stored_readings" in {family.name for family in families}


@pytest.mark.parametrize(
    "version", ["1.0.0\xff", "2.\xff", "0.0.4, text/plain;version=9", "1e9", "", "1.0.0;q=0.5"]
)
async def test_metrics_are_written_for_any_version_that_is_asked_for(port: int, version: str) -> None:
    accept = f"application/openmetrics-text;version={version}"
    assert (await ask(port, "/metrics", Accept=accept))[0] == 200


async def test_readiness_is_said_in_a_sentence(agent: Agent, port: int) -> None:
    assert (await ask(port, "/readyz"))[:2] == (200, "the local stream takes readings\n")
    agent.ready = (False, "the local NATS server does not answer")
    assert (await ask(port, "/readyz"))[:2] == (503, "the local NATS server does not answer\n")
    assert (await ask(port, "/healthz"))[0] == 200


async def test_status_is_json(port: int) -> None:
    status, text, headers = await ask(port, "/status")
    assert status == 200
    assert headers["Content-Type"].startswith("application/json")
    assert json.loads(text)["link"]["linked"] is True


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:9464", 200),
        ("127.0.0.1", 200),
        ("[::1]:9464", 200),
        ("evil.example", 421),
        ("evil.example:9464", 421),
        ("10.0.0.1", 421),
        ("[::1", 421),
        ("localhost.evil.example", 421),
    ],
)
async def test_a_foreign_host_is_refused(port: int, host: str, status: int) -> None:
    assert (await ask(port, "/status", Host=host))[0] == status


async def test_where_it_listens_everywhere_any_address_is_its_own_but_no_name(agent: Agent) -> None:
    async with serving(agent, "0.0.0.0") as server:
        assert (await ask(server.address[1], "/healthz", Host="10.0.0.1:9464"))[0] == 200
        assert (await ask(server.address[1], "/healthz", Host="evil.example"))[0] == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
async def test_only_get_is_answered(port: int, method: str) -> None:
    status, _, headers = await ask(port, "/metrics", method)
    assert status == 405
    assert headers["Allow"] == "GET"


async def test_another_page_is_answered_with_those_there_are(port: int) -> None:
    status, text, _ = await ask(port, "/metrics/../etc")
    assert status == 404
    assert "/metrics, /healthz, /readyz, /status" in text


async def test_the_root_names_the_pages(port: int) -> None:
    assert (await ask(port, "/"))[:2] == (
        200,
        "Petiole's agent on this machine; there are /metrics, /healthz, /readyz, /status\n",
    )


async def test_a_hub_has_pages_of_its_fleet_that_ask_for_nothing_and_frame_nowhere(agent: Agent) -> None:
    fleet = {"state": "well", "leaves": {"a-1": {"state": "never seen", "word": "never", "linked": False}}}
    async with serving(agent, fleet=FleetPages(lambda: {"fleet": fleet}, lambda _: None)) as server:
        port = server.address[1]
        status, text, headers = await ask(port, "/fleet?domain=%FF&sort=-behind")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'sha256-")
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"
        assert "No leaf fits." in text

        assert "never seen" in (await ask(port, "/fleet/a-1"))[1]
        assert (await ask(port, "/fleet/%3Cb%3E"))[0] == 404
        assert (await ask(port, "/fleet", "POST"))[0] == 405
        assert [one["domain"] for one in json.loads((await ask(port, "/fleet.json?domain=a"))[1])["leaves"]]
        assert "/readyz, /status, /fleet, /fleet/<domain>, /fleet.json" in (await ask(port, "/x"))[1]
        assert "never seen" in (await ask(port, "/"))[1], "a browser is led to the fleet"


async def test_connections_are_bounded_without_a_word_in_the_log_and_come_free_again(
    port: int, logged: pytest.LogCaptureFixture
) -> None:
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(admin.MAX_CONNECTIONS)]
    for _ in range(50):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert (await reader.read()).startswith(b"HTTP/1.1 503")
        writer.close()
    gc.collect()
    assert not logged.records
    for _, one in held:
        one.close()

    async def free() -> bool:
        try:
            return (await ask(port, "/healthz"))[0] == 200
        except aiohttp.ClientError:
            return False

    await until(free, "a connection is free again")


async def test_a_request_that_never_comes_to_its_end_is_cut_off(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "SECONDS", 0.1)
    async with serving(agent) as server, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.address[1])
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: local")
        assert await reader.read() == b""
        writer.close()


async def test_it_ends_while_a_connection_is_held(agent: Agent) -> None:
    async with asyncio.timeout(30):
        async with serving(agent) as server:
            _, writer = await asyncio.open_connection("127.0.0.1", server.address[1])
        writer.close()


def test_a_port_that_is_taken_is_named_before_the_start(agent: Agent) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = taken.getsockname()
        settings = Admin(f"127.0.0.1:{address[1]}")
        problems = AdminServer(settings, agent.metrics, dict, lambda: agent.ready).obstacles()
    assert problems == [
        f"admin.listen: 127.0.0.1:{address[1]} is taken by another program; stop it or choose another port"
    ]


async def test_a_port_that_is_taken_while_it_runs_is_said_with_what_to_do(agent: Agent) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Admin(f"127.0.0.1:{taken.getsockname()[1]}")
        server = AdminServer(settings, agent.metrics, dict, lambda: agent.ready)
        with pytest.raises(ConditionError, match="is taken by another program; stop it"):
            await server.run(asyncio.Event())


def test_an_address_of_another_machine_is_named_before_the_start(agent: Agent) -> None:
    problems = AdminServer(Admin("192.0.2.1:9464"), agent.metrics, dict, lambda: agent.ready).obstacles()
    assert "cannot be listened on" in problems[0]


def test_a_free_port_is_no_problem(agent: Agent) -> None:
    assert AdminServer(Admin("127.0.0.1:0"), agent.metrics, dict, lambda: agent.ready).obstacles() == []


TOKEN = "s3cret-token"


@pytest.fixture
def access(tmp_path: Path) -> dict[str, Path]:
    token = tmp_path / "admin.token"
    token.write_text(TOKEN + "\n")
    token.chmod(0o600)
    cert, key = self_signed(tmp_path)
    return {"token_file": token, "tls_cert": cert, "tls_key": key}


async def test_other_machines_read_over_tls_with_the_token_and_by_any_name(
    agent: Agent, access: dict[str, Path]
) -> None:
    believed = ssl.create_default_context(cafile=access["tls_cert"])

    async def asked(port: int, path: str, shown: str | None) -> int:
        headers = {"Host": "hub.plant"} | ({} if shown is None else {"Authorization": shown})
        async with aiohttp.ClientSession() as session:
            url = f"https://127.0.0.1:{port}{path}"
            async with session.get(url, headers=headers, ssl=believed) as answer:
                if answer.status == 401:
                    assert answer.headers["WWW-Authenticate"].startswith("Basic ")
                return answer.status

    async with serving(agent, "0.0.0.0", access=access) as server:
        port = server.address[1]
        basic = "Basic " + base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
        for shown, status in ((None, 401), ("Bearer wrong", 401), (f"Bearer {TOKEN}", 200), (basic, 200)):
            assert [await asked(port, path, shown) for path in ("/metrics", "/status")] == [status] * 2
        assert [await asked(port, path, None) for path in ("/healthz", "/readyz", "/x")] == [200, 401, 401]
        with pytest.raises(aiohttp.ClientError):
            await ask(port, "/healthz")


async def test_the_commands_show_the_token_and_believe_the_certificate_that_is_named_alone(
    agent: Agent, access: dict[str, Path], tmp_path: Path
) -> None:
    async with serving(agent, "0.0.0.0", access=access) as server:
        named = Config(domain="edge-1", admin=Admin(f"0.0.0.0:{server.address[1]}", **access))
        assert (await asyncio.to_thread(status_of, named))["domain"] == "edge-1"
        asked = await agent_status.ask(named)
        assert not isinstance(asked, str)
        assert asked["domain"] == "edge-1"

        (tmp_path / "other").mkdir()
        named.admin.tls_cert, _ = self_signed(tmp_path / "other")
        with pytest.raises(AdminStatusError, match="certificate verify failed"):
            await asyncio.to_thread(status_of, named)
        assert "does not answer" in str(await agent_status.ask(named))
        access["token_file"].chmod(0o644)
        with pytest.raises(AdminStatusError, match="chmod 600"):
            await asyncio.to_thread(status_of, named)


def test_files_that_cannot_be_used_are_named_before_the_start(
    agent: Agent, access: dict[str, Path], tmp_path: Path
) -> None:
    access["token_file"].chmod(0o644)
    access["tls_key"].write_text("nonsense")
    problems = AdminServer(
        Admin("127.0.0.1:0", **access), agent.metrics, dict, lambda: agent.ready
    ).obstacles()
    assert [one.partition(": ")[0] for one in problems] == ["admin", "admin"]
    assert "chmod 600" in problems[0]
    assert "not a certificate chain with its key" in problems[1]
