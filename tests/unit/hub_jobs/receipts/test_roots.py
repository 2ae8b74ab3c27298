"""The audit signs a root for each leaf and settled hour, and sees what does not fit roots or chains."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from agent.contract import Exit
from agent.contract.cbor import decode_cbor, encode_cbor
from agent.contract.receipt import ROOT_TYPE, sign, signed_in
from hub_jobs.receipts import roots as roots_module
from hub_jobs.receipts.keys import hub_key
from hub_jobs.tables.schemas import digest
from tests.harness.signed_leaf import DOMAIN, SignedLake
from tests.spark.lakes import commit, contents, replaced


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SignedLake:
    """A lake with roots."""
    lake = SignedLake(tmp_path_factory.mktemp("roots"))
    lake.fill()
    code, said, report = lake.audit()
    assert (code, said) == (Exit.WELL, "")
    assert report["receipts"]["until"] is not None
    return lake


@pytest.fixture
def lake(whole: SignedLake, tmp_path: Path) -> SignedLake:
    """A copy of it."""
    shutil.copytree(whole.lake.parent, tmp_path / "copy")
    return SignedLake(tmp_path / "copy")


def roots(lake: SignedLake, domain: str = DOMAIN) -> list[dict[str, Any]]:
    """The roots of a leaf in order."""
    stored = contents(lake.lake, "roots", "domain", "number", "signed")
    return [
        decode_cbor(signed_in(signed, ROOT_TYPE).payload) for whose, _, signed in stored if whose == domain
    ]


def test_each_settled_hour_of_a_leaf_has_a_root_that_names_the_one_before(whole: SignedLake) -> None:
    found = roots(whole)
    stored = [sha256(row[2]).digest() for row in contents(whole.lake, "roots", "domain", "number", "signed")]
    assert [root["prior"] for root in found] == [None, *stored[: len(found) - 1]]
    assert [(root["number"], root["arrived"], root["readings"][0]) for root in found] == [
        (1, 5, 5),
        (2, 1, 1),
        (3, 3, 3),
    ]
    assert [root["findings"] for root in found] == [[], [], []]
    assert [len(root["chains"][0][2]) for root in found] == [1, 1, 2]


def test_an_audit_adds_only_what_is_newly_settled(lake: SignedLake) -> None:
    before = contents(lake.lake, "roots", "signed")
    assert lake.audit()[0] is Exit.WELL
    assert contents(lake.lake, "roots", "signed") == before
    lake.later(12, 2)
    assert lake.audit()[:2] == (Exit.WELL, "")
    after = contents(lake.lake, "roots", "signed")
    assert len(after) == len(before) + 1
    assert set(before) < set(after)
    assert lake.audit("--all")[:2] == (Exit.WELL, "")


def test_two_audits_at_once_add_one_root_an_hour(lake: SignedLake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.later(12, 2)
    walk = roots_module.walk

    def overtaken(*given: Any) -> Iterator[Any]:
        monkeypatch.setattr(roots_module, "walk", walk)
        assert lake.audit()[0] is Exit.WELL
        return walk(*given)

    monkeypatch.setattr(roots_module, "walk", overtaken)
    assert lake.audit()[0] is Exit.WELL
    assert [root["number"] for root in roots(lake, "edge-9")] == [1]
    assert lake.audit("--all")[:2] == (Exit.WELL, "")


def test_a_corrected_clock_contradicts_no_root(lake: SignedLake) -> None:
    def correct(rows: pa.Table) -> pa.Table:
        original = rows["ts"]
        later = pc.add(original, pa.scalar(60_000_000, pa.duration("us")))
        for name, column in (("ts", later), ("ts_original", original)):
            rows = rows.set_column(rows.column_names.index(name), name, column)
        return rows

    replaced(lake.lake, "readings", correct)
    assert lake.audit("--all")[:2] == (Exit.WELL, "")


def _edge(rows: pa.Table) -> Any:
    return pc.equal(rows["domain"], DOMAIN)


def _alter(lake: SignedLake) -> None:
    replaced(
        lake.lake,
        "readings",
        lambda rows: rows.set_column(
            5, "value", pc.if_else(pc.equal(rows["value"], 6.5), 6.0, rows["value"])
        ),
    )


def _move_hour(lake: SignedLake) -> None:
    def change(rows: pa.Table) -> pa.Table:
        later = pc.add(rows["arrived"], pa.scalar(3_600_000_000, pa.duration("us")))
        moved = pc.if_else(pc.equal(rows["value"], 6.5), later, rows["arrived"])
        return rows.set_column(rows.column_names.index("arrived"), "arrived", moved)

    replaced(lake.lake, "readings", change)


def _move_leaf(lake: SignedLake) -> None:
    def change(rows: pa.Table) -> pa.Table:
        moved = pc.if_else(pc.equal(rows["value"], 6.5), "edge-9", rows["domain"])
        return rows.set_column(rows.column_names.index("domain"), "domain", moved)

    replaced(lake.lake, "readings", change)


def _add(lake: SignedLake) -> None:
    def change(rows: pa.Table) -> pa.Table:
        return pa.concat_tables([rows, rows.filter(pc.equal(rows["value"], 6.5))])

    replaced(lake.lake, "readings", change)


def _drop_hour(lake: SignedLake) -> None:
    """All rows of the second hour, and its root, as who owns the lake can delete them."""
    arrived = roots(lake)[1]["hour"] * 1_000_000
    begin, end = (pa.scalar(at, pa.timestamp("us", "UTC")) for at in (arrived, arrived + 3_600_000_000))
    for table in ("bronze", "readings"):
        _without(
            table,
            lambda rows: pc.or_(pc.less(rows["arrived"], begin), pc.greater_equal(rows["arrived"], end)),
        )(lake)
    _without("roots", _second_root)(lake)


def _payload(lake: SignedLake) -> None:
    """Another payload under its own right digest, as who owns the lake can write it."""

    def change(rows: pa.Table) -> pa.Table:
        listed = rows.to_pylist()
        for row in listed:
            if row["n"] == 3 and row["domain"] == DOMAIN:
                row["payload"] = row["payload"].replace(b"6.5", b"9.5")
                row["digest"] = digest(row["payload"])
        return pa.Table.from_pylist(listed, rows.schema)

    replaced(lake.lake, "bronze", change)


def _invent(lake: SignedLake) -> None:
    def change(rows: pa.Table) -> pa.Table:
        listed = rows.to_pylist()
        (last,) = (row for row in listed if row["n"] == 3 and row["domain"] == DOMAIN)
        return pa.Table.from_pylist([*listed, last | {"n": 4, "seq": 90}], rows.schema)

    replaced(lake.lake, "bronze", change)


def _without(table: str, keep: Callable[[pa.Table], Any]) -> Callable[[SignedLake], None]:
    return lambda lake: replaced(lake.lake, table, lambda rows: rows.filter(keep(rows)))


def _ledgers(rows: pa.Table) -> Any:
    """All but the second record of the first run."""
    at = [place for place, subject in enumerate(rows["subject"].to_pylist()) if subject.endswith("._ledger")]
    gone = sorted(at, key=lambda place: rows["arrived"][place].as_py())[1]
    return pa.array([place != gone for place in range(rows.num_rows)])


def _sign_anew(lake: SignedLake) -> None:
    """The hub's own key signs another number of readings for the second hour."""
    key = hub_key(lake.key)

    def change(rows: pa.Table) -> pa.Table:
        listed = rows.to_pylist()
        (second,) = (row for row in listed if (row["domain"], row["number"]) == (DOMAIN, 2))
        root = decode_cbor(signed_in(second["signed"], ROOT_TYPE).payload) | {"arrived": 0}
        second["signed"] = sign(key.raw, key.sign, ROOT_TYPE, encode_cbor(root))
        return pa.Table.from_pylist(listed, rows.schema)

    replaced(lake.lake, "roots", change)


