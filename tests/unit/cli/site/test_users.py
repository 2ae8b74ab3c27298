"""The life of a user in the configuration of an agent."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from agent.cli.site.edit import MemberError, NewUser, user_added, user_forgotten, user_replaced, user_revoked
from tests.unit.server.test_render import key_of

ONE, TWO, THREE = (key_of(number) for number in (1, 2, 3))
FILE = f'''\
domain = "edge-1"   # the press

[[user]]            # for the night shift
name = "app"
key = "{ONE}"
reads = ["normal"]
'''


def users(text: str) -> dict[str, dict[str, Any]]:
    return {row.pop("name"): row for row in tomllib.loads(text).get("user", [])}


def test_a_life_from_the_first_key_to_the_end_leaves_the_rest_as_it_was() -> None:
    text = user_added(FILE, NewUser("plc", TWO, ("normal",), linked=True))
    assert users(text)["plc"] == {"key": TWO, "reads": ["normal"], "linked": True}
    assert user_added(text, NewUser("plc", TWO)) == text, "the same key again changes nothing"
    text = user_revoked(user_replaced(text, "plc", THREE), "plc")
    assert users(text)["plc"]["revoked"] == [TWO, THREE]
    assert users(text)["app"] == users(FILE)["app"]
    assert "# the press" in text
    assert "# for the night shift" in text
    assert tomllib.loads(user_forgotten(text, "plc")) == tomllib.loads(FILE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: user_added(text, NewUser("app", TWO)), "petiole user replace app"),
        (lambda text: user_added(user_revoked(text, "app"), NewUser("app", TWO)), "petiole user replace app"),
        (lambda text: user_added(text, NewUser("plc", ONE)), "the key of app"),
        (lambda text: user_added(user_revoked(text, "app"), NewUser("plc", ONE)), "was revoked of app"),
        (lambda text: user_replaced(text, "plc", TWO), "no user 'plc'"),
        (lambda text: user_revoked(user_revoked(text, "app"), "app"), "not let in"),
        (lambda text: user_forgotten(text, "plc"), "no user 'plc'"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(change: Callable[[str], str], words: str) -> None:
    with pytest.raises(MemberError, match=words):
        change(FILE)
