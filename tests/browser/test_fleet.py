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
from agent.contract import AuditedHour, AuditedLeaf
from agent.hub.web import FleetPages, html
from agent.process.admin_server import AdminServer
from tests.browser.chromium import NAMES, Page, browsing, chromium
from tests.harness.wait import until

HOSTILE = "</title></span><script>document.title='taken'</script><img src=//127.0.0.1:9/x onerror=alert(1)>"
DOMAINS = "[...document.querySelectorAll('tbody .domain')].map(one => one.innerText)"
TEXT = "document.body.innerText"
WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"
BOTH = pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
COLOURS = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"


AUDITED = datetime.now(UTC) - timedelta(hours=3)


def audited(domain: str) -> AuditedLeaf | None:
    """What the newest audit found: two leaves in a hundred lost something, some are new to it."""
    number = int(domain.rpartition("-")[2])
    if number % 97 == 9:
        return None
    last = int(AUDITED.timestamp()) // 3_600
    lost = 120 if number % 97 == 1 else 0
    hours = [
        AuditedHour(
            last - at,
            in_table=1_700 - lost * (at == 7) - 20 * (at % 5),
            named=12 if at % 6 == 0 else 0,
            pending=900 if at == 0 else 0,
            late=0,
            missing=lost * (at == 7),
            doubled=(number % 97 == 1) * (at == 20),
            lost=0,
            on_the_way=0,
        )
        for at in range(48)
        if not 30 < at < 36
    ]
    said = (f"{domain}, class normal, run 0c2v8ekz4hq1m0001: batch 712: indexes 0-119 of 5000 are missing",)
    return AuditedLeaf(
        domain,
        accepted=sum(sum(hour[1:4]) for hour in hours) + lost,
        in_table=sum(hour.in_table for hour in hours),
        named=sum(hour.named for hour in hours),
        pending=900,
        on_the_way=0,
        missing=lost,
        doubled=int(bool(lost)),
        findings=said if lost else (),
        hours=tuple(hours),
    )


def audit(number: int) -> dict[str, Any] | None:
    """The same as the hub's agent says it in its status."""
    found = audited(f"plant-{number:04}")
    if found is None:
        return None
    at = AUDITED - timedelta(days=4 if number % 97 == 20 else 0)
    row = {field: getattr(found, field) for field in found.__slots__ if field not in ("domain", "hours")}
    return {**row, "lost": found.lost, "at": at.isoformat()}


def leaf(number: int) -> dict[str, Any]:
    """One of a fleet in which some are in trouble."""
    words = {1: "trouble", 4: "stopped", 7: "away", 9: "never"}
    word = words.get(number % 97, "flowing")
    if word == "never":
        return {"linked": False, "word": word, "state": "never seen", "audit": None}
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
        "audit": audit(number),
    }


HEAD = {
    "at": AUDITED.isoformat(),
    "lake": "/srv/lake",
    "deep": False,
    "lost": True,
    "verdict": "2,520 readings missing, 21 doubled, 0 streams with gaps",
    "findings": ["hub stream TELEMETRY_3: sequences 9-12 are not in bronze: unknown"],
}
LEAVES = {f"plant-{number:04}": leaf(number) for number in range(2_000)}
FLEET: dict[str, Any] = {"state": "well", "audit": HEAD, "leaves": LEAVES}


@pytest_asyncio.fixture
async def port() -> AsyncIterator[int]:
    pages = FleetPages(lambda: {"fleet": FLEET}, audited)
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


@BOTH
async def test_a_person_sorts_filters_and_looks_at_a_leaf_that_tries_to_break_out(
    page: Page, port: int, phone: bool
) -> None:
    await page.hold(phone=phone)
    await page.show(f"http://127.0.0.1:{port}/fleet")
    first = await page.value(DOMAINS)
    assert len(first) == 100
    assert first[0] > first[20]
    assert "document.title" in await page.value("document.querySelector('tbody').innerText"), "as text"

    await _sorts(page)
    await _filters(page)
    await _looks_at_a_leaf(page)
    await _by_dark_and_by_light(page)
    if not phone:
        await _pictures(page, port)

    assert page.complaints == []
    assert {url.split("/fleet")[0] for url in page.asked} <= {f"http://127.0.0.1:{port}", "data:,"}


@BOTH
async def test_a_page_fits_its_window_and_says_of_each_leaf_all_that_it_knows(
    page: Page, port: int, phone: bool
) -> None:
    await page.hold(phone=phone)
    for path in ("", "/plant-0098", "/plant-0011", "/plant-0009"):
        await page.show(f"http://127.0.0.1:{port}/fleet{path}")
        needed, there = await page.value(WIDTHS)
        assert needed <= there, f"{path} has to be pushed sideways"
        hidden = await page.value(
            "[...document.querySelectorAll('tbody td')].filter(td => td.innerText && !td.closest('details') "
            "&& (td.getBoundingClientRect().right > innerWidth || !td.offsetWidth)).length"
        )
        assert hidden == 0, path
    await page.show(f"http://127.0.0.1:{port}/fleet?domain=plant-0098")
    low = await page.value("Math.min(...[...document.querySelectorAll('td a')].map(a => a.offsetHeight))")
    assert not phone or low >= 24, "a finger hits it"
    row = await page.value("document.querySelector('tbody tr').innerText")
    assert all(word in row for word in ("plant-0098", "trouble", "no, 3h ago", "120 readings missing"))
    assert page.complaints == []


