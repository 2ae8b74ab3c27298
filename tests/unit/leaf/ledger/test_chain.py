"""A class's chain covers each settled batch once, in order, whatever the order of their settlement."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.config.keys import make_key, receipt_signer
from agent.contract import Ledger, Readings, StreamState, new_run, parse_ledger
from agent.contract.receipt import chain_start, link_batch
from agent.leaf.ledger.chain import MOST_WAITING, BatchChain
from agent.leaf.ledger.signer import RecordSigner

RUN = new_run()
RECORD = Ledger("edge-1", "normal", RUN, 0, (), Readings(), StreamState("made", 1, 1))


@given(st.data(), st.lists(st.booleans(), max_size=40))
def test_the_order_of_settlement_does_not_matter(data: st.DataObject, stored: list[bool]) -> None:
    digests = [os.urandom(16) for _ in stored]
    expected = chain_start("edge-1", "normal", RUN)
    for n, (digest, is_stored) in enumerate(zip(digests, stored, strict=True), 1):
        expected = link_batch(expected, n, digest, n) if is_stored else expected
    chain = BatchChain("edge-1", "normal", RUN)
    for n in data.draw(st.permutations(range(1, len(stored) + 1))):
        chain.add(n, digests[n - 1], n) if stored[n - 1] else chain.skip(n)
        chain.skip(n)  # an outcome that comes a second time changes nothing
    assert (chain.upto, chain.head) == (len(stored), expected)


def test_a_number_without_outcome_holds_the_chain_up() -> None:
    chain = BatchChain("edge-1", "normal", RUN)
    chain.add(2, b"", 1)
    assert chain.upto == 0
    chain.skip(1)
    assert chain.upto == 2


def test_a_chain_held_up_for_long_takes_no_more_memory() -> None:
    chain = BatchChain("edge-1", "normal", RUN)
    for n in range(2, MOST_WAITING + 4):
        chain.skip(n)
    chain.skip(1)
    assert (chain.upto, len(chain._waiting)) == (0, 0)


@pytest.fixture
def signer(tmp_path: Path) -> RecordSigner:
    make_key(tmp_path / "receipt.nk")
    return RecordSigner("edge-1", RUN, *receipt_signer(tmp_path / "receipt.nk"))


def test_an_attempt_of_unknown_outcome_keeps_its_number_and_is_followed_by_the_same_prior(
    signer: RecordSigner,
) -> None:
    chain = BatchChain("edge-1", "normal", RUN)
    first = signer.sign("normal", RECORD, chain, None)
    signer.stored("normal", first)
    chain.skip(1)
    unknown = signer.sign("normal", RECORD, chain, first.id)
    chain.skip(2)
    third = signer.sign("normal", RECORD, chain, first.id)
    assert [record.chain.number for record in (first, unknown, third)] == [1, 2, 3]
    assert [(record.chain.start, record.chain.upto) for record in (first, unknown, third)] == [
        (0, 0),
        (0, 1),
        (0, 2),
    ]
    assert third.chain.prior == first.id
    assert parse_ledger(third.data).chain == third.chain
