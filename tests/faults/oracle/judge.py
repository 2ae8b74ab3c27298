"""What was sent and what was found, both together. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tests.faults.oracle import honesty, ruled
from tests.faults.oracle.evidence import Evidence, Named, Row
from tests.faults.oracle.journal import Journal, Level, Sent
from tests.faults.oracle.numbered import LIFE, NUMBER, VALVE, Series, contents, ranges_text, short, tags
from tests.faults.oracle.verdict import Promise, Verdict

_LOOK_US = 2_000_000
"""An agent looks at its stream each second while the hub is silent, on a machine that is busy less often."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a case allows. `gone`: the fault destroyed the only copy of readings, or a class discards, so some
    may be gone if the audit names them. `seconds`: in which the hub must hold all once nothing is sent any
    more. `blind`: when no agent looked at its stream, in microseconds since 1970: what devices published to a
    store that was lost then nobody can name. `reordered`: somebody forges the ids of batches, so one that is
    sent again under another may stand behind later ones, where its sender was told that it is accepted."""

    gone: bool = False
    reordered: bool = False
    seconds: float = 60.0
    blind: Sequence[tuple[int, int]] = ()

    def unwatched(self, ts_us: int) -> bool:
        """Whether no agent looked at a stream between a moment and the loss of its store."""
        return self.gone and any(begin - _LOOK_US <= ts_us <= end for begin, end in self.blind)


class _Held(NamedTuple):
    """A row, and the number of the reading that it is."""

    n: int
    row: Row


def judge(journal: Journal, found: Evidence, terms: Terms) -> Verdict:
    """The verdict, with a violation for each series and promise that was broken."""
    verdict = Verdict(journal.sent, journal.acknowledged)
    held = _sorted_out(journal, found.rows, verdict)
    for series, sent in journal.series.items():
        rows = held.get(series, [])
        _judge_contents(series, sent, rows, verdict)
        _judge_repeats(series, sent, rows, terms, verdict)
        if not (terms.reordered and sent.level is Level.ACCEPTED):
            _judge_order(series, rows, verdict)
    absent = _absent(journal, held, found.quarantine)
    _judge_conservation(journal, absent, found, terms, verdict)
    _judge_liveness(found, terms, verdict)
    honesty.judge(journal, found, verdict, gone=terms.gone)
    return verdict


def _sorted_out(journal: Journal, rows: Sequence[Row], verdict: Verdict) -> Mapping[Series, list[_Held]]:
    """The rows of each series, in the order of the table's key. What was never sent is an invention."""
    held: dict[Series, list[_Held]] = defaultdict(list)
    invented: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        series, n = _told(journal, row)
        sent = journal.series.get(series) if series is not None else None
        if series is not None and sent is not None and 1 <= n <= sent.sent:
            held[series].append(_Held(n, row))
        elif row.device != row.domain:  # an agent's own readings are of a device that is called like it
            invented[f"{row.device} of {row.domain}"].append(row)
    for whose, some in invented.items():
        verdict.broken(
            Promise.NO_INVENTION, f"{len(some)} readings of {whose} were never sent, the first is {some[0]}"
        )
    return held


def _told(journal: Journal, row: Row) -> tuple[Series | None, int]:
    """Which reading a row says that it is."""
    if row.domain and row.cls and row.device and row.device.startswith(VALVE):
        valve = Series(row.domain, row.cls, row.device, 1)
        return valve, journal.series[valve].at(row.ts_us or 0) if valve in journal.series else 0
    life, n = row.tags.get(LIFE, ""), row.tags.get(NUMBER, "")
    if not (row.domain and row.cls and row.device and life.isdecimal() and n.isdecimal()):
        return None, 0
    return Series(row.domain, row.cls, row.device, int(life)), int(n)


def _judge_contents(series: Series, sent: Sent, rows: Iterable[_Held], verdict: Verdict) -> None:
    wrong = {n: row for n, row in rows if not _as_sent(series, sent, n, row)}
    if wrong:
        numbers = ranges_text(list(wrong))
        verdict.broken(
            Promise.INTEGRITY,
            f"readings {numbers} of {series} are not as they were sent, the first is "
            f"{next(iter(wrong.values()))}",
        )


