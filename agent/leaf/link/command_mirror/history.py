"""Whether the mirror holds the same commands as the hub. Pure.

A hub that was restored from an older copy uses sequences again. A mirror that was ahead of it drops the new
commands up to its own last sequence and takes those after it, so its newest command is soon the hub's newest
again (seen on nats-server 2.15.1). So each command that was mirrored is compared once, with the newest one
that was found to be the same, by sequence and by when the hub stored it.
"""

from __future__ import annotations

from agent.contract import COMMANDS_CHECKED, CommandKey


class History:
    """The commands of the mirror that the hub was not asked about yet. `agreed` is the newest one up to which
    it was found to hold the same, None in a mirror that was just made."""

    def __init__(self, agreed: CommandKey | None) -> None:
        self.agreed = agreed
        self._since: list[CommandKey] = []
        self._newest = agreed

    def reads_from(self, newest: CommandKey | None) -> int | None:
        """The sequence from which the mirror, which ends with `newest`, has to be read on; None where enough
        is known of it."""
        self._newest = newest
        known = self._since[-1:] or ([] if self.agreed is None else [self.agreed])
        top = known[0][0] if known else 0
        if newest is None or newest[0] <= top or len(self._since) >= COMMANDS_CHECKED:
            return None
        return top + 1

    def add(self, command: CommandKey) -> None:
        """The mirror holds this command after those that are known."""
        self._since.append(command)

    def question(self) -> tuple[CommandKey, ...]:
        """The commands to ask the hub about, the oldest first. The newest one is always among them: a hub
        that is behind the mirror is found at once."""
        asked = self._in_turn()
        newest = self._newest
        return (*asked, newest) if newest is not None and newest[0] > max(asked, default=(0, 0))[0] else asked

    def answered(self, asked: tuple[CommandKey, ...], same: bool | None) -> None:
        """The hub's answer to a question. What it can't compare, since it has dropped those commands, counts
        as the same."""
        known = [one for one in self._in_turn() if one in asked]
        if same is not False and known:
            self.agreed = known[-1]
            self._since = [one for one in self._since if one[0] > self.agreed[0]]

    def _in_turn(self) -> tuple[CommandKey, ...]:
        known = () if self.agreed is None else (self.agreed,)
        return (*known, *self._since)[: COMMANDS_CHECKED - 1]
