"""Each test of a fault tells its case, and the report is written when all have run."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.faults import report
from tests.faults.report import Case

_CASES = pytest.StashKey[list[Case]]()
_CASE = pytest.StashKey[Case]()


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    """The case of this test, for the report."""
    one = Case(request.node.name.removeprefix("test_").replace("_", " "))
    request.node.stash[_CASE] = one
    request.config.stash.setdefault(_CASES, []).append(one)
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
    return told


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the report."""
    if cases := session.config.stash.get(_CASES, []):
        report.write(cases, some=bool(session.config.option.keyword))
