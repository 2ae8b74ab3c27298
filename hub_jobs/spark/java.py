"""Checks the Java that Spark would start, because Spark 4.2.0's scripts do not name an unusable version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from hub_jobs.spark.connect_tasks import REMOTE

_NEEDED: Final = 17
"""Oldest Java for Spark 4.2 (its documentation, "Downloading")."""
_SECONDS: Final = 30.0
_REMEDY: Final = "install it (Debian: openjdk-17-jre-headless), or have JAVA_HOME name the directory of one"
_VERSION: Final = re.compile(r'(?:JAVA_VERSION=| version )"(?:1\.)?(\d+)')
"""Version in a Java's file `release` or from `java -version`; Java 8 is 1.8."""


class JavaError(Exception):
    """No usable Java; the text names the found one and the remedy."""


def java() -> Path | None:
    """Return the program that Spark's scripts would start, None if missing."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else "java"
    which = shutil.which(found)
    return None if which is None else Path(which)


def check_java() -> None:
    """Raise `JavaError` when Spark can't start Java here; skipped when Java runs elsewhere or already."""
    if REMOTE in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    needed, program = f"the jobs need Java {_NEEDED} or newer", java()
    if program is None:
        home = os.environ.get("JAVA_HOME")
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no `java` on the PATH"
        raise JavaError(f"{needed}, and {where}: {_REMEDY}")
    said = _said(program)
    version = _VERSION.search(said)
    if version is None:
        raise JavaError(
            f"{needed}, and {program} does not say its version ({said.strip()!r:.200}): {_REMEDY}"
        )
    if int(version[1]) < _NEEDED:
        raise JavaError(f"{needed}, and {program} is Java {version[1]}: {_REMEDY}")


def _said(program: Path) -> str:
    """Return a Java's version text, from its directory or by running it."""
    try:
        return (program.resolve().parents[1] / "release").read_text(errors="replace")
    except (OSError, IndexError):
        pass
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        return str(error)
    return done.stderr + done.stdout
