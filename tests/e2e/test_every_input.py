"""The suite that `agent.testing` ships, over every built-in input. One agent runs several, as many as do not
listen at the same port or socket or share a broker."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agent.testing.contract import InputContract
from agent.testing.input_case import InputCase
from tests.harness.input_contract import INPUTS

_TOGETHER = (
    "http nats socket mqtt exec",
    "remote file flow sparkplug modbus",
    "otlp_grpc opcua prometheus host",
    "syslog",
)


def test_every_input_is_in_the_suite_once() -> None:
    assert sorted(" ".join(_TOGETHER).split()) == sorted(INPUTS)


class TestEveryInput(InputContract):
    @pytest.fixture(params=_TOGETHER)
    def cases(self, request: pytest.FixtureRequest) -> Sequence[InputCase]:
        return [INPUTS[name] for name in request.param.split()]
