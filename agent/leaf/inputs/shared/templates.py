"""Device and metric from the name under which a message came (a topic, a subject), by templates. No I/O.

In a template `{1}` is the first part of the name, `{2}` the second, `{2+}` the second and all after it with
dots between, `{0}` the whole name; a part that is not there is empty.
"""

from __future__ import annotations

import re
from typing import Final

_PART: Final = re.compile(r"\{(0|[1-9][0-9]?)(\+?)\}")


def template_problem(template: str) -> str | None:
    """What is wrong with a template, with a remedy; None when nothing is."""
    rest = _PART.sub("", template)
    if "{" in rest or "}" in rest:
        return f"{template!r:.80} is no template; write a part of the name as {{2}}, the rest as {{2+}}"
    return None


def filled(template: str, name: str, separator: str) -> str:
    """What a template makes of a name whose parts stand between separators."""
    parts = name.split(separator)

    def part(found: re.Match[str]) -> str:
        number = int(found[1])
        if number == 0:
            return name
        return ".".join(parts[number - 1 :] if found[2] else parts[number - 1 : number])

    return _PART.sub(part, template)
