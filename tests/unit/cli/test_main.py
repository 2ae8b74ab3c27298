"""The command `petiole` as it is put together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.cli import main

NAMES = sorted(main._COMMANDS)


@pytest.mark.parametrize("name", NAMES)
def test_each_command_goes_by_its_name_also_alone(name: str) -> None:
    result = CliRunner().invoke(main.composed([name]), [name, "--help"])

    assert (result.exit_code, f" {name} " in result.stdout) == (0, True), result.output


def test_all_commands_are_listed_and_an_unknown_one_is_told() -> None:
    listed = CliRunner().invoke(main.app, ["--help"]).stdout
    assert all(f" {name} " in listed for name in NAMES)

    result = CliRunner().invoke(main.app, ["wehre"])
    assert (result.exit_code, "No such command 'wehre'" in result.stderr) == (2, True)


def test_a_process_holds_no_other_command_than_its_own() -> None:
    program = (
        "import sys; from agent.cli.main import main; sys.argv = ['petiole', 'run', '--help']\n"
        "try: main()\n"
        "except SystemExit: print(*sorted(one for one in sys.modules if one.startswith('agent.cli.')))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    held = ended.stdout.splitlines()[-1].split()
    assert held == ["agent.cli.configuration", "agent.cli.main", "agent.cli.run"]


def test_an_agent_does_not_hold_what_only_reads_arguments(tmp_path: Path) -> None:
    config = tmp_path / "petiole.toml"
    config.write_text('role = "leaf"\nbogus = 1\n')
    program = (
        "import sys; from agent.cli.main import main\ntry: main()\nfinally: print('pydantic' in sys.modules)"
    )
    ended = [
        subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
        for arguments in (["run", "-c", str(config)], ["run", f"--config={config}"])
    ]

    assert [(name.returncode, name.stdout) for name in ended] == [(2, "False\n"), (2, "True\n")]
    assert ended[0].stderr == ended[1].stderr
    assert "bogus" in ended[0].stderr
