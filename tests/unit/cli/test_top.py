"""What `petiole top` makes of two answers of `/metrics`, and how it fits a terminal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from agent.base.terminal import BAD
from agent.cli.top import Rates, Scrape, per_second, rate_lines, sample

QUIET = """
petiole_accepted_readings_total{input="file",class="normal"} 1000
petiole_stored_readings_total{input="file",class="normal"} 1000
petiole_input_up{input="file"} 1
petiole_input_up{input="http"} 1
petiole_backlog_messages{class="normal"} 10
petiole_seconds_to_loss{class="normal"} +Inf
petiole_link_state{class="normal",state="flowing"} 1
"""
BUSY = """
petiole_accepted_readings_total{input="file",class="normal"} 1400
petiole_accepted_readings_total{input="file",class="bulk"} 200
petiole_accepted_readings_total{input="agent",class="normal"} 2
petiole_stored_readings_total{input="file",class="normal"} 1300
petiole_refused_readings_total{input="http",class="normal",reason="busy"} 6
petiole_refused_readings_total{input="http",class="normal",reason="stream_full"} 2
petiole_invalid_requests_total{input="http",reason="bad_lines"} 3
petiole_dropped_messages_total{input="http"} 1
petiole_refused_after_acceptance_readings_total{input="http",class="normal",reason="busy"} 4
petiole_input_up{input="file"} 0
petiole_input_up{input="http"} 1
petiole_backlog_messages{class="normal"} 4
petiole_seconds_to_loss{class="normal"} 86400
petiole_link_state{class="normal",state="flowing"} 0
petiole_link_state{class="normal",state="down"} 1
"""
INPUTS = ("file", "http")
COUNTERS = st.dictionaries(st.sampled_from(("file", "http", "agent")), st.integers(0, 9)).map(
    lambda counts: "\n".join(
        f'petiole_stored_readings_total{{input="{name}",class="normal"}} {count}'
        for name, count in counts.items()
    )
)
"""What an agent may have counted, as it answers."""


def at(seconds: float, text: str, *inputs: str) -> Scrape:
    """What an agent with these inputs said then."""
    return sample(text_string_to_metric_families(text), inputs or INPUTS, seconds)


def rates(before: str, now: str, seconds: float = 2.0) -> Rates:
    """Between two answers that far apart."""
    return Rates(at(100.0, before), at(100.0 + seconds, now))


def printed(shown: Rates, width: int | None = None) -> list[str]:
    """The lines, without their colour."""
    return [line.text for line in rate_lines(shown, width)]


def test_each_class_and_each_input_is_a_line_of_what_it_did_per_second() -> None:
    assert printed(rates(QUIET, BUSY)) == [
        "CLASS   STATE  STORED/S  REFUSED/S  BACKLOG  BACKLOG/S  TO LOSS",
        "bulk    -           0.0        0.0        -          -        -",
        "normal  down      150.0        4.0        4       -3.0      24h",
        "INPUT  ACCEPTED/S  STORED/S  REFUSED/S  ERRORS/S  RUNS",
        "agent         1.0       0.0        0.0       0.0  -",
        "file        300.0     150.0        0.0       0.0  no",
        "http          0.0       0.0        4.0       4.0  yes",
    ]


def test_what_went_wrong_has_a_colour_and_a_figure() -> None:
    marked = [line.text.split()[0] for line in rate_lines(rates(QUIET, BUSY), None) if line.style == BAD]
    assert marked == ["normal", "file", "http"]


def test_one_look_knows_no_rates_yet() -> None:
    first = printed(Rates(None, at(100.0, QUIET)))
    assert first[1].split() == ["normal", "flowing", "-", "-", "10", "-", "none"]
    assert first[3].split() == ["file", "-", "-", "-", "-", "yes"]


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_looks_at_one_moment_know_no_rates(seconds: float) -> None:
    assert rates(QUIET, BUSY, seconds).gained("input", "file", "accepted") is None


def test_an_agent_that_was_started_again_is_counted_from_its_start() -> None:
    again = 'petiole_accepted_readings_total{input="file",class="normal"} 5000\n'
    assert rates(BUSY, again).gained("input", "file", "accepted") == 2500, "nothing of before is taken off"


@given(before=COUNTERS, now=COUNTERS)
def test_no_rate_of_a_counter_is_ever_below_nothing(before: str, now: str) -> None:
    shown = rates(before, now)
    counts = [count for look in (at(0.0, before), at(0.0, now)) for count in look.counters]
    assert all((shown.gained(*count) or 0.0) >= 0.0 for count in counts)


def test_what_a_reload_took_out_is_shown_no_more() -> None:
    both = at(1.0, BUSY)
    less = at(2.0, BUSY.replace('up{input="http"} 1', 'up{input="http"} 0'), "file")
    assert Rates(None, both).inputs == ["agent", "file", "http"]
    shown = Rates(both, less)
    assert shown.inputs == ["agent", "file"]
    assert shown.gained("input", "file", "accepted") == 0.0, "its counters stay, so none has begun anew"


@pytest.mark.parametrize("width", [20, 40, 60, 80, None])
def test_on_a_narrow_terminal_the_same_is_said_in_sentences(width: int | None) -> None:
    lines = printed(rates(QUIET, BUSY), width)
    assert width is None or max(map(len, lines)) <= width
    said = " ".join(line.strip() for line in lines)
    if width is not None and width <= 60:
        assert "input http, accepted/s 0.0, stored/s 0.0, refused/s 4.0, errors/s 4.0, runs yes" in said
    assert all(figure in said for figure in ("150.0", "300.0", "-3.0", "24h", "down"))


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (None, "-"),
        (0.0, "0.0"),
        (0.01, "<0.1"),
        (0.06, "0.1"),
        (999.94, "999.9"),
        (12_345.6, "12,346"),
        (-0.01, "-<0.1"),
        (-7.0, "-7.0"),
    ],
)
def test_a_small_rate_is_never_shown_as_none(rate: float | None, text: str) -> None:
    assert per_second(rate) == text


def test_what_grows_has_a_sign() -> None:
    assert [per_second(rate, signed=True) for rate in (3.0, -3.0, 0.0)] == ["+3.0", "-3.0", "0.0"]
    assert math.isinf(at(1.0, QUIET).gauges["class", "normal", "petiole_seconds_to_loss"])  # type: ignore[index]
