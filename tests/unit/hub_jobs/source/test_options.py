from __future__ import annotations

import pickle

import pytest

from hub_jobs.source.options import OPTIONS, OptionError, parse_options

LEAST = {"servers": "nats://hub:4222", "stream": "TELEMETRY_0"}
SEED = "SUAKINP3Z2BPUXWOFSW2FZC7TFJCMMU7DHKP2C62IJQUDASOCDSTDTRMJQ"


def test_two_options_are_enough() -> None:
    options = parse_options(LEAST)
    assert options.streams == ("TELEMETRY_0",)
    assert options.server.api_prefix == "$JS.API"
    assert options.fail_on_loss
    assert not options.include_headers
    assert pickle.loads(pickle.dumps(options)) == options


def test_names_are_taken_in_any_case() -> None:
    options = parse_options(
        {**LEAST, "FILTERSUBJECTS": "a.>, b.*", "mInPartitions": "4", "failondataloss": "False"}
    )
    assert options.filter_subjects == ("a.>", "b.*")
    assert options.min_partitions == 4
    assert not options.fail_on_loss


def test_a_domain_is_a_prefix_of_the_api() -> None:
    assert parse_options({**LEAST, "domain": "hub"}).server.api_prefix == "$JS.hub.API"
    assert parse_options({**LEAST, "apiPrefix": "JS.acc.API"}).server.api_prefix == "JS.acc.API"


@pytest.mark.parametrize(
    ("given", "nearest"),
    [
        ("startingOffset", "startingOffsets"),
        ("server", "servers"),
        ("seedfile_", "seedFile"),
        ("streams", "stream"),
    ],
)
def test_an_unknown_option_is_answered_with_the_nearest(given: str, nearest: str) -> None:
    with pytest.raises(OptionError, match=f"unknown option {given}: did you mean {nearest}[?]"):
        parse_options({**LEAST, given: "x"})


def test_an_option_like_none_is_answered_with_all() -> None:
    with pytest.raises(OptionError, match=", ".join(OPTIONS)):
        parse_options({**LEAST, "zzz": "x"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("password", "hunter2"),
        ("token", "hunter2"),
        ("seed", SEED),
        ("seedFile", SEED),
        ("secretEnv", SEED),
        ("creds", f"-----BEGIN USER NKEY SEED-----\n{SEED}\n"),
        ("whatever", SEED),
        ("servers", "nats://me:hunter2@hub:4222"),
        ("secretEnv", "hunter2!"),
    ],
)
def test_a_secret_is_refused_and_not_repeated(name: str, value: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_options({**LEAST, name: value})
    assert "hunter2" not in str(caught.value)
    assert SEED not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"servers": ""}, "servers is missing"),
        ({"servers": "http://hub"}, "no server's address"),
        ({"stream": "a.b"}, "not a stream's name"),
        ({"stream": "A,A"}, "names one twice"),
        ({"filterSubjects": "a b"}, "not a subject"),
        ({"domain": "a.b"}, "domain"),
        ({"domain": "a", "apiPrefix": "b"}, "not both"),
        ({"seedFile": "/a", "creds": "/b"}, "give one of"),
        ({"minPartitions": "0"}, "whole number"),
        ({"maxRecordsPerPartition": "many"}, "whole number"),
        ({"includeHeaders": "yes"}, "true or false"),
        ({"startingOffsets": "soon"}, "startingOffsets"),
    ],
)
def test_a_wrong_value_is_named_with_what_it_should_be(change: dict[str, str], what: str) -> None:
    with pytest.raises(OptionError, match=what):
        parse_options({**LEAST, **change})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"streamPattern": "T.*"}, "stream or streamPattern, not both"),
        ({"startingOffsets": "latest", "startingTimestamp": "0"}, "startingOffsets or startingTimestamp"),
        ({"endingTimestamp": "noon"}, "endingTimestamp"),
        ({"inboxPrefix": "a b"}, "inboxPrefix"),
        ({"tlsFirst": "maybe"}, "tlsFirst is 'maybe'"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is not for batch reads"),
    ],
)
def test_options_that_do_not_go_together_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parse_options({**LEAST, **given})


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "pushdown"])
def test_a_streaming_read_has_no_end_and_takes_no_filters(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name} is not for streaming reads"):
        parse_options({**LEAST, name: "latest"}, streaming=True)


def test_streams_may_be_named_by_a_pattern() -> None:
    options = parse_options({"servers": "nats://hub:4222", "streamPattern": "TELEMETRY_[0-9]+"})
    assert options.streams == ()
    assert options.pattern is not None
    assert options.pattern.fullmatch("TELEMETRY_12")
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(OptionError, match="not a regular expression"):
        parse_options({"servers": "nats://hub:4222", "streamPattern": "("})


def test_tls_and_the_inbox_are_the_connections() -> None:
    options = parse_options(
        {
            **LEAST,
            "caFile": "/ca.pem",
            "tlsFirst": "true",
            "inboxPrefix": "_INBOX",
            "maxOffsetsPerTrigger": "7",
        },
        streaming=True,
    )
    server = options.server
    assert (server.ca_file, server.tls_first, server.inbox_prefix) == ("/ca.pem", True, "_INBOX")
    assert options.max_per_trigger == 7
