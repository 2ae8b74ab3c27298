"""Turns an account into report sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agent.contract import LATE
from agent.contract.ranges import Range, intersection, text, union, without
from hub_jobs.audit.account import Account, Arrived, RunClaims, Unbacked


def unbacked(name: str, arrived: Arrived) -> Iterator[str]:
    """Report rows that are gone from bronze or only in other tables."""
    where = "what can be read of bronze" if arrived.partly else "bronze"
    kept, invented = arrived.kept_rows, arrived.invented
    if arrived.gone:
        yield f"{name}: bronze held batches {text(arrived.gone)}, and {where} no longer does"
    if kept.rows:
        yield (
            f"{name}: {_rows(kept)} are of batches {text(kept.batches)}, whose messages are not in {where}: "
            "nothing proves them any more, and they can't be decoded again"
        )
    if invented.rows:
        yield (
            f"{name}: {_rows(invented)} are of batches {text(invented.batches)}, which no message of {where} "
            "explains and no agent is known to have stored"
        )


def _rows(of: Unbacked) -> str:
    parts = [f"{of.readings} rows of readings"] if of.readings else []
    return " and ".join([*parts, *([f"{of.quarantined} of quarantine"] if of.quarantined else [])])


def discarded_of(name: str, kept: int, discarded: Sequence[tuple[int, int, int, str]]) -> Iterator[str]:
    for first, last, messages, reason in discarded:
        yield (
            f"{name}: sequences {first}-{last} of its stream, {messages} messages of devices among them, "
            f"were discarded at the edge: {reason}"
        )
    if kept:
        yield f"{name}: {kept} of these messages had arrived"


def findings_of(
    account: Account,
    claims: RunClaims,
    absent: Sequence[Range],
    never_came: int,
    arrived: Arrived,
) -> list[str]:
    found = []
    name = f"{account.domain}, class {account.cls}, run {account.run}"
    known, gone = union(arrived.batches), union(arrived.gone)
    unexplained = without(absent, gone)
    holes = without(claims.unsettled(known), union(gone, arrived.kept_rows.batches))
    never = "never came, or are in what can't be read of bronze" if arrived.partly else "never came"
    if never_came and gone and not holes:
        found.append(f"{name}: with them {never_came} readings or more are gone")
    elif unexplained and (holes == unexplained or claims.names_all(unexplained, never_came)):
        found.append(
            f"{name}: batches {text(unexplained)} were acknowledged as stored and {never}, "
            f"{never_came} readings or more"
        )
    elif unexplained:
        found.append(
            f"{name}: batches {text(holes)} {never}, {never_came} readings or more; "
            f"that {text(unexplained)} were acknowledged as stored is certain, "
            "of the others only the sum of readings is"
        )
    elif never_came and holes:
        found.append(
            f"{name}: {never_came} readings that were acknowledged as stored {never}; "
            f"batches that did not come: {text(holes)}"
        )
    elif never_came:
        found.append(
            f"{name}: {never_came} readings that were acknowledged as stored are missing, though all its "
            "batches are in bronze: these say that they hold fewer"
        )
    for first, last, readings, reason in claims.discards:
        came = intersection([(first, last)], known)
        but = f"; batches {text(came)} of them had arrived" if came else ""
        found.append(
            f"{name}: batches {first}-{last}, {readings} readings, were discarded at the edge: {reason}{but}"
        )
    if (late := claims.readings.refused_late) > 0:
        rows = claims.ledger.refused if claims.ledger else ()
        named = [f"{first}-{last} ({reason})" for first, last, reason in rows if LATE in reason]
        found.append(
            f"{name}: {late} readings were acknowledged as accepted and could not be stored; "
            f"batches {', '.join(named) or 'that no record of the run names'}"
        )
    if account.dead > arrived.dead:
        found.append(
            f"{name}: {account.dead} dead letters, of which {arrived.dead} came; "
            "the others are on their way, or were counted at the edge and not kept"
        )
    if account.open_tail is not None:
        found.append(f"{name}: {_tail_text(account.open_tail, claims)}")
    return found


def _tail_text(tail: int, claims: RunClaims) -> str:
    if claims.ledger is None and claims.previous is None:
        return (
            "the run is not closed, and no ledger record of it has come yet (an agent sends one a minute): "
            "what it accepted beyond what is here is not known"
        )
    if claims.previous is not None:
        return (
            "the run ended without closing (its agent was killed); "
            f"{tail} readings were accepted and not acknowledged as stored"
        )
    return (
        "the run is not closed: it goes on, or its agent was killed. When last heard of, "
        f"{tail} readings were accepted and neither stored nor refused"
    )
