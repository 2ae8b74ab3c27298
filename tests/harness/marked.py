"""A generated part of a page, between two marks."""

from __future__ import annotations


def marked(page: str, name: str) -> str:
    """Return the part of this name as it stands in a page; "" where the page lacks its marks."""
    return page.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]


def with_marked(page: str, name: str, part: str) -> str:
    """Return the page with this text as its part of this name. Raises ValueError without the marks."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    if begin not in page or end not in page:
        raise ValueError(f"the page has no part {name}: it begins with {begin!r} and ends with {end!r}")
    return page.partition(begin)[0] + begin + part + end + page.partition(end)[2]