def _swap_hours(lake: SignedLake) -> None:
    def change(rows: pa.Table) -> pa.Table:
        listed = sorted(rows.to_pylist(), key=lambda row: (row["domain"], row["number"]))
        listed[0]["signed"], listed[1]["signed"] = listed[1]["signed"], listed[0]["signed"]
        return pa.Table.from_pylist(listed, rows.schema)

    replaced(lake.lake, "roots", change)


def _second_root(rows: pa.Table) -> Any:
    return pc.invert(pc.and_(_edge(rows), pc.equal(rows["number"], 2)))


def _revoke(lake: SignedLake) -> None:
    text = lake.leaves.read_text()
    lake.leaves.write_text(text.replace('"]', ' until 2020-01-01T00:00:00Z"]'))


def _another_lake(lake: SignedLake) -> None:
    """Roots of another lake in the place of its own."""
    (lake.lake.parent / "other").mkdir()
    other = SignedLake(lake.lake.parent / "other")
    other.fill()
    other.audit()
    rows = contents(other.lake, "roots", "domain", "hour", "number", "signed")
    names = ("domain", "hour", "number", "signed")
    commit(lake.lake, "roots", [dict(zip(names, row, strict=True)) for row in rows], replace=True)


PLANTS = [
    pytest.param(_alter, "root 2 of {1}: the tables have other readings than it signs", id="row altered"),
    pytest.param(
        _without("readings", lambda rows: pc.not_equal(rows["value"], 6.5)),
        "root 2 of {1}: the tables have nothing of it|root 2 of {1} has 1 readings, and the tables have 0",
        id="row dropped",
    ),
    pytest.param(_add, "root 2 of {1} has 1 readings, and the tables have 2", id="row added"),
    pytest.param(_move_leaf, "edge-9: the hour {1} has rows and no root", id="row moved to another leaf"),
    pytest.param(_drop_hour, "root 3 does not follow the root before it", id="hour dropped with its root"),
    pytest.param(_move_hour, "root 3 of {2} has 3 readings, and the tables have 4", id="row moved"),
    pytest.param(_payload, "batches 3 to 3 in bronze are not as the leaf signed them", id="payload altered"),
    pytest.param(_invent, "was closed with batch 3, and batch 4 is in bronze", id="batch invented"),
    pytest.param(_without("bronze", _ledgers), "is missing before record 3 of run", id="record withheld"),
    pytest.param(
        _without("roots", _second_root), "root 3 does not follow the root before", id="hour dropped"
    ),
    pytest.param(_swap_hours, "root 1 stands in the place of another", id="hours exchanged"),
    pytest.param(_sign_anew, "root 3 does not follow the root before it", id="root signed anew"),
    pytest.param(_revoke, "is signed by a key that was revoked before", id="key revoked"),
    pytest.param(_another_lake, "is of another lake", id="another lake's roots"),
]


@pytest.mark.parametrize(("plant", "seen"), PLANTS)
def test_what_is_planted_is_told(lake: SignedLake, plant: Callable[[SignedLake], None], seen: str) -> None:
    hours = [root["hour"] for root in roots(lake)]
    plant(lake)
    code, said, report = lake.audit("--all")
    names = [pc.strftime(pa.scalar(hour, pa.timestamp("s")), "%Y-%m-%dT%HZ").as_py() for hour in hours]
    assert any(part.format(*names) in said for part in seen.split("|")), said
    assert report["receipts"]["contradictions"], said
    assert code in (Exit.CONTRADICTED, Exit.LOSS)
