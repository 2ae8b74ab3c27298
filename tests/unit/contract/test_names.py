from __future__ import annotations

import uuid
from importlib import import_module
from pkgutil import iter_modules

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import contract
from agent.contract import ContractError, Subject
from tests.unit.contract import values


def test_the_contract_gives_each_name_of_its_modules_and_none_stands_in_two() -> None:
    modules = [
        import_module(f"{contract.__name__}.{found.name}") for found in iter_modules(contract.__path__)
    ]
    names = [(name, module) for module in modules for name in getattr(module, "__all__", ())]
    assert all(getattr(contract, name) is getattr(module, name) for name, module in names)
    assert len({name for name, _ in names}) == len(names)
    assert {name for name, _ in names} <= set(dir(contract))


@given(values.domains, values.classes, values.inputs)
def test_the_agents_own_subjects_are_read_back(domain: str, cls: str, name: str) -> None:
    parse = contract.parse_subject
    assert parse(contract.batch_subject(domain, cls, name)) == Subject("batch", domain, cls, name)
    assert parse(contract.dead_subject(domain, cls, name)) == Subject("dead", domain, cls, name)
    assert parse(contract.ledger_subject(domain, cls)) == Subject("ledger", domain, cls)
    assert parse(contract.clock_subject(domain, cls)) == Subject("clock", domain, cls)


@given(values.domains, values.classes, values.tokens, values.tokens)
def test_a_direct_subject_is_read_back(domain: str, cls: str, device: str, metric: str) -> None:
    subject = contract.direct_subject(domain, cls, device, metric)
    assert contract.parse_subject(subject) == Subject("direct", domain, cls, device, metric)


@given(
    st.text(max_size=40) | st.lists(st.sampled_from(["tel", "d", "c", "_batch", "", "_x", "a"])).map(".".join)
)
def test_whatever_subject_comes_is_read_or_refused(subject: str) -> None:
    try:
        found = contract.parse_subject(subject)
    except ContractError:
        return
    assert subject.startswith(f"tel.{found.domain}.{found.cls}.")


@pytest.mark.parametrize(
    "subject",
    ["tel", "tel.d", "tel.d.c", "tel.d.C._ledger", "tel.d.c._batch", "tel.d.c._other.x", "tel.d.c._ledger.x",
     "tel.d.c.dev", "tel.d.c.dev.m.x", "tel.d.c..m", "tel.d.c.dev.", "cmd.d.agent.x", "tel.d.c._batch.A"],
)  # fmt: skip
def test_a_subject_that_is_not_in_the_contract_is_refused(subject: str) -> None:
    with pytest.raises(ContractError, match=r"subject|class|input"):
        contract.parse_subject(subject)


@pytest.mark.parametrize("domain", ["a.b", "", "x" * 33, "ä", "a b", "a\n", "a*", "a>", None, 1])
def test_a_domain_that_could_not_be_one_token_is_refused(domain: object) -> None:
    with pytest.raises(ContractError, match="domain"):
        contract.check_domain(domain)


@pytest.mark.parametrize("domain", ["ACK", "API", "EVENT", "FC", "SNAPSHOT"])
def test_a_domain_that_nats_server_uses_in_its_own_subjects_is_refused(domain: str) -> None:
    with pytest.raises(ContractError, match=f"{domain}.* other than ACK, API"):
        contract.check_domain(domain)
    assert contract.check_domain(domain.lower()) == domain.lower()
    assert contract.check_domain(f"{domain}-1") == f"{domain}-1"


@pytest.mark.parametrize("token", ["_x", "", "a.b", "a b", "*", ">", "a\n", "a\x00"])
def test_a_device_must_be_one_token_that_is_not_the_agents(token: str) -> None:
    with pytest.raises(ContractError):
        contract.direct_subject("d", "c", token, "m")
    with pytest.raises(ContractError):
        contract.direct_subject("d", "c", "dev", token)


@given(values.runs)
def test_a_run_is_a_uuid_of_version_7(run: str) -> None:
    assert uuid.UUID(run).version == 7
    assert contract.check_run(run) == run


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**48 - 1))
def test_runs_sort_by_the_time_of_their_start(first: int, second: int) -> None:
    runs = [contract.new_run(millis * 1_000_000) for millis in (first, second)]
    if first != second:
        assert (runs[0] < runs[1]) == (first < second)


def test_an_epoch_is_never_the_same_twice() -> None:
    epochs = {contract.check_epoch(contract.new_epoch()) for _ in range(1000)}
    assert len(epochs) == 1000


@given(st.lists(st.tuples(values.domains, values.classes), min_size=2, max_size=2, unique=True))
def test_no_two_leaf_streams_share_a_name(pairs: list[tuple[str, str]]) -> None:
    assert contract.leaf_stream(*pairs[0]) != contract.leaf_stream(*pairs[1])


@pytest.mark.parametrize("cell", ["", "1", "17"])
def test_the_cell_of_an_aggregate_stands_in_its_name(cell: str) -> None:
    assert contract.cell_of(contract.aggregate(0, cell)) == cell
    assert contract.cell_of(contract.aggregate(12, cell)) == cell
    for other in ("COMMANDS", "KV_petiole_fleet", "TEL_edge_1_normal"):
        assert contract.cell_of(other) == contract.HOME
    assert (contract.cell_api(contract.aggregate(0, cell)) == "$JS.API") is (cell == contract.HOME)
