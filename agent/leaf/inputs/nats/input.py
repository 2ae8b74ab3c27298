"""The input `nats`: subscribes to core subjects of the leaf's own server, on which programs of this machine
publish, and makes readings of their messages.

A payload is a bare value in JSON (`21.5`, `true`, `"open"`), a reading, an object whose members are values
(each a reading, its name behind the metric), or several of these, one a line. What a message does not say of
itself its subject says, by templates.

A message that is a request (it has a reply subject) is answered in JSON once it is stored, as a whole or not
at all: `{"stored": 2}`, or `{"refused": "the reason"}`, with `"retry": 5` (seconds) when it would not be
refused again. With the header `Nats-Msg-Id` a request that is repeated within ten minutes is stored once;
each subject has ids of its own. `{"unknown": "…"}` says that the outcome is unknown: repeat the request under
its id.

Other messages are not answered. What is no reading becomes a dead letter; what comes while `pending` bytes
wait to be stored, or faster than it can be read, is dropped and counted (`petiole_dropped_messages_total`);
what is published while the agent or its connection is down is lost. A program that needs more publishes
requests, or to the stream itself, on `tel.<domain>.<class>.<device>.<metric>`.

On an embedded server the key of local programs (`device_seed_file`) may publish to the filters, and the
agent's subscribe to them and answer. On one of your own give the agent's user `subscribe` for each filter and
`allow_responses`, and the programs `publish`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Final

from agent.leaf.inputs.nats.options import NatsOptions, overlapping
from agent.leaf.inputs.shared.base import ConfiguredInput
from agent.leaf.intake import Intake

_QUEUE: Final = re.compile(r"[^\s.*>\x00-\x1f\x7f]{0,64}\Z")
_LEAST_PENDING: Final = 64 * 1024


class NatsInput(ConfiguredInput[NatsOptions]):
    """One `nats` input."""

    def _mistakes(self) -> Iterator[str]:
        options = self._options
        if not options.subjects:
            yield "there is no subject; write [[input.subjects]] with its filter"
        for subject in options.subjects:
            yield from subject.problems()
        for filter_, other_filter in overlapping(options.subjects):
            yield f"filters {filter_!r:.80} and {other_filter!r:.80} overlap; make them distinct"
        if not _QUEUE.match(options.queue):
            yield f"queue {options.queue!r:.80} is no name of a queue group; leave out dots and blanks"
        if options.pending < _LEAST_PENDING:
            yield f"pending is {options.pending} bytes; take 64KiB at least"

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Hear messages until `stopping` is set, then store and answer what has come."""
        # Imported here, so that an agent without such an input does not hold it in memory.
        from agent.leaf.inputs.nats.subscriber import Subscriber

        await Subscriber(self._options, self._metrics, self._server, intake, stopping).run()
