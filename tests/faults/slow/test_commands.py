"""Commands on a leaf whose agent is killed over and over."""

from __future__ import annotations

from pathlib import Path

from tests.faults.report import Case
from tests.harness.agents import leaf_config
from tests.harness.commands import open_desk
from tests.harness.leaf_process import LeafProcess
from tests.harness.servers import open_server_pair

_SENT = 60


async def test_an_agent_that_is_killed_over_and_over_answers_each_command_once(
    case: Case, tmp_path: Path
) -> None:
    case.expected = "each command is answered once and in order, as done or as interrupted"
    async with open_server_pair(tmp_path, "edge-1") as servers, open_desk(servers) as desk:
        config = leaf_config(servers.leaf, tmp_path / "agent")
        config.state_dir.mkdir()
        for _ in range(_SENT):
            await desk.send("flush")
        for answered in (5, 20, 40, _SENT):
            process = await LeafProcess.start(config)
            await desk.answers(answered)
            await process.kill()
        answers = await desk.answers(_SENT)
    interrupted = sum(one.outcome == "interrupted" for one in answers)
    case.seen.append(f"{_SENT} commands, {len(answers)} answers, {interrupted} of them interrupted")
    assert [one.id for one in answers] == desk.sent
    assert {one.outcome.value for one in answers} <= {"done", "interrupted"}
    assert interrupted <= 3