def _as_sent(series: Series, sent: Sent, n: int, row: Row) -> bool:
    metric, value = contents(series, n)
    if ruled.dropped(series, sent, n):
        return False
    if isinstance(value, bool):
        held: tuple[float | None, str | None] = (float(value), "true" if value else "false")
    elif isinstance(value, str):
        held = (None, short(value))
    else:
        held = (value, None)
    return (
        (row.metric, row.value, row.text) == (metric + sent.made.suffix, *held)
        and dict(row.tags) == {**tags(series, n), **sent.made.tags}
        and (row.ts_us, row.ts_source) == (sent.ts_us(n), "device")
    )


def _judge_repeats(series: Series, sent: Sent, rows: Iterable[_Held], terms: Terms, verdict: Verdict) -> None:
    """What a device sent again to another store than before, or by a protocol that tells no repeats apart,
    may be there more than once."""
    excused = sent.repeated if terms.gone or sent.at_least_once else set()
    counted = Counter(one.n for one in rows)
    repeated = {n: times for n, times in counted.items() if times > 1 and n not in excused}
    if repeated:
        verdict.doubled += sum(repeated.values()) - len(repeated)
        verdict.broken(
            Promise.ONCE, f"readings {ranges_text(list(repeated))} of {series} are there more than once"
        )


def _judge_order(series: Series, rows: Iterable[_Held], verdict: Verdict) -> None:
    """What came in batches stands by run, batch and place; what came directly as it arrived at the hub, for
    a store that was restored uses its sequences again, unless it stands in the leaf's stream before what
    arrived before it: a hub that has lost its store is sent again what came first."""
    lines: dict[bool, list[tuple[tuple[str, int, int], int]]] = {True: [], False: []}
    for n, row in rows:
        key = (
            ("", row.arrived_us, row.source_seq or 0)
            if row.run is None
            else (row.run, row.n or 0, row.place or 0)
        )
        lines[row.run is None].append((key, n))
    for direct, line in lines.items():
        late = [
            n
            for (before, last), (key, n) in pairwise(sorted(line))
            if n < last and not (direct and key[2] < before[2])
        ]
        if late:
            verdict.broken(Promise.ORDER, f"readings {ranges_text(late)} of {series} stand after later ones")


def _absent(
    journal: Journal, held: Mapping[Series, list[_Held]], quarantine: Sequence[Named]
) -> Mapping[Series, list[int]]:
    """Of each series the numbers that were acknowledged and are neither in `readings` nor in
    `quarantine`."""
    named = {(one.domain, one.cls, *one.reading) for one in quarantine if one.reading is not None}
    absent = {}
    for series, sent in journal.series.items():
        missing = ruled.missing(series, sent, {one.n for one in held.get(series, ())})
        absent[series] = [n for n in missing if (*series, n) not in named]
    return absent


def _judge_conservation(
    journal: Journal, absent: Mapping[Series, list[int]], found: Evidence, terms: Terms, verdict: Verdict
) -> None:
    levels: dict[tuple[str, str], dict[Series, list[int]]] = defaultdict(dict)
    for series, numbers in absent.items():
        if not numbers:
            continue
        if places := journal.series[series].sequences:
            _judge_messages(journal, series, {n: places[n] for n in numbers}, found, terms, verdict)
        elif journal.series[series].at_least_once:
            _judge_unplaced(series, journal.series[series], numbers, found, terms, verdict)
        else:
            levels[series.domain, series.cls][series] = numbers
    for (domain, cls), missing in levels.items():
        _judge_batches(journal, domain, cls, missing, found, terms, verdict)


