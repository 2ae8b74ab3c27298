"""The mirror of a leaf's commands, where it takes an announcement until the fault is seen."""

from __future__ import annotations

import shutil
from pathlib import Path

from agent.contract import command_consumer
from agent.jetstream import JetStreamError
from tests.e2e.test_command_mirror import DOMAIN, Commands, running
from tests.faults.report import Case
from tests.harness.servers import open_server_pair
from tests.harness.wait import until


async def test_a_consumer_of_commands_deleted_by_hand_is_made_again_at_the_next_announcement(
    case: Case, tmp_path: Path
) -> None:
    case.expected = "every command is in the mirror once and in order, without a new epoch"
    async with (
        open_server_pair(tmp_path, DOMAIN) as servers,
        running(servers, tmp_path / "state") as (commands, one),
    ):
        epoch = one.state().command_epoch
        case.begins()
        await commands.hub.js.delete_consumer("COMMANDS", command_consumer(DOMAIN))
        await commands.send(5)
        await commands.arrived()
        case.recover_seconds = case.saw("all commands are in the mirror")
        assert one.state().command_epoch == epoch


async def test_commands_of_a_hub_that_was_put_back_are_mirrored_anew(case: Case, tmp_path: Path) -> None:
    case.expected = "the mirror holds what the hub holds, in its order"
    async with (
        open_server_pair(tmp_path, DOMAIN) as servers,
        running(servers, tmp_path / "state") as (commands, one),
    ):
        hub, epoch = servers.hub, one.state().command_epoch
        store, copy = hub.config.store_dir, tmp_path / "copy"
        await hub.kill()
        shutil.copytree(store, copy)
        await hub.start()
        await answers(commands)
        kept = list(commands.sent)
        await commands.send(5)
        await commands.arrived()
        case.begins()
        await hub.kill()
        shutil.rmtree(store)
        copy.rename(store)
        await hub.start()
        await answers(commands)
        commands.sent = kept
        await commands.send(1)
        await commands.arrived()
        case.recover_seconds = case.saw("the mirror was made anew")
        assert one.state().command_epoch != epoch


async def answers(commands: Commands) -> None:
    """Return when the hub's server answers again."""

    async def reached() -> bool:
        try:
            await commands.hub.js.stream_info("COMMANDS")
        except JetStreamError:
            return False
        return True

    await until(reached, "the hub answers")
