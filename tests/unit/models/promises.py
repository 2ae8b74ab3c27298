"""What holds of the publish path at any moment and at the end, whatever was done to it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import zstandard

from agent import contract
from agent.contract import H_ENCODING, parse_message_id
from agent.leaf.ledger import ClassLedger
from tests.unit.models.stream import WINDOW, Held, own_id

if TYPE_CHECKING:
    from tests.unit.models.publish_path import Handed, PublishScenario

CLASSES = ("normal", "slow")
MOST_BATCHES, MOST_BYTES = 3, 600
"""In flight, as the publish path is set up here."""
KNOWN = 600.0
"""Seconds for which a request is known by its key."""


def check(scenario: PublishScenario) -> None:
    """What holds at any moment."""
    _check_numbers(scenario)
    _check_stream(scenario)
    where = _where(scenario)
    for one in scenario.handed:
        _check_told(scenario, one, where.get(one.lines[0], []))
    held = scenario.publisher._budget.used
    assert held <= MOST_BYTES or held in {one.size for one in scenario.handed}
    flying = [one for one in scenario.sender._in_flight if not one.store_lost]
    assert len(flying) <= MOST_BATCHES
    assert all(times == 1 for times in scenario.acks.values()), "a batch is told once"
    assert scenario.acks.keys() <= scenario.proven, "a batch is stored when the stream says so"


def check_account(scenario: PublishScenario) -> None:
    """No reading leaves the account, between any two turns of the event loop: what was let in is stored,
    refused, dead or in flight."""
    for cls in CLASSES:
        assert scenario.publisher.balance.unaccounted(cls) == 0


def _check_numbers(scenario: PublishScenario) -> None:
    for cls, ledger in scenario.ledgers.items():
        record = ledger.record(contract.StreamState("", 0, 0))
        stored = [n for first, last in record.stored for n in range(first, last + 1)]
        refused = [n for first, last, _ in record.refused for n in range(first, last + 1)]
        flying = [one.id.n for one in scenario.sender._in_flight if one.id.cls == cls]
        assert sorted(stored + refused + flying) == list(range(1, record.n + 1))
        acked = {parse_message_id(ident) for ident in scenario.acks}
        assert set(stored) == {ident.n for ident in acked if ident.cls == cls}
        ever = {
            parse_message_id(ident).n
            for one in scenario.streams[cls].ever
            if (ident := own_id(one)) is not None
        }
        assert set(stored) <= ever
        # A store that is lost takes along what it had stored and not acknowledged.
        assert scenario.losses or not set(refused) & ever, "what is refused is not stored"


def _check_stream(scenario: PublishScenario) -> None:
    for stream in scenario.streams.values():
        at: dict[str, float] = {}
        for one in stream.held:
            if (ident := own_id(one)) is not None:
                assert one.at - at.get(ident, -WINDOW) >= WINDOW, "a batch is stored once"
                at[ident] = one.at


def _check_told(scenario: PublishScenario, one: Handed, where: list[Held]) -> None:
    if one.told == "stored":
        assert {own_id(held) for held in where} & scenario.proven, f"{one.lines} are told as stored"
        if one.input == "hub":
            assert {own_id(held) for held in where} & scenario.at_hub, f"{one.lines} are told as at the hub"
    if one.input == "pull":
        return  # it hands the same lines in again, cut otherwise
    alike = [other for other in scenario.handed if other.lines == one.lines]
    if all(other.told == "refused" for other in alike):
        assert not where, f"{one.lines} were refused and are stored"
    if not scenario.losses:
        first = {own_id(held): held.at for held in reversed(where)}
        times = sorted(first.values())
        assert all(later - earlier >= KNOWN for earlier, later in itertools.pairwise(times))
    for held in where:
        lines = _lines(held)
        assert set(one.lines) <= set(lines), "what was handed in together is stored together"


def _where(scenario: PublishScenario) -> dict[str, list[Held]]:
    found: dict[str, list[Held]] = {}
    for stream in scenario.streams.values():
        for held in stream.ever:
            for line in _lines(held):
                found.setdefault(line, []).append(held)
    return found


def check_end(scenario: PublishScenario) -> None:
    """What holds once nothing is on its way."""
    check(scenario)
    assert all(one.told is not None for one in scenario.handed), "everybody was told"
    if not scenario.stopped:
        assert scenario.publisher._budget.used == 0
        for cls, ledger in scenario.ledgers.items():
            _check_counts(scenario, cls, ledger)
    once = {own_id(one): one for one in scenario.streams[CLASSES[0]].ever}
    pulled = [line for one in once.values() for line in _lines(one) if "pulled" in line]
    if not scenario.losses:
        assert pulled == [f"pulled-{at}" for at in range(1, len(pulled) + 1)]


def _check_counts(scenario: PublishScenario, cls: str, ledger: ClassLedger) -> None:
    counts, once = ledger.readings, {own_id(one): one for one in scenario.streams[cls].ever if own_id(one)}
    assert counts.accepted == counts.stored + counts.refused + counts.dead
    letters = sum(len(_lines(one)) for one in once.values() if "._dead." in one.subject)
    readings = sum(len(_lines(one)) for one in once.values()) - letters
    if scenario.losses:
        assert counts.dead <= letters
        assert counts.stored <= readings
    else:
        assert (counts.stored, counts.dead) == (readings, letters)
    where = _where(scenario)
    promised = [one for one in scenario.handed if one.told == "accepted" and one.cls == cls]
    groups = {one.lines for one in promised}
    lost = sum(len(lines) for lines in groups if lines[0] not in where)
    assert lost <= counts.refused_late, "what was accepted and is not stored is named"
    assert all(times >= 1 for times in scenario.notified.values())


def _lines(one: Held) -> list[str]:
    payload = one.payload
    if one.headers.get(H_ENCODING):
        payload = zstandard.decompress(payload)
    return [line.split()[0].decode() for line in payload.splitlines()] if own_id(one) else []
