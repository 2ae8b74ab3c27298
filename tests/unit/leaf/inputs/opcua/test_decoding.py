"""What asyncua makes of a server's bytes is bounded by their number."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from asyncua import ua
from asyncua.common.utils import Buffer, NotEnoughData
from asyncua.ua.ua_binary import variant_from_binary, variant_to_binary

from agent.leaf.inputs.opcua import decoding

BYTE, STRING, DIMENSIONS, ARRAY = 3, 12, 0x40, 0x80


@pytest.fixture(autouse=True)
def _bounded() -> None:
    decoding.bound()


def array(values: bytes, dimensions: Sequence[int]) -> bytes:
    """An array of bytes with these dimensions."""
    sizes = struct.pack(f"<i{len(dimensions)}i", len(dimensions), *dimensions)
    return bytes([BYTE | ARRAY | DIMENSIONS]) + struct.pack("<i", len(values)) + values + sizes


def decoded(content: bytes) -> object:
    return variant_from_binary(Buffer(content)).Value


def test_an_array_of_null_has_no_values_whatever_its_length() -> None:
    assert decoded(bytes([ARRAY]) + struct.pack("<i", 100_000)) == []


@pytest.mark.parametrize("dimensions", [[1000, 1000], [3], [2, 2], [], [-1, 2]])
def test_dimensions_that_declare_other_values_than_came_leave_an_array_flat(dimensions: list[int]) -> None:
    assert decoded(array(b"\x01\x02", dimensions)) == [1, 2]


def test_texts_of_a_negative_length_are_not_read_over_and_over() -> None:
    with pytest.raises(NotEnoughData):
        decoded(bytes([STRING | ARRAY]) + struct.pack("<ii", 100_000, -4))


def test_an_array_of_several_dimensions_keeps_them() -> None:
    written = variant_to_binary(ua.Variant([[1, 2, 3], [4, 5, 6]], ua.VariantType.Int32))

    assert decoded(written) == [[1, 2, 3], [4, 5, 6]]
    assert decoded(array(b"\x01\x02\x03\x04", [2, 1, 2])) == [[[1, 2]], [[3, 4]]]
