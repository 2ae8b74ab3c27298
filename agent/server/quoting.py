"""Text as it stands in a configuration of nats-server."""

from __future__ import annotations


class RenderError(ValueError):
    """A value cannot stand in a configuration; the text says which one and why."""


def quoted(text: str) -> str:
    """The text in quotes. Raises `RenderError`."""
    if not text.isprintable():
        raise RenderError(f"{text!r} holds a character that cannot stand in a configuration")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
