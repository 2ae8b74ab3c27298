"""Strategies for the names and records of the contract."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from agent import contract
from agent.contract import MAX_INT

domains = st.from_regex(r"(?!(ACK|API|EVENT|FC|SNAPSHOT)\Z)[A-Za-z0-9_-]{1,32}", fullmatch=True)
classes = st.from_regex(r"[a-z0-9]{1,16}", fullmatch=True)
inputs = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,31}", fullmatch=True)
machines = st.from_regex(r"[a-z0-9-]{1,64}", fullmatch=True)
epochs = st.from_regex(r"[0-9a-z]{13}", fullmatch=True)
runs = st.integers(0, 2**48 - 1).map(lambda ms: contract.new_run(ms * 1_000_000))
tokens = st.from_regex(r"[A-Za-z0-9-][A-Za-z0-9_:-]{0,20}", fullmatch=True)
keys = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=128)
counts = st.integers(0, MAX_INT)
words = st.text(st.characters(codec="utf-8"), max_size=20)
message_ids = st.builds(contract.MessageId, runs, classes, st.integers(1, 10**18))
clocks = st.builds(contract.Clock, st.booleans(), st.uuids().map(str), counts)
scopes = st.builds(contract.request_scope, st.text(max_size=5))
requests = st.builds(contract.make_request, keys, scopes, st.binary(max_size=5))
headers = st.builds(
    contract.BatchHeaders,
    id=message_ids,
    count=counts,
    sealed_at=counts,
    clock=clocks,
    compressed=st.booleans(),
    requests=st.lists(requests, max_size=4).map(tuple),
    position=st.none() | st.from_regex(r"[ -~]{1,40}", fullmatch=True),
)
readings = st.builds(contract.Readings, counts, counts, counts, counts, counts)
spans = st.tuples(st.integers(1, MAX_INT), st.integers(1, MAX_INT)).map(lambda pair: (min(pair), max(pair)))
previous = st.builds(contract.Previous, runs, counts, readings, st.booleans())
ledgers = st.builds(
    contract.Ledger,
    domain=domains,
    cls=classes,
    run=runs,
    n=counts,
    stored=st.lists(spans, max_size=3).map(tuple),
    readings=readings,
    stream=st.builds(contract.StreamState, words, counts, counts),
    refused=st.lists(st.tuples(spans, words).map(lambda one: (*one[0], one[1])), max_size=2).map(tuple),
    discarded=st.lists(
        st.tuples(spans, counts, words).map(lambda one: (*one[0], one[1], one[2])), max_size=2
    ).map(tuple),
    gone=st.lists(st.tuples(spans, counts, words).map(lambda one: (*one[0], one[1], one[2])), max_size=2).map(
        tuple
    ),
    previous=st.none() | previous,
    final=st.booleans(),
)
whole = st.integers(-MAX_INT, MAX_INT)
corrections = (
    st.tuples(domains, st.uuids().map(str), spans, whole, whole)
    .map(lambda one: contract.Correction(one[0], one[1], *one[2], one[3], one[4]))
    .filter(lambda one: one.since < one.until)
)
checkpoints = st.builds(
    contract.Checkpoint,
    st.integers(1, MAX_INT),
    message_ids.map(str),
    st.integers(0, 9).map(contract.aggregate),
    st.integers(1, MAX_INT),
)
states = st.builds(
    contract.ClassState,
    epoch=epochs,
    created=words,
    first=counts,
    last=counts,
    confirmed=counts,
    bytes=counts,
    ledger=st.none() | previous,
    seconds_to_loss=st.none() | st.floats(0, 1e15) | st.just(math.inf),
    acked=counts,
    idle=st.booleans(),
)
command_keys = st.lists(st.tuples(st.integers(1, MAX_INT), st.integers(1, MAX_INT)), max_size=3).map(tuple)
announces = st.builds(
    contract.Announce,
    domain=domains,
    machine=machines,
    run=runs,
    versions=st.dictionaries(words, words, max_size=2),
    classes=st.dictionaries(classes, states, max_size=2),
    checkpoint=st.dictionaries(classes, checkpoints, max_size=2),
    clock=words,
    commands=st.none()
    | st.builds(contract.CommandsWanted, epoch=epochs, last=counts, held=command_keys, idle=st.booleans()),
    repairs=st.booleans(),
    every=st.none() | st.floats(0.1, 3600.0),
)
answers = st.builds(
    contract.Answer,
    classes=st.dictionaries(
        classes,
        st.builds(
            contract.ClassAnswer,
            stream=words,
            cursor=counts,
            message_id=words,
            state=words,
            agreed=st.none() | st.booleans(),
            checkpoint=st.none() | checkpoints,
            certain=st.booleans(),
            fallback=st.none() | checkpoints,
        ),
        max_size=2,
    ),
    max_payload=counts,
    spread_seconds=st.sampled_from([0.0, 10.0, 2560.0]),
    exchange=st.just("") | st.text("0123456789abcdef", min_size=12, max_size=12),
    refused=st.none() | words,
    commands=st.none()
    | st.builds(
        contract.CommandsHeld,
        epoch=epochs,
        stream_created=words,
        stream_last=counts,
        last=counts,
        behind=counts,
        agreed=st.none() | st.booleans(),
    ),
)
lakes = st.uuids().map(str)
done = st.dictionaries(words, st.tuples(words, counts), max_size=3)
committed = st.builds(contract.Committed, words, words, counts.filter(bool), counts, lakes, words)
hub_lakes = st.builds(contract.HubLake, words, words, words, done, done)
commands = st.builds(
    contract.Command,
    id=st.from_regex(r"[!-~]{1,64}", fullmatch=True),
    args=st.dictionaries(words, st.none() | st.booleans() | counts | words, max_size=3),
    expires=st.none() | st.floats(0, 2**40),
)
found = st.builds(
    contract.VerifiedRun,
    held=st.lists(st.integers(1, 10**6), max_size=6, unique=True).map(
        lambda numbers: tuple((2 * n, 2 * n) for n in sorted(numbers))
    ),
    cut=st.booleans(),
    edge=st.none() | st.builds(contract.Edge, runs, counts, counts, counts),
    next=counts,
)
verify_requests = st.builds(
    lambda cls, run, span, found: contract.VerifyRequest(cls, run, span[0], span[1], found),
    classes,
    runs,
    spans | st.tuples(st.integers(1, MAX_INT), st.none()),
    found,
)
verify_answers = st.builds(
    contract.VerifyAnswer,
    stream=words,
    created=words,
    end=counts,
    cursor=counts,
    last=st.none() | counts,
    found=found,
    complete=st.booleans(),
    lacking=spans.map(lambda span: (span,)) | st.just(()),
    unknown=spans.map(lambda span: (span,)) | st.just(()),
    refused=st.none() | words,
)
