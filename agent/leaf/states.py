"""Computes states of a leaf that its hub can't see (`agent.contract.leaf_state`), for `/status` and
announcements.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from agent.base.logs import last_warning, listed, time_text
from agent.base.metrics import Metrics
from agent.base.wait import loop_time
from agent.contract import LeafState
from agent.leaf.link.link import LinkView
from agent.leaf.link.status import LinkState
from agent.leaf.state import Loss
from agent.leaf.state_file import StateFile

LOST_SECONDS: Final = 3600.0
"""Time after a loss in which a leaf counts as losing."""
DOWN_SECONDS: Final = 30.0
"""Time for which an input stays announced as down; each change costs a full announcement and a hub record."""
_SAVE_SECONDS: Final = 60.0
"""Interval of saving a loss."""
CLOCK_SECONDS: Final = 60.0
"""Largest accepted difference from the hub's clock, as answers take seconds."""


@dataclass(frozen=True, slots=True)
class _Losing:
    """Losses of a class with gaps under an hour: readings, last time, and `lost` by then."""

    readings: int = 0
    at: float = -LOST_SECONDS
    counted: int = 0


class LeafStates:
    """Computes states on demand. `lost` returns a class's lost readings since start, `inputs` the expected
    inputs.

    `state` keeps losses over restarts.
    """

    def __init__(
        self,
        view: LinkView,
        classes: Iterable[str],
        metrics: Metrics,
        lost: Callable[[str], int],
        inputs: Callable[[], Iterable[str]],
        state: StateFile,
    ) -> None:
        self._view, self._metrics, self._lost, self._inputs = view, metrics, lost, inputs
        self._state, self._saved_at = state, -_SAVE_SECONDS
        self._losses = {cls: _remembered(state.current.losses.get(cls)) for cls in classes}
        self._down: dict[str, float] = {}
        """Last time each input was seen down."""

    def announced(self) -> Mapping[str, str]:
        """Return `now` without short changes."""
        return self.now(DOWN_SECONDS)

    def now(self, down_seconds: float = 0.0) -> Mapping[str, str]:
        """Return states by word, gravest first, with their subjects. Includes inputs down within
        `down_seconds`.
        """
        found = {
            LeafState.LOSING: self._losing(),
            LeafState.HELD: self._held(),
            LeafState.INPUT_DOWN: self._inputs_down(down_seconds),
            LeafState.NOT_ARRIVING: self._not_arriving(),
            LeafState.CLOCK_WRONG: self._clock(),
            LeafState.PAUSED: self._paused(),
        }
        return {state.value: about for state, about in found.items() if about}

    def _losing(self) -> str:
        now, losing = loop_time(), []
        for cls, loss in self._losses.items():
            counted, is_over = self._lost(cls), now - loss.at >= LOST_SECONDS
            if counted > loss.counted:
                earlier = 0 if is_over else loss.readings
                self._losses[cls] = _Losing(earlier + counted - loss.counted, now, counted)
                self._remember(cls, now)
            elif is_over:
                continue
            losing.append(f"{self._losses[cls].readings} of class {cls}")
        return f"{listed(losing)}; the audit names them" if losing else ""

    def _remember(self, cls: str, now: float) -> None:
        self._state.current.losses[cls] = Loss(self._losses[cls].readings, time.time())
        if now - self._saved_at >= _SAVE_SECONDS:
            self._saved_at = now
            self._state.mark()

    def _held(self) -> str:
        held = {cls: why for cls in self._losses if (why := self._view.held_back(cls)) is not None}
        reasons = list(dict.fromkeys(held.values()))
        of = {why: listed([cls for cls in held if held[cls] == why]) for why in reasons}
        return listed([f"class {of[why]}: {why}" for why in reasons], by="; ")

    def _inputs_down(self, seconds: float) -> str:
        now, names = loop_time(), set(self._inputs())
        for gauge in self._metrics.input_up.collect():
            self._down |= {sample.labels["input"]: now for sample in gauge.samples if not sample.value}
        down = sorted(name for name, at in self._down.items() if name in names and now - at <= seconds)
        said = [f"{name} ({why})" if (why := last_warning(name)) else name for name in down]
        return f"input {listed(said)}" if down else ""

    def _not_arriving(self) -> str:
        links = self._view.status.classes.values()
        return "; ".join(link.not_arriving for link in links if link.not_arriving)

    def _clock(self) -> str:
        ahead = self._view.status.clock_ahead
        if ahead is None or abs(ahead) <= CLOCK_SECONDS:
            return ""
        return f"{time_text(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'}"

    def _paused(self) -> str:
        links = self._view.status.classes
        return listed([f"class {cls}" for cls, link in links.items() if link.state is LinkState.PAUSED])


def _remembered(loss: Loss | None) -> _Losing:
    """Load a loss; with a clock set back since, it counts as now."""
    if loss is None:
        return _Losing()
    return _Losing(loss.readings, loop_time() - max(0.0, time.time() - loss.at))
