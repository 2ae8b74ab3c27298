"""Builds escaped HTML with one style sheet and a strict policy without scripts."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Final

from agent.base.logs import shown

STYLE: Final = (files(__package__) / "style.css").read_text("ascii")

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
