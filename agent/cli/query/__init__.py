"""Queries agents and servers for commands, within time and size limits. Leaf agents do not import it."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from agent.base.http.access import AccessError, read_token
from agent.base.listen_sockets import host_and_port, near_host
from agent.config import Admin, Config, listen_address
from agent.contract import HOME

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from prometheus_client import Metric

    from agent.jetstream.connection import OpenConnection

SECONDS: Final = 5.0
_MAX_BYTES: Final = 64 * 1024**2
"""A hub with 2,000 leaves answers about two."""
_PIECE: Final = 65_536
WHETHER_IT_RUNS: Final = "see whether `petiole run` runs"
_STRANGER: Final = "what answers at {url} is not the agent; correct [admin] listen, or end it"
NONSENSE: Final = (KeyError, TypeError, ValueError, AttributeError)
"""Errors of reading a foreign answer."""


class AdminStatusError(Exception):
    """No agent's answer; the text is for people."""


class _Link(msgspec.Struct):
    state: str
    sentence: str
    attention: bool


class _Class(msgspec.Struct):
    state: str
    sentence: str
    last: int
    confirmed: int
    seconds_to_loss: float | None


class _Row(msgspec.Struct):
    link: str
    kind: str
    state: str
    lag: int | None


class _Leaf(msgspec.Struct):
    role: Literal["leaf"]
    domain: str
    link: _Link
    classes: dict[str, _Class]
    links: list[_Row]
    inputs: list[str]
    states: dict[str, str] = {}


class _Held(msgspec.Struct):
    epoch: str
    stream: str
    cursor: int
    last: int | None


class _Member(msgspec.Struct):
    state: str
    word: str
    linked: bool
    announced_at: str = ""
    classes: dict[str, _Held] = {}


class _Aggregate(msgspec.Struct):
    state: str
    sources: int
    bytes: int
    max_bytes: int | None


class _Fleet(msgspec.Struct):
    state: str = ""
    aggregates: dict[str, _Aggregate] = {}
    leaves: dict[str, _Member] = {}


class _Hub(msgspec.Struct):
    role: Literal["hub"]
    fleet: _Fleet
    links: list[_Row]


_FORMS: Final = {"leaf": _Leaf, "hub": _Hub}


def own_server(config: Config, cell: str = HOME) -> AbstractAsyncContextManager[OpenConnection]:
    """Connect to the local server as its agent, at a hub in a cell. Raises `EXPECTED`."""
    from agent.jetstream.connection import connected  # not loaded by commands that ask the agent only
    from agent.server.setup import identities

    mine = identities(config)
    return connected(config.nats.url, mine.cells.get(cell, mine.account), config.identity)


def cannot_ask(config: Config, error: BaseException) -> str:
    """Explain an error of the local server."""
    from agent.jetstream.info import reason_of

    nonsense = "it answers what no JetStream answers: " if isinstance(error, NONSENSE) else ""
    return f"the NATS server at {config.nats.listen} cannot be asked ({nonsense}{reason_of(error)})"


def status_of(config: Config) -> dict[str, Any]:
    """Return the checked `/status` of this configuration's agent. Raises `AdminStatusError`."""
    answer, url = answer_of(config.admin, "/status")
    try:
        status = json.loads(answer)
    except (ValueError, RecursionError):
        raise AdminStatusError(_STRANGER.format(url=url)) from None
    return own(checked(status, url), url, config)


def metrics_of(config: Config) -> list[Metric]:
    """Return `/metrics` of the agent listening there; `status_of` identifies it.
    Raises `AdminStatusError`.
    """
    from prometheus_client.parser import text_string_to_metric_families

    answer, url = answer_of(config.admin, "/metrics")
    try:
        return list(text_string_to_metric_families(answer.decode()))
    except ValueError as error:
        raise _unanswered(url, error) from None


def input_states(config: Config) -> dict[str, bool]:
    """Return whether each input runs. Raises `AdminStatusError`."""
    gauges = [metric for metric in metrics_of(config) if metric.name == "petiole_input_up"]
    return {sample.labels["input"]: sample.value == 1 for gauge in gauges for sample in gauge.samples}


