"""python -m deploy.deb: the Debian package of the agent, `dist/petiole_VERSION_ARCHITECTURE.deb`.

It holds a virtual environment in /opt/petiole with the embedded server, made by the system's own Python and
bound to its version, and the units. The jobs are not in it: they need Spark, and an environment of their own.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from deploy.dist import ROOT, project_version

_PYTHON: Final = Path("/usr/bin/python3")
_PREFIX: Final = "opt/petiole"
_SCRIPTS: Final = ("postinst", "prerm", "postrm")
_CONFFILES: Final = ("etc/petiole.toml",)
_KEPT: Final = ("python", "python3", "petiole", "nats-server")
_CONTROL: Final = """\
Package: petiole
Version: {version}
Architecture: {architecture}
Maintainer: Petiole <petiole@localhost>
Section: net
Priority: optional
Installed-Size: {size}
Depends: libc6 (>= 2.28), python3 (>= {python}), python3 (<< {next}), systemd
Description: carries telemetry from the edge to a hub
 An agent that takes in readings, keeps them in a JetStream stream on this machine and
 sees to it that they arrive at the hub over a NATS leaf node, exactly once.
"""


def main() -> None:
    """Make the package."""
    parser = argparse.ArgumentParser(prog="deb", description="Make the Debian package.")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="a directory (default: dist)")
    parser.add_argument("--version", default=project_version(), help="another version than the project's")
    given = parser.parse_args()
    print(package(given.to, given.version))


def package(to: Path, version: str, packing: Sequence[str] = ("-Zxz",)) -> Path:
    """Make the package in a directory, packed as dpkg-deb is told, and return its path."""
    to.mkdir(parents=True, exist_ok=True)
    root = ROOT / "build" / "deb"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    _environment(root)
    _place(root)
    architecture = _said("dpkg", "--print-architecture")
    _control(root, version, architecture)
    path = to / f"petiole_{version}_{architecture}.deb"
    _run("dpkg-deb", "--root-owner-group", *packing, "--build", str(root), str(path))
    shutil.rmtree(root)
    return path


def _environment(root: Path) -> None:
    """A virtual environment that knows nothing of where it was made."""
    prefix = root / _PREFIX
    _run(str(_PYTHON), "-m", "venv", "--without-pip", str(prefix))
    python = prefix / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-compile"]
    _run(*pip, "--disable-pip-version-check", f"{ROOT}[embedded,mqtt,otlp]")
    for script in (prefix / "bin").iterdir():
        if script.name not in _KEPT:
            script.unlink()
    command = prefix / "bin" / "petiole"
    lines = command.read_text().splitlines(keepends=True)
    command.write_text("".join([f"#!/{_PREFIX}/bin/python\n", *lines[1:]]))
    settings = prefix / "pyvenv.cfg"
    kept = [one for one in settings.read_text().splitlines() if not one.startswith("command")]
    settings.write_text("\n".join(kept) + "\n")
    # The agent may not write there, and an edge machine should not compile at each start.
    compiler = [str(python), "-m", "compileall", "-q", "-s", str(root), "-p", "/"]
    _run(*compiler, "--invalidation-mode", "unchecked-hash", str(prefix / "lib"))


def _place(root: Path) -> None:
    """Units, configuration and documents."""
    units = ROOT / "systemd"
    library = root / "usr" / "lib"
    for source in sorted([*units.glob("*.service"), *units.glob("*.timer"), *units.glob("*.d/*.conf")]):
        _copy(source, library / "systemd" / "system" / source.relative_to(units))
    _copy(units / "petiole.sysusers", library / "sysusers.d" / "petiole.conf")
    _copy(units / "petiole.tmpfiles", library / "tmpfiles.d" / "petiole.conf")
    _copy(ROOT / "deploy" / "debian" / "petiole.toml", root / _CONFFILES[0])
    documents = root / "usr" / "share" / "doc" / "petiole"
    _copy(ROOT / "config.example.toml", documents / "config.example.toml")
    _copy(ROOT / "LICENSE", documents / "copyright")
    link = root / "usr" / "bin" / "petiole"
    link.parent.mkdir(parents=True)
    link.symlink_to(f"/{_PREFIX}/bin/petiole")


def _control(root: Path, version: str, architecture: str) -> None:
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()]
    about = root / "DEBIAN"
    about.mkdir()
    minor = int(_said(str(_PYTHON), "-c", "import sys; print(sys.version_info.minor)"))
    fields = {"python": f"3.{minor}", "next": f"3.{minor + 1}"}
    size = sum(path.stat().st_size for path in files) // 1024
    text = _CONTROL.format(version=version, architecture=architecture, size=size, **fields)
    (about / "control").write_text(text)
    (about / "conffiles").write_text("".join(f"/{one}\n" for one in _CONFFILES))
    sums = [f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n" for path in files]  # noqa: S324 - what dpkg --verify reads
    (about / "md5sums").write_text("".join(sums))
    for name in _SCRIPTS:
        _copy(ROOT / "deploy" / "debian" / name, about / name).chmod(0o755)


def _copy(source: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o644)
    return target


def _said(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
