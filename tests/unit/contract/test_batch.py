from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import contract
from agent.contract import BatchHeaders, Clock, ContractError, MessageId
from agent.leaf.intake import MAX_POSITION
from agent.leaf.publish.accumulator import MAX_REQUESTS
from tests.unit.contract import values

RUN = "00000000-0000-7916-811f-f78f37e98f06"
MARK = f"{'0' * 32}.{'f' * 16}"
GOOD = BatchHeaders(MessageId(RUN, "normal", 1), 1, 1, Clock(True, "boot", 1)).encode()


@given(values.message_ids)
def test_a_message_id_is_read_back(ident: MessageId) -> None:
    assert contract.parse_message_id(str(ident)) == ident


@given(values.runs, st.lists(st.tuples(values.classes, st.integers(1, 10**18)), min_size=2, unique=True))
def test_no_two_batches_of_a_run_share_an_id(run: str, batches: list[tuple[str, int]]) -> None:
    assert len({str(MessageId(run, cls, n)) for cls, n in batches}) == len(batches)


@pytest.mark.parametrize(
    "text",
    ["", RUN, f"{RUN}-normal", f"{RUN}-normal-0", f"{RUN}-normal-01", f"{RUN}-normal--1", f"{RUN}-Normal-1",
     f"{RUN}-a-b-1", f"{RUN[:-1]}-normal-1", f"{RUN}-normal-1 ", f"{RUN}-normal-{2**63}",
     f"{RUN.upper()}-normal-1",
     f"{RUN}-normal-٣"],
)  # fmt: skip
def test_a_message_id_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ContractError):
        contract.parse_message_id(text)


@given(values.headers)
def test_headers_are_read_back(headers: BatchHeaders) -> None:
    assert contract.parse_batch_headers(headers.encode()) == headers


@given(values.headers)
def test_a_header_fits_on_one_line_of_ascii(headers: BatchHeaders) -> None:
    for name, value in headers.encode().items():
        assert value.isascii()
        assert value.isprintable()
        assert name.isascii()


@given(values.headers, st.dictionaries(st.text(max_size=8).map("X-{}".format), st.text(max_size=8)))
def test_headers_that_are_not_known_are_ignored(headers: BatchHeaders, more: dict[str, str]) -> None:
    assert contract.parse_batch_headers({**more, **headers.encode()}) == headers


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (contract.H_VERSION, "2", "not known here; this is 1"),
        (contract.H_VERSION, None, "not known here"),
        (contract.H_MESSAGE_ID, None, "message id"),
        (contract.H_CONTENT_TYPE, "text/plain", "is not application/x-ndjson"),
        (contract.H_ENCODING, "gzip", "is not zstd"),
        (contract.H_COUNT, "-1", "a whole number"),
        (contract.H_COUNT, None, "a whole number"),
        (contract.H_SEALED_AT, "1.5", "a whole number"),
        (contract.H_SEALED_AT, str(2**63), "is above"),
        (contract.H_CLOCK, "synchronised=maybe; boot=x; monotonic=1", "synchronised=yes"),
        (contract.H_CLOCK, "synchronised=yes; boot=x", "monotonic"),
        (contract.H_REQUESTS, "key", "<digest>.<scope>:<key>"),
        (contract.H_REQUESTS, f"{MARK}:", "Idempotency-Key"),
    ],
)
def test_a_batch_with_a_broken_header_is_refused_in_words(name: str, value: str | None, words: str) -> None:
    headers = {**GOOD, name: value} if value is not None else {k: v for k, v in GOOD.items() if k != name}
    with pytest.raises(ContractError, match=words):
        contract.parse_batch_headers({k: v for k, v in headers.items() if v is not None})


@pytest.mark.parametrize("position", ["a\nNats-Msg-Id: x", "ü", "\x7f"])
def test_a_position_that_would_break_the_headers_is_refused(position: str) -> None:
    headers = BatchHeaders(MessageId(RUN, "normal", 1), 1, 1, Clock(True, "boot", 1), position=position)
    with pytest.raises(ContractError, match="printable ASCII"):
        headers.encode()


@given(st.text(max_size=30))
def test_whatever_clock_or_requests_come_are_read_or_refused(text: str) -> None:
    for parse in (contract.parse_clock, contract.parse_requests):
        with contextlib.suppress(ContractError):
            parse(text)


@pytest.mark.parametrize("mark", ["", "-", MARK.upper(), MARK[:-1], f"{MARK}0", MARK.replace(".", "")])
def test_a_digest_that_is_none_is_refused_in_words(mark: str) -> None:
    with pytest.raises(ContractError, match=contract.H_REQUESTS):
        contract.parse_requests(f"{mark}:key")


def test_which_lines_go_to_which_of_several_classes_is_read_back() -> None:
    layouts = (["a", "b"], ["b", "a"], ["a", "b", "b"], ["a", "", "b"], ["a", "b", "c"])
    parts = [contract.request_part(layout) for layout in layouts]
    assert len(set(parts)) == len(layouts)
    assert [contract.part_count(part) for part in parts] == [2, 2, 2, 2, 3]
    assert contract.request_part(["a", "", "a"]) == b""
    requests = tuple(replace(contract.make_request("k", "f" * 16, b""), part=part) for part in (b"", *parts))
    headers = replace(contract.parse_batch_headers(GOOD), requests=requests)
    assert [one.part for one in contract.parse_batch_headers(headers.encode()).requests] == [b"", *parts]


def test_the_headers_of_a_full_batch_stay_below_what_the_server_allows() -> None:
    one = replace(contract.make_request("k" * 128, "f" * 16, b""), part=contract.request_part("ab"))
    requests = (one,) * MAX_REQUESTS
    headers = replace(contract.parse_batch_headers(GOOD), requests=requests, position="p" * MAX_POSITION)
    size = sum(len(name) + len(value) + 4 for name, value in headers.encode().items())
    assert size < 64 * 1024
    assert size < 1024 + MAX_POSITION + MAX_REQUESTS * (128 + contract.REQUEST_BYTES)
