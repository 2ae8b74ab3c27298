"""Which requests read registers, and what answers say."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config import Seconds
from agent.leaf.inputs.modbus import WIDTHS, Link, ModbusOptions, RegisterSelection, parse_link, problems
from agent.leaf.inputs.modbus.plan import MAX_BITS, MAX_REGISTERS, Read, numbers, plan, split

WHOLE: dict[str, tuple[str, int]] = {
    "int16": ("h", 16),
    "uint16": ("H", 16),
    "int32": ("i", 32),
    "uint64": ("Q", 64),
}


def register(address: int, **given: Any) -> RegisterSelection:
    return RegisterSelection(**{"metric": "m{address}", "address": address, **given})


def spans(reads: list[Read]) -> list[tuple[int, int]]:
    return [(read.address, read.count) for read in reads]


def test_neighbours_and_what_lies_near_are_read_in_one_request() -> None:
    registers = [register(10), register(0, count=5), register(5, type="float32"), register(30)]
    assert spans(plan(registers, 1.0, gap=8)[1.0]) == [(0, 11), (30, 1)]
    assert spans(plan(registers, 1.0, gap=0)[1.0]) == [(0, 7), (10, 1), (30, 1)]


def test_units_tables_and_intervals_have_requests_of_their_own() -> None:
    registers = [
        register(0),
        register(1, unit=2),
        register(2, table="input"),
        register(3, interval=Seconds(5.0)),
    ]
    groups = plan(registers, 1.0, gap=8)
    assert {interval: len(reads) for interval, reads in groups.items()} == {1.0: 3, 5.0: 1}


def test_a_request_without_gaps_asks_for_what_is_selected_alone() -> None:
    (read,) = plan([register(0), register(4)], 1.0, gap=8)[1.0]
    assert read.has_gaps
    assert spans(split(read)) == [(0, 1), (4, 1)]
    assert not any(part.has_gaps for part in split(read))


@given(
    st.lists(
        st.builds(
            register,
            st.integers(0, 3000),
            count=st.integers(1, 300),
            type=st.sampled_from(sorted(WIDTHS)),
            table=st.sampled_from(["holding", "coil"]),
        ),
        max_size=6,
    ),
    st.integers(0, 124),
)
def test_each_value_is_read_once_by_requests_that_the_protocol_permits(
    registers: list[RegisterSelection], gap: int
) -> None:
    reads = plan(registers, 1.0, gap).get(1.0, [])
    assert all(read.count <= (MAX_BITS if read.table == "coil" else MAX_REGISTERS) for read in reads)
    found = sorted(value for read in reads for value in read.values)
    wanted = sorted(
        (at, chosen.kind)
        for chosen in registers
        for at in range(chosen.address, chosen.end, WIDTHS[chosen.kind])
    )
    assert [(value.address, value.kind) for value in found] == wanted
    assert all(
        read.address <= value.address and value.end <= read.address + read.count
        for read in reads
        for value in read.values
    )


@given(st.sampled_from(sorted(WHOLE)), st.booleans(), st.data())
def test_a_number_comes_back_from_its_registers_in_either_order(
    kind: str, little: bool, data: st.DataObject
) -> None:
    letter, bits = WHOLE[kind]
    low, high = (0, 2**bits - 1) if letter.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    number = data.draw(st.integers(low, high))
    packed = struct.pack(f">{letter}", number)
    words = list(struct.unpack(f">{len(packed) // 2}H", packed))
    selection = register(7, type=kind, word_order="little" if little else "big")
    (read,) = plan([selection], 1.0, gap=0)[1.0]
    ((value, found),) = numbers(read, words[::-1] if little else words)
    assert (value.metric, found) == ("m7", number)


@pytest.mark.parametrize(
    ("kind", "words", "given", "found"),
    [
        ("float32", [0x41AC, 0x0000], {}, 21.5),
        ("float32", [0x7FC0, 0x0000], {}, None),
        ("int16", [0xFFFE], {"scale": 0.1, "offset": 5.0}, 4.8),
        ("uint16", [3], {"table": "coil"}, True),
    ],
)
def test_values_are_scaled_and_what_is_no_finite_number_is_none(
    kind: str, words: list[int], given: dict[str, Any], found: object
) -> None:
    (read,) = plan([register(0, type=kind, **given)], 1.0, gap=0)[1.0]
    ((_, number),) = numbers(read, words)
    assert number == pytest.approx(found) if isinstance(found, float) else number is found


def test_an_answer_that_is_too_short_is_refused() -> None:
    (read,) = plan([register(0, count=3)], 1.0, gap=0)[1.0]
    with pytest.raises(ValueError, match="the answer has 2 values"):
        list(numbers(read, [1, 2]))


@pytest.mark.parametrize(
    ("url", "link"),
    [
        ("tcp://192.0.2.1", Link(host="192.0.2.1", port=502)),
        ("tcp://plc:1502", Link(host="plc", port=1502)),
        ("rtu:///dev/ttyUSB0", Link(line="/dev/ttyUSB0")),
        ("rtu://dev/ttyUSB0", None),
        ("tcp://user@plc", None),
        ("udp://plc", None),
        ("tcp://plc:x", None),
    ],
)
def test_a_url_names_a_host_or_a_serial_line(url: str, link: Link | None) -> None:
    assert parse_link(url) == link


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"url": "plc"}, "url is neither"),
        ({"registers": []}, "registers is empty"),
        ({"registers": [register(65_535, type="int32")]}, "reaches from 65535 to 65536"),
        ({"registers": [register(0, unit=256)]}, "of unit 256"),
        ({"registers": [RegisterSelection(metric="m", address=0, count=2)]}, "names 2 values alike"),
        ({"registers": [register(0, scale=0.0)]}, "scale 0.0"),
        ({"registers": [register(0, interval=Seconds(0.01))]}, "interval is 0.01 s"),
        ({"gap": 125}, "gap is 125"),
        ({"timeout": Seconds(100.0)}, "timeout is 100.0 s"),
        ({"stop_bits": 3}, "stop_bits 1 or 2"),
    ],
)
def test_a_mistake_of_the_options_is_named_with_its_remedy(given: dict[str, Any], wrong: str) -> None:
    (found,) = problems(ModbusOptions(**{"url": "tcp://plc", "registers": [register(0)], **given}))
    assert wrong in found
