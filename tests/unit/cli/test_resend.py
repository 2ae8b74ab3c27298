"""What `petiole resend` refuses before it does anything, and which batches it sends again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from agent.cli.main import app
from agent.cli.resend import plan
from agent.cli.resend.plan import (
    Copies,
    Copy,
    Runs,
    Verified,
    copies_missing,
    plan_missing,
    plan_range,
    ranges_of,
    resent_headers,
)
from agent.contract import (
    H_MESSAGE_ID,
    H_POSITION,
    H_REQUESTS,
    H_RESENT,
    Edge,
    Exit,
    Ledger,
    Readings,
    StreamState,
    new_run,
)
from agent.contract.ranges import Ranges
from agent.jetstream.readers import StoredHeaders

RUN, LATER = new_run(10**18), new_run(2 * 10**18)


def batch(seq: int, n: int, run: str = RUN, resent: int | None = None) -> StoredHeaders:
    """A batch in the leaf's stream."""
    mark = {} if resent is None else {H_RESENT: str(resent)}
    return StoredHeaders(seq, 0.0, {H_MESSAGE_ID: f"{run}-normal-{n}", **mark})


def ledger_of(stored: Ranges, *refused: tuple[int, int, str]) -> Ledger:
    """A ledger record of the run."""
    return Ledger("d", "normal", RUN, 99, stored, Readings(), StreamState("now", 1, 1), refused)


def looked(copies: Copies, *messages: StoredHeaders) -> Copies:
    """Copies that were looked for among these messages."""
    for message in messages:
        copies.take(message)
    return copies


def numbers(ranges: Ranges) -> set[int]:
    """The numbers in these ranges."""
    return {n for first, last in ranges for n in range(first, last + 1)}


def test_a_range_is_sent_in_the_order_in_which_it_was_stored_first() -> None:
    copies = looked(Copies(RUN, ((2, 5),)), batch(1, 3), batch(2, 2), batch(3, 6), batch(4, 4, LATER))
    plan = plan_range(RUN, ((2, 5),), copies, 6, ledger_of(((1, 4), (6, 6))))
    assert plan.send == (Copy(3, 1, 1), Copy(2, 2, 2))
    assert (plan.gone, plan.unrecorded) == (((4, 4),), ((5, 5),))


def test_a_number_that_was_refused_is_no_loss() -> None:
    record = ledger_of(((1, 1), (4, 4)), (3, 3, "too_large"), (2, 2, "stream_full"))
    plan = plan_range(RUN, ((1, 4),), looked(Copies(RUN, ((1, 4),)), batch(1, 1)), 4, record)
    assert (plan.refused, plan.gone, plan.unrecorded) == (((2, 3),), ((4, 4),), ())


def test_without_a_record_what_is_not_there_is_gone_up_to_the_highest_that_is() -> None:
    plan = plan_range(RUN, ((1, 9),), looked(Copies(RUN, ((1, 9),)), batch(7, 5)), 5, None)
    assert (plan.gone, plan.unrecorded) == (((1, 4),), ((6, 9),))


def test_a_batch_that_was_sent_again_before_keeps_its_first_place() -> None:
    copies = looked(Copies(RUN, ((1, 3),)), batch(5, 1), batch(9, 1, resent=5), batch(10, 2, resent=6))
    assert copies.found == {1: Copy(1, 5, 9), 2: Copy(2, 6, 10)}


@given(
    st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=20),
    st.sets(st.integers(1, 12)),
    st.integers(0, 12),
    st.integers(0, 25),
    st.integers(0, 25),
)
def test_what_the_hub_lacks_is_sent_and_nothing_that_was_purged_or_is_on_its_way(
    stream: list[tuple[int, bool]], held: set[int], purged: int, cursor: int, edge: int
) -> None:
    messages, places = [], dict[int, int]()
    for seq, (n, _) in enumerate(stream, 1):
        messages.append(batch(seq, n, resent=places.get(n)))
        places.setdefault(n, seq)
    lacking = {n for n in range(purged + 1, 13) if n not in held}
    unknown = {n for n in range(1, purged + 1) if n not in held}
    verified = Verified(ranges_of(lacking), ranges_of(unknown), Edge(RUN, edge, purged, 1), cursor)
    plan = plan_missing(RUN, verified, looked(copies_missing(RUN, verified), *messages), 12, None)

    newest = {n: seq for seq, (n, _) in enumerate(stream, 1)}
    surely = lacking | {n for n in unknown if places.get(n, 0) > edge}
    assert {copy.n for copy in plan.send} == {n for n in surely if newest.get(n, 99) <= cursor}
    assert numbers(plan.under_way) == {n for n in surely if n in newest and newest[n] > cursor}
    assert numbers(plan.gone) == lacking - newest.keys()
    assert numbers(plan.unknown) == unknown - surely
    assert [copy.first for copy in plan.send] == sorted(places[copy.n] for copy in plan.send)


def test_behind_the_edge_of_another_run_nothing_is_claimed() -> None:
    verified = Verified((), ((1, 9),), Edge(LATER, 1, 1, 1), 99)
    plan = plan_missing(RUN, verified, looked(copies_missing(RUN, verified), batch(50, 5)), 9, None)
    assert (plan.send, plan.unknown) == ((), ((1, 9),))


def test_a_plan_is_bounded_and_says_that_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MAX_BATCHES", 2)
    copies = looked(Copies(RUN, ((1, 4),)), *(batch(n, n) for n in range(1, 4)), batch(9, 1, resent=1))
    found = plan_range(RUN, ((1, 4),), copies, 4, None)
    assert (len(found.send), found.more, found.gone) == (2, True, ())


def test_of_many_runs_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MAX_RUNS", 1)
    runs = Runs()
    for message in (
        batch(1, 1),
        batch(2, 1, LATER),
        batch(3, 2),
        StoredHeaders(4, 0.0, {}),
        batch(5, 2, LATER),
    ):
        runs.take(message)
    assert {run: numbers.ranges() for run, numbers in runs.numbers.items()} == {LATER: ((1, 2),)}


def test_what_goes_out_again_says_nothing_of_its_input_or_its_requests() -> None:
    headers = {H_MESSAGE_ID: "x", H_POSITION: "17", H_REQUESTS: "00000000:k", "Content-Encoding": "zstd"}
    assert resent_headers(headers, 5) == {H_MESSAGE_ID: "x", "Content-Encoding": "zstd", H_RESENT: "5"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give either --missing or a range"),
        (["--missing", "--from", "1"], "give either --missing or a range"),
        (["--from", "3", "--to", "2"], "--from 3 is above --to 2"),
        (["--to", "1", "--run", "x"], "--run: run 'x' is not a UUIDv7"),
        (["--missing", "--class", "bulk"], "there is no such class; the configuration has normal"),
    ],
)
def test_a_wrong_command_line_is_refused_in_words(tmp_path: Path, arguments: list[str], words: str) -> None:
    config = tmp_path / "petiole.toml"
    config.write_text('domain = "edge-1"\n[nats]\nhub_urls = ["nats-leaf://hub:7422"]\n')
    ended = CliRunner().invoke(app, ["resend", "-c", str(config), *arguments])
    assert ended.exit_code == Exit.USAGE
    assert words in ended.stderr


def test_a_hub_has_nothing_to_send_again(tmp_path: Path) -> None:
    config = tmp_path / "petiole.toml"
    config.write_text('domain = "hub"\nrole = "hub"\n')
    ended = CliRunner().invoke(app, ["resend", "-c", str(config), "--missing"])
    assert ended.exit_code == Exit.USAGE
    assert "resend is for a leaf" in ended.stderr
