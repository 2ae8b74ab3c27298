"""Getting an exposition over HTTP, within limits."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.base.files import open_regular
from agent.base.http_access import AccessError, read_token
from agent.leaf.inputs.prometheus.exposition import ACCEPT

if TYPE_CHECKING:
    import aiohttp

_CHUNK: Final = 64 * 1024


class ScrapeError(Exception):
    """A target did not give an exposition; the text says why, `reason` is one word."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ScrapeLimits:
    """How long a scrape may take, in seconds, and how many bytes it may have."""

    timeout: float
    body: int


def trust(ca: Path | None) -> ssl.SSLContext | None:
    """Whose certificates are believed: those of the file, or the system's. Raises `AccessError`."""
    if ca is None:
        return None
    try:
        open_regular(ca).close()
        return ssl.create_default_context(cafile=ca)
    except (OSError, ValueError) as error:
        raise AccessError(f"tls_ca {ca} holds no certificates in PEM that can be read ({error})") from None


async def scrape(
    session: aiohttp.ClientSession, url: str, token_file: Path | None, limits: ScrapeLimits
) -> tuple[bytes, str]:
    """The body and its content type. Raises `ScrapeError`. It is asked for as it is: what is packed would be
    of a size that nobody knows; and it follows no redirection, which might take the token elsewhere."""
    import aiohttp

    headers = {"Accept": ACCEPT, "Accept-Encoding": "identity"}
    try:
        if token_file is not None:
            headers["Authorization"] = f"Bearer {(await asyncio.to_thread(read_token, token_file)).decode()}"
        async with (
            asyncio.timeout(limits.timeout),
            session.get(url, headers=headers, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                raise ScrapeError("status", f"it answers {answer.status}, not 200")
            if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise ScrapeError("encoding", "it answers with a packed body, which was not asked for")
            body = bytearray()
            async for chunk in answer.content.iter_chunked(_CHUNK):
                body += chunk
                if len(body) > limits.body:
                    text = f"it has more than {limits.body} bytes; make body larger, or expose less"
                    raise ScrapeError("too_large", text)
            return bytes(body), answer.headers.get("Content-Type", "")
    except AccessError as error:
        raise ScrapeError("token", str(error)) from None
    except TimeoutError:
        raise ScrapeError("timeout", f"it has not answered within {limits.timeout:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ScrapeError("unreachable", f"{type(error).__name__}: {error!s:.200}") from None
