"""From a topic to device and metric, by templates. Pure."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from agent.leaf.inputs.formats.message import TopicNames
from agent.leaf.inputs.shared.templates import filled, template_problem

_MOST: Final = 65_535
_SHARED: Final = re.compile(r"\$share/[^/+#]+/")


class Topic(Struct, forbid_unknown_fields=True, kw_only=True):
    """Topics to subscribe to, and what they say of their messages: in `device` and `metric` `{1}` is the
    first level, `{2}` the second, `{2+}` the second and all after it with dots between, `{0}` the whole
    topic. Without `device` it is the domain; an empty `metric` leaves it to the message."""

    filter: str
    device: str = ""
    metric: str = "{0}"

    def problems(self) -> list[str]:
        """What is wrong with it."""
        found = []
        levels = _own(self.filter).split("/")
        wrong = any(("#" in one or "+" in one) and len(one) > 1 for one in levels) or "#" in levels[:-1]
        if wrong or not 1 <= len(self.filter.encode()) <= _MOST or not self.filter.isprintable():
            found.append(f"filter {self.filter!r:.80} is no topic filter of MQTT, such as plant/+/#")
        for name, template in (("device", self.device), ("metric", self.metric)):
            if (problem := template_problem(template)) is not None:
                found.append(f"{name} {problem}")
        return found

    def matches(self, topic: str) -> bool:
        """Whether the filter covers a topic."""
        levels, wanted = topic.split("/"), _own(self.filter).split("/")
        if wanted[-1] == "#":
            wanted.pop()
            if len(levels) < len(wanted):
                return False
        elif len(levels) != len(wanted):
            return False
        return all(want in ("+", level) for level, want in zip(levels, wanted, strict=False))

    def place(self, topic: str) -> TopicNames:
        """What the topic says."""
        device = filled(self.device, topic, "/") or None
        return TopicNames(device, filled(self.metric, topic, "/") or None)


def place_of(topics: list[Topic], topic: str) -> TopicNames | None:
    """What the first entry that covers a topic makes of it; None where none does."""
    return next((one.place(topic) for one in topics if one.matches(topic)), None)


def _own(filter_: str) -> str:
    """The filter of a shared subscription without its group."""
    return _SHARED.sub("", filter_, count=1)
