"""The last commands that this leaf has run, each by its identity, so that a command is known again in another
history of the hub's stream. Pure.

A mirror may hold commands of two histories: of a stream that was recreated or restored from a backup it drops
what has sequences that it holds already, and takes what comes after. The mirror that replaces it brings the
dropped commands, which were stored before others that were run. So neither the last sequence nor the last
time says which commands are new; the commands that were run do.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

KNOWN: Final = 256
"""Far more than a mirror takes in until it is compared with the hub and recreated."""

RunCommand = tuple[int, int, str]
"""The sequence of a command, when the hub stored it (ns since 1970), and its id ("" for one that could not be
read)."""


class RecentCommands(Struct):
    """The last `KNOWN` commands that were begun or answered, in the order in which they were taken; the hub
    had stored all the others that were run by `before` (ns since 1970)."""

    before: int = 0
    commands: list[RunCommand] = []

    def add(self, command: RunCommand) -> None:
        """This command is begun, or answered without."""
        if command in self.commands:
            return
        self.commands.append(command)
        while len(self.commands) > KNOWN:
            self.before = max(self.before, self.commands.pop(0)[1])

    def reach(self, seq: int, time: int, ident: str) -> None:
        """The last command known to be run is this one; `time` is when the hub had stored it and all before
        it. Where the list ends before it, commands are missing in the list: what was stored by then counts
        as run."""
        if self.order(seq, time, ident) is None:
            self.before = max(self.before, time)

    def order(self, seq: int, time: int, ident: str) -> int | None:
        """Where in the list the command of this sequence and id is that was stored by `time`."""
        return max(
            (
                at
                for at, (known_seq, known_time, known_id) in enumerate(self.commands)
                if (known_seq, known_id) == (seq, ident) and known_time <= time
            ),
            default=None,
        )
