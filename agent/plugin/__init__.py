"""What a package that brings an input may import of Petiole, and nothing else: docs/write-an-input.md.

The names in `__all__`, with what their docstrings say, are stable: `API_VERSION` says of which version. Of
`ConfiguredInput` these are `name`, `run`, `_mistakes`, `_obstacles`, `_options`, `_log` (structlog), and
`_metrics` to hand to `RetryingSubmitter` and for its counter `invalid` (labels: input, reason). A subclass
leaves the constructor as it is, for what it is called with may grow.
"""

from agent.base.clock import wall_ns
from agent.base.logs import LogEdge
from agent.base.wait import event_within, unless
from agent.config import Seconds, Size
from agent.contract import Letter, make_request, request_scope
from agent.leaf.inputs.formats import Parsed, split_valid
from agent.leaf.inputs.plugins import API_VERSION
from agent.leaf.inputs.shared import ConfiguredInput, InputOptions
from agent.leaf.inputs.shared.submitter import RetryingSubmitter
from agent.leaf.intake import Chunk, Intake, RefusedError, ResumePoint, UnknownOutcomeError

__all__ = [
    "API_VERSION",
    "Chunk",
    "ConfiguredInput",
    "InputOptions",
    "Intake",
    "Letter",
    "LogEdge",
    "Parsed",
    "RefusedError",
    "ResumePoint",
    "RetryingSubmitter",
    "Seconds",
    "Size",
    "UnknownOutcomeError",
    "event_within",
    "make_request",
    "request_scope",
    "split_valid",
    "unless",
    "wall_ns",
]
