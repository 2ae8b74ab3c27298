"""The end of a leaf's agent: what was accepted is stored and the run is closed, as far as time permits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from agent.jetstream import JetStreamError
from agent.leaf.ledger.publisher import LedgerPublisher
from agent.leaf.publish.publisher import Publisher
from agent.leaf.publish.sender import Sender
from agent.leaf.state import StateFile

log = structlog.get_logger("leaf")


async def drain(
    inputs: Sequence[asyncio.Task[None]],
    publisher: Publisher,
    sender: Sender,
    books: LedgerPublisher,
    state: StateFile,
    seconds: float,
) -> None:
    """Settle what is in flight and close the run, within so many seconds. The inputs have been told to take
    in nothing new."""
    log.info("draining", at_most_seconds=seconds)
    try:
        async with asyncio.timeout(seconds):
            # What an input has read already it may still hand in.
            publisher.flush()
            await asyncio.gather(*inputs)
            publisher.stop()
            await sender.drained()
            await books.close()
            log.info("drained: all that was accepted is stored, the run is closed")
    except TimeoutError:
        log.error("not drained in time: the run stays open, its tail is named by the audit")
    except (JetStreamError, OSError) as error:
        log.error("the run could not be closed, its tail is named by the audit", error=str(error))
    sender.abandon()
    books.remember()
    for task in inputs:
        task.cancel()
    try:
        await state.save()
    except OSError as error:
        log.error("the state file cannot be written", error=str(error))
