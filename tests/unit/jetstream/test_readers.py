"""Where a delivered message is stored, by its reply subject."""

from __future__ import annotations

import pytest

from agent.jetstream.readers import ack_position


def test_the_short_form_is_read() -> None:
    reply = "$JS.ACK.TEL_a_normal.consumer.1.42.7.1700000000500000000.3"
    assert ack_position(reply) == (42, 1700000000.5)


def test_the_form_with_domain_and_account_is_read() -> None:
    reply = "$JS.ACK.edge-1.AbCdEf.TEL_a_normal.consumer.1.42.7.1700000000500000000.3.tOkEn"
    assert ack_position(reply) == (42, 1700000000.5)


def test_the_form_with_domain_and_without_a_last_token_is_read() -> None:
    assert ack_position("$JS.ACK._.AbCdEf.S.c.1.42.7.1700000000500000000.3") == (42, 1700000000.5)


@pytest.mark.parametrize(
    "reply", ["", "_INBOX.x", "$JS.ACK.S.c", "$JS.FC.S.c.1.42.7.1.3", "$JS.ACK.S.c.1.x.7.1.3"]
)
def test_another_subject_is_refused(reply: str) -> None:
    with pytest.raises(ValueError):
        ack_position(reply)
