"""What is known of generations survives its texts, and which names rotation makes."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import ContractError
from agent.leaf.inputs.file.positions import (
    FINGERPRINT_BYTES,
    MAX_FILES,
    Fingerprint,
    Generation,
    Status,
    age_order,
    begin,
    encode,
    encode_kept,
    head_digest,
    is_rotated,
    is_sibling,
    key_of,
    live_names,
    merged,
    parse_kept,
    parse_position,
)
from agent.leaf.intake import MAX_POSITION


@given(st.lists(st.binary(max_size=2 * FINGERPRINT_BYTES), max_size=8))
def test_a_mark_that_grew_is_the_mark_of_the_whole(pieces: list[bytes]) -> None:
    mark = Fingerprint()
    for piece in pieces:
        mark = mark.after(piece + b"more", len(piece))
    whole = b"".join(pieces)
    assert mark == Fingerprint(whole[:FINGERPRINT_BYTES], whole[-FINGERPRINT_BYTES:])


@pytest.mark.parametrize(
    ("name", "rotated"),
    [
        ("a.log.1", True),
        ("a.log.12", True),
        ("a.log-20251121", True),
        ("a.log.2025-11-21_06-00", True),
        ("a.log-2025-11-21T06:00:00", True),
        ("a.1.log", True),
        ("a-20251121.log", True),
        ("a.log", False),
        ("a.log.1.gz", False),
        ("a.log.bak", False),
        ("a.log~", False),
        ("b.log.1", False),
        ("aXlog.1", False),
        ("a.log.", False),
    ],
)
def test_only_what_a_rotation_names_is_taken_for_rotated(name: str, rotated: bool) -> None:
    assert is_rotated(name, "a.log") is rotated


def test_a_name_without_an_extension_rotates_too() -> None:
    assert is_rotated("readings.1", "readings")
    assert not is_rotated(".1", ".hidden")


@given(st.text("a.-1T", min_size=1, max_size=9))
def test_the_names_that_a_rotated_file_may_have_had_are_those_whose_rotation_it_is(name: str) -> None:
    cuts = [name[:i] + name[j:] for i in range(len(name)) for j in range(i, len(name) + 1)]
    assert live_names(name) == {one for one in cuts if is_rotated(name, one) and one}


def test_older_names_come_first_whether_they_count_or_are_dated() -> None:
    assert sorted(["a.log.1", "a.log.10", "a.log.2"], key=age_order) == ["a.log.10", "a.log.2", "a.log.1"]
    assert sorted(["a-20251122.log", "a-20251121.log"], key=age_order) == ["a-20251121.log", "a-20251122.log"]


def test_names_that_differ_in_their_numbers_are_siblings() -> None:
    assert is_sibling("d28.ndjson", "d27.ndjson")
    assert not is_sibling("d27.ndjson", "d27.ndjson")
    assert not is_sibling("e28.ndjson", "d27.ndjson")
    assert not is_sibling("plant.ndjson", "other.ndjson")


NATURAL = st.integers(0, 2**64 - 1)
GENERATIONS = st.lists(
    st.builds(
        Generation,
        st.integers(1, 2**32),
        st.text(st.characters(codec="utf-8")).map(key_of),
        NATURAL,
        NATURAL,
        st.binary().map(head_digest),
        st.binary(min_size=8, max_size=8),
        st.sampled_from(Status),
        st.integers(0, 2**32),
    ),
    max_size=9,
    unique_by=lambda one: one.id,
).map(lambda all_: {one.id: one for one in all_})
POSITION = json.loads(encode(3, []))


@given(st.integers(0, 2**32), GENERATIONS)
def test_generations_survive_their_header(number: int, known: dict[int, Generation]) -> None:
    text = encode(number, known.values())
    assert text.isascii()
    assert text.isprintable()
    assert parse_position(text).generations() == known
    assert parse_position(text).c == number


@given(st.integers(0, 2**32), GENERATIONS, st.sets(st.text(max_size=3).map(key_of)))
def test_a_catalogue_survives_its_file(number: int, known: dict[int, Generation], looked: set[bytes]) -> None:
    kept = parse_kept(encode_kept(number, 7, looked, known.values()))
    assert (kept.c, kept.next, kept.keys(), kept.generations()) == (number, 7, looked, known)


def test_as_many_files_as_are_followed_fit_whatever_their_positions() -> None:
    largest = [
        Generation(2**24 + number, key_of(f"/x/{number}"), 2**64 - 1, 2**48, b"f" * 8, b"f" * 8)
        for number in range(MAX_FILES)
    ]
    text = encode(2**32, largest)
    assert len(text) <= MAX_POSITION
    assert len(parse_position(text).generations()) == MAX_FILES


@given(GENERATIONS, st.data())
def test_a_position_that_was_cut_off_is_refused_or_lacks_whole_files(
    known: dict[int, Generation], data: st.DataObject
) -> None:
    whole = base64.b64decode(json.loads(encode(1, known.values()))["files"])
    length = data.draw(st.integers(0, len(whole)))
    text = json.dumps({**POSITION, "files": base64.b64encode(whole[:length]).decode()})
    try:
        found = parse_position(text).generations()
    except ContractError:
        assert length < len(whole)
    else:
        assert list(found.items()) == list(known.items())[: len(found)]


def test_where_two_texts_agree_in_how_far_a_file_is_the_newer_one_knows_the_rest() -> None:
    one = begin(1, "/x/a.log", 7)
    done = one._replace(status=Status.DONE)
    kept = parse_kept(encode_kept(5, 2, (), [done]))
    assert merged(parse_position(encode(4, [one])), kept) == {1: done}
    assert merged(parse_position(encode(5, [one])), kept) == {1: one}
    further = one._replace(offset=9)
    assert merged(parse_position(encode(4, [further])), kept) == {1: further}
    assert merged(None, kept) == {1: done}
    assert merged(parse_position(encode(4, [one])), None) == {1: one}


def test_a_generation_that_a_newer_catalogue_lacks_is_dropped_though_the_position_has_it() -> None:
    one, new = begin(1, "/x/a.log", 7), begin(2, "/x/a.log", 7)
    kept = parse_kept(encode_kept(5, 3, (), [new]))
    assert merged(parse_position(encode(4, [one])), kept) == {2: new}
    assert merged(parse_position(encode(5, [one])), kept) == {1: one, 2: new}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps({**POSITION, "v": 2}),
        json.dumps({name: value for name, value in POSITION.items() if name != "v"}),
        json.dumps({name: value for name, value in POSITION.items() if name != "c"}),
        json.dumps({**POSITION, "c": -1}),
        json.dumps({**POSITION, "c": True}),
        '{"v":1,"c":1}',
        '{"v":1,"c":1,"files":"é"}',
        '{"v":1,"c":1,"files":"AAA"}',
        json.dumps({**POSITION, "files": base64.b64encode(b"\x00" * 23 + b"\x09" + b"\x01" * 9).decode()}),
        json.dumps({**POSITION, "files": base64.b64encode(b"\x00" * 22 + b"\x09" + b"\x00" * 4).decode()}),
        "[" * 100_000,
    ],
)
def test_a_position_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ContractError, match="stored position"):
        parse_position(text)
