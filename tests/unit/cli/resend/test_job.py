"""What `petiole resend` refuses before it does anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.cli.main import app
from agent.contract import Exit


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give either --missing or a range"),
        (["--missing", "--from", "1"], "give either --missing or a range"),
        (["--from", "3", "--to", "2"], "--from 3 is above --to 2"),
        (["--to", "1", "--run", "x"], "--run: run 'x' is not a UUIDv7"),
        (["--missing", "--class", "bulk"], "there is no such class; the configuration has normal"),
    ],
)
def test_a_wrong_command_line_is_refused_in_words(tmp_path: Path, arguments: list[str], words: str) -> None:
    config = tmp_path / "petiole.toml"
    config.write_text('domain = "edge-1"\n[nats]\nhub_urls = ["nats-leaf://hub:7422"]\n')
    ended = CliRunner().invoke(app, ["resend", "-c", str(config), *arguments])
    assert ended.exit_code == Exit.USAGE
    assert words in ended.stderr


def test_a_hub_has_nothing_to_send_again(tmp_path: Path) -> None:
    config = tmp_path / "petiole.toml"
    config.write_text('domain = "hub"\nrole = "hub"\n')
    ended = CliRunner().invoke(app, ["resend", "-c", str(config), "--missing"])
    assert ended.exit_code == Exit.USAGE
    assert "resend is for a leaf" in ended.stderr
