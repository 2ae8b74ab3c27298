"""What is packed for a cluster holds all that the jobs import of the project, and nothing else is needed of
it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from deploy import dist

_IMPORT_ALL = """
import importlib, sys, zipfile
packed = sys.path[1]
names = [name for name in zipfile.ZipFile(packed).namelist() if name.endswith(".py")]
for name in names:
    module = importlib.import_module(name.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    assert module.__file__.startswith(packed), module.__file__
"""


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


def test_the_same_code_is_packed_to_the_same_bytes(tmp_path: Path) -> None:
    first, second = dist.code(tmp_path / "a"), dist.code(tmp_path / "b")

    assert first.read_bytes() == second.read_bytes()


def test_the_archive_is_to_hold_what_the_jobs_import_and_not_spark() -> None:
    names = {name for _, name in dist.packages()}

    needed = ("deltalake", "msgspec", "nkeys", "numpy", "pandas", "prometheus_client", "pyarrow", "tenacity")
    for package in (*needed, "zstandard"):
        assert f"packages/{package}/__init__.py" in names
    assert not any(
        name.startswith(("packages/pyspark", "packages/nats/", "packages/uvloop")) for name in names
    )
