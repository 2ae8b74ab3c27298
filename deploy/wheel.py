"""python -m deploy.wheel: the wheel and the source archive, in `dist/`, each checked by twine.

The wheel is built from the source archive, so an archive that lacks a file gives no wheel. Both have the date
of the last commit (or SOURCE_DATE_EPOCH): the same commit gives the same bytes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.dist import ROOT, closure, project_version

_NO_COMMIT: Final = 315532800  # 1980, the first year that a zip can state
CONSTRAINTS: Final = ROOT / "deploy" / "constraints.txt"
"""The versions of every dependency with which a release was tested, and which its packages hold."""
_HEAD: Final = "# Written by `python -m deploy.wheel --pin` from the versions that the tests run with.\n"
_PINNED: Final = (
    "embedded",
    "hub",
    "modbus",
    "mqtt",
    "opcua",
    "otlp",
    "otlp-grpc",
    "prometheus",
    "remote-write",
    "sparkplug",
)
_BACKENDS: Final = ("hatchling", "setuptools")
"""What builds our wheel, and those that a dependency has as source only."""


def main() -> None:
    """Build both."""
    parser = argparse.ArgumentParser(prog="wheel", description="Build the wheel and the source archive.")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="a directory (default: dist)")
    parser.add_argument("--pin", action="store_true", help="only write deploy/constraints.txt")
    given = parser.parse_args()
    if given.pin:
        CONSTRAINTS.write_text("".join([_HEAD, *pins()]))
        return
    for path in build(given.to):
        print(path)


def build(to: Path) -> tuple[Path, Path]:
    """Build the wheel and the source archive into a directory and check what a registry would show of them.
    Raises `subprocess.CalledProcessError`."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(to), str(ROOT))
    wheel = to / f"petiole-{project_version()}-py3-none-any.whl"
    archive = to / f"petiole-{project_version()}.tar.gz"
    run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(archive))
    return wheel, archive


def pins() -> list[str]:
    """The line of each package that an installation needs, and of what builds wheels, as installed here."""
    found = {canonicalize_name(one.name): one.version for one in closure(requirements())}
    return [f"{name}=={version}\n" for name, version in sorted(found.items())]


def requirements() -> list[Requirement]:
    """What pyproject.toml asks for, with the extras that a release is for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *(line for extra in _PINNED for line in extras[extra]), *_BACKENDS]
    return [*map(Requirement, named)]


def epoch() -> int:
    """The time that everything built from this tree carries, in seconds since 1970."""
    if (given := os.environ.get("SOURCE_DATE_EPOCH")) is not None:
        return int(given)
    asked = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else _NO_COMMIT


def run(*command: str) -> None:
    """Run a tool, with the versions that are pinned and `epoch` for what it dates; its output is shown only
    where it fails."""
    pinned = dict.fromkeys(("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT"), str(CONSTRAINTS))
    environment = {**os.environ, **pinned, "SOURCE_DATE_EPOCH": str(epoch())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.stderr.write(done.stdout + done.stderr)
    done.check_returncode()


if __name__ == "__main__":
    main()
