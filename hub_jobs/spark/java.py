"""The Java that Spark would start on this machine, looked at before it is started: Spark's own scripts say
nothing of a version that they can't use (`spark-class: line 97: CMD: bad array subscript`, Spark 4.2.0)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

from hub_jobs.spark.connect_tasks import REMOTE

_NEEDED: Final = 17
"""The oldest version on which Spark 4.2 runs (its documentation, "Downloading")."""
_SECONDS: Final = 30.0
_REMEDY: Final = "install it (Debian: openjdk-17-jre-headless), or have JAVA_HOME name the directory of one"
_VERSION: Final = re.compile(r'(?:JAVA_VERSION=| version )"(?:1\.)?(\d+)')
"""As the file `release` of a Java, or `java -version`, has it; 8 was still called 1.8."""


class JavaError(Exception):
    """There is no Java on which Spark runs; the text says which was found, where, and what to do."""


def java() -> Path | None:
    """The program that Spark's scripts would start, None where they find none."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else "java"
    which = shutil.which(found)
    return None if which is None else Path(which)


def check_java() -> None:
    """Raise `JavaError` where Spark can't start its Java machine here. Where it runs elsewhere or already,
    nothing is looked at."""
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
    """What a Java says of its version: in its directory, which is quicker, or when it is run."""
    try:
        return (program.resolve().parents[1] / "release").read_text(errors="replace")
    except (OSError, IndexError):
        pass
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        return str(error)
    return done.stderr + done.stdout
