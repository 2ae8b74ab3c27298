"""Renders a proof as one HTML file with figures, hours, hashes and instructions. Pure.

The page follows only from its embedded JSON evidence, so a check detects changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any, Final

from agent.contract import AUDIT_HOURS, AuditedHour
from agent.hub.fleet_rows import number
from agent.hub.web.html import STYLE, Markup, document, element, table
from agent.hub.web.leaf_page import PARTS, picture

_ID: Final = "evidence"
_HOURS: Final = 14 * 24
"""Hours drawn; the hash table has all."""
_FIGURES: Final = (
    ("accepted", "Accepted"),
    ("stored", "Stored at the leaf"),
    ("in_bronze", "In bronze"),
    ("in_readings", "In the table readings"),
    ("quarantined", "In quarantine"),
    ("pending", "Waiting for refine"),
    ("dead", "Dead letters"),
    ("discarded", "Discarded at the edge"),
    ("refused", "Refused"),
    ("open_tail", "Accepted, not known as stored"),
    ("never_came", "Batches or readings that never came"),
    ("missing", "Missing"),
    ("doubled", "Doubled"),
)
_LACKS: Final = ("missing", "doubled", "never_came", "pending")
_STYLE: Final = (
    STYLE
    + """
.hash { font: 12px/1.4 ui-monospace, monospace; overflow-wrap: anywhere }
pre { font: 12px/1.5 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  border: 1px solid var(--line); border-radius: 4px; padding: .6rem }
@media print { details:not([open]) > :not(summary) { display: block } body { font-size: 11px } }
"""
)


class ProofError(ValueError):
    """Not a proof; the text has the reason."""


def proof_page(found: Mapping[str, Any]) -> str:
    span = f"{found['from'] or 'the beginning'} to {found['to']}"
    complete = is_complete(found)
    return document(
        f"Proof: {found['domain']}, {span}",
        _STYLE,
        element("h1", f"What became of the readings of {found['domain']}"),
        element("p", f"Sealed from {span}."),
        element("p", element("span", verdict(found), class_="flowing" if complete else "trouble")),
        element(
            "p",
            f"Made {found['made']} by {found['by']}, from the tables in {found['lake']}.",
            class_="dim",
        ),
        element("h2", "Figures, in readings"),
        _figures(found["classes"]),
        *_sentences("Gone without a reason, or doubled", found["lost"]),
        *_sentences("Sequences gone, of a time that is not known", found["gaps"]),
        *_sentences("Explained", found["explained"]),
        *(element("p", f"{count:,} in quarantine: {why}") for why, count in sorted(found["reasons"].items())),
        *_audit(found["audit"]),
        *_hashes(found),
        *_how(found),
        element(
            "details",
            element("summary", "The evidence as JSON"),
            element("pre", json.dumps(found, separators=(",", ":"), sort_keys=True), id=_ID),
        ),
    )


def is_complete(found: Mapping[str, Any]) -> bool:
    """Tell whether nothing is missing, doubled, gone or waiting."""
    gone = found["lost"] or found["gaps"]
    return not gone and not any(sums[name] for sums in found["classes"].values() for name in _LACKS)


def verdict(found: Mapping[str, Any]) -> str:
    """Return the result in one sentence."""
    sums = found["classes"].values()
    here = sum(row["in_readings"] for row in sums)
    beside = sum(row["quarantined"] for row in sums)
    named = f", and {beside:,} in quarantine, each with its reason" if beside else ""
    if not any(row["stored"] for row in sums):
        return "The tables hold no reading of this time."
    if is_complete(found) and (kept := found["kept_since"]):
        came = sum(row["in_bronze"] for row in sums)
        return (
            f"Complete as audited: {came:,} readings came, and {here:,} are in the table{named}; what "
            f"arrived before {kept} was deleted for its age, once an audit had found it in order."
        )
    if is_complete(found):
        well = f"Complete: {here:,} readings are in the table, each once{named}"
        return f"{well}; nothing is missing, nothing is doubled."
    counts = {name: sum(row[name] for row in sums) for name in _LACKS}
    said = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count)
    if not found["lost"] and not said:
        return (
            f"Not proven: {here:,} readings are in the table, each once{named}; but sequences of this leaf's "
            "streams are gone, and it is not known of which time they were."
        )
    return f"Not complete: {here:,} readings are in the table{named}; {said or 'see below'}."


def evidence_of(text: str) -> dict[str, Any]:
    """Return a file's evidence. Raises `ProofError` for a foreign or changed file."""
    parser = _Evidence()
    parser.feed(text)
    try:
        found = json.loads(parser.found)
        again = proof_page(found)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ProofError(f"it holds no evidence that can be read: {error!r:.200}") from None
    if again != text:
        raise ProofError(
            "what it shows does not follow from the evidence in it: somebody has changed one of them, or it "
            f"was made by another version than this ({found['by']})"
        )
    return dict(found)


