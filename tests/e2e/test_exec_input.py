"""The `exec` input runs real commands, before a core that keeps what it is given in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.base.metrics import Metrics
from agent.cli.configuration import problems
from agent.config import Seconds, Size
from agent.leaf.inputs.exec import ExecOptions, program
from agent.leaf.inputs.exec.input import ExecInput
from agent.leaf.inputs.exec.program import shown
from agent.leaf.intake import RefusalReason, RefusedError
from tests.harness.http_harness import on_uvloop
from tests.harness.intakes import RunningInput, stopped_in_time
from tests.harness.wait import until, wait_for

LINE = '{"metric": "n", "value": %s}'
ORPHANS = """
import os, signal, sys, time
for own_session in (False, True):
    if not os.fork():
        if own_session:
            os.setsid()
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with open(f"{sys.argv[1]}/{own_session}", "w") as file:
            file.write(str(os.getpid()))
        time.sleep(600)
def begun(one):
    path = f"{sys.argv[1]}/{one}"
    return os.path.exists(path) and os.path.getsize(path)
while not (begun(True) and begun(False)):
    time.sleep(0.01)
print('{"metric": "n", "value": 1}', flush=True)
"""


@contextlib.asynccontextmanager
async def running(command: list[str], **options: Any) -> AsyncIterator[RunningInput]:
    metrics = Metrics()
    made = ExecInput(ExecOptions(command=command, **options), metrics)
    async with stopped_in_time(RunningInput(made, metrics)) as one:
        yield one


def python(text: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", text, *map(str, arguments)]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def orphans(directory: Path) -> list[int]:
    return [int(one.read_text()) for one in directory.iterdir() if one.read_text()]


@on_uvloop
async def test_a_command_is_run_at_intervals_and_its_lines_are_stored(tmp_path: Path) -> None:
    text = (
        "import os\n"
        'print(\'{"metric": "n", "value": "%s %s"}\' % (os.getcwd(), os.environ[\'MORE\']))\n'
        "print('nonsense')\n"
    )
    async with running(
        python(text), interval=Seconds(0.2), directory=tmp_path, environment={"MORE": "more"}
    ) as one:
        await until(lambda: len(one.core.values()) >= 2, "it ran twice")
        assert set(one.core.values()) == {f"{tmp_path} more"}
        await until(lambda: bool(one.core.letters), "what is not a reading is kept")
        assert one.core.letters[0].received == b"nonsense"
        assert one.value("petiole_invalid_requests_total", reason="bad_line") >= 1
        assert one.value("petiole_input_up") == 1


@on_uvloop
async def test_a_command_that_fails_is_told_and_run_again_and_its_words_are_logged(tmp_path: Path) -> None:
    text = "import sys; print('\\x1b[2Jbroken', file=sys.stderr); sys.exit(3)"
    with capture_logs() as logged:
        async with running(python(text)) as one:
            await until(lambda: "it ended with exit code 3" in str(logged), "it is told")
            assert one.value("petiole_input_up") == 0
            assert "\\x1b[2Jbroken" in [line.get("text") for line in logged]
        async with running([str(tmp_path / "nothing")], interval=Seconds(0.1)):
            await until(lambda: "No such file" in str(logged), "a program that is not there is told")
            await until(lambda: "exit code 127" in str(logged), "and that the run failed")


def test_words_of_a_command_are_bounded_and_harmless_on_a_terminal() -> None:
    assert shown("é \x1b[2J\xff".encode()) == "é \\x1b[2Jÿ"
    assert shown(b"\xff\x00") == "\\xff\\x00"
    assert len(shown(b"x" * 10_000)) == 501


@on_uvloop
async def test_a_command_that_runs_for_good_is_started_again_and_ended_in_order(tmp_path: Path) -> None:
    text = (
        "import os, signal, sys, time\n"
        'def end(*_):\n    os.write(1, b\'{"metric": "n", "value": "end"}\\n\'); sys.exit()\n'
        "signal.signal(signal.SIGTERM, end)\n"
        'print(\'{"metric": "n", "value": %d}\' % os.getpid(), flush=True)\n'
        "time.sleep(600)\n"
    )
    async with running(python(text)) as one:
        await until(lambda: len(one.core.values()) == 1, "it runs")
        os.kill(one.core.values()[0], signal.SIGKILL)
        await until(lambda: len(one.core.values()) == 2, "it runs again")
        assert one.value("petiole_input_up") == 1
    assert one.core.values()[2:] == ["end"], "what it says at its end is stored"
    assert not alive(one.core.values()[1])


@on_uvloop
async def test_a_command_for_good_that_closes_its_output_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program, "CLOSED", 0.2)
    text = (
        "import os, time\n"
        'print(\'{"metric": "n", "value": %d}\' % os.getpid(), flush=True)\nos.close(1)\ntime.sleep(600)\n'
    )
    with capture_logs() as logged:
        async with running(python(text)) as one:
            await until(lambda: len(one.core.values()) == 2, "it runs again, though it had not ended")
            assert not alive(one.core.values()[0])
    assert "it runs on and has closed its output" in str(logged)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"timeout": Seconds(2.0)}, "import time; print(%r, flush=True); time.sleep(600)"),
        ({"output": Size(2**17)}, "import sys\nwhile True: print(%r, flush=True)"),
    ],
    ids=["time", "output"],
)
@on_uvloop
async def test_a_run_that_exceeds_its_bound_is_ended(options: dict[str, Any], text: str) -> None:
    async with running(python(text % (LINE % 1)), interval=Seconds(0.1), **options) as one:
        await until(lambda: bool(one.core.values()), "it printed")
        await until(lambda: one.value("petiole_input_up") == 0, "it was ended")
        assert len(one.core.values()) <= 2**17 / len(LINE % 1) * 3


@pytest.mark.parametrize("how", ["by itself", "stopped"])
@on_uvloop
async def test_what_a_command_has_started_ends_with_it(how: str, tmp_path: Path) -> None:
    text = ORPHANS if how == "by itself" else ORPHANS + "time.sleep(600)\n"
    async with running(python(text, tmp_path), interval=Seconds(60)) as one:
        await until(lambda: one.core.values() == [1], "it has started others")
        pids = orphans(tmp_path)
        assert len(pids) == 2
        if how == "by itself":
            await until(lambda: not any(map(alive, pids)), "those that it left behind are ended")
    assert not any(map(alive, pids))


@on_uvloop
async def test_what_holds_the_output_of_a_command_whose_reaper_was_killed_does_not_hold_up_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program, "GRACE", 0.2)
    monkeypatch.setattr(program, "_LATE", 0.2)
    text = (
        "import os, time\n"
        'print(\'{"metric": "n", "value": %d}\' % os.getppid(), flush=True)\n'
        "if not os.fork():\n    os.setsid()\n    print('half a line', end='', flush=True)\n"
        "time.sleep(600)\n"
    )
    async with running(python(text)) as one:
        await until(lambda: bool(one.core.rows()), "it prints")
        os.kill(one.core.values()[0], signal.SIGKILL)
    assert "half a line" in str(one.core.letters)


async def standstill(count: Path) -> int:
    """The number that a command has written into a file, once it writes no other for half a second."""
    before, now = -1, 0
    async with asyncio.timeout(60):
        while not 0 < before == now:
            await asyncio.sleep(0.5)
            with contextlib.suppress(FileNotFoundError, ValueError):
                before, now = now, int(await asyncio.to_thread(count.read_text))
    return now


@on_uvloop
async def test_a_command_waits_while_nothing_can_be_stored_and_a_stop_ends_it(tmp_path: Path) -> None:
    text = (
        'import sys\nnumber = 0\nwhile True:\n    print(\'{"metric": "n", "value": %d}\' % number)\n'
        "    number += 1\n    open(sys.argv[1], 'w').write(str(number)) if number % 1000 == 0 else None\n"
    )
    count = tmp_path / "count"
    async with running(python(text, count)) as one:
        one.core.refuse = RefusedError(RefusalReason.FULL, "the stream is full", 0.1)
        printed = await standstill(count)
        assert printed < 2**22 / len(LINE)
        assert one.core.stored == []
        one.core.refuse = None
        await until(lambda: set(one.core.values()) >= set(range(printed)), "it goes on, and nothing is lost")
        assert len(one.core.values()) == len(set(one.core.values()))
        one.core.refuse = RefusedError(RefusalReason.FULL, "the stream is full", 60)


@on_uvloop
async def test_a_command_that_prints_too_long_lines_waits_while_nothing_can_be_kept(tmp_path: Path) -> None:
    line = "x" * 300
    text = (
        "import sys\nfor number in range(2**25 // (len(sys.argv[2]) + 1)):\n    print(sys.argv[2])\n"
        "    open(sys.argv[1], 'w').write(str(number)) if number % 1000 == 0 else None\n"
    )
    count = tmp_path / "count"
    async with running(python(text, count, line), line=Size(256)) as one:
        one.core.refuse = RefusedError(RefusalReason.FULL, "the stream is full", 0.1)
        printed = await standstill(count)
        assert printed * len(line) < 2**22, "the command waits"
        one.core.refuse = None
        await until(lambda: one.invalid("too_long") > printed, "it goes on, and each line is counted")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"command": []}, "command is empty"),
        ({"command": ["no-such-program-here"]}, "is not a program that can be run"),
        ({"command": ["/etc/passwd"]}, "is not a program that can be run"),
        ({"command": ["true", "a\0b"]}, "holds a NUL"),
        ({"command": ["true"], "directory": Path("/nowhere")}, "the directory /nowhere is not there"),
        ({"command": ["true"], "environment": {"A=B": "c"}}, "a variable in environment"),
        ({"command": ["true"], "interval": Seconds(0.01)}, "take 100ms to 1d"),
        ({"command": ["true"], "line": Size(1)}, "line is 1 bytes"),
    ],
)
def test_what_stands_in_the_way_is_told_with_a_remedy(options: dict[str, Any], told: str) -> None:
    (problem,) = problems([ExecInput(ExecOptions(**options), Metrics())])
    assert told in problem


KILLED = """
import asyncio, json, sys
from agent.leaf.inputs.exec.input import ExecInput
from agent.leaf.inputs.exec import ExecOptions
from agent.base.metrics import Metrics
from tests.harness.intakes import Burying

async def main():
    options = ExecOptions(command=json.loads(sys.argv[1]))
    await ExecInput(options, Metrics()).run(Burying("exec"), asyncio.Event())

asyncio.run(main())
"""


def test_nothing_outlives_an_agent_that_is_killed(tmp_path: Path) -> None:
    command = json.dumps(python(ORPHANS + "time.sleep(600)\n", tmp_path))
    with subprocess.Popen([sys.executable, "-c", KILLED, command]) as agent:
        wait_for(lambda: len(orphans(tmp_path)) == 2, "it has started others")
        agent.kill()
    pids = orphans(tmp_path)
    wait_for(lambda: not any(map(alive, pids)), "they are ended")
