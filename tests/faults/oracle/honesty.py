"""Whether ledger, metrics and audit say what is so. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict

from tests.faults.oracle import ruled
from tests.faults.oracle.evidence import Account, Evidence, Run
from tests.faults.oracle.journal import Journal, Level
from tests.faults.oracle.verdict import Promise, Verdict


def judge(journal: Journal, found: Evidence, verdict: Verdict, *, gone: bool) -> None:
    """Note each thing that one of them says and that is not so. Where readings may be `gone`, an agent's own
    may be among those that the audit names."""
    _judge_audit(found, verdict, gone=gone)
    _judge_metrics(found, verdict, gone=gone)
    _judge_ledgers(journal, found, verdict)


def _judge_audit(found: Evidence, verdict: Verdict, *, gone: bool) -> None:
    held: Counter[Run] = Counter((row.domain, row.cls, row.run) for row in found.rows)
    for one in found.audit.accounts:
        there = held.pop((one.domain, one.cls, one.run), 0)
        if one.in_readings != there:
            _lies(verdict, f"the audit counts {one.in_readings} readings of {_name(one)}, there are {there}")
        if one.missing and not gone and not verdict.lost + verdict.named:
            _lies(verdict, f"the audit misses {one.missing} readings of {_name(one)}, and nothing is missing")
    for run, there in held.items():
        _lies(verdict, f"the audit has no account of {there} readings of {run}")
    doubled = sum(one.doubled for one in found.audit.accounts)
    if doubled != verdict.doubled:
        _lies(verdict, f"the audit says that {doubled} readings are doubled, {verdict.doubled} are")
    missing = sum(one.missing for one in found.audit.accounts)
    if (missing or doubled) and not found.audit.lost:
        _lies(verdict, f"the audit ends well with {missing} readings missing and {doubled} doubled")


def _judge_metrics(found: Evidence, verdict: Verdict, *, gone: bool) -> None:
    for run, counted in found.metrics.items():
        for cls, most in counted.unaccounted.items():
            if most:
                _lies(verdict, f"petiole_unaccounted_readings of class {cls} was {most:.0f} in the run {run}")
        for cls, stored in counted.stored.items():
            there = sum(row.run == run and row.cls == cls and row.device != row.domain for row in found.rows)
            elsewhere = gone or found.quarantine or verdict.lost + verdict.named
            if stored < there or (stored > there and not elsewhere):
                _lies(
                    verdict, f"the metrics of run {run} say that {stored:.0f} were stored, {there} are there"
                )
            for (domain, of, whose), ledger in found.ledgers.items():
                # The agent's own readings are in its ledger too.
                if (of, whose) == (cls, run) and ledger.final and ledger.readings.stored < stored:
                    _lies(
                        verdict,
                        f"the ledger of {domain}, class {cls}, run {run} says that {ledger.readings.stored} "
                        f"were stored, the metrics {stored:.0f}",
                    )


def _judge_ledgers(journal: Journal, found: Evidence, verdict: Verdict) -> None:
    for (domain, cls, run), ledger in found.ledgers.items():
        said = ledger.readings
        settled = said.stored + said.refused + said.dead
        if ledger.final and said.accepted != settled:
            _lies(
                verdict,
                f"the ledger of {domain}, class {cls}, run {run} is closed with {said.accepted} accepted and "
                f"{settled} stored, refused or dead",
            )
    promised: dict[tuple[str, str], int] = defaultdict(int)
    for series, sent in journal.series.items():
        if sent.level is not Level.ACCEPTED:
            promised[series.domain, series.cls] += ruled.must_be_stored(series, sent)
    for (domain, cls), acknowledged in promised.items():
        accounts = [one for one in found.audit.accounts if (one.domain, one.cls) == (domain, cls)]
        stored = sum(one.stored for one in accounts) + found.audit.gone(domain, cls) + verdict.unseen
        if stored < acknowledged:
            _lies(
                verdict,
                f"the audit says that {stored} readings of {domain}, class {cls} were stored, "
                f"{acknowledged} were acknowledged",
            )


def _name(one: Account) -> str:
    return f"{one.domain}, class {one.cls}, run {one.run}"


def _lies(verdict: Verdict, sentence: str) -> None:
    verdict.broken(Promise.HONESTY, sentence)
