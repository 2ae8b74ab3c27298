"""What a build, or a test of what was built, needs of the machine, asked before it begins."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping


def lacking(tools: Mapping[str, str], *, root: bool = False) -> str:
    """What is missing and how to get it, in one sentence, or "" where nothing is.

    Args:
        tools: The programs, each with the Debian package that has it.
        root: Whether only root can do it.
    """
    if missing := [name for name in tools if shutil.which(name) is None]:
        packages = " ".join(dict.fromkeys(tools[name] for name in missing))
        return f"{' and '.join(missing)} not installed; install with: apt-get install {packages}"
    return "only root can do this; run it as root" if root and os.geteuid() != 0 else ""
