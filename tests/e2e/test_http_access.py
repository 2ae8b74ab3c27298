"""The `http` input with a token and with TLS."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from influxdb_client.client.influxdb_client import InfluxDBClient
from influxdb_client.client.write_api import SYNCHRONOUS
from structlog.testing import capture_logs

from agent.base.http.access import is_loopback, shows
from agent.base.metrics import Metrics
from agent.cli.configuration import problems
from agent.config import Seconds
from agent.leaf.inputs.http import HttpOptions
from agent.leaf.inputs.http.input import HttpInput
from tests.harness.certificates import self_signed
from tests.harness.http_harness import FULL, NDJSON, Served, serving
from tests.harness.intakes import Core

TOKEN = "s3cret-token"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "http.token"
    path.write_text(TOKEN + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
async def guarded(token_file: Path) -> AsyncIterator[Served]:
    async with serving(token_file=token_file) as one:
        yield one


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    "shown", [f"Bearer {TOKEN}", f"bearer  {TOKEN}", f"Token {TOKEN}", basic("x", TOKEN)]
)
async def test_who_shows_the_token_is_let_in(guarded: Served, shown: str) -> None:
    assert (await guarded.post(FULL, {"Authorization": shown}))[0] == 204


@pytest.mark.parametrize(
    "shown",
    [
        None,
        "",
        TOKEN,
        "Bearer",
        "Bearer x",
        f"Bearer {TOKEN}x",
        f"Digest {TOKEN}",
        "Basic !",
        basic(TOKEN, "x"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/readings", "/write", "/v1/metrics", "/v1/logs", "/elsewhere"])
async def test_who_does_not_is_told_what_is_asked(guarded: Served, shown: str | None, path: str) -> None:
    status, body, headers = await guarded.post(FULL, {"Authorization": shown} if shown else {}, path)
    assert (status, headers["WWW-Authenticate"]) == (401, 'Bearer realm="petiole"')
    assert TOKEN not in str(body)
    assert guarded.core.stored == []
    assert guarded.metric("petiole_invalid_requests_total", reason="token") == 1


async def test_whether_somebody_is_there_may_be_asked_without_a_token(guarded: Served) -> None:
    assert (await guarded.post(None, path="/ping", method="GET"))[0] == 204


async def test_the_official_client_shows_its_token(guarded: Served) -> None:
    def write() -> None:
        with InfluxDBClient(guarded.url, token=TOKEN, org="o") as client:
            client.write_api(write_options=SYNCHRONOUS).write("b", record="m f=1")

    await asyncio.to_thread(write)
    assert len(guarded.core.stored) == 1


async def test_readings_are_taken_over_tls(pair: tuple[Path, Path]) -> None:
    async with serving(tls_cert=pair[0], tls_key=pair[1]) as served:
        trusting = ssl.create_default_context(cafile=str(pair[0]))
        url = f"https://127.0.0.1:{served.port}/v1/readings"
        for _ in range(2):
            async with served.session.post(url, data=FULL, headers=NDJSON, ssl=trusting) as answer:
                assert answer.status == 204
        assert len(served.core.stored) == 2


async def test_what_is_not_tls_is_turned_away_without_noise(
    pair: tuple[Path, Path], logged: pytest.LogCaptureFixture
) -> None:
    logged.set_level(logging.WARNING)
    async with (
        serving(tls_cert=pair[0], tls_key=pair[1], timeout=Seconds(0.3)) as hasty,
        hasty.connection() as (reader, _),
    ):
        assert await reader.read() == b"", "a handshake that does not come is given up"
    async with serving(tls_cert=pair[0], tls_key=pair[1]) as served:
        with pytest.raises(aiohttp.ClientError):
            await served.post(FULL)
        old = ssl.create_default_context(cafile=str(pair[0]))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        url = f"https://127.0.0.1:{served.port}/v1/readings"
        async with served.session.post(url, data=FULL, headers=NDJSON, ssl=old) as answer:
            assert answer.status == 204
    assert not logged.records


def wrong(**options: Path) -> list[str]:
    return problems([HttpInput(HttpOptions(listen="127.0.0.1:0", **options), Metrics())])  # type: ignore[arg-type]


def test_files_that_cannot_be_used_are_told_before_anything_runs(
    tmp_path: Path, token_file: Path, pair: tuple[Path, Path]
) -> None:
    assert wrong(token_file=token_file, tls_cert=pair[0], tls_key=pair[1]) == []
    assert "cannot be read" in wrong(token_file=tmp_path / "none")[0]
    assert "go together" in wrong(tls_cert=pair[0])[0]
    assert "cannot be read" in wrong(tls_cert=pair[0], tls_key=tmp_path / "none")[0]
    assert "not a certificate chain with its key" in wrong(tls_cert=pair[1], tls_key=pair[1])[0]
    token_file.chmod(0o640)
    (told,) = wrong(token_file=token_file)
    assert "chmod 600" in told
    token_file.chmod(0o600)
    token_file.write_text("two words")
    (told,) = wrong(token_file=token_file)
    assert "without a space" in told
    assert "words" not in told


@pytest.mark.parametrize(
    ("listen", "with_token", "said"),
    [("127.0.0.1", False, None), ("0.0.0.0", False, "any client"), ("0.0.0.0", True, "clear text")],
)
async def test_an_input_that_others_reach_says_what_it_lacks(
    listen: str, with_token: bool, said: str | None, token_file: Path
) -> None:
    options = HttpOptions(listen=f"{listen}:0", token_file=token_file if with_token else None)
    stopping = asyncio.Event()
    stopping.set()
    with capture_logs() as logs:
        await HttpInput(options, Metrics()).run(Core(), stopping)
    warnings = [one["event"] for one in logs if one["log_level"] == "warning"]
    assert len(warnings) == (said is not None)
    assert said is None or said in warnings[0]


@pytest.mark.parametrize(
    ("host", "inside"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("h", False)],
)
def test_the_loopback_is_known(host: str, inside: bool) -> None:
    assert is_loopback(host) == inside


def test_a_header_of_anything_is_no_error() -> None:
    assert not shows("Basic é", b"x")
    assert not shows("Bearer \udcff", b"x")
