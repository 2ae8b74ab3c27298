"""Reading the answers of a stream, and whose message it holds under the id of a batch."""

from __future__ import annotations

import random

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from agent.contract import H_MESSAGE_ID, MessageId, batch_subject
from agent.jetstream import RawMessage
from agent.leaf.intake import Chunk, RefusalReason
from agent.leaf.publish.accumulator import PendingChunk
from agent.leaf.publish.batch import NO_STREAM, Batch, NotStored, Packer, StoredAck, is_own, parse_ack
from agent.leaf.publish.settlement import Settlement


def refusal(err_code: int) -> bytes:
    """An error as nats-server 2.15.1 writes it."""
    return b'{"error":{"code":503,"err_code":%d,"description":"why"},"stream":"S","seq":0}' % err_code


def test_a_puback_gives_the_sequence() -> None:
    assert parse_ack(b'{"stream":"TEL_a_normal","domain":"a","seq":7}') == StoredAck(7, duplicate=False)


def test_a_puback_of_a_repeat_says_so() -> None:
    assert parse_ack(b'{"stream":"S","seq":7,"duplicate":true}') == StoredAck(7, duplicate=True)


def test_no_answer_of_a_stream_is_told_apart() -> None:
    assert parse_ack(b"") == NotStored(NO_STREAM, None)


@pytest.mark.parametrize("err_code", [10002, 10023, 10047, 10077])
def test_a_stream_or_disk_without_room_is_full(err_code: int) -> None:
    assert parse_ack(refusal(err_code)) == NotStored(f"why (error {err_code})", RefusalReason.FULL)


@pytest.mark.parametrize("err_code", [10054, 10097])
def test_a_message_that_will_never_fit_is_too_large(err_code: int) -> None:
    assert parse_ack(refusal(err_code)) == NotStored(f"why (error {err_code})", RefusalReason.TOO_LARGE)


@pytest.mark.parametrize("err_code", [0, 10008, 10076, 99999])
def test_any_other_error_may_pass(err_code: int) -> None:
    answer = parse_ack(refusal(err_code))
    assert isinstance(answer, NotStored)
    assert answer.reason is None


@pytest.mark.parametrize(
    "data", [b"+OK", b"[]", b'{"stream":"S"}', b'{"seq":"7"}', b'{"seq":-1}', b"\xff", b'{"stream":"\xff"}']
)
def test_what_is_no_puback_stores_nothing(data: bytes) -> None:
    answer = parse_ack(data)
    assert isinstance(answer, NotStored)
    assert answer.reason is None


@given(st.binary(max_size=200))
def test_no_answer_breaks_the_reader(data: bytes) -> None:
    parse_ack(data)


IDENT = MessageId("00e8d4a5-1000-7bbe-a6f5-1f0d7a54c0de", "normal", 7)
SUBJECT = batch_subject("edge-1", "normal", "http")
PAYLOAD = b"readings"


def batch(*, carried: bool = False) -> Batch:
    """A batch that was answered as a duplicate."""
    return Batch(
        serial=1,
        id=IDENT,
        subject=SUBJECT,
        headers={},
        payload=PAYLOAD,
        entries=[],
        input="http",
        dead=False,
        readings=1,
        raw_bytes=0,
        floor=0,
        sealed=0.0,
        first_sent=0.0,
        last_sent=0.0,
        carried=carried,
    )


@pytest.mark.parametrize(
    ("subject", "ident", "data", "own"),
    [
        (SUBJECT, str(IDENT), PAYLOAD, True),
        ("tel.edge-1.normal.valve.open", str(IDENT), PAYLOAD, False),
        (batch_subject("edge-1", "normal", "file"), str(IDENT), PAYLOAD, False),
        (SUBJECT, str(IDENT), b"others", False),
        (SUBJECT, f"{IDENT}0", PAYLOAD, False),
    ],
)
def test_a_message_is_the_batch_if_all_of_it_is(subject: str, ident: str, data: bytes, own: bool) -> None:
    message = RawMessage(9, subject, {H_MESSAGE_ID: ident}, data, "")
    assert is_own(batch(), message) is own
    assert is_own(batch(carried=True), message) is own


def test_a_message_that_is_gone_can_be_the_batch_if_an_earlier_connection_had_sent_it() -> None:
    assert not is_own(batch(), None)
    assert is_own(batch(carried=True), None)


def readings(count: int) -> bytes:
    chance = random.Random(count)
    return "".join(
        f'{{"ts":{1_790_000_000 + at / 10},"device":"pump-{chance.randrange(100)}","metric":"pressure",'
        f'"value":{chance.gauss(20, 3):.3f},"tags":{{"site":"{chance.choice(("north", "south"))}"}}}}\n'
        for at in range(count)
    ).encode()


def logged(count: int) -> bytes:
    """Lines of words, some of which are used more often than others."""
    chance = random.Random(count)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(900)]
    return "".join(
        f'{{"ts":{1_790_000_000 + at},"device":"edge-1","metric":"log",'
        f'"value":"{" ".join(words[int(900 * chance.random() ** 2)] for _ in range(12))}"}}\n'
        for at in range(count)
    ).encode()


@pytest.mark.parametrize("text", [readings(2000), logged(2000)], ids=["readings", "free text"])
def test_batches_of_an_input_take_no_more_bytes_than_at_level_1(text: bytes) -> None:
    packer, usual = Packer(), len(zstandard.compress(text, level=1))
    entries = [PendingChunk(Chunk(text, 2000), Settlement())]
    assert len(packer.pack(entries, "http")[0]) <= usual, "the first of the input, too"
    assert len(packer.pack(entries, "http")[0]) <= usual


def test_text_of_one_input_changes_nothing_for_another() -> None:
    text, packer = readings(2000), Packer()
    before = packer.pack([PendingChunk(Chunk(text, 2000), Settlement())], "http")
    packer.pack([PendingChunk(Chunk(logged(2000), 2000), Settlement())], "syslog")
    assert packer.pack([PendingChunk(Chunk(text, 2000), Settlement())], "http") == before
