from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import contract
from agent.contract import (
    MAX_PLACE,
    MAX_REASON,
    MAX_RECEIVED,
    ContractError,
    Letter,
    numbered_subjects,
    parse_letter,
)
from tests.harness.examples import costly
from tests.unit.contract import values

RUN = contract.new_run(0)
LAKE = "00000000-0000-4000-8000-000000000001"


def _announce(data: bytes | str) -> contract.Announce:
    return contract.parse_announce(data, json.loads(data)["domain"])


RECORDS: dict[str, tuple[st.SearchStrategy[Any], Callable[[bytes | str], Any]]] = {
    "ledger": (values.ledgers, contract.parse_ledger),
    "correction": (values.corrections, contract.parse_correction),
    "announce": (values.announces, _announce),
    "answer": (values.answers, contract.parse_answer),
    "committed": (values.committed, contract.parse_committed),
    "lake": (values.hub_lakes, contract.parse_hub_lake),
    "command": (values.commands, contract.parse_command),
    "verify": (values.verify_requests, contract.parse_verify_request),
    "verified": (values.verify_answers, contract.parse_verify_answer),
}
GOOD: dict[str, dict[str, Any]] = {
    "ledger": json.loads(
        contract.Ledger(
            "d", "c", RUN, 2, ((1, 2),), contract.Readings(), contract.StreamState("now", 1, 2)
        ).encode()
    ),
    "correction": json.loads(contract.Correction("d", "b", 0, 1, -2, 3).encode()),
    "announce": json.loads(
        contract.Announce(
            "d", "m", RUN, {}, {"c": contract.ClassState("0" * 13, "now", 1, 2, 0, 9)}, clock="x"
        ).encode()
    ),
    "answer": json.loads(contract.Answer({"c": contract.ClassAnswer("s", 1, "", "well")}).encode()),
    "committed": {"v": 1, "stream": "s", "created": "now", "seq": 1, "arrived": 1, "lake": LAKE},
    "lake": json.loads(contract.HubLake(LAKE, "here", "now", {"s": ("now", 1)}).encode()),
    "command": {"v": 1, "id": "x", "args": {}, "expires": None},
    "verify": json.loads(contract.VerifyRequest("c", RUN).encode()),
    "verified": json.loads(contract.VerifyAnswer("s", "now").encode()),
}
FOUND = GOOD["verify"]["found"]
STATE = GOOD["announce"]["classes"]["c"]

PARSE = {name: one[1] for name, one in RECORDS.items()} | {
    "announce": lambda data: contract.parse_announce(data, "d")
}


@pytest.mark.parametrize("name", RECORDS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_record_is_read_back_and_what_a_newer_sender_adds_is_ignored(
    name: str, data: st.DataObject
) -> None:
    strategy, parse = RECORDS[name]
    record = data.draw(strategy)
    assert parse(record.encode()) == record
    row = json.loads(record.encode()) | {"colour": "green", "more": {"v": 2}}
    assert parse(json.dumps(row)) == record


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("version", [2, 0, None, "1", True, 1.5, [1]])
def test_a_version_that_is_not_known_is_refused_in_words(name: str, version: object) -> None:
    with pytest.raises(ContractError, match="is not known here; this side speaks 1"):
        PARSE[name](json.dumps({**GOOD[name], "v": version}))


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"1", b'"v"', b"\xff", b"[" * 100_000, b'{"v":1}', b'{"v":NaN}', b"null"]
)
def test_what_is_no_record_is_refused(name: str, data: bytes) -> None:
    with pytest.raises(ContractError):
        PARSE[name](data)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def _places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    if isinstance(value, dict):
        found += [place for key, one in value.items() for place in _places(one, (*path, key))]
    if isinstance(value, list):
        found += [place for key, one in enumerate(value) for place in _places(one, (*path, key))]
    return found


