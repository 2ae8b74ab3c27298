"""Inputs of other packages: found by their type, and every fault of such a package is one of the file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent.base.metrics import Metrics
from agent.cli.configuration import mistakes, read
from agent.cli.main import app
from agent.config import ConfigError
from agent.leaf.inputs import OPTIONS, make_inputs
from agent.leaf.inputs.shared import NO_SERVER
from agent.process.reload import parts
from tests.harness.foreign_inputs import GOOD, installed

LEAF = 'role = "leaf"\ndomain = "edge-1"\n[nats]\nhub_urls = ["nats-leaf://hub:7422"]\n[[input]]\n'
PLUGINS = "agent.leaf.inputs.plugins"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of packages that are installed."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    for name in [name for name in sys.modules if name.startswith("petiole_")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path / "site"


def options_of(directory: Path, text: str = 'type = "ping"') -> Any:
    """The options of the only input of a leaf."""
    (file := directory / "petiole.toml").write_text(LEAF + text)
    (options,) = read(file).input
    return options


def problem_of(directory: Path, text: str = 'type = "ping"') -> str:
    with pytest.raises(ConfigError) as caught:
        options_of(directory, text)
    (problem,) = caught.value.problems
    return problem


def test_an_input_of_a_package_is_read_made_and_compared_like_a_built_in_one(
    site: Path, tmp_path: Path
) -> None:
    installed(site)
    options = options_of(tmp_path, 'type = "ping"\ninterval = "2s"\n[[input.probes]]\nmetric = "m"\n')
    assert (options.name, options.interval, options.probes[0].count) == ("ping", 2.0, 1)
    (made,) = make_inputs([options], Metrics(), NO_SERVER)
    assert (made.name, type(made).__name__, mistakes([made])) == ("ping", "PingInput", [])
    before = parts(read(tmp_path / "petiole.toml"))
    options_of(tmp_path, 'type = "ping"\ninterval = "3s"\n')
    after = parts(read(tmp_path / "petiole.toml"))
    assert [name for name in before if before[name] != after[name]] == ["input.ping"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('intervall = "2s"', "input[1].intervall: there is no such key; did you mean interval?"),
        ("interval = 2", "input[1].interval: 2 cannot be used; give a duration above 0"),
        ("[[input.probes]]\ncount = 2", "input[1].probes[1].metric: is missing; give text in quotes"),
        ('class = "x"', 'input[1].class: there is no class "x"; declare it'),
        ('name = "a.b"', "input[1].name: "),
    ],
)
def test_wrong_options_have_the_messages_of_the_built_in_inputs(
    site: Path, tmp_path: Path, text: str, problem: str
) -> None:
    installed(site)
    assert problem_of(tmp_path, f'type = "ping"\n{text}\n').startswith(problem)


def test_a_wrong_option_in_a_fragment_is_named_with_its_file(site: Path, tmp_path: Path) -> None:
    installed(site)
    (tmp_path / "petiole.conf.d").mkdir()
    (tmp_path / "petiole.conf.d" / "ping.toml").write_text('[[input]]\ntype = "ping"\ninterval = 2\n')
    assert "ping.toml" in problem_of(tmp_path, 'type = "host"')


def test_what_a_package_finds_in_its_options_stands_in_petiole_check(site: Path, tmp_path: Path) -> None:
    installed(site)
    options_of(tmp_path, 'type = "ping"\ninterval = "2m"\n')
    checked = CliRunner().invoke(app, ["check", "--offline", "-c", str(tmp_path / "petiole.toml")])
    assert checked.exit_code == 2
    assert "input 'ping': interval is 120.0 s" in checked.stdout
    assert "take at most 1m" in checked.stdout


BROKEN = {
    "raise ImportError('no usb')": "cannot be imported from petiole_ping:PingInput (ImportError: no usb)",
    "import sys; sys.exit(3)": "cannot be imported from petiole_ping:PingInput (SystemExit: 3)",
    "def PingInput(: pass": "cannot be imported from petiole_ping:PingInput (SyntaxError",
    "": "cannot be imported from petiole_ping:PingInput (AttributeError",
    "def PingInput(): pass": "is not an input: petiole_ping:PingInput is not a subclass of ConfiguredInput",
    GOOD.replace("ConfiguredInput[PingOptions]", "ConfiguredInput"): "has no options; derive petiole_ping",
    GOOD.replace('tag="ping"', 'tag="pong"'): "has options of the type 'pong'; write tag=\"ping\"",
    GOOD.replace("count: int", "count: bytes"): "has options that a file cannot hold: probes.count; let",
}


@pytest.mark.parametrize("code", BROKEN, ids=range(len(BROKEN)))
def test_a_package_that_cannot_be_used_is_a_problem_of_the_type(
    site: Path, tmp_path: Path, code: str
) -> None:
    installed(site, code)
    problem = problem_of(tmp_path)
    assert problem.startswith("input[1].type: 'ping' of petiole-ping 1.2 ")
    assert BROKEN[code] in problem
    assert "; " in problem
    checked = CliRunner().invoke(app, ["check", "--offline", "-c", str(tmp_path / "petiole.toml")])
    assert checked.exit_code == 2
    assert "'ping' of petiole-ping 1.2" in checked.stdout


def test_a_package_whose_class_fails_when_it_is_made_is_a_mistake_of_its_input(
    site: Path, tmp_path: Path
) -> None:
    made = "    def __init__(self, *_):\n        raise OSError('no device')\n\n    def _mistakes"
    installed(site, GOOD.replace("    def _mistakes", made))
    (input_,) = make_inputs([options_of(tmp_path)], Metrics(), NO_SERVER)
    (mistake,) = mistakes([input_])
    assert mistake.startswith("input 'ping': its class cannot be made (OSError: no device); correct")


def test_two_packages_with_one_type_are_both_named(site: Path, tmp_path: Path) -> None:
    installed(site)
    installed(site, package="petiole-other")
    assert problem_of(tmp_path) == (
        "input[1].type: 'ping' is an input of several packages: petiole-other 1.2, petiole-ping 1.2; "
        "uninstall all but one of them"
    )


def test_an_unknown_type_names_what_is_built_in_and_what_is_installed(site: Path, tmp_path: Path) -> None:
    installed(site)
    problem = problem_of(tmp_path, 'type = "pong"')
    assert problem.startswith('input[1].type: "pong" is not a type of input; give one of "exec", ')
    assert problem.endswith('"ping", or install the package that adds it')


def test_a_built_in_input_is_not_replaced_and_no_package_is_looked_for(site: Path, tmp_path: Path) -> None:
    installed(site, GOOD.replace('tag="ping"', 'tag="host"'), kind="host")
    options = options_of(tmp_path, 'type = "host"')
    assert type(options).__module__ == "agent.leaf.inputs.host"
    assert "host" in OPTIONS
    code = f"""
import sys
from pathlib import Path
from agent.cli.configuration import read
from agent.base.metrics import Metrics
from agent.leaf.inputs import make_inputs
make_inputs(read(Path({str(tmp_path / "petiole.toml")!r})).input, Metrics(), None)
sys.exit({PLUGINS!r} in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
