"""The life of a leaf in the file of its hub, and of a user in the configuration of an agent."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from agent.cli.members.edit import (
    LEAVES,
    USERS,
    Enrolled,
    MemberError,
    NewUser,
    added,
    enrolled,
    forgotten,
    replaced,
    revoked,
    split,
)
from tests.unit.server.test_render import key_of

ONE, TWO, THREE, FOUR = (key_of(number) for number in (1, 2, 3, 4))
FILE = f"""\
# The hub of the plant.
role = "hub"
domain = "hub"   # its name

[[leaf]]          # the press
domain = "edge-1"
key = "{ONE}"
classes = ["normal", "bulk"]

[registrar]
keep = 100        # not more
"""


def leaves(text: str) -> dict[str, dict[str, object]]:
    return {row.pop("domain"): row for row in tomllib.loads(text).get("leaf", [])}


def test_a_life_from_the_first_key_to_the_end_leaves_the_rest_as_it_was() -> None:
    text = added(FILE, Enrolled("edge-2", TWO, ("normal",), "acme"))
    assert leaves(text)["edge-2"] == {"key": TWO, "classes": ["normal"], "tenant": "acme"}
    text = replaced(text, LEAVES, "edge-2", THREE)
    assert leaves(text)["edge-2"]["revoked"] == [TWO]
    text = revoked(text, LEAVES, "edge-2")
    assert leaves(text)["edge-2"] == {"classes": ["normal"], "tenant": "acme", "revoked": [TWO, THREE]}
    assert revoked(text, LEAVES, "edge-2") == text, "a change may have to be applied once more"
    assert leaves(text)["edge-1"] == leaves(FILE)["edge-1"]
    for kept in ("# The hub of the plant.", "# its name", "# the press", "# not more"):
        assert kept in text
    text = forgotten(text, LEAVES, "edge-2")
    assert leaves(text)["edge-2"] == {"revoked": [TWO, THREE], "forgotten": True}
    assert forgotten(text, LEAVES, "edge-2") == text
    text = added(text, Enrolled("edge-2", FOUR))
    assert leaves(text)["edge-2"] == {"revoked": [TWO, THREE], "key": FOUR}
    assert replaced(text, LEAVES, "edge-2", FOUR) == text


def test_a_leaf_that_never_had_a_key_is_forgotten_without_a_trace() -> None:
    text = FILE + '[[leaf]]\ndomain = "edge-2"\n'
    assert tomllib.loads(forgotten(text, LEAVES, "edge-2")) == tomllib.loads(FILE)


@pytest.mark.parametrize(
    "change", [revoked, forgotten, lambda text, of, ident: replaced(text, of, ident, FOUR)]
)
def test_with_its_key_a_leaf_loses_the_keys_that_link_its_users(change: Callable[..., str]) -> None:
    text = change(added(FILE, Enrolled("edge-2", TWO, users={"app": THREE})), LEAVES, "edge-2")
    assert leaves(text)["edge-2"]["revoked"] == [TWO, THREE]
    assert "users" not in leaves(text)["edge-2"]
    with pytest.raises(MemberError, match="was revoked of edge-2"):
        added(text, Enrolled("edge-1", ONE, users={"app": THREE}))


def test_the_first_leaf_goes_into_a_file_without_any_and_the_last_one_out_of_it() -> None:
    bare = 'role = "hub"\ndomain = "hub"\n'
    text = added(bare, Enrolled("edge-1", ONE))
    assert leaves(text) == {"edge-1": {"key": ONE}}
    assert leaves(forgotten(text, LEAVES, "edge-1")) == {"edge-1": {"revoked": [ONE], "forgotten": True}}


def test_a_leaf_that_is_there_with_its_key_gets_what_else_is_given_and_nothing_twice() -> None:
    assert added(FILE, Enrolled("edge-1", ONE, ("normal", "bulk"))) == FILE
    text = added(FILE, Enrolled("edge-1", ONE, ("normal",), users={"app": TWO}))
    assert leaves(text)["edge-1"] == {"key": ONE, "classes": ["normal"], "users": {"app": TWO}}
    assert added(text, Enrolled("edge-1", ONE)) == text


def test_a_blank_line_stands_before_a_table_that_is_added() -> None:
    assert "\n\n[[leaf]]\ndomain" in added('role = "hub"\n[registrar]\nkeep = 1\n', Enrolled("edge-1", ONE))
    text = added(FILE, Enrolled("edge-2", TWO))
    assert '"bulk"]\n\n[[leaf]]\ndomain = "edge-2"' in text
    assert f'"{TWO}"\n\n[registrar]' in text


def test_a_leaf_that_waits_for_its_key_gets_it() -> None:
    text = added(
        '[[leaf]]\ndomain = "edge-1"\nconfig = { log = { level = "debug" } }\n', Enrolled("edge-1", ONE)
    )
    assert leaves(text)["edge-1"] == {"key": ONE, "config": {"log": {"level": "debug"}}}


def test_what_enrol_prints_is_read_back() -> None:
    printed = (
        f'# written: /etc/petiole/identity.conf\n[[leaf]]\ndomain = "e"\nkey = "{ONE}"\nclasses = ["a"]\n'
    )
    assert enrolled(printed) == Enrolled("e", ONE, ("a",))
    with pytest.raises(MemberError, match="not the one"):
        enrolled("petiole: no such file")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: added(text, Enrolled("edge-1", TWO)), "fleet replace edge-1"),
        (lambda text: added(text, Enrolled("edge-2", ONE)), "the key of edge-1"),
        (lambda text: added(revoked(text, LEAVES, "edge-1"), Enrolled("edge-1", TWO)), "was revoked"),
        (
            lambda text: added(revoked(text, LEAVES, "edge-1"), Enrolled("edge-2", ONE)),
            "was revoked of edge-1",
        ),
        (lambda text: added(forgotten(text, LEAVES, "edge-1"), Enrolled("edge-2", ONE)), "was revoked of"),
        (lambda text: added(forgotten(text, LEAVES, "edge-1"), Enrolled("edge-1", ONE)), "was revoked of"),
        (lambda text: replaced(forgotten(text, LEAVES, "edge-1"), LEAVES, "edge-1", TWO), "no leaf 'edge-1'"),
        (lambda text: revoked(forgotten(text, LEAVES, "edge-1"), LEAVES, "edge-1"), "no leaf 'edge-1'"),
        (
            lambda text: replaced(replaced(text, LEAVES, "edge-1", TWO), LEAVES, "edge-1", ONE),
            "was revoked of edge-1",
        ),
        (lambda text: replaced(text, LEAVES, "edge-9", TWO), "no leaf 'edge-9'"),
        (lambda text: revoked(text, LEAVES, "edge-9"), "no leaf 'edge-9'"),
        (lambda text: revoked(text + '[[leaf]]\ndomain = "x"\n', LEAVES, "x"), "not let in"),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_to_do(change: object, words: str) -> None:
    assert callable(change)
    with pytest.raises(MemberError, match=words):
        change(FILE)


@pytest.mark.parametrize(
    "text", ["leaf = 1", "leaf = [1]", "[leaf]\na = 1", "[[leaf]]\nrevoked = 3", "[[leaf]", "leaf = [{]"]
)
def test_a_file_that_has_no_leaves_in_their_form_is_refused_in_words(text: str) -> None:
    with pytest.raises(MemberError, match="this file"):
        added(text, Enrolled("edge-1", ONE))


OF_AN_AGENT = f'''\
domain = "edge-1"   # the press

[[user]]            # for the night shift
name = "app"
key = "{ONE}"
reads = ["normal"]
'''


def users(text: str) -> dict[str, dict[str, Any]]:
    return {row.pop("name"): row for row in tomllib.loads(text).get("user", [])}


def test_a_users_life_from_the_first_key_to_the_end_leaves_the_rest_as_it_was() -> None:
    text = added(OF_AN_AGENT, NewUser("plc", TWO, ("normal",), linked=True))
    assert users(text)["plc"] == {"key": TWO, "reads": ["normal"], "linked": True}
    assert added(text, NewUser("plc", TWO)) == text, "the same key again changes nothing"
    text = replaced(text, USERS, "plc", THREE)
    assert added(text, NewUser("plc", THREE)) == text, "nor does it after another one was revoked"
    text = revoked(text, USERS, "plc")
    assert users(text)["plc"]["revoked"] == [TWO, THREE]
    assert users(text)["app"] == users(OF_AN_AGENT)["app"]
    assert "# the press" in text
    assert "# for the night shift" in text
    assert users(forgotten(text, USERS, "plc"))["plc"] == {"revoked": [TWO, THREE], "forgotten": True}
    assert forgotten(OF_AN_AGENT, USERS, "plc") == OF_AN_AGENT


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: added(text, NewUser("app", TWO)), "petiole user replace app"),
        (lambda text: added(revoked(text, USERS, "app"), NewUser("app", TWO)), "petiole user replace app"),
        (lambda text: added(text, NewUser("plc", ONE)), "the key of app"),
        (lambda text: added(revoked(text, USERS, "app"), NewUser("plc", ONE)), "was revoked of app"),
        (lambda text: replaced(text, USERS, "plc", TWO), "no user 'plc'"),
        (lambda text: added(forgotten(text, USERS, "app"), NewUser("plc", ONE)), "was revoked of app"),
        (lambda text: revoked(forgotten(text, USERS, "app"), USERS, "app"), "no user 'app'"),
    ],
)
def test_what_makes_no_sense_for_a_user_is_refused_with_what_to_do(
    change: Callable[[str], str], words: str
) -> None:
    with pytest.raises(MemberError, match=words):
        change(OF_AN_AGENT)


HUB = """\
role = "hub"

