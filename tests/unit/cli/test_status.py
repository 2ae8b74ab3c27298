"""What `petiole status` prints of a class."""

from __future__ import annotations

from typing import Any

from agent.cli.status import lines


def _printed(**given: Any) -> str:
    one = {
        "state": "down",
        "sentence": "",
        "last": 9,
        "confirmed": 4,
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


def test_what_a_class_has_discarded_and_why_it_is_held_back_are_told() -> None:
    lines = _printed(held_back="the disk is short", discarded={"readings": 30, "direct": 2, "in_doubt": 0})
    assert "    held back: the disk is short\n" in lines
    assert lines.endswith("discarded before the hub had them: 30 readings and 2 messages of devices")
    assert _printed(discarded={"readings": 3, "direct": 0, "in_doubt": 7}).endswith(
        "; 7 messages more, unless the hub has them"
    )
