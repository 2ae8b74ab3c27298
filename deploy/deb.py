"""python -m deploy.deb: the Debian package of the agent, `dist/petiole_VERSION_ARCHITECTURE.deb`.

It holds a virtual environment in /opt/petiole with the embedded server, bound to the version of the system's
Python, and the units. The jobs are not in it: they need Spark, and an environment of their own.

Nothing is compiled, so a machine of one architecture makes the packages of all: the wheels of the other one
are fetched, checked and unpacked. With deploy/constraints.txt, the same commit gives the same bytes.
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

from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.sources import WheelFile

from deploy.dist import ROOT, project_version
from deploy.tools import lacking
from deploy.wheel import build, run

ARCHITECTURES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
"""Those of Debian for which packages are made, and how wheels call them."""
TOOLS: Final = {"dpkg-deb": "dpkg", "/usr/bin/python3": "python3"}
"""The programs that make a package, each with the Debian package that has it."""
_EXTRAS: Final = "embedded,modbus,mqtt,opcua,otlp,otlp-grpc,prometheus,remote-write,sparkplug"
_GLIBC: Final = 28
"""The minor version of the C library, 2.28, that a wheel in the package may ask for."""
_AS_SOURCE: Final = ("nkeys",)
"""Of the dependencies, those without a wheel on the index; they are pure Python."""
_PYTHON: Final = Path("/usr/bin/python3")
PREFIX: Final = "opt/petiole"
_SCRIPTS: Final = ("postinst", "prerm", "postrm")
_CONFFILES: Final = ("etc/petiole.toml",)
_KEPT: Final = ("python", "python3", "petiole", "nats-server")
_SHARED: Final = f"{PREFIX}/share/petiole"
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
    """Make the packages."""
    parser = argparse.ArgumentParser(prog="deb", description="Make the Debian package.")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="a directory (default: dist)")
    parser.add_argument("--version", default=project_version(), help="another version than the project's")
    parser.add_argument(
        "--architecture",
        action="append",
        choices=ARCHITECTURES,
        help="may be repeated (default: this machine's)",
    )
    given = parser.parse_args()
    if reason := lacking(TOOLS):
        sys.exit(f"deb: {reason}")
    for architecture in given.architecture or [native()]:
        print(package(given.to, given.version, architecture))


def native() -> str:
    """This machine's architecture, as Debian calls it."""
    return _said("dpkg", "--print-architecture")


def package(to: Path, version: str, architecture: str, packing: Sequence[str] = ("-Zxz",)) -> Path:
    """Make the package in a directory, packed as dpkg-deb is told, and return its path."""
    to.mkdir(parents=True, exist_ok=True)
    root = ROOT / "build" / "deb" / architecture
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    _environment(root, architecture)
    _place(root)
    _control(root, version, architecture)
    path = to / f"petiole_{version}_{architecture}.deb"
    # dpkg-deb keeps modes as they are, so they must not depend on a builder's umask.
    run("chmod", "-R", "u=rwX,go=rX", str(root))
    run("dpkg-deb", "--root-owner-group", *packing, "--build", str(root), str(path))
    shutil.rmtree(root)
    return path


def _environment(root: Path, architecture: str) -> None:
    """Make the virtual environment of an architecture below a directory, as it will be in /."""
    prefix = root / PREFIX
    run(str(_PYTHON), "-m", "venv", "--without-pip", str(prefix))
    packages = str(next(prefix.glob("lib/python3.*/site-packages")))
    scheme = {"purelib": packages, "platlib": packages, "data": str(prefix)}
    scheme |= {"scripts": str(prefix / "bin"), "headers": str(prefix / "include")}
    for wheel in _wheels(root.parent / f"wheels-{architecture}", architecture):
        target = SchemeDictionaryDestination(scheme, f"/{PREFIX}/bin/python", "posix")
        with WheelFile.open(wheel) as source:
            source.validate_record()
            install(source, target, {})
    for script in (prefix / "bin").iterdir():
        if script.name not in _KEPT:
            script.unlink()
    settings = prefix / "pyvenv.cfg"
    kept = [line for line in settings.read_text().splitlines() if not line.startswith("command")]
    settings.write_text("\n".join(kept) + "\n")
    # The agent may not write there, and an edge machine should not compile at each start.
    compiler = [str(prefix / "bin" / "python"), "-m", "compileall", "-q", "-s", str(root), "-p", "/"]
    run(*compiler, "--invalidation-mode", "unchecked-hash", str(prefix / "lib"))


def _wheels(to: Path, architecture: str) -> list[Path]:
    """The agent's wheel and those of all that it needs, for an architecture, fetched into a directory."""
    shutil.rmtree(to, ignore_errors=True)
    own, _ = build(to)
    machine = ARCHITECTURES[architecture]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(_PYTHON)]
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(to), *_AS_SOURCE)
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(_GLIBC, 16, -1)]
    fetch = [*pip, "download", "--quiet", "--only-binary=:all:", "--find-links", str(to)]
    for tag in (*tags, f"manylinux2014_{machine}"):
        fetch += ["--platform", tag]
    run(*fetch, "--dest", str(to), f"{own}[{_EXTRAS}]")
    return sorted(to.glob("*.whl"))


def _place(root: Path) -> None:
    """Units, configuration and documents."""
    units = root / _SHARED / "systemd"
    library = root / "usr" / "lib"
    for source in sorted([*units.glob("*.service"), *units.glob("*.timer"), *units.glob("*.d/*.conf")]):
        _copy(source, library / "systemd" / "system" / source.relative_to(units))
    _copy(units / "petiole.sysusers", library / "sysusers.d" / "petiole.conf")
    _copy(units / "petiole.tmpfiles", library / "tmpfiles.d" / "petiole.conf")
    _copy(ROOT / "deploy" / "debian" / "petiole.toml", root / _CONFFILES[0])
    documents = root / "usr" / "share" / "doc" / "petiole"
    _copy(ROOT / "config.example.toml", documents / "config.example.toml")
    _copy(ROOT / "LICENSE", documents / "copyright")
    _copy(ROOT / "CHANGELOG.md", documents / "changelog.md")
    link = root / "usr" / "bin" / "petiole"
    link.parent.mkdir(parents=True)
    link.symlink_to(f"/{PREFIX}/bin/petiole")


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


if __name__ == "__main__":
    main()
