"""Implements `petiole proof`, which writes or checks an HTML file on a domain's readings in a time span.

Exit codes: 0 complete, or the check succeeded; 2 wrong usage; 3 readings missing, doubled or pending, or
tables or file changed; 5 unreadable tables.
"""

from __future__ import annotations

import hashlib
from argparse import ArgumentTypeError
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from agent.cli.configuration import end
from agent.cli.where import From, To, microseconds, span_of
from agent.contract import ContractError, Exit, check_domain

if TYPE_CHECKING:
    from hub_jobs.tables.places import Place

_SHOWN: Final = 20
_LARGEST: Final = 256 * 2**20

Domain = Annotated[str, typer.Argument(help="The leaf.", show_default=False)]
LakeDir = Annotated[
    str,
    typer.Option(
        "--lake", help="Where the tables are: a directory or a store's address.", show_default=False
    ),
]
OutFile = Annotated[
    Path | None, typer.Option("--out", "-o", help="The file to write (default: proof-<domain>.html).")
]
Check = Annotated[
    Path | None, typer.Option("--check", help="Check this proof against the tables instead of making one.")
]


def command(
    lake: LakeDir,
    domain: Domain = "",
    since: From = None,
    until: To = None,
    out: OutFile = None,
    check: Check = None,
) -> None:
    """Prove what became of the readings of a leaf, in one HTML file, or check such a file."""
    at = _place(lake)
    if check is not None:
        if domain or since or until or out:
            end(["--check looks at what the file says, and takes only --lake beside it"])
        raise typer.Exit(_check(check, at))
    try:
        check_domain(domain)
    except ContractError as error:
        end([f"{error}; or check a proof with --check"])
    now = datetime.now(UTC)
    first, last = span_of(since, until)
    raise typer.Exit(_make(at, domain, first, last or microseconds(now), now, out))


def _place(lake: str) -> Place:
    try:
        from hub_jobs.tables.places import parse_place
    except ImportError as error:
        end([f"the tables: {error}; install petiole[hub]"])
    try:
        return parse_place(lake)
    except ArgumentTypeError as error:
        end([str(error)])


def _evidence(at: Place, domain: str, first: int | None, last: int | None, now: datetime) -> dict[str, Any]:
    from hub_jobs.tables.delta import TableError
    from hub_jobs.where import ScanPart
    from hub_jobs.where.evidence import UnknownLeafError, evidence

    try:
        return evidence(at, ScanPart(domain, first, last), now, f"petiole {version('petiole')}")
    except UnknownLeafError as error:
        end([str(error)])
    except TableError as error:
        end([str(error)], Exit.UNREACHABLE)


def _make(at: Place, domain: str, first: int | None, last: int, now: datetime, out: Path | None) -> Exit:
    from agent.cli.query.proof_page import is_complete, proof_page, verdict

    found = _evidence(at, domain, first, last, now)
    page = proof_page(found).encode()
    file = out or Path(f"proof-{domain}.html")
    try:
        file.write_bytes(page)
    except OSError as error:
        end([f"{file} can't be written: {error.strerror}"])
    typer.echo(verdict(found))
    typer.echo(f"{file}, SHA-256 {hashlib.sha256(page).hexdigest()}")
    return Exit.WELL if is_complete(found) else Exit.LOSS


def _check(file: Path, at: Place) -> Exit:
    from agent.cli.query.proof_page import ProofError, evidence_of

    try:
        if file.stat().st_size > _LARGEST:
            end([f"{file} is larger than {_LARGEST} bytes, which no proof is"])
        then = evidence_of(file.read_text(encoding="utf-8"))
    except OSError as error:
        end([f"{file} can't be read: {error.strerror}"])
    except (ProofError, UnicodeDecodeError) as error:
        typer.echo(f"{file}: {error}")
        return Exit.LOSS
    return _compare(then, at)


def _compare(then: dict[str, Any], at: Place) -> Exit:
    from hub_jobs.tables.parquet_reading import UnreadableError
    from hub_jobs.where.evidence import differences, file_differences

    first, last = _moment(then["from"]), _moment(then["to"])
    now = _evidence(at, then["domain"], first, last, datetime.now(UTC))
    try:
        same, gone, other = file_differences(at, then)
    except UnreadableError as error:
        end([str(error)], Exit.UNREACHABLE)
    found = differences(then, now)
    rows = sum(count for count, _ in now["contents"].get("readings", {}).values())
    typer.echo(f"files: {same} as they were, {len(gone)} gone, {len(other)} altered")
    for text in [*(f"{name} is not the file that it was" for name in other), *found][:_SHOWN]:
        typer.echo(text)
    if len(found) + len(other) > _SHOWN:
        typer.echo(f"and {len(found) + len(other) - _SHOWN} more differences")
    if found or other:
        typer.echo(f"{then['domain']}: the tables are not as this proof says")
        return Exit.LOSS
    kept = "; files that are gone were written together with others, or vacuumed" if gone else ""
    typer.echo(f"{then['domain']}: {rows:,} readings, figures and contents are as this proof says{kept}")
    return Exit.WELL


def _moment(text: str | None) -> int | None:
    return None if text is None else microseconds(datetime.fromisoformat(text))
