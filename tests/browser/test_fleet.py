"""The fleet page as a person sees it, in a real browser. With PICTURES set to a directory it saves what the
documents show."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agent.base.metrics import Metrics
from agent.config import Admin
from agent.hub.web.fleet import FleetPages
from agent.process.admin_server import AdminServer
from tests.browser.chromium import NAMES, Page, browsing, chromium
from tests.harness.wait import until

HOSTILE = "</title></span><script>document.title='taken'</script><img src=//127.0.0.1:9/x onerror=alert(1)>"
DOMAINS = "[...document.querySelectorAll('tbody .name')].map(one => one.innerText)"
COLOURS = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"


def leaf(number: int) -> dict[str, Any]:
    """One of a fleet in which some are in trouble."""
    words = {1: "trouble", 4: "stopped", 7: "away", 9: "never"}
    word = words.get(number % 97, "flowing")
    if word == "never":
        return {"linked": False, "word": word, "state": "never seen"}
    said = {
        "trouble": HOSTILE if number == 1 else "has sent 2147483648 bytes within an hour",
        "stopped": "linked, but normal does not flow yet",
        "away": "not linked; last announced at 2026-11-21T15:51:07+00:00",
    }
    at = datetime.now(UTC) - timedelta(seconds=number % 10 if word == "flowing" else 40 * number)
    behind = 0 if word == "flowing" else 1_000 + number
    counts = {
        "accepted": 81_204,
        "stored": 81_204,
        "refused": 0,
        "discarded": 0,
        "dead": 0,
        "refused_late": 0,
    }
    normal = {
        "epoch": "0c2v8ekz4hq1m",
        "stream": f"TELEMETRY_{number % 10}",
        "cursor": 81_204,
        "last": 81_204 + behind,
        "active": 0.4,
        "error": "",
        "seconds_to_loss": "inf" if word == "flowing" else 3_600.0 * number,
        "ledger": {"run": "0c2v8ekz4hq1m0001", "n": 812, "readings": counts, "closed": False},
    }
    return {
        "linked": word in ("flowing", "stopped"),
        "word": word,
        "state": said.get(word, word),
        "machine": "7f3c",
        "run": "0c2v8ekz4hq1m0001",
        "versions": {"agent": "0.1.0", "server": HOSTILE if number == 1 else "2.15.1"},
        "announced_at": at.isoformat(timespec="seconds"),
        "classes": {"normal": normal},
    }


FLEET = {"state": "well", "leaves": {f"plant-{number:04}": leaf(number) for number in range(2_000)}}


@pytest_asyncio.fixture
async def port() -> AsyncIterator[int]:
    pages = FleetPages(lambda: {"fleet": FLEET})
    server = AdminServer(Admin("127.0.0.1:0"), Metrics(), dict, lambda: (True, ""), pages)
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(server.run(stopping))
        await until(lambda: server.address[1] != 0, "the admin server listens")
        yield server.address[1]
        stopping.set()


@pytest_asyncio.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    program = chromium()
    if program is None:
        pytest.skip(f"no Chromium is installed: none of {', '.join(NAMES)}")
    async with browsing(program, tmp_path / "browser") as one:
        yield one


async def test_a_person_sorts_filters_and_looks_at_a_leaf_that_tries_to_break_out(
    page: Page, port: int
) -> None:
    await page.show(f"http://127.0.0.1:{port}/fleet")
    first = await page.value(DOMAINS)
    assert len(first) == 100
    assert first[0] > first[20]
    assert "document.title" in await page.value("document.querySelector('tbody').innerText"), "as text"

    await _sorts(page)
    await _filters(page)
    await _looks_at_a_leaf(page)
    await _by_dark_and_by_light(page)
    await _pictures(page, port)

    assert page.complaints == []
    assert {url.split("/fleet")[0] for url in page.asked} <= {f"http://127.0.0.1:{port}", "data:,"}


async def _sorts(page: Page) -> None:
    await page.click("th:nth-child(1) a")
    assert (await page.value(DOMAINS))[:2] == ["plant-0000", "plant-0001"]
    await page.click("th:nth-child(1) a")
    assert (await page.value(DOMAINS))[:2] == ["plant-1999", "plant-1998"]
    assert await page.value("document.querySelector('th').ariaSort") == "descending"
    await page.click("nav a")
    assert (await page.value(DOMAINS))[0] == "plant-1899"


async def _filters(page: Page) -> None:
    await page.value("document.querySelector('[name=domain]').value = '-00'")
    await page.value("document.querySelector('[name=state]').value = 'never'")
    await page.click("button")
    assert await page.value(DOMAINS) == ["plant-0009"]
    assert "sort=-domain" in await page.value("location.search"), "the order stays"


async def _looks_at_a_leaf(page: Page) -> None:
    await page.value("document.querySelector('[name=domain]').value = 'plant-0001'")
    await page.value("document.querySelector('[name=state]').value = ''")
    await page.click("button")
    await page.click("tbody a")
    assert await page.value("document.querySelector('h1').innerText") == "plant-0001"
    assert await page.value("document.title") == "plant-0001 - Petiole fleet"
    assert await page.value("document.querySelectorAll('script, img').length") == 0
    assert "81,204" in await page.value("document.body.innerText")


async def _by_dark_and_by_light(page: Page) -> None:
    await page.prefer(dark=True)
    dark = await page.value(COLOURS)
    await page.prefer(dark=False)
    light = await page.value(COLOURS)
    assert dark == ["rgb(20, 24, 22)", "rgb(227, 232, 228)"]
    assert light == ["rgb(251, 251, 249)", "rgb(29, 35, 32)"]


async def _pictures(page: Page, port: int) -> None:
    directory = os.environ.get("PICTURES")
    if directory is None:
        return
    FLEET["leaves"]["plant-0001"] |= {  # type: ignore[index]
        "state": "has sent 2147483648 bytes within an hour",
        "versions": {"agent": "0.1.0", "server": "2.15.1"},
    }
    await page.show(f"http://127.0.0.1:{port}/fleet?domain=plant-00")
    pictures = {
        f"fleet-{'dark' if dark else 'light'}": await page.picture(dark=dark) for dark in (False, True)
    }
    await page.show(f"http://127.0.0.1:{port}/fleet/plant-0001")
    pictures["fleet-leaf"] = await page.picture(dark=False, height=610)
    for name, picture in pictures.items():
        await asyncio.to_thread(Path(directory, f"{name}.png").write_bytes, picture)
