"""The hub's jobs see each way in which batches and a leaf's signed records can differ."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import LostStream, Previous, Readings
from agent.contract.receipt import ReceiptKey, raw_key
from hub_jobs.receipts.chains import Finding, Followed
from tests.harness.signed_leaf import CLS, KEYS, Run, checked, followed, key_pair, public

OTHER = key_pair(2)


def texts(found: Followed) -> list[str]:
    return [("! " if finding.contradicts else "") + finding.text for finding in found.findings]


def told() -> Run:
    """Five batches and three records."""
    run = Run()
    run.record()
    run.store(b"a\n", b"b\nc\n")
    run.record()
    run.refuse()
    run.store(b"d\n", b"e\n")
    run.record()
    return run


def test_what_a_leaf_signed_and_bronze_has_is_without_findings() -> None:
    run = told()
    found = followed(run)
    assert texts(found) == []
    assert [(mark.number, mark.upto) for mark in found.marks] == [(3, 5)]


def test_records_are_followed_from_a_mark() -> None:
    run = told()
    marks = followed(run, records=run.records[:2]).marks
    found = followed(run, marks=marks, records=run.records[2:])
    assert (texts(found), found.marks) == ([], followed(run).marks)


def _alter(run: Run) -> None:
    run.batches[2] = bytes(16), 2


def _count(run: Run) -> None:
    run.batches[2] = run.batches[2][0], 3


def _swap(run: Run) -> None:
    run.batches[1], run.batches[2] = run.batches[2], run.batches[1]


def _withhold(run: Run) -> None:
    del run.records[1]


def _invent(run: Run) -> None:
    run.record(final=True)
    run.batches[6] = bytes(16), 1


def _fork(run: Run) -> None:
    twin = Run(run=run.run)
    twin.record()
    twin.record()
    run.records.append(twin.records[1])


@pytest.mark.parametrize(
    ("plant", "seen"),
    [
        pytest.param(_alter, "! record 2 of run {}: batches 1 to 2 in bronze are not as the", id="altered"),
        pytest.param(_count, "! record 2 of run {}: batches 1 to 2 in bronze are not as the", id="count"),
        pytest.param(_swap, "! record 2 of run {}: batches 1 to 2 in bronze are not as the", id="swapped"),
        pytest.param(
            lambda run: run.batches.pop(2),
            "record 2 of run {}: batches 1 to 2 can't be compared, for batch 2 is not in bronze",
            id="dropped",
        ),
        pytest.param(_withhold, "! record 2 of run {0} is missing before record 3 of run {0}", id="withheld"),
        pytest.param(_invent, "! run {} was closed with batch 5, and batch 6 is in bronze", id="invented"),
        pytest.param(_fork, "! record 2 of run {} exists twice with different contents", id="forked"),
    ],
)
def test_each_difference_is_named(plant: Callable[[Run], object], seen: str) -> None:
    run = told()
    plant(run)
    assert any(text.startswith(seen.format(run.run)) for text in texts(followed(run))), texts(followed(run))


def test_a_batch_in_the_place_of_a_refused_number_is_not_the_leafs_and_breaks_nothing() -> None:
    run = told()
    run.batches[3] = bytes(16), 1  # a hung connection may deliver it after the leaf gave it up
    assert texts(followed(run)) == []


@pytest.mark.parametrize("known", [True, False])
def test_a_killed_leaf_goes_on_in_a_new_run_though_its_state_lacks_the_last_record(known: bool) -> None:
    first = told()
    first.record(known=known)
    second = Run(prior=first.prior)
    second.store(b"f\n")
    second.record()
    assert texts(followed(first, second)) == []
    marks = followed(first).marks
    assert texts(followed(first, second, marks=marks, records=second.records)) == []


def test_the_end_of_a_killed_run_is_named_as_unsigned() -> None:
    first = told()
    first.store(b"f\n")
    second = Run(first.prior, previous=Previous(first.run, 6, Readings(), False))
    second.record()
    second.store(b"g\n")  # of the newest run a record may come
    assert texts(followed(first, second)) == [
        f"run {first.run}: batch 6 is in no signed record; its leaf knew 6 batches of it"
    ]


def test_a_run_without_any_record_is_named_once_another_follows() -> None:
    first, second = Run(), Run()
    first.store(b"f\n")
    second.record()
    assert texts(followed(first, second)) == [f"run {first.run}: batch 1 is in no signed record"]


def test_two_runs_that_follow_one_record_are_named() -> None:
    first = told()
    twins = [Run(first.prior), Run(first.prior)]
    for twin in twins:
        twin.record()
    assert texts(followed(first, *twins))[0].startswith(f"two runs follow record 3 of run {first.run}")


def test_a_lost_state_begins_anew_and_a_lost_store_explains_a_missing_record() -> None:
    first, second = told(), Run()
    second.record()
    assert "begins anew" in texts(followed(first, second))[0]
    del first.records[2]
    third = Run(first.prior)
    third.record(lost=(LostStream("made", 9),))
    assert not any(finding.contradicts for finding in followed(first, third).findings)
    assert "a store that was lost" in texts(followed(first, third))[0]


def test_a_record_is_the_leafs_only_by_a_key_that_holds() -> None:
    run = Run(pair=OTHER)
    record = run.record()
    foreign = checked(record)
    assert isinstance(foreign, Finding)
    assert "a key that is not the leaf's" in foreign.text
    revoked = ReceiptKey(raw_key(public(OTHER)), 5)
    assert not isinstance(checked(record, [*KEYS, revoked], arrived=4), Finding)
    late = checked(record, [*KEYS, revoked], arrived=5)
    assert isinstance(late, Finding)
    assert "revoked before" in late.text
    altered = checked(record._replace(data=record.data.replace(b'"n":0', b'"n":1')), [revoked])
    assert isinstance(altered, Finding)
    assert "not as its key signed it" in altered.text
    broken = checked(record._replace(signature=base64.b64encode(b"\x84").decode()))
    assert isinstance(broken, Finding)
    assert broken.contradicts


def test_a_hostile_number_costs_no_time() -> None:
    run = told()
    run.chain.upto, run.chain.head = 2**62, bytes(32)
    run.record()
    assert "can't be compared" in texts(followed(run))[0]


@given(st.data())
def test_any_single_change_of_a_batch_is_seen(data: st.DataObject) -> None:
    run = Run()
    for _ in range(data.draw(st.integers(1, 4))):
        run.store(*data.draw(st.lists(st.binary(max_size=3), max_size=3)))
        run.refuse() if data.draw(st.booleans()) else None
        run.record()
    assert texts(followed(run)) == []
    if not run.batches:
        return
    n = data.draw(st.sampled_from(sorted(run.batches)))
    digest, count = run.batches[n]
    run.batches[n] = data.draw(st.sampled_from([(bytes(16), count), (digest, count + 1)]))
    assert any(finding.contradicts for finding in followed(run).findings)
    del run.batches[n]
    assert followed(run).findings
    assert followed(run).marks[-1].run == run.run
    assert CLS[0] == "edge-1"
