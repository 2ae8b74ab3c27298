"""The suite that `agent.testing` ships, over every built-in input."""

from __future__ import annotations

import pytest

from agent.testing.contract import InputContract
from agent.testing.input_case import InputCase
from tests.harness.input_contract import INPUTS


class TestEveryInput(InputContract):
    @pytest.fixture(params=list(INPUTS.values()), ids=list(INPUTS))
    def case(self, request: pytest.FixtureRequest) -> InputCase:
        """Each input in turn."""
        case: InputCase = request.param
        return case
