"""Each test of a fault tells its case, which goes into the report when it has run."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.faults import report
from tests.faults.report import Case

_CASE = pytest.StashKey[Case]()


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    """The case of this test, for the report."""
    words = request.node.name.removeprefix("test_").translate(str.maketrans("_[", "  ", "]"))
    theme = " ".join((request.module.__doc__ or "").partition("\n\n")[0].split())
    one = Case(words, theme=theme)
    request.node.stash[_CASE] = one
    return one


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether a case has passed."""
    told = yield
    one = item.stash.get(_CASE, None)
    if one is not None and call.when == "call":
        one.passed = told.passed
        if told.skipped:
            one.not_proven.append(f"not run: {call.excinfo.value if call.excinfo else 'skipped'}")
        report.write(one)
    return told
