"""What the headers of an aggregate tell of a run: never that something is lacking which was purged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import (
    H_MESSAGE_ID,
    H_RESENT,
    H_SOURCE,
    Edge,
    VerifiedRun,
    VerifyAnswer,
    VerifyRequest,
    new_run,
    parse_verify_answer,
    parse_verify_request,
)
from agent.contract import verify as contract_verify
from agent.contract.ranges import Ranges
from agent.hub.registrar import verify
from agent.hub.registrar.verify import RunScan, begun
from agent.jetstream import StreamInfo
from agent.jetstream.readers import StoredHeaders
from tests.harness.examples import costly

STREAM = "TEL_edge-1_normal"
RUNS = [new_run(n * 10**15) for n in range(1, 4)]
WINDOW = 3


def info(first: int, last: int) -> StreamInfo:
    """An aggregate that holds these sequences."""
    return StreamInfo("TELEMETRY_0", "now", first, last, last - first + 1, 0, {}, [])


def message(
    seq: int, ident: str, leaf_seq: int, source: str = STREAM, resent: int | None = None
) -> StoredHeaders:
    """A batch as the aggregate holds it."""
    headers = {H_MESSAGE_ID: ident, H_SOURCE: f"{source}:hash:C=hash {leaf_seq} > > subject ident"}
    if resent is not None:
        headers[H_RESENT] = str(resent)
    return StoredHeaders(seq, 0.0, headers)


def look_at(messages: list[StoredHeaders], request: VerifyRequest, first: int) -> VerifyAnswer:
    """The complete answer, asked for in pages of a few messages, through the wire format."""
    end = max((one.seq for one in messages), default=first - 1)
    found = VerifiedRun()
    while True:
        request = parse_verify_request(replace(request, found=found).encode())
        look = RunScan(request, STREAM, begun(request.found, info(first, end)))
        begin = look.found().next
        page = [one for one in messages if one.seq >= begin][:4]
        for one in page:
            look.take(one)
        complete = not page or page[-1].seq == end
        answer = look.answered(info(first, end), 0, complete=complete)
        answer = parse_verify_answer(answer.encode())
        if complete:
            return answer
        request, found = replace(request, last=answer.last), answer.found


def numbers(ranges: Ranges) -> set[int]:
    """The numbers in these ranges."""
    return {n for first, last in ranges for n in range(first, last + 1)}


Batch = tuple[str, int]


@st.composite
def sent(draw: st.DrawFn) -> list[tuple[Batch, bool]]:
    """Batches of some runs in the order in which the leaf's stream took them: of what is in flight at once,
    any may be stored first. Each with whether it was published again, which comes later than it was
    stored."""
    order: list[tuple[Batch, bool]] = []
    for run in RUNS[: draw(st.integers(1, 3))]:
        waiting = list(range(1, draw(st.integers(0, 12)) + 1))
        while waiting:
            at = draw(st.integers(0, min(WINDOW, len(waiting)) - 1))
            order.append(((run, waiting.pop(at)), False))
    for batch, _ in draw(st.lists(st.sampled_from(order), max_size=4)) if order else []:
        order.insert(draw(st.integers(order.index((batch, False)) + 1, len(order))), (batch, True))
    return order


@given(sent(), st.data())
@costly(400)
def test_what_was_purged_is_never_said_to_be_lacking(
    order: list[tuple[Batch, bool]], data: st.DataObject
) -> None:
    lost = data.draw(st.sets(st.integers(1, len(order)))) if order else set()
    arrived = [(leaf_seq, one) for leaf_seq, one in enumerate(order, 1) if leaf_seq not in lost]
    messages = [
        message(
            hub_seq,
            f"{run}-normal-{n}",
            leaf_seq,
            resent=order.index(((run, n), False)) + 1 if again else None,
        )
        for hub_seq, (leaf_seq, ((run, n), again)) in enumerate(arrived, 1)
    ]
    purged = data.draw(st.integers(0, len(arrived)))
    run = data.draw(st.sampled_from(RUNS))
    last = data.draw(st.integers(1, 12))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contract_verify, "MAX_WINDOW", WINDOW)
        patch.setattr(verify, "MAX_WINDOW", WINDOW)
        answer = look_at(messages[purged:], VerifyRequest("normal", run, 1, last), purged + 1)

    held = {n for _, ((its, n), _) in arrived[purged:] if its == run and n <= last}
    came = {n for _, ((its, n), _) in arrived if its == run}
    assert numbers(answer.found.held) == held
    assert numbers(answer.lacking).isdisjoint(came)
    assert numbers(answer.lacking) | numbers(answer.unknown) == set(range(1, last + 1)) - held
    assert not numbers(answer.lacking) & numbers(answer.unknown)
    if not purged:
        assert answer.unknown == ()


def test_after_a_purge_the_numbers_far_enough_behind_the_edge_are_still_told() -> None:
    run, count = RUNS[0], contract_verify.MAX_WINDOW
    messages = [
        message(seq, f"{run}-normal-{seq}", seq) for seq in range(101, 200 + count) if seq != 150 + count
    ]
    answer = look_at(messages, VerifyRequest("normal", run), 101)
    assert answer.lacking == ((150 + count, 150 + count),)
    assert answer.unknown == ((1, 100),)
    assert answer.last == 199 + count
    assert answer.found.edge == Edge(run, 101, 100 + count, count)


def test_a_batch_that_overtook_all_others_in_flight_and_was_purged_is_not_called_lacking() -> None:
    run, window = RUNS[0], contract_verify.MAX_WINDOW
    messages = [message(1 + n, f"{run}-normal-{n}", 1 + n) for n in range(1, window)]
    request = VerifyRequest("normal", run, 1, window)
    assert look_at(messages, request, 2).unknown == ((window, window),)
    messages.append(message(1 + window, f"{run}-normal-{window + 2}", 1 + window))
    assert look_at(messages, replace(request, last=window + 3), 2).lacking == ((window + 3, window + 3),)


def test_of_an_aggregate_that_was_emptied_nobody_can_tell() -> None:
    answer = look_at([], VerifyRequest("normal", RUNS[0], 1, 9), 51)
    assert (answer.lacking, answer.unknown) == ((), ((1, 9),))


def test_of_an_aggregate_that_never_held_anything_all_is_lacking() -> None:
    answer = look_at([], VerifyRequest("normal", RUNS[0], 1, 9), 1)
    assert (answer.lacking, answer.unknown) == (((1, 9),), ())


def test_what_another_leaf_sent_or_what_is_no_batch_counts_for_nothing() -> None:
    run = RUNS[0]
    messages = [
        message(1, f"{run}-normal-1", 1, source="TEL_edge-2_normal"),
        message(2, f"{run}-bulk-1", 2),
        message(3, "mine", 3),
        StoredHeaders(4, 0.0, {H_MESSAGE_ID: f"{run}-normal-1"}),
        StoredHeaders(5, 0.0, {}),
    ]
    answer = look_at(messages, VerifyRequest("normal", run, 1, 1), 1)
    assert answer.lacking == ((1, 1),)
    assert answer.found.edge is None


def test_a_run_with_more_holes_than_an_answer_may_name_is_told_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verify, "MAX_HELD", 3)
    messages = [message(seq, f"{RUNS[0]}-normal-{2 * seq}", seq) for seq in range(1, 9)]
    answer = look_at(messages, VerifyRequest("normal", RUNS[0], 1, 16), 1)
    assert answer.last == 7
    assert answer.found.held == ((2, 2), (4, 4), (6, 6))
    assert answer.lacking == ((1, 1), (3, 3), (5, 5), (7, 7))


@pytest.mark.parametrize(("first", "last"), [(9, 20), (1, 6)])
def test_a_look_begins_again_when_what_it_had_not_seen_is_gone(first: int, last: int) -> None:
    old = VerifiedRun(held=((1, 2),), next=8)
    assert begun(old, info(first, last)) == VerifiedRun(cut=first > 1, next=first)
    assert begun(old, info(1, 20)) == old
