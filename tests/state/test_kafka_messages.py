"""Rows as messages, without a broker; what a recipe refuses, and what it never shows."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from waterspout._arrow import table_of_rows
from waterspout._schema import Schema
from waterspout.errors import TopologyError
from waterspout.state.kafka import KafkaState
from waterspout.state.kafka._messages import MessageForm
from waterspout.state.kafka._topics import why_unsafe
from waterspout.testing import MemoryLog
from waterspout.trident import AppendRows, TridentTopology, UpsertRows

HEADERS = "array<struct<key:string,value:binary>>"


def messages(fields, rows, key=(), as_json=False):
    schema = Schema.parse(fields)
    form = MessageForm.of(schema, key, as_json, "KafkaState")
    return list(form.messages(table_of_rows(schema, rows, where="a test")))


def test_a_stream_of_messages_is_written_as_it_is():
    fields = f"key string, value binary, headers {HEADERS}, partition int, timestamp timestamp"
    moment = datetime(2024, 2, 29, 12, 0, 0, 1999, tzinfo=UTC)

    found = messages(
        fields,
        [
            ("k", b"v", [{"key": "h", "value": b"1"}, {"key": "h", "value": None}], 3, moment),
            (None, None, None, None, None),
        ],
    )

    millis = int(moment.timestamp() * 1000)
    first = {"key": "k", "value": b"v", "headers": [("h", b"1"), ("h", None)], "partition": 3}
    assert found == [{**first, "timestamp": millis}, {"key": None, "value": None}]


def test_any_other_row_is_json_under_the_key_that_is_named():
    fields = (
        "id bigint, word string, price decimal(9,2), at timestamp, day date, raw binary, x double"
    )
    row = (
        1,
        'ö"',
        Decimal("1.50"),
        datetime(2024, 1, 2, tzinfo=UTC),
        date(2024, 1, 2),
        b"hi",
        None,
    )
    text = (
        '{"id":1,"word":"ö\\"","price":1.50,"at":"2024-01-02T00:00:00Z","day":"2024-01-02",'
        '"raw":"aGk=","x":null}'
    )

    for key, wanted in [
        ((), None),
        (("id",), b"1"),
        (("word",), 'ö"'.encode()),
        (("raw",), b"hi"),
        (("day",), b"2024-01-02"),
        (("x",), None),
        (("id", "day"), b'{"id":1,"day":"2024-01-02"}'),
    ]:
        assert messages(fields, [row], key) == [{"key": wanted, "value": text.encode()}]


def test_json_of_floats_arrays_maps_and_structs_is_json():
    fields = "f double, tags array<string>, m map<string,bigint>, s struct<a:int,b:string>"
    rows = [
        (float("inf"), ["a", None], {"k": 1}, {"a": 1, "b": None}),
        (float("nan"), [], {}, None),
    ]

    found = [json.loads(m["value"]) for m in messages(fields, rows)]

    assert found[0] == {
        "f": "Infinity",
        "tags": ["a", None],
        "m": {"k": 1},
        "s": {"a": 1, "b": None},
    }
    assert (found[1]["f"], found[1]["tags"], found[1]["s"]) == ("NaN", [], None)


def test_a_value_that_is_not_text_or_is_asked_to_be_is_json():
    assert messages("value bigint", [(1,)]) == [{"key": None, "value": b'{"value":1}'}]
    (asked,) = messages("value string", [("v",)], as_json=True)
    assert asked["value"] == b'{"value":"v"}'


@pytest.mark.parametrize(
    ("fields", "options", "words"),
    [
        ("value string, word string", {}, "a message has no 'word'.*as_json=True"),
        ("value string, partition string", {}, "'partition' is string; in a message"),
        ("value string, headers string", {}, "'headers' is string"),
        ("word string", {"key": "id"}, "key='id' is no field of the stream, which has word"),
    ],
)
def test_fields_that_are_no_message_are_refused_when_the_topology_is_built(fields, options, words):
    state = KafkaState("localhost:1", topic="t", **options)

    with pytest.raises(TopologyError, match=words):
        state.bind_rows(Schema.parse(fields))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "no such/name"}, "is not the name of a topic"),
        ({"topic": "t", "heads": "t"}, "must be another topic"),
        ({"topic": "t", "options": {"acks": "1"}}, "'acks' is ours: it is always all"),
        ({"topic": "t", "options": {"transactional.id": "x"}}, "'transactional.id' is ours"),
        ({"topic": "t", "options": {"no.such": 1}}, "refused by its client"),
        ({"topic": "t", "partitions": 0}, "partitions is a number from 1"),
        ({"topic": "t", "timeout_secs": 0}, "timeout_secs is a number of seconds"),
        ({"topic": "t", "prefix": ""}, "prefix is text"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(options, words):
    with pytest.raises(TopologyError, match=words):
        KafkaState("localhost:1", **options)


def test_keys_are_for_maps():
    stream = TridentTopology("t").new_stream("s", MemoryLog("id bigint, n bigint", [[(1, 2)]]))

    with pytest.raises(TopologyError, match="in a log no row takes the place of another"):
        stream.partition_persist(KafkaState("localhost:1", topic="t"), UpsertRows(["id"]))


def test_no_option_is_ever_shown():
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    secret = {"sasl.username": "me", "sasl.password": "hunter2"}
    state = KafkaState("localhost:1", topic="t", options={**options, **secret})
    bound = pickle.loads(pickle.dumps(state.bind_rows(Schema.parse("id bigint"))))

    texts = [repr(bound), str(bound.identity()), bound.location(), bound.title, repr(bound.store())]

    assert "hunter2" not in "".join(texts)
    assert bound.servers.options == state.servers.options


def test_a_log_behind_an_opaque_spout_is_exactly_once():
    topology = TridentTopology("t")
    stream = topology.new_stream("s", MemoryLog("id bigint", [[(1,)]]))
    stream.partition_persist(KafkaState("localhost:1", topic="t"), AppendRows())

    assert "exactly-once" in topology.explain()
    assert "not exactly-once" not in topology.explain()


def test_a_topic_that_may_lose_what_it_acknowledged_is_told():
    safe = {"unclean.leader.election.enable": "false", "min.insync.replicas": "2"}

    assert why_unsafe("t", 3, safe) is None
    assert why_unsafe("t", 1, {**safe, "min.insync.replicas": "1"}) is None
    assert "min.insync.replicas 1" in why_unsafe("t", 3, {**safe, "min.insync.replicas": "1"}).why
    unclean = {**safe, "unclean.leader.election.enable": "true"}
    assert "unclean.leader.election" in why_unsafe("t", 3, unclean).why
