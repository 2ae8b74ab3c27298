"""A tailed file whose lines the hub has, the stream has not any more, and the state file is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.base.metrics import Metrics
from agent.config import Config, Seconds, StreamClass
from agent.leaf.events import Events
from agent.leaf.inputs.file import FileOptions
from agent.leaf.inputs.file.input import FileInput
from agent.leaf.link.act import Trimmer
from agent.leaf.state_file import StateError, load
from tests.harness.agents import CLASS, Agent, StreamProbe, agent, leaf_config
from tests.harness.linked_pair import QUICK
from tests.harness.servers import ServerPair
from tests.harness.wait import until


class Tail:
    """A file that an agent tails."""

    def __init__(self, config: Config, path: Path) -> None:
        self.config, self.path = config, path
        self.written = 0

    def write(self, lines: int) -> list[str]:
        """Append numbered lines; the texts that are to be stored for them."""
        numbers = range(self.written, self.written + lines)
        with self.path.open("a") as file:
            file.writelines(f'{{"metric":"n","value":"line {number}"}}\n' for number in numbers)
        self.written += lines
        return [f"line {number}" for number in numbers]

    def agent(self, **options: object) -> FileInput:
        """The input, with these options beside its path."""
        given = FileOptions(name="tail", path=str(self.path), poll=Seconds(0.02), **options)  # type: ignore[arg-type]
        self.config.input = [given]
        return FileInput(given, Metrics())


@pytest.fixture
def tail(servers: ServerPair, tmp_path: Path) -> Tail:
    """A file, and the configuration of an agent beside the first leaf's server."""
    config = leaf_config(servers.leaf, tmp_path / "state", QUICK, StreamClass())
    return Tail(config, tmp_path / "sensor.ndjson")


async def holds(probe: StreamProbe, texts: list[str]) -> None:
    """Return once the stream holds these lines, and see that it holds no others."""

    async def reached() -> bool:
        return len(await probe.texts()) >= len(texts)

    await until(reached, f"{texts} are stored")
    assert await probe.texts() == texts


async def trim(one: Agent, probe: StreamProbe) -> None:
    """Take away all but the last message, which is the run's last record, as the agent does."""
    await one.leaf._ledger_publisher._publish(probe.js, CLASS, final=False)

    async def nothing(*_: object) -> None:
        return

    trimmer = Trimmer(
        one.leaf._state, one.metrics, Events(), allowed=lambda: True, prepare=nothing, note=nothing
    )
    info = await probe.js.stream_info(probe.stream)
    await trimmer.trim(probe.js, CLASS, info, info.last)
    assert await probe.texts() == []


def removed(path: Path, domain: str) -> None:
    path.unlink()


def moved_away_as_told(path: Path, domain: str) -> None:
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(StateError, match=r"move it away .* leave positions\.json where it is"):
        load(path, domain)
    path.rename(path.with_name("state.damaged"))


@pytest.mark.parametrize("lost", [removed, moved_away_as_told])
async def test_a_lost_state_file_stores_no_line_again(
    probe: StreamProbe, tail: Tail, lost: Callable[[Path, str], None]
) -> None:
    async with agent(tail.config, [tail.agent()]) as one:
        await holds(probe, tail.write(5))
        await trim(one, probe)
        await one.crash()
    lost(one.state_path, tail.config.domain)
    async with agent(tail.config, [tail.agent()]):
        await holds(probe, tail.write(1))


async def test_without_any_position_a_file_does_not_begin_unless_the_configuration_says_where(
    probe: StreamProbe, tail: Tail, capsys: pytest.CaptureFixture[str]
) -> None:
    async with agent(tail.config, [tail.agent()]) as one:
        await holds(probe, tail.write(5))
        await trim(one, probe)
        await one.crash()
    for path in tail.config.state_dir.glob("*.json"):
        path.unlink()
    for _ in range(2):  # it is remembered
        async with agent(tail.config, [tail.agent()]) as one:
            said = ""

            def is_refused() -> bool:
                nonlocal said
                said += "".join(capsys.readouterr())
                return "is lost with the state file" in said

            await until(is_refused, "the input does not begin")
            assert 'set start = "end" or start = "beginning"' in said.replace("\\", ""), "in JSON too"
            assert await probe.texts() == []
    async with agent(tail.config, [tail.agent(start="beginning")]) as one:
        await holds(probe, [f"line {number}" for number in range(5)])
        await one.stop()
    async with agent(tail.config, [tail.agent()]) as one:
        assert one.state().unplaced == []
        await holds(probe, [*(await probe.texts()), *tail.write(1)])


async def test_a_removed_class_that_the_agent_may_not_read_holds_up_no_input(
    probe: StreamProbe, tail: Tail
) -> None:
    async with agent(tail.config, [tail.agent()]) as one:
        await holds(probe, tail.write(1))
        one.leaf._state.current.epochs["old"] = one.state().epochs[CLASS]
        await one.leaf._state.save()
        await one.crash()
    async with agent(tail.config, [tail.agent()]):
        await holds(probe, ["line 0", *tail.write(1)])


async def test_an_input_that_is_new_begins_after_the_state_file_was_lost(
    probe: StreamProbe, tail: Tail, tmp_path: Path
) -> None:
    async with agent(tail.config, [tail.agent()]) as one:
        await holds(probe, tail.write(1))
        await one.stop()
    one.state_path.unlink()
    async with agent(tail.config, [tail.agent()]) as one:
        assert one.state().unplaced == ["tail"]
        await holds(probe, ["line 0"])
        await one.stop()
    tail.path = tmp_path / "other.ndjson"
    other = FileOptions(name="other", path=str(tail.path), poll=Seconds(0.02))
    tail.config.input = [other]
    async with agent(tail.config, [FileInput(other, Metrics())]):
        await holds(probe, ["line 0", *tail.write(1)])


async def test_lines_that_no_server_could_take_are_stored_after_their_file_was_rotated(
    servers: ServerPair, probe: StreamProbe, tail: Tail
) -> None:
    async with agent(tail.config, [tail.agent()]) as one:
        await until((tail.config.state_dir / "catalogues" / "tail.json").exists, "the first look is kept")
        await one.crash()
    lines = tail.write(3)
    tail.path.rename(tail.path.with_name(f"{tail.path.name}.1"))
    lines += tail.write(1)
    async with agent(tail.config, [tail.agent()]):
        await holds(probe, lines)
