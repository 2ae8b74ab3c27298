"""What is packed holds all that its code needs of the project: the wheel, and the jobs for a cluster. The
version is stated once."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy import dist, release, wheel

_IMPORT_ALL = """
import importlib, sys, zipfile
packed = sys.path[1]
names = [name for name in zipfile.ZipFile(packed).namelist() if name.endswith(".py")]
for name in names:
    module = importlib.import_module(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    assert module.__file__.startswith(packed), module.__file__
"""

_IMPORT_UNPACKED = """
import importlib, pathlib, sys
root = pathlib.Path(sys.path[1])
for path in sorted([*root.glob("agent/**/*.py"), *root.glob("hub_jobs/**/*.py")]):
    name = str(path.relative_to(root)).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    module = importlib.import_module(name)
    assert module.__file__ == str(path), module.__file__
"""
_PAGES = [dist.ROOT / "README.md", *(dist.ROOT / "docs").glob("*.md")]


def test_the_packed_code_imports_nothing_of_the_project_that_is_not_in_it(tmp_path: Path) -> None:
    packed = dist.code(tmp_path / "dist")
    empty = tmp_path / "empty"
    empty.mkdir()
    given = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(packed)}

    subprocess.run([sys.executable, "-c", _IMPORT_ALL], cwd=empty, env=given, check=True)

    for script in dist.scripts(tmp_path / "dist"):
        assert f"hub_jobs/{script.stem}/__main__.py" in zipfile.ZipFile(packed).namelist()
    ingest = tmp_path / "dist" / "jobs" / "ingest.py"
    said = subprocess.run(
        [sys.executable, ingest, "--help"], cwd=empty, env=given, capture_output=True, check=True
    )
    assert b"--lake" in said.stdout


@pytest.mark.parametrize(("what", "packages"), [("deb", "dpkg"), ("image", "dpkg mmdebstrap buildah")])
def test_a_build_names_the_packages_that_are_missing_before_it_begins(
    what: str, packages: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", f"deploy.{what}", "--to", str(tmp_path / "dist")]
    environment = {"PATH": str(tmp_path)}  # has nothing
    done = subprocess.run(
        command, cwd=dist.ROOT, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert done.stderr.startswith(f"{what}: dpkg-deb")
    assert done.stderr.endswith(f"apt-get install {packages}\n")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "dist").exists()


def test_the_same_code_is_packed_to_the_same_bytes(tmp_path: Path) -> None:
    first, second = dist.code(tmp_path / "a"), dist.code(tmp_path / "b")

    assert first.read_bytes() == second.read_bytes()


_SOURCE: Final = dist.ROOT / "deploy" / "spark_source"
_IMPORT_SOURCE = """
import contextlib, pkgutil, sys
import hub_jobs.source.datasource
import agent.contract
from hub_jobs.source.protocol import Denied
from hub_jobs.source.server import Server
for found in pkgutil.iter_modules(agent.contract.__path__, "agent.contract."):
    __import__(found.name)
with contextlib.suppress(Denied):  # a key is read when a server asks for one
    Server("nats://127.0.0.1", seed_file=sys.argv[1]).identity("nonce")
for name, module in list(sys.modules.items()):
    if name.partition(".")[0] in ("agent", "hub_jobs"):
        assert module.__file__.startswith(sys.path[1]), module.__file__
print(*{name.partition(".")[0] for name in sys.modules})
"""


def test_the_wheel_of_the_source_alone_has_what_it_imports_and_names_what_it_needs(tmp_path: Path) -> None:
    project = tomllib.loads((_SOURCE / "pyproject.toml").read_text())
    for path, name in project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].items():
        source, to = _SOURCE / path, tmp_path / name
        to.parent.mkdir(exist_ok=True)
        shutil.copytree(source, to) if source.is_dir() else shutil.copy(source, to)
    empty = tmp_path / "empty"
    empty.mkdir()
    given = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}
    seed = tmp_path / "jobs.nk"
    seed.touch(0o600)
    seed.write_text("no seed")
    program = [sys.executable, "-c", _IMPORT_SOURCE, str(seed)]
    done = subprocess.run(program, cwd=empty, env=given, capture_output=True, text=True, check=True)

    whole = tomllib.loads((dist.ROOT / "pyproject.toml").read_text())
    own = {Requirement(text).name for text in whole["project"]["dependencies"]}
    named = {Requirement(text).name for text in project["project"]["dependencies"]}
    imported = set(done.stdout.split())
    assert named <= imported
    assert not imported & (own - named)
    # A package that another one happens to bring, as pandas brings numpy, need not come with the wheel.
    ours = {name.partition(".")[0] for path in tmp_path.rglob("*.py") for name in _imports(path)}
    assert ours - sys.stdlib_module_names - {"agent", "hub_jobs", "pyspark"} == named


def _imports(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, of its own package too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            yield node.module


def test_the_archive_is_to_hold_what_the_jobs_import_and_not_spark() -> None:
    names = {name for _, name in dist.packages()}

    needed = ("deltalake", "msgspec", "nkeys", "numpy", "pandas", "prometheus_client", "pyarrow", "tenacity")
    for package in (*needed, "zstandard"):
        assert f"packages/{package}/__init__.py" in names
    assert not any(
        name.startswith(("packages/pyspark", "packages/nats/", "packages/uvloop")) for name in names
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel."""
    return wheel.build(tmp_path_factory.mktemp("built"))[0]


def test_the_wheel_holds_every_file_of_its_packages_and_none_of_tests_or_tools(built: Path) -> None:
    names = {name for name in zipfile.ZipFile(built).namelist() if ".dist-info/" not in name}
    packages = ("agent", "hub_jobs")
    held = {name for name in names if name.startswith(packages)}
    there = {
        str(path.relative_to(dist.ROOT))
        for package in packages
        for path in (dist.ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == there
    shared = {name.partition("/share/petiole/")[2] for name in names - held}
    units = (path for path in (dist.ROOT / "systemd").rglob("*") if path.is_file())
    assert shared >= {str(path.relative_to(dist.ROOT)) for path in units} | {"config.example.toml"}
    assert {name.partition("/")[0] for name in shared} == {
        "config.example.toml",
        "grafana",
        "prometheus",
        "systemd",
    }


def test_every_module_of_the_wheel_is_imported_without_the_checkout(built: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(built).extractall(tmp_path / "unpacked")
    (tmp_path / "empty").mkdir()
    given = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "unpacked")}
    subprocess.run(
        [sys.executable, "-c", _IMPORT_UNPACKED], cwd=tmp_path / "empty", env=given, check=True, timeout=150
    )


def test_the_same_tree_gives_the_same_wheel_and_archive_whoever_builds_it(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Pacific/Kiritimati")
    before = os.umask(0o077)
    try:
        again, archive = wheel.build(tmp_path)
    finally:
        os.umask(before)
    assert again.read_bytes() == built.read_bytes()
    assert archive.read_bytes() == built.with_name(archive.name).read_bytes()


def test_what_is_pinned_is_all_that_is_needed_in_versions_that_the_project_takes() -> None:
    pinned = [line for line in wheel.CONSTRAINTS.read_text().splitlines() if not line.startswith("#")]
    names = {line.partition("==")[0] for line in pinned}
    assert names >= {line.partition("==")[0] for line in wheel.pins()}
    for requirement in wheel.requirements():
        stated = next(line for line in pinned if line.startswith(f"{canonicalize_name(requirement.name)}=="))
        assert requirement.specifier.contains(stated.partition("==")[2]), requirement


def test_the_version_stands_in_one_place_and_the_change_log_begins_with_it() -> None:
    assert version("petiole") == dist.project_version() == release.noted_version()
    stated = [re.findall(r"petiole[-_](\d+\.\d+\.\d+)", page.read_text()) for page in _PAGES]
    assert {found for page in stated for found in page} == {dist.project_version()}