def _judge_messages(
    journal: Journal,
    series: Series,
    places: Mapping[int, int],
    found: Evidence,
    terms: Terms,
    verdict: Verdict,
) -> None:
    """Readings that are messages themselves are named one by one, by the sequences at which the leaf's stream
    acknowledged them."""
    where, sent = (series.domain, series.cls), journal.series[series]
    without = [n for n, seq in places.items() if not found.audit.names(*where, seq)]
    named = places.keys() - set(without)
    seen_us = max((sent.ts_us(n) for n in named), default=0)
    unnamed = [
        n
        for n in without
        if not terms.unwatched(sent.ts_us(n))
        and (sent.ts_us(n) > seen_us + _LOOK_US or not found.audit.may_follow(*where, places[n]))
    ]
    verdict.named += len(named)
    verdict.unseen += len(without) - len(unnamed)
    verdict.lost += len(unnamed)
    if unnamed or not terms.gone:
        verdict.broken(
            Promise.CONSERVATION,
            f"{len(places)} readings of {series}, acknowledged as stored, are in no table: "
            f"{ranges_text(list(places))}; the audit names no sequence of {ranges_text(unnamed) or 'none'}",
        )


def _judge_unplaced(
    series: Series, sent: Sent, numbers: list[int], found: Evidence, terms: Terms, verdict: Verdict
) -> None:
    """Readings that are messages themselves, and whose protocol does not tell where they were stored."""
    gaps = found.audit.gaps.get((series.domain, series.cls), ())
    named = min(len(numbers), sum(one.last - one.first + 1 for one in gaps))
    unwatched = sum(terms.unwatched(sent.ts_us(n)) for n in numbers)
    behind = len(numbers) - named
    if not any(one.with_store for one in gaps):
        behind = min(behind, unwatched)
    verdict.named += named
    verdict.unseen += behind
    verdict.lost += len(numbers) - named - behind
    if not terms.gone or len(numbers) > named + behind:
        verdict.broken(
            Promise.CONSERVATION,
            f"{len(numbers)} readings of {series}, acknowledged as stored, are in no table: "
            f"{ranges_text(numbers)}; the audit names {named} messages of this stream",
        )


def _judge_batches(
    journal: Journal,
    domain: str,
    cls: str,
    missing: Mapping[Series, list[int]],
    found: Evidence,
    terms: Terms,
    verdict: Verdict,
) -> None:
    """Readings that came through the agent are counted by its runs."""
    accounts = [one for one in found.audit.accounts if (one.domain, one.cls) == (domain, cls) and one.run]
    named = sum(one.missing + one.discarded for one in accounts)
    refused = sum(one.refused for one in accounts)
    # How much was accepted before a run was killed is known as it was last told, which may be less.
    is_open = any(one.open_tail is not None for one in accounts)
    promised = {
        series: n for series, n in missing.items() if journal.series[series].level is not Level.ACCEPTED
    }
    lent_of = {series: n for series, n in missing.items() if series not in promised}
    whole = sum(map(len, promised.values()))
    verdict.named += min(whole, named)
    verdict.lost += max(whole - named, 0)
    said = f"the audit names {named} of class {cls} of {domain}"
    if whole > named or (whole and not terms.gone):
        for series, numbers in promised.items():
            verdict.broken(
                Promise.CONSERVATION,
                f"{len(numbers)} readings of {series}, acknowledged as stored, are in no table: "
                f"{ranges_text(numbers)}; {said}",
            )
    lent = sum(map(len, missing.values())) - whole
    if lent > max(named - whole, 0) + refused and not is_open:
        verdict.broken(
            Promise.CONSERVATION,
            f"{lent} readings of class {cls} of {domain}, acknowledged as accepted, are in no table: "
            f"{'; '.join(f'{series.device} {ranges_text(n)}' for series, n in lent_of.items())}; "
            f"{said} and {refused} as refused, and calls no run open",
        )


def _judge_liveness(found: Evidence, terms: Terms, verdict: Verdict) -> None:
    if found.drained_seconds is None:
        verdict.broken(
            Promise.LIVENESS, f"the hub did not hold all that the leaves hold within {terms.seconds:.0f} s"
        )
