"""A leaf signs its ledger records, and the hub's jobs can follow them through restarts and kills."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from agent.config import Config
from agent.config.keys import SeedError, make_key, public_key, renew_key
from agent.contract import (
    H_COUNT,
    H_MESSAGE_ID,
    H_RECEIPT,
    ledger_subject,
    parse_message_id,
    payload_digest,
)
from agent.contract.receipt import ReceiptKey, raw_key
from agent.jetstream import RawMessage
from agent.server.setup import RECEIPT_KEY, key_file
from hub_jobs.receipts.chains import Finding, Followed, Record, follow, signed_record
from hub_jobs.receipts.keys import verify
from tests.harness.agents import CLASS, StreamProbe, agent, chunk


@pytest.fixture
def key(config: Config) -> str:
    """The public half of the leaf's key."""
    file = key_file(config, RECEIPT_KEY)
    file.parent.mkdir(parents=True, exist_ok=True)
    return make_key(file)


def read(domain: str, messages: Sequence[RawMessage], *keys: str) -> tuple[list[str], Followed]:
    """The unusable records, and what follows of the others, as from bronze."""
    records, unusable, run = list[Record](), list[str](), ""
    batches: dict[str, dict[int, tuple[bytes, int]]] = {}
    known = [ReceiptKey(raw_key(key)) for key in keys]
    for message in messages:
        if message.subject == ledger_subject(domain, CLASS):
            found = signed_record(message.data, message.headers.get(H_RECEIPT), 0, known, verify)
            if isinstance(found, Finding):
                unusable.append(found.text)
            else:
                records.append(found)
                run = found.chain.run
        elif H_COUNT in message.headers:
            ident = parse_message_id(message.headers[H_MESSAGE_ID])
            count = int(message.headers[H_COUNT])
            batches.setdefault(ident.run, {})[ident.n] = payload_digest(message.data), count
            run = ident.run
    return unusable, follow((domain, CLASS), [], records, batches, run)


async def test_records_of_killed_and_stopped_runs_are_one_chain(
    probe: StreamProbe, config: Config, key: str
) -> None:
    async with agent(config) as one:
        assert one.leaf.status()["receipt_key"] == key
        await one.submit(chunk("a", 3))
        await one.submit(chunk("b", 2))
        killed = one.run
        await one.crash()
    async with agent(config) as one:
        await one.submit(chunk("c"))
        await one.stop()
    async with agent(config) as one:
        await one.submit(chunk("d"))
        await one.stop()
    unusable, found = read(config.domain, await probe.messages(), key)
    assert unusable == []
    assert [(mark.number, mark.upto, mark.last) for mark in found.marks] == [
        (1, 0, None),
        (2, 1, 1),
        (2, 1, 1),
    ]
    texts = [finding.text for finding in found.findings]
    assert texts == [f"run {killed}: batches 1, 2 are in no signed record; its leaf knew 2 batches of it"]
    assert not any(finding.contradicts for finding in found.findings)


async def test_another_key_signs_the_next_run_and_the_chain_continues(
    probe: StreamProbe, config: Config, key: str
) -> None:
    async with agent(config) as one:
        await one.submit(chunk("a"))
        await one.stop()
    new = renew_key(key_file(config, RECEIPT_KEY))
    assert new != key
    async with agent(config) as one:
        await one.submit(chunk("b"))
        await one.stop()
    messages = await probe.messages()
    assert read(config.domain, messages, new, key)[0] == []
    assert read(config.domain, messages, new, key)[1].findings == []
    unusable, _ = read(config.domain, messages, new)
    assert len(unusable) == 2
    assert all("a key that is not the leaf's" in text for text in unusable)


async def test_without_a_usable_key_readings_flow_and_records_are_unsigned(
    probe: StreamProbe, config: Config, key: str
) -> None:
    file = key_file(config, RECEIPT_KEY)
    file.write_text("SUAMISTAKE")
    with pytest.raises(SeedError):
        public_key(file)
    async with agent(config) as one:
        assert one.leaf.status()["receipt_key"] is None
        await one.submit(chunk("a"))
        await one.stop()
    unusable, _ = read(config.domain, await probe.messages(), key)
    assert len(unusable) == 2
    assert all(text.endswith("is not signed") for text in unusable)
    assert await probe.texts() == ["a/0"]


async def test_enrolment_is_the_only_maker_of_the_key(config: Config, tmp_path: Path) -> None:
    async with agent(config) as one:
        assert one.leaf.status()["receipt_key"] is None
    assert not key_file(config, RECEIPT_KEY).exists()
