"""The package that `petiole new input` writes is clean, and its own test passes as it is, in an environment
into which it was installed."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent.base.nats_server import find_binary
from agent.cli.main import app

ROOT = Path(__file__).parents[2]
PETIOLE = "import sys\nfrom agent.cli.main import main\nsys.exit(main())\n"


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def new(directory: Path, name: str) -> Path:
    written = CliRunner().invoke(app, ["new", "input", name, "--out", str(directory)])
    assert written.exit_code == 0, written.output
    return directory / f"petiole-{name}"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package that was just written."""
    return new(tmp_path, "press-line")


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of a fresh environment that sees what this one has, and into which nothing is fetched."""
    directory = tmp_path / "environment"
    venv.create(directory)
    python = directory / "bin" / "python"
    (site,) = directory.glob("lib/python3*/site-packages")
    (site / "here.pth").write_text(
        "\n".join([str(ROOT), *(path for path in sys.path if Path(path).is_dir())])
    )
    python.with_name("nats-server").symlink_to(find_binary())
    petiole = python.with_name("petiole")
    petiole.write_text(f"#!{python}\n{PETIOLE}")
    petiole.chmod(0o755)
    return python


@pytest.mark.timeout(600)
def test_a_new_package_is_clean_and_its_input_loses_and_doubles_nothing(
    package: Path, python: Path, tmp_path: Path
) -> None:
    run(sys.executable, "-m", "mypy", package)
    install = ("install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    run(python, "-m", "pip", "--disable-pip-version-check", *install, package)
    # In a directory without our settings, and with the package as it was installed.
    options = ("-q", "-p", "no:cacheprovider", "--basetemp", tmp_path / "tests")
    summary = run(python, "-m", "pytest", *options, "tests", cwd=package).splitlines()[-1]
    assert summary.startswith("4 passed in"), summary


@pytest.mark.parametrize("name", ["x", "press-line", "a_" * 15 + "bc"])
def test_a_new_package_is_formatted_whatever_its_name(tmp_path: Path, name: str) -> None:
    package = new(tmp_path, name)
    run(sys.executable, "-m", "ruff", "check", cwd=package)
    run(sys.executable, "-m", "ruff", "format", "--check", cwd=package)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("http", "'http' is a built-in input"),
        ("Press", "'Press' cannot be the name of an input; take up to 32"),
        ("../x", "'../x' cannot be the name of an input"),
        ("press--line", "cannot be the name"),
        ("x" * 33, "cannot be the name"),
    ],
)
def test_a_name_that_cannot_be_that_of_an_input_is_refused(tmp_path: Path, name: str, said: str) -> None:
    refused = CliRunner().invoke(app, ["new", "input", "--out", str(tmp_path), "--", name])
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_there_or_nowhere_is_refused(package: Path, tmp_path: Path) -> None:
    before = (package / "pyproject.toml").read_text()
    for out, said in ((tmp_path, "is there already"), (tmp_path / "none", "is not there; make it")):
        refused = CliRunner().invoke(app, ["new", "input", "press-line", "--out", str(out)])
        assert refused.exit_code == 2
        assert said in refused.stderr
    assert (package / "pyproject.toml").read_text() == before
