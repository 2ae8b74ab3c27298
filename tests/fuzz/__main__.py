"""`python -m tests.fuzz --seconds 60 [TARGET …]`: fuzz every parser of outside bytes, guided by coverage, the
time shared among them. What breaks a promise is kept in build/fuzz/found/ and named; exit code 1.

An input that takes longer than ten seconds or more than 1 GiB is a finding like a wrong error. What was found
once belongs to tests/fuzz/found/TARGET/, where tests/unit/test_fuzz.py reads it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzz.all import TARGETS

BUILD = Path("build/fuzz")
FOUND = Path(__file__).parent / "found"
LEAST = 2
"""Seconds for each."""


def fuzz(name: str, seconds: int) -> bool:
    """Fuzz one for so long; whether it kept its promise."""
    corpus, found = BUILD / "corpus" / name, BUILD / "found"
    for one in (corpus, found):
        one.mkdir(parents=True, exist_ok=True)
    known = sorted((FOUND / name).glob("*"))
    for number, seed in enumerate([*TARGETS[name].seeds, *(path.read_bytes() for path in known)]):
        (corpus / f"seed-{number}").write_bytes(seed)
    limits = [f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=1024", "-max_len=8192"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.one", name, *limits, f"-artifact_prefix={found}/{name}-", corpus],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    runs = re.findall(r"^#(\d+)", done.stdout, re.MULTILINE)
    outcome = f"FOUND, exit code {done.returncode}" if done.returncode else "well"
    print(f"{name}: {runs[-1] if runs else 0} inputs, {outcome}", flush=True)
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if not line.startswith(("#", "INFO", "WARNING"))]
        print("\n".join(said)[-4000:], flush=True)
    return done.returncode == 0


def main() -> int:
    """Fuzz and return the exit code."""
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    given = parser.parse_args()
    if unknown := sorted(set(given.targets) - TARGETS.keys()):
        parser.error(f"{unknown[0]} is none of {', '.join(TARGETS)}")
    names = given.targets or list(TARGETS)
    share = max(LEAST, given.seconds // len(names))
    kept = [fuzz(name, share) for name in names]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
