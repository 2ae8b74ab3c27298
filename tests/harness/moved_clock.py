"""`petiole` on a machine whose clock a test moves: `python -m tests.harness.moved_clock FILE run -c …`. FILE
holds by how many ns the wall clock is behind, and the state that the kernel tells of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from agent.base import clock
from agent.cli.main import main
from tests.harness.clocks import FakeMachine


class FileMachine(FakeMachine):
    """Clocks as the file has them now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(*json.loads(path.read_text()))

    def look(self) -> None:
        """Take over what the file says."""
        self.behind, self.boot, self.state = json.loads(self._path.read_text())

    def wall(self) -> int:
        """Ns since 1970, as the machine has it."""
        self.look()
        return super().wall()


if __name__ == "__main__":
    clock.machine = FileMachine(Path(sys.argv.pop(1)))
    main()