def answer_of(admin: Admin, path: str) -> tuple[bytes, str]:
    """Return an agent's answer and its address. Raises `AdminStatusError`."""
    try:
        url, headers, tls = _request(admin, path)
    except AccessError as error:
        raise AdminStatusError(f"the agent's admin server cannot be asked: [admin] {error}") from None
    try:
        return _read(url, headers, tls), url
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise _unanswered(url, error) from None


def _unanswered(url: str, error: Exception) -> AdminStatusError:
    if isinstance(error, urllib.error.HTTPError) and error.code == http.HTTPStatus.NOT_FOUND:
        return AdminStatusError(_STRANGER.format(url=url))
    reason = error.reason if type(error) is urllib.error.URLError else error
    why = (isinstance(reason, OSError) and reason.strerror) or reason
    return AdminStatusError(f"the agent does not answer at {url} ({why}); {WHETHER_IT_RUNS}")


def _request(admin: Admin, path: str) -> tuple[str, dict[str, str], ssl.SSLContext | None]:
    """Return URL, headers and TLS context. Raises `AccessError`."""
    host, port = listen_address(admin.listen)
    where = host_and_port(near_host(host), port)
    headers = {}
    if admin.token_file is not None:
        headers["Authorization"] = f"Bearer {read_token(admin.token_file).decode()}"
    scheme, tls = "http", None
    if admin.tls_cert is not None:
        scheme, tls = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The name does not matter: an address is dialled, and only this certificate is trusted.
        tls.check_hostname = False
        tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            tls.load_verify_locations(admin.tls_cert)
        except (OSError, ssl.SSLError) as error:
            raise AccessError(f"tls_cert {admin.tls_cert} cannot be read ({error.strerror})") from None
    return f"{scheme}://{where}{path}", headers, tls


def checked(status: Any, url: str) -> dict[str, Any]:
    """Return a valid agent's answer. Raises `AdminStatusError`."""
    role = status.get("role") if isinstance(status, dict) else None
    form = _FORMS.get(role) if isinstance(role, str) else None
    why = "it names neither the role leaf nor hub"
    try:
        if form is not None:
            msgspec.convert(status, form)
            return dict(status)
    except msgspec.ValidationError as error:
        why = str(error)
    raise AdminStatusError(
        f"what answers at {url} is not an agent of this version: {why}; see who listens at [admin] listen"
    )


def own(status: dict[str, Any], url: str, config: Config) -> dict[str, Any]:
    """Return the answer of this configuration's agent. Raises `AdminStatusError`, as agents may share a
    default address.
    """
    role, domain = status["role"], status.get("domain", config.domain)
    place, ours = status.get("state_dir"), str(config.state_dir.resolve())
    if (role, domain) == (config.role, config.domain) and place in (None, ours):
        return status
    if domain == config.domain:
        domain = f"{domain} with its state in {place}"
    raise AdminStatusError(
        f"what answers at {url} is the agent of {domain} (role {role}), not that of "
        f"{config.domain} (role {config.role}, state in {ours}), which cannot listen there; "
        "give each an [admin] listen of its own"
    )


def _read(url: str, headers: dict[str, str], tls: ssl.SSLContext | None) -> bytes:
    # Only loopback and the configured address are ever asked: no proxy of the environment, no redirect.
    https = urllib.request.HTTPSHandler(context=tls)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay(), https)
    deadline = time.monotonic() + SECONDS
    parts: list[bytes] = []
    size = 0
    page = urllib.request.Request(url, headers=headers)  # noqa: S310 - http or https
    with opener.open(page, timeout=SECONDS) as answer:
        while piece := answer.read1(_PIECE):
            parts.append(piece)
            size += len(piece)
            if size > _MAX_BYTES:
                raise OSError(f"its answer is longer than {_MAX_BYTES} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError(f"its answer is not complete within {SECONDS:.0f} s")
    return b"".join(parts)


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirects."""

    def redirect_request(self, *_given: Any) -> None:
        return
