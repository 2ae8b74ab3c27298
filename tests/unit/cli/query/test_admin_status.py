"""What is believed of who answers where the agent's admin server should, and what `petiole status` prints of
a class."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from agent.base.terminal import BAD, GOOD, WAITS
from agent.cli import query
from agent.cli.checks import agent_status
from agent.cli.query import AdminStatusError, checked, status_of
from agent.cli.status import drawn, exit_code, lines
from agent.config import Admin, Config
from agent.contract import Exit
from agent.demo.loopback import free_port

LEAF: Final[dict[str, Any]] = {
    "role": "leaf",
    "domain": "edge-1",
    "link": {
        "state": "flowing",
        "sentence": "data flows",
        "attention": False,
        "sent_bytes": 2_000_000,
        "arrived_bytes": 500_000,
    },
    "classes": {
        "normal": {
            "state": "flowing",
            "sentence": "data flows",
            "last": 9,
            "confirmed": 4,
            "in_flight": 2,
            "seconds_to_loss": None,
        }
    },
    "links": [],
    "inputs": ["http"],
}


def _asking(listen: str) -> Config:
    return Config(domain="edge-1", admin=Admin(listen=listen))


@contextmanager
def _answering(body: bytes, code: int = 200, *, endless: bool = False) -> Iterator[str]:
    """Where somebody answers every request so."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            try:
                self.wfile.write(body)
                while endless:
                    self.wfile.write(body)
            except OSError:
                return

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (b"<html>hello</html>", 200, "is not the agent"),
        (b"", 200, "is not the agent"),
        (b"{}", 404, "is not the agent; correct [admin] listen, or end it"),
        (b"{}", 302, "HTTP Error 302"),
        (b"[1, 2]", 200, "is not an agent of this version: it names neither"),
        (b'{"role": ["hub"]}', 200, "is not an agent of this version: it names neither"),
        (b'{"role": "hub", "fleet": 7}', 200, "Expected `object`, got `int` - at `$.fleet`"),
        (b'{"role": "leaf", "domain": "d"}', 200, "missing required field"),
    ],
)
def test_who_answers_something_else_is_told(body: bytes, code: int, said: str) -> None:
    with _answering(body, code) as listen, pytest.raises(AdminStatusError) as told:
        status_of(_asking(listen))

    assert said in str(told.value)


def test_an_agent_that_does_not_run_is_told_in_plain_words() -> None:
    config = _asking(f"127.0.0.1:{free_port()}")
    with pytest.raises(AdminStatusError, match=r"/status \(Connection refused\); see whether"):
        status_of(config)
    assert str(asyncio.run(agent_status.ask(config))).endswith("/status (Connection refused)")


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"{}"])
def test_a_check_takes_nothing_else_for_an_agent(body: bytes) -> None:
    with _answering(body) as listen:
        assert str(asyncio.run(agent_status.ask(_asking(listen)))).startswith("what answers at")


def test_an_answer_without_an_end_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "_MAX_BYTES", 1_000_000)
    with (
        _answering(b"x" * 60_000, endless=True) as listen,
        pytest.raises(AdminStatusError, match="longer than"),
    ):
        status_of(_asking(listen))


def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with _answering(b"{}") as listen, pytest.raises(AdminStatusError, match="not an agent of this version"):
        status_of(_asking(listen))


def test_what_a_newer_agent_adds_does_no_harm() -> None:
    status = {**LEAF, "more": {"a": 1}}

    assert checked(status, "here") == status


def _printed(**given: Any) -> str:
    one = {
        "state": "down",
        "sentence": "",
        "last": 9,
        "confirmed": 4,
        "in_flight": 2,
        "seconds_to_loss": 0.0,
        "held_back": None,
        "discarded": None,
        **given,
    }
    link = {"sentence": "the link is down", "state": "down"}
    return "\n".join(lines({"role": "leaf", "domain": "d", "link": link, "classes": {"c": one}, "links": []}))


def test_a_class_that_discards_nothing_and_is_not_held_back_says_nothing_of_it() -> None:
    lines = _printed()
    assert "held back" not in lines
    assert "discarded" not in lines


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(None, "none: "), (2.8e16, "none: "), (0.2, "0: there is no room"), (7200.0, "about 2 hours")],
)
def test_the_time_to_first_loss_is_told_as_people_need_it(seconds: float | None, said: str) -> None:
    assert f"time to first loss: {said}" in _printed(seconds_to_loss=seconds)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ({}, Exit.WELL),
        ({"paused": "class c"}, Exit.WELL),
        ({"input_down": "input http"}, Exit.FAILED),
        ({"clock_wrong": "2 days ahead of"}, Exit.FAILED),
        ({"held": "class c: the disk is short", "input_down": "input http"}, Exit.LOSS),
        ({"losing": "7 of class c"}, Exit.LOSS),
        ({"a word of a newer agent": "why"}, Exit.LOSS),
    ],
)
def test_a_leaf_says_its_states_and_ends_with_the_code_of_the_gravest(
    states: dict[str, str], expected: Exit
) -> None:
    status = {**LEAF, "link": {**LEAF["link"], "attention": False}, "states": states}
    assert exit_code(status) is expected
    said = "\n".join(lines(status))
    assert all((about in said) is (word != "paused") for word, about in states.items())
    status["link"]["state"] = "down"
    assert exit_code(status) is (Exit.LOSS if expected is Exit.LOSS else Exit.UNREACHABLE)


def test_what_a_class_has_discarded_is_told() -> None:
    lines = _printed(discarded={"readings": 30, "direct": 2, "in_doubt": 0})
    assert lines.endswith("discarded before the hub had them: 30 readings and 2 messages of devices")
    assert _printed(discarded={"readings": 3, "direct": 0, "in_doubt": 7}).endswith(
        "; 7 messages more, unless the hub has them"
    )


@pytest.mark.parametrize("lacking", [True, False])
def test_a_removed_class_needs_a_person_if_the_hub_is_known_to_lack_readings(*, lacking: bool) -> None:
    status = {**LEAF, "removed_classes": {"fast": {"checked": lacking, "sentence": "up to 0 of 3"}}}
    assert list(lines(status))[-1] == "  up to 0 of 3"
    assert exit_code(status) is (Exit.LOSS if lacking else Exit.WELL)


@pytest.mark.parametrize("more", [{}, {"lags": {"rows": [], "problem": ""}}])
@pytest.mark.parametrize(("lacking", "style"), [(True, BAD), (False, WAITS)])
def test_the_sentence_at_fault_has_the_colour_and_not_that_of_the_link(
    *, lacking: bool, style: str, more: dict[str, Any]
) -> None:
    removed = {"fast": {"checked": lacking, "sentence": "up to 0 of 3"}}
    shown = drawn({**LEAF, "removed_classes": removed, **more})
    assert [line for line in shown if line.style in (GOOD, WAITS, BAD)] == [
        ("edge-1: data flows", GOOD),
        ("  up to 0 of 3", style),
    ]
