"""Splits messages into readings and dead letters, in order. No I/O."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field
from structlog.typing import FilteringBoundLogger

from agent import contract
from agent.base.clock import wall_ns
from agent.base.logs import Sparse, listed
from agent.base.metrics import Metrics
from agent.contract import Letter
from agent.leaf.inputs.formats import MAX_LINE, split_valid
from agent.leaf.inputs.formats.message import MessageError, message_lines, metric_of, tagged
from agent.leaf.inputs.mqtt import MqttOptions, TopicTemplate, template_of
from agent.leaf.inputs.mqtt.redelivery import MessageIdentity, Redelivery, identity_of
from agent.leaf.inputs.shared.value_memory import SourceValue, ValueMemory, value_of
from agent.leaf.intake import Chunk

if TYPE_CHECKING:
    from agent.leaf.inputs.mqtt.session import Received
    from agent.leaf.inputs.mqtt.sparkplug import NodeCommand, SparkplugDecoder, Taken
    from agent.leaf.inputs.shared.mapped import PayloadMapper
    from agent.mapping.schema import Map

_FULL: Final = 2_500
"""Lines at which a piece with Sparkplug or a mapping takes no more; one message may have twice that."""


RETAINED: Final = "retained"
"""Tag of readings from retained messages of unknown age."""


class MessagePiece(Struct):
    """Messages submitted together, as `count` readings and letters."""

    messages: list[Received] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    count: int = 0
    letters: list[Letter] = field(default_factory=list)
    values: dict[bytes, bytes] = field(default_factory=dict)
    """Newest content per topic, as digests."""

    @property
    def lines(self) -> int:
        """Number of readings and letters."""
        return self.count + len(self.letters)

    def chunk(self, position: str | None = None) -> Chunk:
        """Return the chunk; without position its letters are submitted separately."""
        letters = () if position is None else tuple(self.letters)
        return Chunk(b"".join(self.payloads), self.count, position=position, letters=letters)


class SortedMessages(Struct):
    """The first `taken` messages: `piece` must be stored, `lossy` is dropped if not stored at once,
    `commands` are published.
    """

    piece: MessagePiece = field(default_factory=MessagePiece)
    lossy: MessagePiece = field(default_factory=MessagePiece)
    commands: list[NodeCommand] = field(default_factory=list)
    taken: int = 0


class Sorter:
    """Splits the messages of one input."""

    def __init__(
        self,
        options: MqttOptions,
        redelivery: Redelivery,
        memory: ValueMemory,
        metrics: Metrics,
        log: FilteringBoundLogger,
    ) -> None:
        self._topics, self._name, self._log = options.entries, options.name, log
        self._retained = options.retained
        self._redelivery, self._memory, self._metrics = redelivery, memory, metrics
        self._skipped = metrics.skipped_retained.labels(options.name)
        self._sparse = Sparse()
        self.has_sparkplug = any(topic.format == "sparkplug" for topic in self._topics)
        self._mappers: dict[int, PayloadMapper] = {}
        """By identity of the entry in `_topics`, as `_names`."""
        self._names = {id(topic): topic.names for topic in self._topics}
        self._most = max((topic.most_readings for topic in self._topics), default=1)
        self.sparkplug: SparkplugDecoder | None = None

    def sort(self, messages: list[Received], new: list[bool], domain: str) -> SortedMessages:
        """Split as many messages as fit a piece, at least one; messages not `new` are stored."""
        part = SortedMessages()
        for message, is_new in zip(self._fitting(messages, new), new, strict=False):
            if (self.has_sparkplug or self._mappers) and max(part.piece.lines, part.lossy.lines) >= _FULL:
                break
            part.taken += 1
            template = template_of(self._topics, message.topic)
            is_sparkplug = template is not None and template.format == "sparkplug"
            piece = part.piece if message.qos or is_sparkplug else part.lossy
            value = self._value(message, template)
            if is_new and self._is_skipped(message, value, piece.values):
                self._skipped.inc()
                continue
            if self._retained == "once":
                piece.values[value.source] = value.content
            if not is_new:
                continue
            if message.qos and not message.repeat:
                self._redelivery.note(identity(message))
            piece.messages.append(message)
            if is_sparkplug:
                self._take_sparkplug(message, part)
            else:
                self._take_json(message, template, domain, piece)
        return part

    def stored_messages(self, messages: list[Received], new: list[bool]) -> list[Received]:
        """Return the `new` QoS 1 messages to store."""
        chosen, values = [], dict[bytes, bytes]()
        for message, is_new in zip(messages, new, strict=True):
            value = self._value(message, template_of(self._topics, message.topic))
            if not message.qos or (is_new and self._is_skipped(message, value, values)):
                continue
            values[value.source] = value.content
            if is_new:
                chosen.append(message)
        return chosen

    def _value(self, message: Received, template: TopicTemplate | None) -> SourceValue:
        """Return the digest of a message's value, distinct per names."""
        names = () if template is None else self._names[id(template)]
        return value_of(message.topic.encode(errors="surrogatepass"), message.payload, *names)

    def _is_skipped(self, message: Received, value: SourceValue, before: dict[bytes, bytes]) -> bool:
        """Tell whether to skip a retained message; `before` has values being stored with it."""
        if not message.retained or self._retained == "tag":
            return False
        if self._retained == "skip" or before.get(value.source) == value.content:
            return True
        return value.source not in before and self._memory.is_known(value)

    def _fitting(self, batch: list[Received], new: list[bool]) -> list[Received]:
        """Return messages that surely fit a piece, at least one; a large one alone, as it may be refused."""
        lines = 0
        for index, (message, is_new) in enumerate(zip(batch, new, strict=True)):
            if not is_new:
                continue
            is_large, is_first = len(message.payload) > contract.MAX_BATCH_BYTES, not lines
            lines += min(self._most * (1 + message.payload.count(b",")), contract.MAX_BATCH_READINGS)
            if not is_first and (is_large or lines > contract.MAX_BATCH_READINGS):
                return batch[:index]
            if is_large:
                return batch[: index + 1]
        return batch

    def _take_json(
        self, message: Received, template: TopicTemplate | None, domain: str, piece: MessagePiece
    ) -> None:
        if len(message.payload) > MAX_LINE:
            self._refuse(message, "too_large", f"longer than {MAX_LINE} bytes", piece)
        elif template is not None and template.mapping is not None:
            self._take_mapped(message, template, template.mapping, domain, piece)
        elif template is None:
            # Of a subscription of an earlier configuration, which the broker still keeps.
            self._refuse(message, "bad_topic", "no filter covers its topic any more", piece)
        else:
            try:
                lines = message_lines(message.payload, template.place(message.topic))
                if message.retained:
                    lines = [tagged(line, RETAINED) for line in lines]
            except MessageError as error:
                self._refuse(message, "bad_message", str(error), piece)
                return
            block = b"\n".join(lines)
            parsed = split_valid(block, domain, wall_ns())
            if parsed.bad and parsed.count:
                self._keep(_odd_members(message, block, parsed.bad), "bad_message", len(parsed.bad), piece)
            elif parsed.bad:
                self._refuse(message, "bad_message", parsed.bad[0][1], piece)
            piece.payloads.append(parsed.payload)
            piece.count += parsed.count

    def _take_mapped(
        self, message: Received, template: TopicTemplate, given: Map, domain: str, piece: MessagePiece
    ) -> None:
        mapper = self._mappers.get(id(template))
        if mapper is None:
            from agent.leaf.inputs.shared.mapped import PayloadMapper  # not held in memory without mappings

            mapper = self._mappers[id(template)] = PayloadMapper(given, domain)
        mark = RETAINED if message.retained else None
        found = mapper.take(message.payload, message.topic, wall_ns(), mark)
        if found.letter is not None:
            self._keep(found.letter, "bad_message", found.odd, piece)
        if found.no_value:
            self._metrics.missing_values.labels(self._name).inc(found.no_value)
        piece.payloads.append(found.payload)
        piece.count += found.count

    def _take_sparkplug(self, message: Received, part: SortedMessages) -> None:
        assert self.sparkplug is not None, "the input makes it"
        taken = self.sparkplug.take(
            message.topic, message.payload, time.monotonic(), wall_ns(), repeat=message.repeat
        )
        if message.retained:
            taken.payload = b"".join(tagged(line, RETAINED) + b"\n" for line in taken.payload.splitlines())
        self._add(taken, message.topic, part)

    def decided(self) -> MessagePiece:
        """Return the deaths of edge nodes that are due."""
        part = SortedMessages()
        if self.sparkplug is not None:
            self._add(self.sparkplug.decide(time.monotonic(), wall_ns()), "", part)
        return part.piece

    def _add(self, taken: Taken, topic: str, part: SortedMessages) -> None:
        part.piece.payloads.append(taken.payload)
        part.piece.count += taken.count
        for refusal in taken.refused:
            self._keep(refusal.letter, refusal.reason, refusal.times, part.piece)
        self._metrics.source_gaps.labels(self._name).inc(len(taken.gaps))
        for gap in taken.gaps:
            self._warn("messages may be missing", topic, gap.reason)
        for command in taken.commands:
            self._log.info("rebirth requested", topic=command.topic)
            part.commands.append(command)

    def _refuse(self, message: Received, reason: str, text: str, piece: MessagePiece) -> None:
        self._keep(Letter(message.payload, message.topic, text), reason, 1, piece)

    def _keep(self, letter: Letter, reason: str, times: int, piece: MessagePiece) -> None:
        """Keep, count and log an invalid message."""
        piece.letters.append(letter)
        self._metrics.invalid.labels(self._name, reason).inc(times)
        self._warn("message not taken", letter.at, letter.reason)

    def _warn(self, event: str, topic: str, reason: str) -> None:
        self._sparse.report(self._log.warning, event, topic=topic[:200], reason=reason)


def identity(message: Received) -> MessageIdentity:
    """Return a message's identity."""
    return identity_of(message.packet_id, message.topic, message.payload)


def _odd_members(message: Received, block: bytes, bad: Sequence[tuple[int, str]]) -> Letter:
    """Return a letter with the invalid lines of a partly valid message."""
    lines = [block[offset : block.find(b"\n", offset) % (len(block) + 1)] for offset, _ in bad]
    names = listed([metric_of(line) for line in lines])
    return Letter(b"\n".join(lines), message.topic, f"{bad[0][1]}: {names}")
