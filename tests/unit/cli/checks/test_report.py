"""Findings on a terminal of 80 columns and in a pipe."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from agent.cli.checks import WIDTH, failure, findings_as_json, lines, ok, warning
from agent.contract import Exit

words = st.text(max_size=30)


def test_failures_stand_last_next_to_the_sum() -> None:
    findings = [
        failure("link", "it is down", "look at the network"),
        ok("clock", "it is set"),
        warning("a", "b", "c"),
    ]
    assert list(lines(findings)) == [
        "clock         ok      it is set",
        "a             warning b",
        "                      > c",
        "link          failure it is down",
        "                      > look at the network",
        "1 failure, 1 warning, 1 ok",
    ]


@given(st.lists(words, max_size=30).map(" ".join), words)
def test_no_line_is_wider_than_the_terminal_or_moves_its_cursor(sentence: str, remedy: str) -> None:
    for line in lines([failure("permissions", sentence, remedy)]):
        assert line.isprintable() or not line
        # What is copied is not broken: a single long word may stand out.
        assert len(line) <= WIDTH or max(map(len, line.split())) > WIDTH - 24


def test_a_subject_is_never_broken() -> None:
    subject = "$JS.edge-1-of-the-north-plant.API.CONSUMER.RESET.TEL_edge-1-of-the-north-plant_normal.*"
    text = "\n".join(lines([failure("permissions", "it lacks one", f'add "{subject}" there')]))
    assert subject in text


def test_json_holds_every_finding_and_the_exit_code() -> None:
    findings = [ok("a", "b"), failure("c", "d", "e", Exit.UNREACHABLE)]
    assert json.loads(json.dumps(findings_as_json(findings))) == {
        "exit": 5,
        "findings": [
            {"group": "a", "level": "ok", "sentence": "b", "remedy": ""},
            {"group": "c", "level": "failure", "sentence": "d", "remedy": "e"},
        ],
    }
