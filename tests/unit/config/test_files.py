"""A configuration of several files, and with variables of the environment in its values."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.cli.configuration import _ask, read
from agent.config import Config, ConfigError, files
from agent.config.files import hidden

BASE = """
domain = "edge-1"
[nats]
hub_urls = ["nats-leaf://hub.example:7422"]
[[input]]
type = "host"
"""
SECRET = "correct horse battery staple, and more than sixty characters of it"


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test puts into values is not hidden from the messages of another."""
    monkeypatch.setattr(files, "_used", {})


def configuration(tmp_path: Path, text: str = BASE, **fragments: str) -> Config:
    """The configuration of a file with this text and these fragments."""
    file = tmp_path / "edge.toml"
    file.write_text(text)
    for name, part in fragments.items():
        (tmp_path / "edge.conf.d").mkdir(exist_ok=True)
        (tmp_path / "edge.conf.d" / f"{name}.toml").write_text(part)
    return read(file)


def problems(tmp_path: Path, text: str = BASE, **fragments: str) -> list[str]:
    """What is wrong with it, without the directory."""
    with pytest.raises(ConfigError) as raised:
        configuration(tmp_path, text, **fragments)
    return [problem.replace(f"{tmp_path}/", "") for problem in raised.value.problems]


def test_fragments_add_tables_in_the_order_of_their_names(tmp_path: Path) -> None:
    config = configuration(
        tmp_path,
        b='[[input]]\ntype = "http"\n',
        a='[log]\nlevel = "debug"\n[[input]]\ntype = "file"\npath = "/x"\n',
    )
    (tmp_path / "edge.conf.d" / "c.txt").write_text("no TOML")
    (tmp_path / "edge.conf.d" / ".d.toml").write_text("no TOML")

    assert [options.name for options in config.input] == ["host", "file", "http"]
    assert (config.log.level, config.nats.hub_urls) == ("debug", ["nats-leaf://hub.example:7422"])
    assert [options.name for options in read(tmp_path / "edge.toml").input] == ["host", "file", "http"]


def test_fragments_of_another_file_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "hub.conf.d").mkdir()
    (tmp_path / "hub.conf.d" / "a.toml").write_text("no TOML")

    assert len(configuration(tmp_path).input) == 1


@pytest.mark.parametrize(
    ("fragment", "problem"),
    [
        ("# x\ndomain = 'edge-2'\n", "domain (edge.conf.d/a.toml, line 2): stands also in the file beside"),
        ("\n[nats]\nhub_urls = []\n", "nats.hub_urls (edge.conf.d/a.toml, line 3): stands also in the file"),
        ("nats = 1\n", "nats (edge.conf.d/a.toml, line 1): stands also in the file beside"),
        ("\n[[leaf]]\ndomain = 'x'\n", "leaf (edge.conf.d/a.toml, line 2): stands in a fragment"),
        ("[[input]]\ntype='http'\n[[input]]\n\n", "input[3].type (edge.conf.d/a.toml, line 3): is missing"),
        ("[log]\nlevel = 'loud'\n", 'log.level (edge.conf.d/a.toml, line 2): "loud" cannot be used'),
        ("log = { level = 'loud' }\n", 'log.level (edge.conf.d/a.toml): "loud" cannot be used'),
        ("a = 1\nb = \n", "edge.conf.d/a.toml: not TOML: Invalid value (at line 2, column 5)"),
    ],
)
def test_a_problem_of_a_fragment_names_file_and_line(tmp_path: Path, fragment: str, problem: str) -> None:
    (found,) = problems(tmp_path, a=fragment)

    assert found.startswith(problem)


def test_two_fragments_may_not_give_the_same_key(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, a="[log]\nlevel = 'debug'\n", b="[log]\nlevel = 'info'\n")

    assert found.startswith("log.level (edge.conf.d/b.toml, line 2): stands also in ")
    assert "edge.conf.d/a.toml, line 2" in found


def test_variables_stand_in_any_text_and_two_dollars_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SITE": "oslo", "LEVEL": "debug", "WHERE": "/run/tokens", "EMPTY": ""}.items():
        monkeypatch.setenv(name, value)
    text = BASE.replace("edge-1", "edge-${SITE}${EMPTY}").replace("hub.example", "hub.${SITE}.example")
    config = configuration(
        tmp_path,
        text,
        a="[log]\nlevel = '${LEVEL}'\n[[input]]\ntype = 'http'\ntoken_file = '${WHERE}/http'\n"
        "[[input]]\ntype = 'exec'\ncommand = ['sh', '-c', 'echo $${SITE} $SITE ${SITE}']\n",
    )

    assert (config.domain, config.log.level) == ("edge-oslo", "debug")
    assert config.nats.hub_urls == ["nats-leaf://hub.oslo.example:7422"]
    assert config.input[1].token_file == Path("/run/tokens/http")
    assert config.input[2].command[2] == "echo ${SITE} $SITE oslo"


def test_an_unset_variable_is_a_problem_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SITE", raising=False)

    (found,) = problems(tmp_path, BASE.replace("edge-1", "edge-${SITE}"))
    assert found == (
        "domain: the variable SITE is not set; set it where petiole runs, or write $${SITE} for that text"
    )


@pytest.mark.parametrize(
    "fragment",
    [
        "[log]\nlevel = '${TOKEN}'\n",
        "[[input]]\ntype = 'http'\ntoken_file = '${TOKEN}'\nlisten = '${TOKEN}'\n",
        "[[input]]\ntype = 'file'\npath = '${TOKEN}'\nname = '${TOKEN}'\n",
        "[[class]]\nname = '${TOKEN}'\n",
        "[link]\nwindows = ['${TOKEN}']\n",
        "[admin]\nlisten = '${TOKEN}'\n",
    ],
)
@pytest.mark.parametrize("secret", [SECRET, 'with "quotes" and\nlines', "ünïcode'"])
def test_no_problem_shows_what_a_variable_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fragment: str, secret: str
) -> None:
    monkeypatch.setenv("TOKEN", secret)

    found = "\n".join(problems(tmp_path, a=fragment))
    assert "TOKEN" in found
    assert secret[:8] not in found


def test_what_an_input_says_does_not_show_it_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    configuration(tmp_path, BASE.replace("hub.example", "${TOKEN}"))

    said = [f"a {SECRET!r} b", f'"{SECRET:.30}" is none', f"{SECRET[:60]}…"]
    assert _ask(object(), lambda: said) == ["a '${TOKEN}' b", '"${TOKEN}" is none', "${TOKEN}…"]
    assert hidden("nothing of it") == "nothing of it"
