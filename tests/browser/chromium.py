"""A headless Chromium over its DevTools protocol (https://chromedevtools.github.io/devtools-protocol/)."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp

NAMES: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_SECONDS: Final = 60.0
_LARGEST: Final = 64 * 2**20


def chromium() -> str | None:
    """Where one is installed, None where none is."""
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


class Page:
    """One tab. `complaints` is what its console and its log have said, `asked` are the addresses it asked
    for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self._session: str | None = None

    async def begin(self) -> None:
        """Open the tab."""
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")

    async def listen(self) -> None:
        """Take in what the browser says, until it ends."""
        async for message in self._socket:
            row = message.json()
            if "id" in row:
                self._answers.pop(row["id"]).set_result(row)
                continue
            params = row.get("params", {})
            match row["method"]:
                case "Page.loadEventFired":
                    self._loaded.set()
                case "Log.entryAdded":
                    self.complaints.append(str(params["entry"]["text"]))
                case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                    self.complaints.append(str(params))
                case "Network.requestWillBeSent":
                    self.asked.append(str(params["request"]["url"]))

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command."""
        number = next(self._numbers)
        session = {} if self._session is None else {"sessionId": self._session}
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params, **session})
        async with asyncio.timeout(_SECONDS):
            row = await answer
        assert "error" not in row, row
        result: dict[str, Any] = row["result"]
        return result

    async def show(self, url: str) -> None:
        """Go to an address."""
        self._loaded.clear()
        await self.call("Page.navigate", url=url)
        await self._load()

    async def again(self) -> None:
        """Wait until the page loads again by itself."""
        self._loaded.clear()
        await self._load()

    async def click(self, selector: str) -> None:
        """Click on the first element that a selector names, and wait for the page behind it."""
        self._loaded.clear()
        await self.value(f"document.querySelector({selector!r}).click()")
        await self._load()

    async def value(self, expression: str) -> Any:
        """What an expression of JavaScript gives, run from outside of the page's policy."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def picture(self, *, dark: bool, width: int = 1100, height: int = 480) -> bytes:
        """What a person with this preference sees, as PNG."""
        await self.prefer(dark=dark)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        await self.call("Emulation.setScrollbarsHidden", hidden=True)
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])

    async def hold(self, *, phone: bool) -> None:
        """Be a phone of 390 by 844, which is touched, or a desktop."""
        size = {"width": 390, "height": 844} if phone else {"width": 1100, "height": 800}
        how = {"deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        await self.call("Emulation.setDeviceMetricsOverride", **size, **how)
        await self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    async def prefer(self, *, dark: bool) -> None:
        """Have the preference for dark or for light."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[feature])

    async def _load(self) -> None:
        async with asyncio.timeout(_SECONDS):
            await self._loaded.wait()


@asynccontextmanager
async def browsing(program: str, directory: Path) -> AsyncIterator[Page]:
    """A tab of a browser of its own, which keeps what it writes in a directory."""
    # Root may not have its sandbox; it is shown our own pages only.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    options += ["--headless", "--disable-gpu", "--no-first-run", "--remote-debugging-port=0"]
    process = await asyncio.create_subprocess_exec(
        program,
        *options,
        f"--user-data-dir={directory}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        url = await _address(directory / "DevToolsActivePort", process)
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, max_msg_size=_LARGEST) as socket,
            asyncio.TaskGroup() as group,
        ):
            page = Page(socket)
            listening = group.create_task(page.listen())
            await page.begin()
            yield page
            listening.cancel()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _address(file: Path, process: asyncio.subprocess.Process) -> str:
    """Where it listens, as it writes into a file of two lines once it does."""
    async with asyncio.timeout(_SECONDS):
        while (url := _written(file)) is None:
            assert process.returncode is None, "the browser has ended"
            await asyncio.sleep(0.05)
    return url


def _written(file: Path) -> str | None:
    lines = file.read_text().splitlines() if file.exists() else []
    return f"ws://127.0.0.1:{lines[0]}{lines[1]}" if len(lines) == 2 else None
