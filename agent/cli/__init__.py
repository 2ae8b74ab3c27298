"""Implements the command line, one module per command, imported when it runs."""

import sys

# structlog takes rich for tracebacks in colour wherever it is installed, which costs every agent three
# megabytes of memory for something that it never prints. The commands that draw import rich themselves.
sys.modules["rich"] = None  # type: ignore[assignment]
import structlog  # noqa: E402, F401

del sys.modules["rich"]