[registrar]
cell_leaves = 2
"""


def cells(text: str) -> dict[str, object]:
    return {domain: row.get("cell", 0) for domain, row in leaves(text).items()}


def filled(count: int, text: str = HUB) -> str:
    for number in range(count):
        text = added(text, Enrolled(f"edge-{number}", key_of(number)))
    return text


def test_leaves_fill_a_cell_before_another_begins_and_go_where_there_is_room_again() -> None:
    text = filled(5)
    assert list(cells(text).values()) == [0, 0, 1, 1, 2]
    assert added(text, Enrolled("edge-2", key_of(2))) == text, "one that is there stays in its cell"
    text = forgotten(text, LEAVES, "edge-2")
    assert leaves(text)["edge-2"]["cell"] == 1, "what it sent is there"
    text = added(text, Enrolled("edge-9", key_of(9)))
    assert cells(text)["edge-9"] == 1
    text = added(text, Enrolled("edge-10", key_of(10), tenant="acme"))
    assert cells(text)["edge-10"] == 0


@pytest.mark.parametrize("text", [HUB.replace("role", "domain"), f'{HUB}[nats]\nserver = "external"\n'])
def test_only_a_hub_whose_server_its_agent_runs_has_several_cells(text: str) -> None:
    assert set(cells(filled(5, text)).values()) == {0}
    with pytest.raises(MemberError, match="only the leaves of a hub"):
        split(text, (), 1)


def test_a_cell_with_too_many_is_split_and_the_first_keeps_its_aggregates() -> None:
    text = filled(7, HUB.replace("2", "100")).replace("cell_leaves = 100", "cell_leaves = 2")
    text, moved, stayed = split(text, {"edge-6"}, 3)
    assert list(cells(text).values()) == [0, 3, 2, 2, 1, 1, 0]
    assert (moved, stayed) == ([f"edge-{number}" for number in (1, 2, 3, 4, 5)], ["edge-6"])
    assert tomllib.loads(text)["registrar"]["aggregates"] == 3
    assert split(text, (), 1) == (text, [], [])
