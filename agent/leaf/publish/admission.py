"""Whether a chunk may come in now: what is refused before it takes room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from agent.base.wait import loop_time
from agent.contract import AGENT_INPUT, COMMANDS_INPUT, MAX_UNPACKED_BYTES
from agent.leaf.intake import Chunk, RefusalReason, RefusedError
from agent.leaf.publish.limits import RateLimit

AWAY_GRACE = 3.0
"""How long a lost local server is waited for before chunks are refused at once."""
_OWN: Final = frozenset({AGENT_INPUT, COMMANDS_INPUT})


class Admission:
    """Refuses what cannot be stored: because the agent stops, its server is away, a stream stores nothing
    (`refusal` says why, None while it is not known not to), more comes than a command allows, or a chunk is
    larger than a batch may be."""

    def __init__(self, refusal: Callable[[str], str | None]) -> None:
        self.refusal = refusal
        self.stopping = False
        self._away_since: float | None = loop_time()
        self._rate = RateLimit()

    def server_back(self) -> None:
        """The local server takes batches."""
        self._away_since = None

    def server_away(self) -> None:
        """The local server takes none: chunks that wait go on waiting, later ones are refused after
        `AWAY_GRACE`."""
        self._away_since = loop_time()

    def limit_rate(self, readings_per_second: float | None) -> None:
        """Take in no more than this, None for no limit; what the agent itself says is exempt."""
        self._rate.limit(readings_per_second)

    def check_store(self, cls: str, *, early: bool) -> None:
        """Raises `RefusedError` where the stream of a class takes nothing; what is acknowledged `early` need
        not find the server there."""
        if self.stopping:
            raise stopping()
        if not early and self._away_since is not None and loop_time() - self._away_since > AWAY_GRACE:
            raise RefusedError(RefusalReason.UNAVAILABLE, "the local NATS server does not answer", 5.0)
        if (why := self.refusal(cls)) is not None:
            raise RefusedError(RefusalReason.UNAVAILABLE, why, 5.0)

    def check_chunk(self, input_name: str, chunk: Chunk) -> None:
        """Raises `RefusedError` for what is too large, or above the rate that a command allows."""
        if (size := len(chunk.payload)) > MAX_UNPACKED_BYTES:
            most = f"a batch has {MAX_UNPACKED_BYTES} at most; send fewer readings"
            text = f"the readings are {size} bytes with time and device, {most}"
            raise RefusedError(RefusalReason.TOO_LARGE, text)
        if input_name not in _OWN and (wait := self._rate.take(chunk.count, loop_time())) > 0:
            limited = "more readings come in than a command allows for the time being"
            raise RefusedError(RefusalReason.RATE, limited, wait)


def stopping() -> RefusedError:
    """The agent takes nothing any more."""
    return RefusedError(RefusalReason.STOPPING, "the agent is stopping", 5.0)
