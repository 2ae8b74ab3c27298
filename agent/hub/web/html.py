"""Builds escaped HTML with one style sheet and a strict policy without scripts."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Iterator
from typing import Final

from agent.base.logs import shown

STYLE: Final = """
:root { --back: #fbfbf9; --text: #1d2320; --dim: #5b655f; --line: #d9ddd8; --band: #f0f2ee; --link: #1f5f8b;
  --good: #2c6e3f; --wait: #8a5a00; --bad: #b3261e }
@media (prefers-color-scheme: dark) {
  :root { --back: #141816; --text: #e3e8e4; --dim: #9aa69f; --line: #323a36; --band: #1d2320; --link: #8cc4ec;
    --good: #7fcf95; --wait: #e6b450; --bad: #ff8a80 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 76rem; background: var(--back);
  color: var(--text); font: 15px/1.45 system-ui, sans-serif }
h1 { font-size: 1.4rem; margin: 0 0 .2rem } h2 { font-size: 1.05rem; margin: 1.8rem 0 .4rem }
p { margin: .3rem 0; overflow-wrap: anywhere } a { color: var(--link) } .dim { color: var(--dim) }
form, nav { display: flex; flex-wrap: wrap; gap: .5rem .8rem; align-items: end; margin: 1rem 0 }
label { display: grid; gap: .15rem; color: var(--dim); font-size: .85rem }
input, select, button { font: inherit; color: inherit; background: var(--back); border: 1px solid var(--line);
  border-radius: 4px; padding: .3rem .5rem }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .35rem 1.1rem .35rem 0;
  border-bottom: 1px solid var(--line) }
th { white-space: nowrap; font-weight: 600; font-size: .9rem } tbody tr:hover { background: var(--band) }
td { overflow-wrap: anywhere } .wide td:last-child:not(.number) { min-width: 16rem }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.name, .word { white-space: nowrap }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: 1rem 0 }
dt { color: var(--dim) } dd { margin: 0; overflow-wrap: anywhere }
.legend span { display: inline-block; margin: 0 1.2rem .2rem 0 }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin-right: .4rem;
  vertical-align: -1px }
.hours svg { display: block; width: 100%; height: 9rem }
.hours div { display: flex; justify-content: space-between; color: var(--dim); font-size: .85rem }
.ground { fill: var(--line) } .part-in_table { fill: var(--good); background: var(--good) }
.part-named { fill: var(--dim); background: var(--dim) }
.part-pending { fill: var(--link); background: var(--link) }
.part-missing { fill: var(--bad); background: var(--bad) }
.part-doubled { fill: var(--wait); background: var(--wait) } details { margin: .6rem 0 }
.good, .accounted-yes { color: var(--good) }
.waits, .old, .accounted-old, .accounted-never { color: var(--wait) }
.bad, .accounted-no { color: var(--bad); font-weight: 600 }
@media (max-width: 44rem) {
  body { padding: 1rem .8rem 2rem; font-size: 16px } .wide { overflow-x: visible }
  .wide table, .wide tbody, .wide tr, .wide td { display: block } .wide td { border: 0; padding: .1rem 0 }
  .wide thead tr { display: flex; flex-wrap: wrap; gap: 0 1rem } .wide th { border: 0; padding: .3rem 0 }
  .wide tr { border-bottom: 1px solid var(--line); padding: .5rem 0 } .wide td:empty { display: none }
  .wide td:last-child:not(.number) { min-width: 0 } .wide td.number { text-align: left; white-space: normal }
  .wide td[data-label], .wide td.word, .wide td.domain { display: inline-block; margin-right: 1.2rem;
    vertical-align: baseline }
  .wide td[data-label]::before { content: attr(data-label) ": "; color: var(--dim); font-weight: 400 }
  .wide td.domain a { display: inline-block; padding: .4rem 0; font-weight: 600 }
  .plain thead, .wide th:not(:has(a)) { display: none } dl { gap: .2rem .8rem }
  input, select, button { padding: .5rem .6rem }
  nav a, form a { padding: .5rem 0 } }
"""

_DIGEST: Final = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()

POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_DIGEST}'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""`Content-Security-Policy`; the only image is the empty icon."""

REFRESH_SECONDS: Final = 30
_EMPTY: Final = frozenset({"input", "link", "meta"})
"""Void elements."""


class Markup(str):
    """Finished HTML."""

    __slots__ = ()


def join(*parts: str) -> Markup:
    """Join parts, escaping text, control and direction characters."""
    return Markup("".join(part if isinstance(part, Markup) else html.escape(shown(part)) for part in parts))


def element(name: str, /, *content: str, **attributes: str | None) -> Markup:
    """Return an element; attribute names may end in `_`, `_` becomes `-`, None is omitted."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{join(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    end = "" if name in _EMPTY else f"</{name}>"
    return Markup(f"<{name}{given}>{join(*content)}{end}")


def table(heads: Iterable[str], names: int, rows: Iterable[Iterable[str]]) -> Markup:
    """Return a table, as cards on phones; columns after the first `names` are numbers."""
    heads = list(heads)

    def kind(at: int) -> str:
        return "name" if at < names else "number"

    def cells(row: Iterable[str]) -> Iterator[Markup]:
        for at, (head, value) in enumerate(zip(heads, row, strict=True)):
            yield element("td", value, class_=kind(at), data_label=head)

    top = (element("th", head, class_=kind(at), scope="col") for at, head in enumerate(heads))
    body = (element("tr", *cells(row)) for row in rows)
    found = element("table", element("thead", element("tr", *top)), element("tbody", *body), class_="plain")
    return element("div", found, class_="wide")


def document(title: str, style: str, *body: str, refresh: bool = False) -> Markup:
    """Return a page with its style sheet (without `<`); `refresh` reloads it."""
    again = element("meta", http_equiv="refresh", content=str(REFRESH_SECONDS)) if refresh else Markup()
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        again,
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Markup(style)),
    )
    return Markup(f'<!doctype html>\n<html lang="en">{head}{element("body", *body)}</html>\n')
