"""Whose message a stream holds under the id of a batch."""

from __future__ import annotations

import pytest

from agent.contract import H_MESSAGE_ID, MessageId, batch_subject
from agent.jetstream import RawMessage
from agent.leaf.publish.batch import Batch, is_own

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
