"""Defines the options and subject templates of the input `nats`. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from agent.base.nats_server import subjects_overlap
from agent.config import Size
from agent.leaf.inputs.formats.message import TopicNames, fill_template, template_problem
from agent.leaf.inputs.shared import HasMapping, InputOptions, MappedOptions, NamedMap, NamedPreset

_TOKEN: Final = re.compile(r"[^\s.*>\x00-\x1f\x7f]+\Z")
_MOST: Final = 255
_TAKEN: Final = ("tel", "cmd", "petiole", "readings")
"""First tokens of the agent's own and MQTT subjects."""


class NatsOptions(MappedOptions, tag="nats", kw_only=True):
    """The options of one `nats` input. deploy/reference.toml says what each means."""

    name: str = "nats"
    subjects: list[SubjectTemplate]
    queue: str = ""
    pending: Size = Size(4 * 2**20)

    def doubles(self, other: InputOptions) -> str | None:
        if not isinstance(other, NatsOptions) or (self.queue and self.queue == other.queue):
            return None  # a queue group shares out what several of its subjects match
        for own in self.subjects:
            for theirs in other.subjects:
                if subjects_overlap(own.filter, theirs.filter):
                    return (
                        f"both receive what matches {own.filter!r:.80} and {theirs.filter!r:.80}; move it to "
                        "one of them, or give both one queue"
                    )
        return None

    @property
    def subscribe_subjects(self) -> tuple[str, ...]:
        return tuple(subject.filter for subject in self.subjects)


class SubjectTemplate(HasMapping, Struct, forbid_unknown_fields=True, kw_only=True):
    """Subjects to subscribe, with device and metric templates (`agent.leaf.inputs.formats.message`).

    Default device is the domain; an empty `metric` comes from the message.
    """

    filter: str
    device: str = ""
    metric: str = "{0}"
    map: NamedMap = None
    preset: NamedPreset = None

    def problems(self) -> Iterator[str]:
        tokens = self.filter.split(".")
        plain = [part for part in tokens if part != "*"]
        if plain and plain[-1] == ">" and tokens[-1] == ">":
            plain.pop()
        if len(self.filter.encode()) > _MOST or not all(_TOKEN.match(part) for part in plain):
            yield f"filter {self.filter!r:.80} is not a subject; write it as plant.*.temperature or plant.>"
        elif tokens[0] in (*_TAKEN, "*", ">") or tokens[0].startswith(("$", "_")):
            yield (
                f"filter {self.filter!r:.80} covers subjects of Petiole or of NATS itself; begin it with a "
                "token of your own"
            )
        yield from self.map_problems(has_topic=True)
        if self.mapping is not None and (self.device or self.metric != "{0}"):
            yield f"device or metric of {self.filter!r:.80} stands beside a mapping; write it in the [[map]]"
        for name, template in (("device", self.device), ("metric", self.metric)):
            if (problem := template_problem(template)) is not None:
                yield f"{name} {problem}"

    def place(self, subject: str) -> TopicNames:
        device = fill_template(self.device, subject, ".") or None
        return TopicNames(device, fill_template(self.metric, subject, ".") or None)


def overlapping(subjects: Sequence[SubjectTemplate]) -> Iterator[tuple[str, str]]:
    """Yield overlapping pairs of filters, whose messages would come twice."""
    for number, subject in enumerate(subjects):
        for other in subjects[:number]:
            if subjects_overlap(subject.filter, other.filter):
                yield other.filter, subject.filter
