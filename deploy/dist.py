"""python -m deploy.dist: what a Spark cluster needs to run the jobs, in `dist/`.

    petiole-jobs-VERSION.zip               the jobs' own code, for --py-files
    petiole-python-VERSION-PLATFORM.tar.gz a Python with what the jobs import, for --archives
    jobs/*.py                              the scripts that spark-submit starts

The archive holds the interpreter too, so that nodes need none: it runs wherever it is unpacked, on machines
with the processor and at least the C library of the one that made it. It holds what the running environment
has, version by version; PySpark is not in it, for that comes with Spark.
"""

from __future__ import annotations

import argparse
import gzip
import io
import re
import shutil
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Collection, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[1]
_PACKAGE: Final = "petiole"
_NOT_SHIPPED: Final = {"pyspark", "py4j"}
_JOBS_BASE: Final = ("msgspec", "nkeys", "prometheus-client", "tenacity", "zstandard")
"""What the jobs import of the package's own requirements; the rest of those is the agent's."""
_LEFT_OUT: Final = {"test", "tests", "site-packages", "dist-packages", "idlelib", "tkinter", "turtledemo"}
_LEFT_OUT_PREFIX: Final = "config-"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_LAUNCHER: Final = """#!/bin/sh
# Spark calls this by a relative path; whatever of Python the node has is kept out.
root=$(cd "$(dirname "$0")/.." && pwd)
export PYTHONHOME="$root" PYTHONNOUSERSITE=1 PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$root/packages"
export LD_LIBRARY_PATH="$root/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$root/bin/%s" "$@"
"""


def main() -> None:
    """Make all of it."""
    parser = argparse.ArgumentParser(prog="dist", description="Pack the jobs for a Spark cluster.")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="a directory (default: dist)")
    parser.add_argument("--code-only", action="store_true", help="leave the archive with the Python out")
    given = parser.parse_args()
    made = [code(given.to), *scripts(given.to)]
    if not given.code_only:
        made.append(environment(given.to))
    for path in made:
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {path}")


def code(to: Path) -> Path:
    """The zip of the jobs and of what they share with the agent; the same code gives the same bytes."""
    to.mkdir(parents=True, exist_ok=True)
    path = to / f"petiole-jobs-{project_version()}.zip"
    sources = [*(ROOT / "hub_jobs").rglob("*.py"), *(ROOT / "agent" / "contract").rglob("*.py")]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted([*sources, ROOT / "agent" / "__init__.py"]):
            entry = zipfile.ZipInfo(str(source.relative_to(ROOT)), _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, source.read_bytes(), zipfile.ZIP_DEFLATED)
    return path


def scripts(to: Path) -> list[Path]:
    """The jobs' scripts, which find their code in the zip."""
    jobs = to / "jobs"
    shutil.rmtree(jobs, ignore_errors=True)
    jobs.mkdir(parents=True)
    found = sorted((ROOT / "hub_jobs").glob("*/__main__.py"))
    return [Path(shutil.copy(path, jobs / f"{path.parent.name}.py")) for path in found]


def environment(to: Path) -> Path:
    """The archive with the interpreter, its library and the packages that the jobs import."""
    platform = sysconfig.get_platform().replace("-", "_")
    path = to / f"petiole-python-{project_version()}-{platform}.tar.gz"
    with gzip.open(path, "wb", compresslevel=5) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for source, name in (*_interpreter(), *packages()):
            archive.add(source, name, recursive=False)
        launcher = (_LAUNCHER % _binary().name).encode()
        entry = tarfile.TarInfo("bin/python")
        entry.size, entry.mode = len(launcher), 0o755
        archive.addfile(entry, io.BytesIO(launcher))
    return path


def _interpreter() -> Iterator[tuple[Path, str]]:
    """The interpreter of the running environment and all that it needs, with their places in the archive."""
    yield _binary(), f"bin/{_binary().name}"
    library = Path(sysconfig.get_config_var("LIBDIR")) / sysconfig.get_config_var("INSTSONAME")
    if ".so" in library.name and library.is_file():
        yield library, f"lib/{library.name}"
    standard = Path(sysconfig.get_path("stdlib"))
    name = Path("lib") / f"python{sys.version_info.major}.{sys.version_info.minor}"
    for source in _files(standard):
        yield source.resolve(), str(name / source.relative_to(standard))


def _binary() -> Path:
    """The real interpreter, not a link of a virtual environment to it."""
    return Path(sys.executable).resolve()


def _files(directory: Path) -> Iterator[Path]:
    for source in sorted(directory.iterdir()):
        if source.name in _LEFT_OUT or source.name.startswith(_LEFT_OUT_PREFIX):
            continue
        if source.is_dir():
            yield from _files(source)
        elif source.exists():
            yield source


def packages() -> Iterator[tuple[Path, str]]:
    """The files of every package that the jobs need, with their places in the archive."""
    for one in sorted(_closure(), key=lambda one: one.name):
        for file in one.files or ():
            outside = file.is_absolute() or ".." in file.parts
            if not outside and not _LEFT_OUT.intersection(file.parts) and Path(file.locate()).is_file():
                yield Path(file.locate()), f"packages/{file}"


def _closure() -> list[Distribution]:
    own = map(Requirement, distribution(_PACKAGE).requires or ())
    todo = [one for one in own if one.marker is not None and one.marker.evaluate({"extra": "hub"})]
    return closure([*todo, *map(Requirement, _JOBS_BASE)], _NOT_SHIPPED)


def closure(todo: list[Requirement], left_out: Collection[str] = ()) -> list[Distribution]:
    """The installed packages that requirements name, and all that these need."""
    found: dict[str, Distribution] = {}
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in found or name in left_out:
            continue
        found[name] = distribution(name)
        extras = {"", *requirement.extras}
        todo += [
            one
            for one in map(Requirement, found[name].requires or ())
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in extras)
        ]
    return list(found.values())


def project_version() -> str:
    """The version that pyproject.toml states."""
    text = (ROOT / "pyproject.toml").read_text()
    found = re.search(r'^version = "([^"]+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


if __name__ == "__main__":
    main()