def _put(value: Any, path: tuple[Any, ...], new: object) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = _put(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("name", RECORDS)
@given(data=st.data())
@costly(150)
def test_a_record_with_anything_in_any_place_is_read_or_refused_in_words(
    name: str, data: st.DataObject
) -> None:
    row = json.loads(data.draw(RECORDS[name][0]).encode())
    place = data.draw(st.sampled_from(_places(row)))
    broken = _put(row, place, data.draw(JUNK))
    refusal = ""
    try:
        PARSE[name](json.dumps(broken))
    except ContractError as error:
        refusal = str(error)
    assert len(refusal) < 400


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("announce", {"domain": "a.b"}, "a dot is not allowed"),
        ("announce", {"domain": "other"}, "announced on the subject of"),
        ("announce", {"machine": "A"}, "machine"),
        ("announce", {"run": "x"}, "run"),
        ("announce", {"versions": {"agent": 1}}, "versions must map text to text"),
        ("announce", {"classes": {"C": {}}}, "class"),
        ("announce", {"classes": {"c": {**STATE, "seconds_to_loss": -1}}}, "seconds_to_loss"),
        ("announce", {"classes": {"c": {**STATE, "seconds_to_loss": "nan"}}}, "seconds_to_loss"),
        ("announce", {"checkpoint": {"c": [0, "x", "s", 1]}}, "checkpoint"),
        ("announce", {"checkpoint": {"c": [1, "x", "s"]}}, "checkpoint"),
        ("announce", {"checkpoint": {"c": [True, "x", "s", 1]}}, "checkpoint"),
        ("announce", {"checkpoint": {"c": [1, "x", "s", 2**63]}}, "checkpoint"),
        ("announce", {"commands": {"epoch": "x", "last": 0}}, "epoch"),
        ("announce", {"commands": {"epoch": "0" * 13, "last": -1}}, "last"),
        ("announce", {"commands": 1}, "commands"),
        ("announce", {"repairs": "yes"}, "repairs"),
        ("announce", {"every": 0}, "a number of seconds up to 3600"),
        ("announce", {"every": 1e9}, "a number of seconds up to 3600"),
        ("ledger", {"n": -1}, "a count was expected"),
        ("ledger", {"n": True}, "not of its type"),
        ("ledger", {"n": 2**63}, "a count was expected"),
        ("ledger", {"stored": [[2, 1]]}, "the range 2..1"),
        ("ledger", {"stored": [[0, 1]]}, "the range 0..1"),
        ("ledger", {"stored": [[1, 2, 3]]}, "2 values"),
        ("ledger", {"stored": [1]}, "2 values"),
        ("ledger", {"discarded": [[1, 2, -1, "x"]]}, "discarded"),
        ("ledger", {"discarded": [[1, 2, 2**63, "x"]]}, "discarded"),
        ("ledger", {"domain": "a.b"}, "a dot is not allowed"),
        ("ledger", {"readings": {"accepted": 1}}, "stored"),
        ("ledger", {"previous": {"run": RUN, "n": 1}}, "previous"),
        ("ledger", {"final": 1}, "final"),
        ("answer", {"classes": {"c": {"stream": "s"}}}, "cursor"),
        ("answer", {"classes": {"c": {**GOOD["answer"]["classes"]["c"], "agreed": "yes"}}}, "agreed"),
        ("answer", {"classes": {"c": {**GOOD["answer"]["classes"]["c"], "agreed": 1}}}, "agreed"),
        ("answer", {"refused": 1}, "refused"),
        ("answer", {"commands": []}, "commands"),
        ("answer", {"exchange": "x"}, "exchange"),
        ("answer", {"commands": {"epoch": "0" * 13}}, "stream_created"),
        ("committed", {"seq": "1"}, "seq"),
        ("committed", {"lake": None}, "the id of a lake"),
        ("committed", {"lake": "mine"}, "the id of a lake"),
        ("command", {"id": ""}, "id"),
        ("command", {"id": "x" * 65}, "id"),
        ("command", {"args": []}, "args"),
        ("command", {"expires": "soon"}, "expires"),
        ("command", {"expires": 10**400}, "expires"),
        ("verify", {"class": "a.b"}, "class"),
        ("verify", {"run": "x"}, "run"),
        ("verify", {"first": 0}, "not a range of batches"),
        ("verify", {"first": 3, "last": 2}, "not a range of batches"),
        ("verify", {"found": {**FOUND, "held": [[2, 3], [4, 5]]}}, "not apart in order"),
        ("verify", {"found": {**FOUND, "held": [[4, 5], [1, 2]]}}, "not apart in order"),
        ("verify", {"found": {**FOUND, "held": [[n, n] for n in range(1, 4_004, 2)]}}, "at most 2000"),
        ("verify", {"found": {**FOUND, "edge": {"run": RUN, "seq": -1, "n": 1, "batches": 1}}}, "seq"),
        ("verify", {"found": {**FOUND, "edge": 1}}, "edge"),
        ("verified", {"complete": 1}, "complete"),
        ("verified", {"lacking": [[3, 1]]}, "lacking"),
    ],
)
def test_a_refusal_names_the_field(name: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=words):
        PARSE[name](json.dumps({**GOOD[name], **change}))


@pytest.mark.parametrize("expires", [float("nan"), float("inf")])
def test_a_command_that_expires_at_no_time_is_refused(expires: float) -> None:
    with pytest.raises(ContractError):
        contract.parse_command(json.dumps({**GOOD["command"], "expires": expires}))


