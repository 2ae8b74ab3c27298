"""The whole audit of small lakes without Spark: what it calls pending, explained, missing or on its way."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.contract import Exit, Ledger, Previous, Readings, StreamState
from hub_jobs import audit
from hub_jobs.tally import Said
from hub_jobs.transforms.accounts import Account
from hub_jobs.transforms.ledgers import Lost
from hub_jobs.transforms.spaces import Seen
from hub_jobs.transforms.way import OnTheWay
from tests.spark.lakes import add_bronze
from tests.unit.hub_jobs.refined import refine_all
from tests.unit.hub_jobs.rows import OTHER_RUN, RUN, batch_row, row

LINE = b'{"metric":"m","value":1}\n'
SAID = Ledger(
    *("edge-1", "normal", RUN, 3, ((1, 3),)),
    Readings(accepted=30, stored=30),
    StreamState("now", 1, 4),
    final=True,
)


def fill(lake: Path, ledger: Ledger, *numbers: int, after: int = 0) -> None:
    """Batches of ten readings, and what their agent says, behind so many messages of its stream."""
    rows = [batch_row(LINE * 10, n=n) for n in numbers]
    rows.append(row(ledger.encode(), "tel.edge-1.normal._ledger", {}))
    add_bronze(lake, [one | {"source_seq": seq} for seq, one in enumerate(rows, after + 1)])


def audited(lake: Path) -> tuple[Exit, dict[str, dict[str, Any]]]:
    """The exit code and the account of each run."""
    report = lake.with_suffix(".json")
    code = audit.main(["--lake", str(lake), "--json", str(report)])
    return code, {one["run"]: one for one in json.loads(report.read_text())["rows"]}


def test_what_is_not_refined_yet_is_pending_and_not_missing(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    fill(lake, replace(SAID, final=False), 1, 2)
    refine_all(lake)
    fill(lake, SAID, 3, after=3)

    code, runs = audited(lake)
    assert (code, runs[RUN]["in_readings"], runs[RUN]["pending"]) == (Exit.WELL, 20, 10)
    assert (runs[RUN]["missing"], runs[RUN]["doubled"]) == (0, 0)


def test_what_was_called_discarded_and_arrived_explains_no_other_batch(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    named = replace(
        SAID, discarded=((2, 2, 10, "stream_full"),), readings=replace(SAID.readings, discarded=10)
    )
    fill(lake, named, 1, 2)
    refine_all(lake)

    code, runs = audited(lake)
    assert (code, runs[RUN]["missing"], runs[RUN]["discarded"]) == (Exit.LOSS, 10, 0)


def test_a_run_of_which_only_the_next_one_tells_has_an_account(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    before = Previous(OTHER_RUN, 4, Readings(accepted=45, stored=40), closed=False)
    fill(lake, replace(SAID, previous=before), 1, 2, 3)
    refine_all(lake)

    code, runs = audited(lake)
    assert (code, set(runs)) == (Exit.LOSS, {RUN, OTHER_RUN})
    assert (runs[OTHER_RUN]["missing"], runs[OTHER_RUN]["open_tail"]) == (40, 5)


@pytest.mark.parametrize(("run", "on_the_way"), [(OTHER_RUN, 10), (RUN, 0)])
def test_of_the_last_run_of_which_a_record_came_something_may_still_be_on_its_way(
    run: str, on_the_way: int
) -> None:
    """All of an earlier run stands before that record in the leaf's stream."""
    heard = Said({("edge-1", "normal", OTHER_RUN): replace(SAID, run=OTHER_RUN)}, {}, {}, {}, Lost(), [])
    account = Account("edge-1", "normal", run, 30, 30, 30, 0, 30, 0, 0, 0, 0, 0, None)
    announced = Previous(run, 4, Readings(accepted=40, stored=40), closed=False)
    way = OnTheWay("edge-1", "normal", datetime.now(UTC), [(10, 11)], 1, 1, ledger=announced)

    assert audit._announced(account, [way], heard, Seen()).on_the_way == on_the_way
