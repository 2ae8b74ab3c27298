"""Bare numbers are taken by the column as the refiner takes them one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from agent.contract import H_MQTT
from hub_jobs.refine.direct import DirectReadings
from hub_jobs.refine.readings import Refiner
from hub_jobs.refine.task import _COLUMNS
from hub_jobs.tables.schemas import BRONZE
from tests.harness.examples import costly
from tests.unit.hub_jobs.rows import batch_row, direct_row, header_block

_SCHEMA = pa.schema(
    [pa.field(name, pa.int64() if name == "arrived" else BRONZE.field(name).type) for name in _COLUMNS]
)
_ODD = (
    b"1|-0|-0.0|01|1.|.5|+1| 1|1 |1\n|1E5|1.5e99|1e999|1e-400|9007199254740993|NaN|true|\xff||"
    b'"on"|{"value":1}'
)
_payload = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: repr(value).encode()),
    st.integers(-(2**70), 2**70).map(lambda value: str(value).encode()),
    st.sampled_from(_ODD.split(b"|")),
)
_subject = st.sampled_from(
    [
        "tel.edge-1.normal.pump.pressure",
        "tel.edge-1.normal.fan.speed",
        "tel.edge-1.bulk.pump.pressure",
        "tel.edge-2.normal.pump.pressure",
        "tel.edge-1.normal.pump//7.a//b",
        "tel.edge-1.normal.pump.\x01",
        "tel.edge-1.normal.pump." + "m" * 256,
        "tel.edge-1.normal._ledger",
        "tel.edge-1.normal.pump",
        "other",
    ]
)
_headers = st.sampled_from(
    [
        b"",
        header_block({H_MQTT: "1"}),
        header_block({"other": "x"}),
        header_block({"other": "x", H_MQTT: "1"}),
        header_block({"other": f"{H_MQTT}:"}),
    ]
)
_row = st.builds(
    lambda payload, subject, headers, domain: (
        direct_row(payload) | {"subject": subject, "headers": headers, "domain": domain}
    ),
    _payload,
    _subject,
    _headers,
    st.sampled_from(["edge-1", "edge-1", "edge-2", None]),
)


def _coded(rows: pa.Table) -> pa.Table:
    """With its texts as a task reads them."""
    columns = {
        name: rows[name].dictionary_encode()
        if pa.types.is_string(rows.schema.field(name).type)
        else rows[name]
        for name in rows.column_names
    }
    return pa.table(columns)


def _refined(rows: list[dict[str, Any]], *, by_column: bool) -> tuple[list[Any], list[Any], pa.Schema]:
    refiner, direct = Refiner(), DirectReadings()
    rest = direct.add(_coded(pa.Table.from_pylist(rows, _SCHEMA))).to_pylist() if by_column else rows
    for row in rest:
        refiner.add(row)
    others, numbers = refiner.drain(), direct.drain()
    named = [(entry.message.seq, str(entry.reason), entry.detail) for entry in refiner.quarantined]
    taken = [*others.to_pylist(), *numbers.to_pylist()]
    schema = numbers.schema if numbers.num_rows else others.schema
    taken = [row | {"value": repr(row["value"])} for row in taken]
    return sorted(taken, key=lambda row: row["source_seq"] or 0), sorted(named), schema


@given(st.lists(_row, min_size=1, max_size=12))
@example([batch_row(b'{"metric":"m","value":1}\n'), direct_row(b"1.5"), direct_row(b"x")])
@costly()
def test_the_column_takes_what_the_refiner_does_and_leaves_it_the_rest(rows: list[dict[str, Any]]) -> None:
    rows = [
        {name: row[name] for name in _COLUMNS} | {"seq": seq, "source_seq": seq}
        for seq, row in enumerate(rows, 1)
    ]
    by_column, named, _ = _refined(rows, by_column=True)
    assert (by_column, named) == _refined(rows, by_column=False)[:2]


def test_its_rows_go_into_the_file_of_the_refiners() -> None:
    rows = [direct_row(b"1.5"), direct_row(b"true")]
    direct = DirectReadings()
    rest = direct.add(pa.Table.from_pylist([{name: row[name] for name in _COLUMNS} for row in rows], _SCHEMA))
    refiner = Refiner()
    refiner.add(*rest.to_pylist())
    assert direct.size == 1
    assert direct.drain().schema == refiner.drain().schema
