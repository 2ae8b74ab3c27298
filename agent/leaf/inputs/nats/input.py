"""The input `nats`: hears what other programs on this machine publish on the leaf's own server, on core
subjects that no stream takes, and makes readings of it.

A payload is a bare value in JSON (`21.5`, `true`, `"open"`), a reading, an object whose members are values
(each a reading, its name behind the metric), or several of these, one a line. What a message does not say of
itself its subject says, by templates.

A message that is a request (it has a reply subject) is answered in JSON once it is stored, as a whole or not
at all: `{"stored": 2}`, or `{"refused": "the reason"}`, with `"retry": 5` (seconds) when it would not be
refused again. With the header `Nats-Msg-Id` a request that is repeated within ten minutes is stored once;
each subject has ids of its own.
`{"unknown": "…"}` says that nobody knows yet: repeat it under its id.

Nobody is told what becomes of other messages: what is no reading becomes a dead letter; what comes while
`pending` bytes wait to be stored is dropped and counted (`petiole_dropped_messages_total`), as is what
comes faster than it can be read; what is published while the agent or its connection is down is lost. Whoever
needs more publishes requests, or to the stream itself, on `tel.<domain>.<class>.<device>.<metric>`.

On an embedded server the key of local programs (`device_seed_file`) may publish to the filters, and the
agent's subscribe to them and answer. On one of your own give the agent's user `subscribe` for each filter
and `allow_responses`, and the programs `publish`.

Options (`[[input]]` with `type = "nats"`):
- `name` ("nats"): names the input in batch subjects and metrics.
- `class` ("normal"): the class of its readings.
- `subjects`: a table each, `[[input.subjects]]`, whose filters do not overlap:
  - `filter`: a subject, with the wildcards of NATS.
  - `device` (the domain), `metric` ("{0}"): templates; `{1}` is the first token, `{2+}` the second and all
    after it, `{0}` the whole subject. An empty `metric` leaves it to the message.
- `queue` (""): a queue group, whose members share the messages.
- `pending` ("4MiB"): bytes of messages that wait to be stored.
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
        for one, other in overlapping(options.subjects):
            yield f"filters {one!r:.80} and {other!r:.80} overlap; make them distinct"
        if not _QUEUE.match(options.queue):
            yield f"queue {options.queue!r:.80} is no name of a queue group; leave out dots and blanks"
        if options.pending < _LEAST_PENDING:
            yield f"pending is {options.pending} bytes; take 64KiB at least"

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Hear messages until `stopping` is set, then store and answer what has come."""
        # Imported here, so that an agent without such an input does not hold it in memory.
        from agent.leaf.inputs.nats.subscriber import Subscriber

        await Subscriber(self._options, self._metrics, self._server, intake, stopping).run()