class _Evidence(HTMLParser):
    """Extracts the evidence element."""

    def __init__(self) -> None:
        super().__init__()
        self.found = ""
        self._inside = False

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self._inside = tag == "pre" and ("id", _ID) in attrs

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found += data


def _figures(classes: Mapping[str, Mapping[str, int | None]]) -> Markup:
    shown = [(name, words) for name, words in _FIGURES if any(row.get(name) for row in classes.values())]
    always = ("stored", "in_readings", "missing", "doubled")
    shown = [pair for pair in _FIGURES if pair in shown or pair[0] in always]
    rows = [[cls, *(number(sums.get(name)) for name, _ in shown)] for cls, sums in classes.items()]
    return table(("Class", *(words for _, words in shown)), 1, rows)


def _sentences(head: str, sentences: Iterable[str]) -> list[Markup]:
    found = [element("p", sentence) for sentence in sentences]
    return [element("h2", head), *found] if found else []


def _audit(audit: Mapping[str, Any] | None) -> list[Markup]:
    head = element("h2", "What the newest audit said")
    if audit is None:
        return [head, element("p", "No audit has looked at this leaf.", class_="old")]
    hours = _hours(audit["hours"])
    counts = {
        name: sum(row[name] or 0 for row in audit["accounts"])
        for name in ("accepted", "stored", "in_readings", "missing", "doubled", "unexplained")
    }
    said = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())
    found = [head, element("p", f"At {audit['at']}, of all runs of this leaf, whatever their time: {said}.")]
    if not hours:
        return [*found, element("p", "Of these hours it had no readings.", class_="dim")]
    width = min(max(max(hours) - min(hours) + 1, AUDIT_HOURS), _HOURS)
    first, last = (
        datetime.fromtimestamp(number * 3_600, UTC) for number in (max(hours) - width + 1, max(hours))
    )
    shown = [hours.get(number) for number in range(max(hours) - width + 1, max(hours) + 1)]
    legend = (element("span", element("i", class_=f"part-{name}"), words) for name, words in PARTS)
    axis = element(
        "div", element("span", f"{first:%Y-%m-%d %H}:00"), element("span", f"{last:%m-%d %H}:00 UTC")
    )
    return [
        *found,
        element("div", picture(shown), axis, class_="hours"),
        element("p", *legend, class_="legend"),
    ]


def _hours(rows: Iterable[Mapping[str, Any]]) -> dict[int, AuditedHour]:
    found: dict[int, AuditedHour] = {}
    for row in rows:
        number = int(datetime.fromisoformat(row["hour"]).timestamp()) // 3_600
        counts = (
            *(
                row["in_readings"],
                row["quarantined"] + row["dead"],
                row["pending"],
                row["late"],
                row["missing"],
            ),
            *(row["doubled"], row["lost"], row["on_the_way"]),
        )
        before = found.get(number, AuditedHour(number, *[0] * len(counts)))
        found[number] = AuditedHour(number, *map(sum, zip(before[1:], counts, strict=True)))
    return found


def _hashes(found: Mapping[str, Any]) -> list[Markup]:
    contents = [
        [name, hour, f"{count:,}", hashed]
        for name, hours in found["contents"].items()
        for hour, (count, hashed) in hours.items()
    ]
    entries = [
        [row["table"], str(row["version"]), row["entry"] or "gone", f"{len(row['files']):,}"]
        for row in found["tables"]
    ]
    files = [
        [f"{row['table']}/{name}", number(count), hashed or "gone"]
        for row in found["tables"]
        for name, count, hashed in row["files"]
    ]
    return [
        element("h2", "What it rests on"),
        element("p", "Versions of the tables, with the SHA-256 of the entry of each in the table's log:"),
        element("div", table(("Table", "Version", "Log entry", "Files"), 2, entries), class_="hash"),
        element(
            "details",
            element("summary", f"{len(contents):,} hours of contents: rows, and the SHA-256 of their hashes"),
            element("div", table(("Table", "Hour", "Rows", "Contents"), 2, contents), class_="hash"),
        ),
        element(
            "details",
            element("summary", f"{len(files):,} files, each with its SHA-256"),
            element("div", table(("File", "Rows in it", "SHA-256"), 1, files), class_="hash"),
        ),
    ]


def _how(found: Mapping[str, Any]) -> list[Markup]:
    command = f"petiole proof --check proof-{found['domain']}.html --lake {found['lake']}"
    return [
        element("h2", "How to check it again"),
        element("p", "With the tables at hand, count and hash again, and compare:"),
        element("pre", command),
        element(
            "p",
            "It also says whether this page follows from its evidence. Without Petiole: a file is as it was "
            "if sha256sum gives the hash above. A file that maintain has written together with others is "
            "gone; then the contents tell, which are hashed row by row and do not depend on files.",
        ),
        element(
            "p",
            "What it does not prove: that a device had measured what it sent; what had not arrived when this "
            "was made; and, where no audit with --deep has run, that the readings are what their payloads "
            "hold.",
        ),
    ]
