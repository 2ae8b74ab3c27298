"""Every command that a document shows is one that can be given: it exists, with these options."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

from agent.cli.main import composed
from bench import NAMES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(?:sh|console|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:petiole|make) [^`\n]+)`")
OF_SHELL = re.compile(r"[|;&>]+")
UsageError: Any = typer.BadParameter.__base__
"""Of the click that this typer stands on, which may be its own."""
SUITES = re.findall(r"^SUITE_([a-z-]+) =", (ROOT / "Makefile").read_text(), re.MULTILINE)
JOB = re.compile(r"\bhub_jobs[./](\w+)|\bJOBS/(\w+)|(?<!-)\bjobs/(\w+)")


def lines(page: Path) -> Iterator[str]:
    """The lines of a page's shell blocks, those that go on in the next one put together."""
    for block in BLOCK.findall(page.read_text()):
        for line in block.replace("\\\n", " ").splitlines():
            yield line.partition(" #")[0]


def given(page: Path) -> Iterator[list[str]]:
    """The single commands of a page, in words."""
    for line in lines(page):
        if not line.startswith(("import", "readings =", "print(")):
            yield from words(line)
    for command in INLINE.findall(page.read_text()):
        yield from words(command)


def words(line: str) -> Iterator[list[str]]:
    """The commands of a line; one with places to fill in is cut off there."""
    for part in OF_SHELL.split(line):
        try:
            found = shlex.split(part)
        except ValueError:
            continue
        if found:
            yield found


def parsed(command: Any, arguments: list[str], parent: Any = None) -> None:
    """Read the arguments as the command would, and run nothing. Raises `UsageError`."""
    context = command.make_context(command.name, list(arguments), parent=parent)
    if hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        _, chosen, rest = command.resolve_command(context, rest)
        assert chosen is not None
        parsed(chosen, rest, context)


@pytest.fixture(scope="module")
def program() -> Any:
    return typer.main.get_command(composed())


def shown(page: Path, first: str) -> list[list[str]]:
    """What follows `first` in the commands of a page that are whole."""
    found = [one[one.index(first) + 1 :] for one in given(page) if first in one[:4]]
    return [one for one in found if one and not any("…" in word or word.isupper() for word in one[1:])]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_command_of_petiole_in_a_document_can_be_given(page: Path, program: Any) -> None:
    mentioned = [shlex.split(one)[1:] for one in INLINE.findall(page.read_text())]
    for arguments in shown(page, "petiole"):
        if re.fullmatch(r"[a-z]+", arguments[0]) and arguments[0] != "petiole":
            try:
                parsed(program, arguments)
            except UsageError as wrong:
                if type(wrong).__name__ == "MissingParameter" and arguments in mentioned:
                    continue
                pytest.fail(f"{page.name}: petiole {shlex.join(arguments)}: {wrong.format_message()}")


def test_what_is_asked_of_make_in_a_document_is_made() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for arguments in shown(page, "make"):
            asked = {word for word in arguments if re.fullmatch(r"[a-z-]+", word)}
            assert asked <= targets, page.name
            assert {word[6:] for word in arguments if word.startswith("SUITE=")} <= set(SUITES), page.name


def test_the_tests_that_make_runs_are_there() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    planned = [targets, *(["test", f"SUITE={suite}"] for suite in SUITES)]
    named = set[str]()
    for asked in planned:
        done = subprocess.run(
            ["make", "--dry-run", *asked], cwd=ROOT, capture_output=True, text=True, check=True
        )
        named |= set(re.findall(r"\btests/[\w/]+(?:\.py)?", done.stdout))
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_a_benchmark_in_a_document_exists() -> None:
    found = [m for page in PAGES for m in re.findall(r"make bench NAME=([a-z][a-z0-9-]+)", page.read_text())]
    assert found
    assert set(found) <= set(NAMES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_job_in_a_document_takes_these_options(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in lines(page):
        if not (job := JOB.search(line)):
            continue
        with pytest.raises(SystemExit):
            import_module(f"hub_jobs.{job[1] or job[2] or job[3]}.run").main(["--help"])
        options = set(re.findall(r"(?<!\S)--[a-z-]+", line[job.end() :]))
        assert options <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out)), line
