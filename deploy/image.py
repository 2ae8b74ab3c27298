"""python -m deploy.image: the agent's container image, `dist/petiole_VERSION_ARCHITECTURE.image.tar`.

No registry is asked. mmdebstrap makes a Debian root with a Python and little else, which gets what the Debian
package has in /opt/petiole; buildah makes the image of that root by deploy/Containerfile. Needs root, and
Debian's packages mmdebstrap and buildah; for another architecture also qemu-user-static.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Final

from deploy.deb import ARCHITECTURES, native, package
from deploy.deb import TOOLS as DEB_TOOLS
from deploy.dist import ROOT, project_version
from deploy.tools import lacking
from deploy.wheel import epoch, run

SUITE: Final = "bookworm"
TOOLS: Final = {**DEB_TOOLS, "mmdebstrap": "mmdebstrap", "buildah": "buildah"}
"""The programs that make an image, each with the Debian package that has it."""
_INCLUDED: Final = "python3,ca-certificates,tzdata"
_USER: Final = 10001
_WORK: Final = ROOT / "build" / "image"


def main() -> None:
    """Make the images."""
    parser = argparse.ArgumentParser(prog="image", description="Make the container image.")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="a directory (default: dist)")
    parser.add_argument(
        "--architecture", choices=ARCHITECTURES, help="of the image (default: this machine's)"
    )
    given = parser.parse_args()
    if reason := lacking(TOOLS, root=True):
        sys.exit(f"image: {reason}")
    architecture = given.architecture or native()
    deb = package(_WORK, project_version(), architecture, ("-Znone",))
    print(image(given.to, deb, architecture))


def image(to: Path, deb: Path, architecture: str) -> Path:
    """Make the image of a package in a directory, and return its path: an archive that `podman load` and
    `docker load` read."""
    to.mkdir(parents=True, exist_ok=True)
    _WORK.mkdir(parents=True, exist_ok=True)
    context = _WORK / architecture
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir()
    _root(context / "root.tar", deb, architecture)
    path = to / f"petiole_{project_version()}_{architecture}.image.tar"
    path.unlink(missing_ok=True)
    store = ["--root", str(context / "store"), "--runroot", str(context / "run")]
    buildah = ["buildah", *store, "--storage-driver", "vfs"]
    named = f"localhost/petiole:{project_version()}"
    # In this format the health check is kept.
    options = ["--format", "docker", "--isolation", "chroot", "--arch", architecture]
    options += ["--timestamp", str(epoch()), "--file", str(ROOT / "deploy" / "Containerfile")]
    run(*buildah, "build", *options, "--tag", named, str(context))
    run(*buildah, "push", named, f"docker-archive:{path}:{named}")
    shutil.rmtree(context)
    return path


def _root(to: Path, deb: Path, architecture: str) -> None:
    """The archive of the root: Debian, the agent, and the user that it runs as."""
    hooks = [
        f'dpkg-deb --fsys-tarfile "{deb}" | tar -x -C "$1" ./opt',
        # An id in the image would be that of all its containers, which the hub would take for one machine
        # that was copied; without one each keeps an id of its own in its state.
        'rm -f "$1/etc/machine-id" "$1/var/lib/dbus/machine-id"',
        f'echo "petiole:x:{_USER}:{_USER}::/var/lib/petiole:/usr/sbin/nologin" >>"$1/etc/passwd"',
        f'echo "petiole:x:{_USER}:" >>"$1/etc/group"',
        f'install -d -m 0700 -o {_USER} -g {_USER} "$1/var/lib/petiole"',
        'rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*',
    ]
    made = ["mmdebstrap", "--quiet", "--variant=essential", f"--arch={architecture}"]
    made += [f"--include={_INCLUDED}", *(f"--customize-hook={hook}" for hook in hooks)]
    # A container needs no documents and translations.
    made += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
    run(*made, "--dpkgopt=path-include=/usr/share/doc/*/copyright", SUITE, str(to))


if __name__ == "__main__":
    main()
