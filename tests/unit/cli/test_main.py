"""The command `petiole` as it is put together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.cli import main
from agent.config.keys import make_key

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


@pytest.mark.parametrize("name", ["", *NAMES, "fleet add", "server stop"])
def test_help_is_also_a_short_option(name: str) -> None:
    result = CliRunner().invoke(main.app, [*name.split(), "-h"])

    assert (result.exit_code, "Usage: " in result.stdout) == (0, True), result.output


@pytest.mark.parametrize("arguments", [["run"], ["status"], ["fleet", "list"], ["fleet", "forget", "edge-1"]])
def test_without_c_a_variable_names_the_file(arguments: list[str]) -> None:
    program = "from agent.cli.main import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={"PETIOLE_CONFIG": "/nowhere/it.toml"},
        capture_output=True,
        text=True,
    )

    assert (ended.returncode, ended.stderr.split(": ")[1]) == (2, "/nowhere/it.toml")


@pytest.mark.parametrize("domain", ["*", ">", "hub.lease"])
def test_what_names_no_leaf_is_not_forgotten(tmp_path: Path, domain: str) -> None:
    """The records of all leaves would go, and what else the hub remembers."""
    hub = tmp_path / "hub.toml"
    hub.write_text('role = "hub"\ndomain = "hub"\nstate_dir = "hub"\n')
    result = CliRunner().invoke(main.app, ["fleet", "forget", domain, "-c", str(hub)])

    assert (result.exit_code, "is not 1 to 32 letters" in result.stderr) == (2, True), result.output


def test_without_a_variable_it_is_the_file_of_the_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PETIOLE_CONFIG", "")

    unit = Path("systemd/petiole.service").read_text()
    assert f"petiole run -c {main.plain_run(['run'])}\n" in unit


@pytest.mark.parametrize(
    ("line", "follows"),
    [
        ("petiole fle", ["fleet"]),
        ("petiole fleet re", ["replace", "revoke"]),
        ("petiole fleet --only s", ["silent", "stopped"]),
        ("petiole status --li", ["--links"]),
        ("petiole status -c ", []),
    ],
)
def test_bash_completes_what_it_was_told_of(line: str, follows: list[str], tmp_path: Path) -> None:
    """An empty answer leaves the names of files to bash itself (`complete -o default`)."""
    petiole = tmp_path / "petiole"
    petiole.write_text(f"#!{sys.executable}\nfrom agent.cli.main import main\nmain()\n")
    petiole.chmod(0o755)
    words = line.split(" ")
    script = f"""
        eval "$(petiole completion bash)"
        complete -p petiole >&2
        COMP_WORDS=({" ".join(word or "''" for word in words)}); COMP_CWORD={len(words) - 1}
        _petiole_completion petiole
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(["bash", "-c", script], env=path, capture_output=True, text=True, check=True)

    assert (ended.stdout.split(), ended.stderr) == (
        follows,
        "complete -o default -F _petiole_completion petiole\n",
    )


def test_a_process_holds_no_other_command_than_its_own() -> None:
    program = (
        "import sys; from agent.cli.main import main; sys.argv = ['petiole', 'run', '--help']\n"
        "try: main()\n"
        "except SystemExit: print(*sorted(one for one in sys.modules if one.startswith('agent.cli.')))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    held = ended.stdout.splitlines()[-1].split()
    assert held == ["agent.cli.configuration", "agent.cli.main", "agent.cli.run"]


def test_an_agent_holds_neither_what_reads_arguments_nor_what_speaks_websockets(tmp_path: Path) -> None:
    config = tmp_path / "petiole.toml"
    config.write_text('role = "leaf"\nbogus = 1\n')
    program = (
        "import sys; from agent.cli.main import main\ntry: main()\n"
        "finally: print(*[name for name in ('aiohttp.client', 'pydantic') if name in sys.modules])"
    )
    ended = [
        subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
        for arguments in (["run", "-c", str(config)], ["run", f"--config={config}"])
    ]

    assert [(name.returncode, name.stdout) for name in ended] == [(2, "\n"), (2, "pydantic\n")]
    assert ended[0].stderr == ended[1].stderr
    assert "bogus" in ended[0].stderr


@pytest.mark.parametrize("arguments", [["enrol"], ["user", "add", "historian"]])
def test_a_state_directory_that_cannot_be_written_is_named_with_a_remedy(
    tmp_path: Path, arguments: list[str]
) -> None:
    config = tmp_path / "petiole.toml"
    config.write_text(
        'domain = "edge-1"\nstate_dir = "/proc/none"\nnats.hub_urls = ["nats-leaf://hub:7422"]\n'
    )
    result = CliRunner().invoke(main.app, [*arguments, "-c", str(config)])

    assert result.exit_code == 2, result.output
    assert "state_dir /proc/none cannot be written (No such file or directory); make it" in result.stderr


@pytest.mark.parametrize("arguments", [["fleet", "add", "edge-1"], ["user", "add", "historian"]])
def test_a_file_that_cannot_be_written_is_refused_in_words(tmp_path: Path, arguments: list[str]) -> None:
    config = tmp_path / "petiole.toml"
    config.write_text(f'role = "hub"\ndomain = "hub"\nstate_dir = "{tmp_path}"\n')
    (tmp_path / ".petiole.toml.new").mkdir()  # the new text cannot be put beside the old
    result = CliRunner().invoke(main.app, [*arguments, make_key(tmp_path / "key"), "-c", str(config)])

    assert result.exit_code == 2, result.output
    assert f"{config}: cannot be written" in result.stderr
    assert "edge-1" not in config.read_text()
