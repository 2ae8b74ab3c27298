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
    return _case_of(request.node)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note whether a case has passed. What it needs is looked at before it is called."""
    told = yield
    called = call.when == "call" or (call.when == "setup" and not told.passed)
    if called and isinstance(item, pytest.Function) and "case" in item.fixturenames:
        one = _case_of(item)
        one.passed = told.passed
        if told.skipped:
            one.not_proven.append(f"not run: {call.excinfo.value if call.excinfo else 'skipped'}")
            report.write_new(one)
        else:
            report.write(one)
    return told


def _case_of(item: pytest.Function) -> Case:
    words = item.name.removeprefix("test_").translate(str.maketrans("_[", "  ", "]"))
    theme = " ".join((item.module.__doc__ or "").partition("\n\n")[0].split())
    return item.stash.setdefault(_CASE, Case(words, theme=theme))
