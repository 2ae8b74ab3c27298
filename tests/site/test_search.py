"""What a person types into the search of the site leads to the answer, in a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote, urlsplit

import pytest
import pytest_asyncio

from tests.browser.chromium import NAMES, Page, browsing, chromium
from tests.harness.wait import until

SITE = Path(__file__).parents[2] / "build" / "site"
FOUND = "[...document.querySelectorAll('.md-search-result__link')].map(one => one.href)"


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(name="address", scope="module")
def served() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(SITE))) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest_asyncio.fixture(name="page")
async def opened(tmp_path: Path) -> AsyncIterator[Page]:
    if (program := chromium()) is None:
        pytest.skip(f"none of {', '.join(NAMES)} is installed")
    async with browsing(program, tmp_path) as page:
        yield page


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("unheard", "what-to-do.html#what-does-unheard-mean"),
        ("disk three days offline", "what-to-do.html#short-answers"),
        ("rotate key", "fleet.html#rotate-a-key"),
        ("power goes", "what-to-do.html#what-is-lost-when-the-power-goes"),
        ("full disk", "what-to-do.html#the-first-full-disk"),
        ("PetioleLeafSilent", "what-to-do.html#symptom-command-page"),
        ("three machines", "hub-cluster.html#a-hub-of-three-machines"),
    ],
)
async def test_what_is_typed_leads_to_the_answer(page: Page, address: str, asked: str, answer: str) -> None:
    await page.show(f"{address}/index.html?q={quote(asked)}")
    found: list[str] = []

    async def shown() -> bool:
        links = [urlsplit(link) for link in await page.value(FOUND)]
        found[:] = [f"{link.path.strip('/')}#{link.fragment}".strip("#") for link in links]
        return bool(found)

    await until(shown, "the search shows something")
    assert answer in found[:4], found
    assert found[0].partition("#")[0] == answer.partition("#")[0], found
    assert {url for url in page.asked if not url.startswith((address, "data:", "blob:"))} == set()
