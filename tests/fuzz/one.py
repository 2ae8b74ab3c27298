"""One target under libFuzzer: `python -m tests.fuzz.one TARGET OPTIONS`."""

from __future__ import annotations

import sys

import atheris
import structlog

with atheris.instrument_imports(include=["agent", "hub_jobs"]):
    from tests.fuzz.all import TARGETS


def main() -> None:
    """Fuzz until the time is over or a promise is broken."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    check = TARGETS[sys.argv.pop(1)].check
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
