"""How the status is written."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from agent.process.admin_server import _written

_plain = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
_values: st.SearchStrategy[Any] = st.recursive(
    _plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_values)
def test_a_status_that_is_written_in_pieces_is_what_it_would_be_as_a_whole(value: Any) -> None:
    assert b"".join(_written(value)) == msgspec.json.format(msgspec.json.encode(value), indent=2)


def test_no_piece_holds_more_than_one_leaf() -> None:
    leaves = {f"edge-{number}": {"state": "flowing", "classes": {"normal": {}}} for number in range(100)}
    pieces = list(_written({"fleet": {"state": "well", "leaves": leaves}}))
    assert max(piece.count(b"flowing") for piece in pieces) == 1
