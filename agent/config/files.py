"""Reads a configuration's file, fragments and environment variables.

Fragments in a directory beside the file (`petiole.conf.d` for `petiole.toml`) are read by name; they add and
never replace. Relative paths start at the file's directory. `${NAME}` is replaced in values but shown as the
variable in messages, since it may be secret.
"""

from __future__ import annotations

import glob
import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from agent.config.values import ConfigError, Problem

_EDITED: Final = ("leaf", "user")
"""Tables that `petiole fleet` and `petiole user` edit in the file."""

Table = dict[str, Any]


def read_whole(path: Path, text: str | None = None) -> tuple[Table, dict[str, str]]:
    """Read a file (or `text`) with fragments, and the fragments' places by key. Raises `ConfigError` for the
    first bad file.
    """
    whole = _parsed(path, _text(path) if text is None else text)
    places: dict[str, str] = {}
    for file in fragments(path):
        merging = _Merging(file, _text(file), places)
        merging.merge(whole, _parsed(file, merging.text), "")
        if merging.problems:
            raise ConfigError.of(merging.problems)
    return whole, places


def fragments(path: Path) -> list[Path]:
    """Return a file's visible fragments. Raises `ConfigError`."""
    directory = path.with_name(f"{path.stem}.conf.d")
    try:
        found = sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
        raise ConfigError.of([Problem(str(directory), why, "give the agent's user access")]) from None
    return [file for file in found if file.suffix == ".toml" and not file.name.startswith(".")]


def directory_of(path: Path) -> Path:
    """Return a file's absolute directory without following links."""
    above = path.parent.absolute()
    return above.resolve() if ".." in above.parts else above


def placed_pattern(pattern: str, directory: Path) -> str:
    """Make a path or pattern absolute, escaping the directory."""
    if not pattern or pattern.startswith("/"):
        return pattern
    return f"{glob.escape(str(directory))}/{pattern}"


def placed(problem: Problem, places: Mapping[str, str]) -> Problem:
    """Add the fragment's place to a problem."""
    for key, place in places.items():
        if problem.key == key or problem.key.startswith((f"{key}.", f"{key}[")):
            return Problem(f"{problem.key} ({place})", problem.stood, problem.remedy)
    return problem


def _text(path: Path, remedy: str = "name a file with -c or PETIOLE_CONFIG") -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
    except UnicodeDecodeError as error:
        why, remedy = f"byte {error.start} is not UTF-8", "save the file as UTF-8"
    raise ConfigError.of([Problem(str(path), why, remedy)])


def _parsed(path: Path, text: str) -> Table:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError.of(
            [Problem(str(path), f"not TOML: {error}", "correct that line; text needs quotes")]
        ) from None


class _Merging:
    def __init__(self, file: Path, text: str, places: dict[str, str]) -> None:
        self._file, self.text, self._places = file, text, places
        self.problems: list[Problem] = []

    def merge(self, whole: Table, part: Table, above: str) -> None:
        """Merge a fragment's table: lists grow, keys appear once."""
        for name, value in part.items():
            key = f"{above}.{name}" if above else name
            if key in _EDITED:
                self._tell(key, "stands in a fragment", "write it into the file beside, where it is edited")
            elif _are_tables(value) and _are_tables(whole.get(name, value)):
                self._grow(whole.setdefault(name, []), value, key)
            elif isinstance(value, dict) and isinstance(whole.get(name, {}), dict):
                self.merge(whole.setdefault(name, {}), value, key)
            elif name in whole:
                before = self._places.get(key, "the file beside")
                self._tell(key, f"stands also in {before}", "leave one of them out")
            else:
                whole[name] = value
                self._places[key] = self._place(key, 1)

    def _grow(self, rows: list[Any], more: list[Any], key: str) -> None:
        for number, row in enumerate(more, 1):
            rows.append(row)
            self._places[f"{key}[{len(rows)}]"] = self._place(key, number)

    def _tell(self, key: str, stood: str, remedy: str) -> None:
        self.problems.append(Problem(f"{key} ({self._place(key, 1)})", stood, remedy))

    def _place(self, key: str, number: int) -> str:
        line = _line(self.text, key, number)
        return str(self._file) if line is None else f"{self._file}, line {line}"


def _are_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _line(text: str, key: str, number: int) -> int | None:
    """Return the line of a key or table, None for other syntax; the standard parser gives no positions."""
    table, _, name = key.rpartition(".")
    headers = list(re.finditer(rf"^[ \t]*\[\[?[ \t]*{re.escape(key)}[ \t]*\]", text, re.MULTILINE))
    if len(headers) >= number:
        return _line_at(text, headers[number - 1].start())
    header = re.search(rf"^[ \t]*\[[ \t]*{re.escape(table)}[ \t]*\]", text, re.MULTILINE) if table else None
    if table and header is None:
        return None
    given = re.compile(rf"^[ \t]*{re.escape(name)}[ \t]*=", re.MULTILINE)
    found = given.search(text, header.end() if header else 0)
    return None if found is None else _line_at(text, found.start())


def _line_at(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


_NAMED: Final = re.compile(r"\$?\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SHORTEST: Final = 4
"""Shorter values are no secrets and are not hidden."""
_CUT: Final = 8
"""Leading characters hidden where a message was cut."""
_used: dict[str, str] = {}
"""Inserted values and their shown form."""


class UnsetError(Exception):
    """A variable is unset; the text is its name."""


def expanded(value: Any) -> Any:
    """Replace variables in a value; `$${NAME}` becomes `${NAME}`. Raises `UnsetError`."""
    if isinstance(value, str):
        return _NAMED.sub(_replacement, value)
    if isinstance(value, list):
        return [expanded(part) for part in value]
    if isinstance(value, dict):
        return {name: expanded(part) for name, part in value.items()}
    return value


def _replacement(found: re.Match[str]) -> str:
    if found[0].startswith("$$"):
        return found[0][1:]
    value = os.environ.get(found[1])
    if value is None:
        raise UnsetError(found[1])
    if len(value) >= _SHORTEST:
        _used[value] = found[0]
    return value


def hidden(text: str) -> str:
    """Hide variables' contents in a message."""
    for value in sorted(_used, key=len, reverse=True):
        for form in {
            value,
            json.dumps(value)[1:-1],
            json.dumps(value, ensure_ascii=False)[1:-1],
            repr(value)[1:-1],
        }:
            text = _without(text, form, _used[value])
    return text


def _without(text: str, form: str, name: str) -> str:
    text = text.replace(form, name)
    if form[:_CUT] not in text:
        return text
    for length in range(len(form) - 1, _CUT - 1, -1):
        for end in ("…", '"', "'"):
            text = text.replace(form[:length] + end, name + end)
    return text