@BOTH
async def test_a_page_shows_what_has_changed_without_a_click_until_a_person_stops_it(
    page: Page, port: int, phone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "REFRESH_SECONDS", 1)
    monkeypatch.setitem(LEAVES, "plant-0011", leaf(11))
    await page.hold(phone=phone)
    await page.show(f"http://127.0.0.1:{port}/fleet?domain=plant-001&sort=-domain")
    assert "yes, 3h ago" in (before := await _cells(page, "plant-0011"))
    found = audit(1)
    monkeypatch.setitem(LEAVES, "plant-0011", {**leaf(11), "audit": found})
    await page.again()
    assert "no, 3h ago" in await _cells(page, "plant-0011"), before
    assert (await page.value(DOMAINS))[0] == "plant-0019", "the order and the filter stay"

    await page.click("p a[href*='refresh=off']")
    assert await page.value("document.querySelectorAll('meta[http-equiv]').length") == 0
    assert (await page.value(DOMAINS))[0] == "plant-0019"
    await page.click("tbody th a, thead th a")
    assert await page.value("document.querySelectorAll('meta[http-equiv]').length") == 0, "it stays stopped"


async def _cells(page: Page, domain: str) -> str:
    rows = "[...document.querySelectorAll('tbody tr')].map(one => one.innerText)"
    return str(next(row for row in await page.value(rows) if domain in row))


@BOTH
async def test_a_leafs_page_draws_each_hour_as_the_audit_found_it(page: Page, port: int, phone: bool) -> None:
    await page.hold(phone=phone)
    found = audited("plant-0098")
    assert found is not None
    await page.show(f"http://127.0.0.1:{port}/fleet/plant-0098")
    bars = await page.value(
        "[...document.querySelectorAll('svg g')].map(g => [g.querySelector('title').textContent, "
        "[...g.querySelectorAll('rect')].map(r => [r.getAttribute('class'), r.getBoundingClientRect().height,"
        " getComputedStyle(r).fill])])"
    )
    assert len(bars) == len(found.hours) == 43
    worst = [bar for bar in bars if any(part[0] == "part-missing" for part in bar[1])]
    assert [title for title, _ in worst] == [title for title, _ in bars if "120 missing" in title]
    assert len(worst) == 1
    assert all(high >= 5 for _, parts in worst for name, high, _ in parts if name == "part-missing")
    assert {fill for _, parts in worst for name, _, fill in parts if name == "part-missing"} == {
        "rgb(179, 38, 30)"
    }
    text = await page.value(TEXT)
    assert f"{found.accepted:,}" in text
    assert "no: 120 readings missing, 1 doubled" in text
    assert f"{AUDITED:%Y-%m-%d %H:%M:%S} UTC" in text

    await page.value("document.querySelector('details').open = true")
    rows = await page.value("document.querySelectorAll('details tbody tr').length")
    assert rows == 43
    needed, there = await page.value(WIDTHS)
    assert needed <= there


async def test_a_leaf_that_no_audit_has_seen_says_so_and_an_old_audit_is_said_to_be_old(
    page: Page, port: int
) -> None:
    await page.show(f"http://127.0.0.1:{port}/fleet/plant-0009")
    assert "No audit has looked at this leaf yet" in await page.value(TEXT)
    assert await page.value("document.querySelectorAll('svg').length") == 0
    await page.show(f"http://127.0.0.1:{port}/fleet/plant-0020")
    assert "it was, but the newest audit is old" in await page.value(TEXT)
    await page.show(f"http://127.0.0.1:{port}/fleet?sort=accounted&domain=plant-00")
    assert [await page.value(f"({DOMAINS})[{at}]") for at in range(4)] == [
        "plant-0098",
        "plant-0001",
        "plant-0009",
        "plant-0020",
    ]


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
    before = LEAVES["plant-0001"]
    LEAVES["plant-0001"] = before | {
        "state": "has sent 2147483648 bytes within an hour",
        "versions": {"agent": "0.1.0", "server": "2.15.1"},
    }
    await page.show(f"http://127.0.0.1:{port}/fleet?domain=plant-00")
    pictures = {
        f"fleet-{'dark' if dark else 'light'}": await page.picture(dark=dark) for dark in (False, True)
    }
    await page.show(f"http://127.0.0.1:{port}/fleet/plant-0001")
    pictures["fleet-leaf"] = await page.picture(dark=False, height=1_320)
    await page.show(f"http://127.0.0.1:{port}/fleet?domain=plant-00")
    await page.hold(phone=True)
    pictures["fleet-phone"] = await page.picture(dark=False, width=390, height=844)
    LEAVES["plant-0001"] = before
    for name, picture in pictures.items():
        await asyncio.to_thread(Path(directory, f"{name}.png").write_bytes, picture)
