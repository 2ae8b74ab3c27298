from __future__ import annotations

import json
from typing import Any

import pytest

from agent.commands.verb import ArgumentError, Verb
from agent.commands.verbs import Controls, make_verbs, report


def _verbs(status: dict[str, Any]) -> dict[str, Verb]:
    return make_verbs(Controls(lambda: status, lambda: 3))


async def test_flush_says_how_many_batches_it_sealed() -> None:
    assert (await _verbs({})["flush"].act({})).text == "3 open batches sealed"


@pytest.mark.parametrize("verb", ["ping", "status", "flush"])
async def test_an_argument_that_a_verb_does_not_take_is_named(verb: str) -> None:
    with pytest.raises(ArgumentError, match="path: this verb takes no arguments; leave them out"):
        await _verbs({})[verb].act({"path": "/etc/shadow"})


def test_a_report_leaves_out_what_is_too_long_and_keeps_the_rest() -> None:
    text = report({"domain": "d", "classes": {"x": "y" * 40_000}, "link": {"state": "ä"}})
    assert len(text) < 32_000
    shown = json.loads(text)
    assert shown["domain"] == "d"
    assert shown["link"] == {"state": "ä"}
    assert shown["classes"].startswith("left out: 40")