words = st.text(st.characters(codec="utf-8"), max_size=40)
received = st.binary(max_size=40) | words.map(str.encode)


@given(received, words, words, st.none() | st.integers(50, 2**40), st.integers(0, 2**40))
def test_a_letter_is_read_back_and_is_one_line(
    data: bytes, at: str, reason: str, size: int | None, omitted: int
) -> None:
    letter = Letter(data, at, reason, size, omitted)
    line = letter.encode()
    assert b"\n" not in line
    read = parse_letter(line)
    if size is not None and read.received != data:
        assert data.startswith(read.received), "of what is cut, half a character at the end may go"
        assert len(data) - len(read.received) < 4
    else:
        assert read.received == data
    assert (read.at, read.reason, read.size, read.omitted) == (at, reason, size, omitted)


@given(
    st.integers(0, 4),
    st.sampled_from([b"x", "ä".encode(), "🌡".encode(), b"\xff", b"\x00"]),
    st.integers(0, 9),
)
def test_what_is_longer_than_is_kept_is_cut_and_says_how_long_it_was(
    shift: int, filling: bytes, more: int
) -> None:
    data = b"x" * shift + filling * (MAX_RECEIVED + 1)
    line = Letter(data, "x" * 5000, "y" * 5000, len(data) + more).encode()
    read = parse_letter(line)
    assert len(line) < 7 * MAX_RECEIVED
    assert MAX_RECEIVED - 4 < len(read.received) <= MAX_RECEIVED
    assert data.startswith(read.received)
    assert read.size == len(data) + more
    assert (len(read.at), len(read.reason)) == (MAX_PLACE, MAX_REASON)
    assert (read.at[-1], read.reason[-1]) == ("…", "…")


def test_text_stands_there_as_text_and_other_bytes_in_base64() -> None:
    assert json.loads(Letter("kälte\n".encode(), "a:1", "no").encode()) == {
        "at": "a:1",
        "reason": "no",
        "text": "kälte\n",
    }
    assert json.loads(Letter(b"\xff\x00", "a:1", "no").encode())["base64"] == "/wA="


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[]", "an object"),
        (b'{"at":"a","reason":"r"}', "text is None"),
        (b'{"at":1,"reason":"r","text":""}', "at is 1"),
        (b'{"at":"a","reason":"r","base64":"!"}', "base64"),
        (b'{"at":"a","reason":"r","text":"","size":-1}', "size"),
        (b'{"at":"a","reason":"r","text":"","omitted":true}', "omitted"),
    ],
)
def test_a_letter_that_is_none_is_refused_in_words(line: bytes, why: str) -> None:
    with pytest.raises(ContractError, match=why):
        parse_letter(line)


def test_batches_and_dead_letters_are_numbered_together() -> None:
    assert numbered_subjects("edge-1", "normal") == [
        "tel.edge-1.normal._batch.>",
        "tel.edge-1.normal._dead.>",
    ]


def test_the_states_of_a_leaf_are_read_back_the_gravest_first_and_those_that_are_not_known_are_left_out() -> (
    None
):
    states = {"held": "a", "losing": "b\x1b[0m" + "x" * 600, "flowing": "c", "silent": "d", "colour": "e"}
    announce = contract.parse_announce(json.dumps({**GOOD["announce"], "states": states}), "d")
    assert list(announce.states) == ["losing", "held"]
    assert announce.states["losing"].startswith("b?[0mx")
    assert len(announce.states["losing"]) == 500
    without = {name: value for name, value in GOOD["announce"].items() if name != "states"}
    assert contract.parse_announce(json.dumps(without), "d").states == {}


@pytest.mark.parametrize("states", [[], "held", {"held": 1}, {"held": None}, 7])
def test_states_of_another_form_are_refused(states: object) -> None:
    with pytest.raises(ContractError, match="texts by state were expected"):
        contract.parse_announce(json.dumps({**GOOD["announce"], "states": states}), "d")


def test_every_state_has_a_sentence_and_the_gravest_gives_the_exit_code() -> None:
    states = list(contract.LeafState)
    assert all(state.sentence("why") for state in states)
    assert contract.gravest(reversed(states)) is states[0]
    assert contract.exit_of([]) is contract.Exit.WELL
    assert (
        contract.exit_of([contract.LeafState.FLOWING, contract.LeafState.INPUT_DOWN]) is contract.Exit.FAILED
    )
    assert contract.state_of("a word of a newer hub") is contract.LeafState.TROUBLE
    gravities = [state.severity for state in states]
    assert gravities == sorted(gravities, key=list(contract.Severity).index), "the worst come first"
