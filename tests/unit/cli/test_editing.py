"""Files that several commands read, edit and write: no change is lost, whatever ends a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from agent.base.files import LockedError, locked
from agent.cli import configuration
from agent.cli.configuration import editing, only_command
from agent.contract import Exit
from tests.unit.server.test_render import key_of

_MAIN: Final = "from agent.cli.main import main; main()"
_KILLED_AT: Final = """
import os, signal, sys
directory, left = os.environ["OF"], int(os.environ["AT"])
def hook(event, arguments):
    global left
    touches = any(str(argument).startswith(directory) for argument in arguments)
    if event == "fcntl.flock" or (touches and event in ("open", "os.rename", "os.remove")):
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
"""


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """The configuration of a hub whose agent does not run, with one leaf."""
    path = tmp_path / "hub.toml"
    leaf = f'[[leaf]]\ndomain = "edge-0"\nkey = "{key_of(0)}"\n'
    path.write_text(f'# Ours.\nrole = "hub"\ndomain = "hub"\nstate_dir = "{tmp_path}/state"\n{leaf}')
    path.chmod(0o640)
    return path


def _petiole(*arguments: str, program: str = _MAIN, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _leaves(hub: Path) -> dict[str, dict[str, Any]]:
    return {row["domain"]: row for row in tomllib.loads(hub.read_text())["leaf"]}


def test_changes_that_are_made_at_once_are_all_in_the_file(hub: Path) -> None:
    commands = [_petiole("fleet", "add", f"edge-{n}", key_of(n), "-c", str(hub)) for n in range(1, 5)]
    commands.append(_petiole("fleet", "revoke", "edge-0", "-c", str(hub)))
    for command in commands:
        said, _ = command.communicate(timeout=120)
        assert command.returncode == 0, said
    leaves = _leaves(hub)
    assert {domain: row.get("key") for domain, row in leaves.items()} == {
        "edge-0": None,
        **{f"edge-{n}": key_of(n) for n in range(1, 5)},
    }
    assert hub.read_text().startswith("# Ours.\n")
    assert hub.stat().st_mode & 0o777 == 0o640


def test_a_command_that_is_killed_at_any_step_leaves_a_whole_file_and_no_lock(hub: Path) -> None:
    before, arguments = hub.read_text(), ("fleet", "revoke", "edge-0", "-c", str(hub))
    codes = list[int]()
    while not codes or codes[-1] != 0:
        hub.write_text(before)
        step = {"OF": str(hub.parent), "AT": str(len(codes) + 1)}
        killed = _petiole(*arguments, program=_KILLED_AT + _MAIN, **step)
        said, _ = killed.communicate(timeout=120)
        codes.append(killed.returncode)
        assert codes[-1] in (0, -signal.SIGKILL), said
        assert hub.read_text() == before or _leaves(hub)["edge-0"]["revoked"] == [key_of(0)]
        again = _petiole(*arguments)
        said, _ = again.communicate(timeout=120)
        assert again.returncode == 0, said
        assert _leaves(hub)["edge-0"]["revoked"] == [key_of(0)]
        assert {path.name for path in hub.parent.iterdir()} == {"hub.toml", ".hub.toml.lock"}
    assert len(codes) > 5


def test_a_file_that_an_editor_has_written_meanwhile_stays_as_that_has_it(
    hub: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with editing(hub) as file:
        hub.write_text("# By hand.\n" + file.text)
        with pytest.raises(typer.Exit) as ended:
            file.store(file.text + "\n")
    assert ended.value.exit_code == Exit.CONFLICT
    assert "another program has changed it meanwhile; repeat this" in capsys.readouterr().err
    assert hub.read_text().startswith("# By hand.\n")


def test_a_link_to_the_file_stays_and_commands_under_both_names_wait_for_each_other(
    hub: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link" / "petiole.toml"
    link.parent.mkdir()
    link.symlink_to(hub)
    with editing(link) as file:
        with pytest.raises(LockedError, match=f"process {os.getpid()} has been changing it"), locked(hub, 0):
            pass
        file.store(file.text + "# more\n")
    assert link.is_symlink()
    assert hub.read_text().endswith("# more\n")


def test_a_command_does_not_wait_for_another_one_for_ever(
    hub: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(configuration, "_BUSY_SECONDS", 0.0)
    with locked(hub, 0), pytest.raises(typer.Exit) as ended, editing(hub):
        pass
    assert ended.value.exit_code == Exit.CONFLICT
    assert f"{hub}: process {os.getpid()} has been changing it for 0 s" in capsys.readouterr().err


def test_what_a_link_in_the_place_of_the_lock_names_is_not_touched(
    hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    hub.with_name(".hub.toml.lock").symlink_to(other)
    with pytest.raises(typer.Exit), editing(hub):
        pass
    assert "cannot be written" in capsys.readouterr().err
    assert not other.exists()


def test_a_file_in_a_directory_that_cannot_be_written_may_be_read_all_the_same(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("agent.base.files._open_lock", refused)
    with only_command(hub):
        assert _leaves(hub)
