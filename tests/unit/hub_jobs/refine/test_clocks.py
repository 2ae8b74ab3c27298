"""Times that a wrong clock stamped."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.contract import Clock, Correction, machine_time
from hub_jobs.refine import clock_corrections
from hub_jobs.refine.clocks import SealTime, errors, with_errors
from hub_jobs.refine.messages import QuarantineReason
from hub_jobs.refine.readings import Refiner
from hub_jobs.tables import stream_history
from hub_jobs.tables.delta import ensure_table
from hub_jobs.tables.scan import rows
from hub_jobs.tables.schemas import READINGS, TIME
from tests.harness.clocks import SECOND
from tests.spark.lakes import add_bronze
from tests.unit.hub_jobs.rows import (
    SEALED_NS,
    batch_headers,
    batch_row,
    correction_row,
    direct_row,
    header_block,
)

WRONG_UNTIL = 100 * SECOND
CORRECTION = Correction("edge-1", "b", 0, WRONG_UNTIL, 0, SEALED_NS)
"""A machine that began in 1970."""


def refine(*rows: dict[str, Any]) -> tuple[list[dict[str, Any]], list[QuarantineReason]]:
    """Readings and what was refused, with the correction known."""
    refiner = Refiner({"edge-1": [CORRECTION]})
    readings = [one for given in rows for table in refiner.add(given) for one in table.to_pylist()]
    return readings + refiner.drain().to_pylist(), [one.reason for one in refiner.quarantined]


def line(ts: str | None) -> bytes:
    """A reading."""
    own = "" if ts is None else f',"ts":"{ts}"'
    return f'{{"metric":"m","value":1{own}}}\n'.encode()


def sealed_row(text: bytes, monotonic: int, wall: int, boot: str = "b") -> dict[str, Any]:
    """A batch that was sealed then."""
    headers = batch_headers(1, text.count(b"\n"), sealed=(wall, Clock(False, boot, monotonic)))
    return batch_row(text) | {"headers": header_block(headers)}


def test_only_what_the_machine_stamped_while_its_clock_was_wrong_is_corrected() -> None:
    early = machine_time(50 * SECOND)
    own = early.replace("-00:00", "Z")
    lines = line(early) + line(own) + line(None)

    (by_machine, by_device, sealed), _ = refine(sealed_row(lines, 51 * SECOND, 51 * SECOND))
    (other_boot,), _ = refine(sealed_row(line(early), 51 * SECOND, 51 * SECOND, boot="c"))
    (direct,), _ = refine(direct_row(line(early).replace(b'"m"', b'"pressure"')))

    assert by_machine["ts_source"] == sealed["ts_source"] == "corrected"
    assert by_machine["ts"].timestamp() == SEALED_NS / SECOND + 50
    assert by_machine["ts_original"].timestamp() == 50
    assert by_machine["event_date"] == by_machine["ts"].date()
    assert sealed["ts"].timestamp() == SEALED_NS / SECOND + 51
    assert [one["ts_source"] for one in (by_device, other_boot, direct)] == ["device", "agent", "device"]
    assert {one["ts"].timestamp() for one in (by_device, other_boot, direct)} == {50}
    assert {one["ts_original"] for one in (by_device, other_boot, direct)} == {None}


def test_what_waited_in_an_input_over_the_step_is_corrected_too() -> None:
    late = SEALED_NS + 130 * SECOND

    (before, after), _ = refine(
        sealed_row(line(machine_time(99 * SECOND)) + line(machine_time(late)), 130 * SECOND, late)
    )

    assert (before["ts_source"], after["ts_source"]) == ("corrected", "agent")


def test_what_was_stamped_after_the_step_and_waited_is_left_as_it_is() -> None:
    slow = Correction("edge-1", "b", 0, WRONG_UNTIL, 0, 30 * SECOND)
    stamp = np.array([(110 + 30) * 1_000_000])

    assert errors(stamp, SealTime(190 * 1_000_000, "b", 160 * SECOND), [slow]).tolist() == [0]


@pytest.mark.parametrize("payload", [b"{}", b"", Correction("edge-2", "b", 0, 1, 0, 1).encode()])
def test_a_correction_that_is_none_is_named(payload: bytes) -> None:
    assert refine(correction_row(CORRECTION) | {"payload": payload}) == ([], [QuarantineReason.CLOCK])
    assert refine(correction_row(CORRECTION)) == ([], [])


@given(
    st.lists(st.tuples(st.integers(2, 40), st.integers(-60, 60)), min_size=2, max_size=5),
    st.data(),
)
@settings(deadline=None)
def test_a_time_is_corrected_to_the_moment_at_which_it_was_stamped(
    segments: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Clocks that are stepped over and over: sealing follows within a tenth of a second, in the same segment
    or the next. The last segment is right."""
    truth = 1_700_000_000
    ends = list(itertools.accumulate(length for length, _ in segments))
    wrong = [(end - length, end, truth + by) for end, (length, by) in zip(ends, segments, strict=True)]
    right = truth + segments[-1][1]
    corrections = [
        Correction("edge-1", "b", since * SECOND, until * SECOND, offset * SECOND, (right - offset) * SECOND)
        for since, until, offset in wrong[:-1]
        if offset != right
    ]
    stamped = data.draw(st.integers(0, (ends[-1] - 1) * 10))
    sealed = stamped + 1

    def wall(tenth: int) -> int:
        offset = next(offset for since, until, offset in wrong if since * 10 <= tenth < until * 10)
        return tenth * 100_000 + offset * 1_000_000

    stamp = wall(stamped)
    (error,) = errors(np.array([stamp]), SealTime(wall(sealed), "b", sealed * SECOND // 10), corrections)

    moments = [
        one for one in range(sealed + 1) if wall(one) == stamp
    ]  # at which it may have been stamped: the last of them counts
    assert stamp + error == moments[-1] * 100_000 + right * 1_000_000


def boots(lake: Path, *numbers: int) -> None:
    """Boots of a machine without a clock of its own, as bronze hears of them."""
    add_bronze(
        lake,
        [correction_row(replace(CORRECTION, boot=f"boot-{number}"), source_seq=number) for number in numbers],
    )


def clock_files(lake: Path) -> list[str]:
    """What a run of refine finds of corrections and keeps; the files of the table then."""
    bronze = ensure_table(lake, "bronze")
    upto = stream_history.all_of(bronze)
    clock_corrections.save(lake, clock_corrections.load(lake, bronze, upto), upto)
    return ensure_table(lake, "clocks").delta.file_uris()


def test_a_pass_that_hears_of_no_clock_writes_no_correction_again(tmp_path: Path) -> None:
    boots(tmp_path, 1)
    first = clock_files(tmp_path)
    add_bronze(tmp_path, [batch_row(b"\n", n=1, source_seq=2)])
    assert clock_files(tmp_path) == first != []
    table = ensure_table(tmp_path, "clocks")
    bronze = stream_history.all_of(ensure_table(tmp_path, "bronze"))[0]
    assert table.offset(bronze.refined) == bronze.done == 2, "or all since would be looked through again"
    boots(tmp_path, 3)
    assert clock_files(tmp_path) != first
    assert len(rows(ensure_table(tmp_path, "clocks"), ["boot"])) == 2


def test_of_a_machine_that_is_corrected_at_each_boot_the_last_boots_are_remembered(tmp_path: Path) -> None:
    boots(tmp_path, *range(clock_corrections.MOST + 5))
    clock_files(tmp_path)
    remembered = rows(ensure_table(tmp_path, "clocks"), ["boot"])["boot"].to_pylist()
    assert remembered == [f"boot-{number}" for number in range(5, clock_corrections.MOST + 5)]


def test_a_correction_keeps_the_columns_that_another_program_added() -> None:
    rows = pa.table(
        {"ts": pa.array([5, 6], TIME), "ts_source": ["agent", "device"], "site": ["north", "south"]}
    )

    corrected = with_errors(rows, np.array([1_000_000, 0]))

    assert corrected.column_names == [*READINGS.names, "site"]
    assert corrected["site"].to_pylist() == ["north", "south"]
