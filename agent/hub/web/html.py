"""HTML from values: whatever is put in is text and escaped, unless it was made here."""

from __future__ import annotations

import html
from typing import Final

from agent.base.text import shown

_EMPTY: Final = frozenset({"input", "link", "meta"})
"""Elements without content and end."""


class Markup(str):
    """Finished HTML."""

    __slots__ = ()


def join(*parts: str) -> Markup:
    """The parts one after the other; what is not `Markup` becomes text. Control characters and those that
    turn the direction of a text are written as escapes."""
    return Markup("".join(one if isinstance(one, Markup) else html.escape(shown(one)) for one in parts))


def element(name: str, /, *content: str, **attributes: str | None) -> Markup:
    """An element. The name of an attribute may end in `_` where it is a word of Python and has `_` for `-`;
    one that is None is left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{join(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    end = "" if name in _EMPTY else f"</{name}>"
    return Markup(f"<{name}{given}>{join(*content)}{end}")


def document(title: str, style: str, *body: str) -> Markup:
    """A whole page with its one style sheet, which must hold no `<`. Needs nothing from elsewhere."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Markup(style)),
    )
    return Markup(f'<!doctype html>\n<html lang="en">{head}{element("body", *body)}</html>\n')
