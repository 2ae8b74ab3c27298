"""The options of the input `nats`."""

from __future__ import annotations

from agent.config import Size
from agent.leaf.inputs.nats.subjects import SubjectTemplate
from agent.leaf.inputs.shared.options import InputOptions


class NatsOptions(InputOptions, tag="nats", kw_only=True):
    """The options of one `nats` input; the module says what each means."""

    name: str = "nats"
    subjects: list[SubjectTemplate]
    queue: str = ""
    pending: Size = Size(4 * 2**20)

    @property
    def heard(self) -> tuple[str, ...]:
        """The subjects that the agent's user must be let subscribe to, and local programs publish to."""
        return tuple(one.filter for one in self.subjects if one is not None)
