"""What a Redis server combines by itself, against the same in Python."""

from __future__ import annotations

from uuid import uuid4

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from tests.soaking import soaked
from tests.state.redis_support import WORDS, counting, driver
from tests.state_support import examples
from waterspout._schema import Schema
from waterspout.errors import SerdeError, StaleBatchError
from waterspout.state._base import StateKind
from waterspout.state._kinds import OpaqueValue
from waterspout.state._records import encode_record
from waterspout.state.redis import RedisState
from waterspout.trident import Max, Min, Sum

pytestmark = pytest.mark.services

BOTH = pytest.mark.parametrize("layout", ["string", "hash"])


@pytest.fixture
def url(redis_server):
    redis_server.roundtrip(b"FLUSHALL\r\n")  # a new state looks through all keys
    return redis_server.url


@pytest.fixture
def raw(url):
    with redis.Redis.from_url(url, decode_responses=True, protocol=2) as client:
        yield client


EDGE = 2**53
numbers = st.one_of(
    st.integers(-9, 9),
    st.sampled_from([EDGE - 1, EDGE, EDGE + 1, -EDGE, -EDGE - 1, 1 - EDGE, 2**59, -(2**59)]),
)
updates = st.dictionaries(st.sampled_from("abcd"), numbers, min_size=1)
history = st.lists(st.tuples(st.lists(updates, max_size=2), updates), min_size=1, max_size=5)
MERGES = {"sum": Sum(), "min": Min(), "max": Max()}


@pytest.mark.parametrize("merge", MERGES)
@pytest.mark.parametrize(
    "options", [{}, {"layout": "hash", "slots": 2}, {"expire_secs": 600}], ids=str
)
@examples(25)
@given(history=history)
def test_the_server_combines_as_python_does_whatever_was_lost(url, raw, merge, options, history):
    combiner, truth = MERGES[merge], {}
    inside = driver(counting(url, **options), combine=combiner)
    # Without a type the value may be anything, so all is done in Python.
    outside = driver(RedisState.opaque(url, prefix=uuid4().hex, **options), combine=combiner)
    for lost, kept in history:
        for batches in (inside, outside):
            for some in lost:
                batches.lose(some)
            batches.commit(kept)
        for key, amount in kept.items():
            truth[key] = combiner.combine(truth[key], amount) if key in truth else amount
        expected = [truth.get(key) for key in "abcd"]
        assert inside.values(*"abcd") == outside.values(*"abcd") == expected
    records = [batches.state.records([(key,) for key in "abcd"]) for batches in (inside, outside)]
    assert records[0] == records[1]


@pytest.mark.parametrize("kind", [StateKind.TRANSACTIONAL, StateKind.NON_TRANSACTIONAL])
@examples(15)
@given(history=history)
def test_the_other_kinds_combine_as_python_does_too(url, kind, history):
    inside = driver(counting(url, kind=kind), combine=Sum())
    outside = driver(RedisState(url, uuid4().hex, kind=kind), combine=Sum())
    for lost, kept in history:
        for batches in (inside, outside):
            for some in lost[:1]:
                # Of a transactional batch every attempt brings the same; some fail half way.
                batches.lose(kept if kind is StateKind.TRANSACTIONAL else some)
            batches.commit(kept)
        assert inside.values(*"abcd") == outside.values(*"abcd")
    records = [batches.state.records([(key,) for key in "abcd"]) for batches in (inside, outside)]
    assert records[0] == records[1]


@pytest.mark.parametrize("stored", [None, True, 1.0, 2.5, 1e300, EDGE - 1, EDGE, -EDGE, 10**40])
@pytest.mark.parametrize("amount", [1, -1, EDGE - 1, EDGE, 2**62])
def test_numbers_at_the_edge_are_exact_and_odd_ones_are_refused(url, stored, amount):
    state = counting(url)
    batches = driver(state, combine=Sum())
    state.backing().multi_put([("a",), ("b",)], [OpaqueValue(0, 0, stored), OpaqueValue(0, 0, 1)])

    expected = amount if stored is None else stored + amount
    if type(expected) is not int or abs(expected) >= 2**63:
        with pytest.raises(SerdeError, match=r"key \('a',\)"):
            batches.commit({"a": amount, "b": 1})
        return
    batches.commit({"a": amount, "b": 1})

    (found, b) = batches.values("a", "b")
    assert (found, type(found), b) == (expected, int, 2)


def test_the_server_writes_the_texts_that_python_would(url, raw):
    state = counting(url)
    batches = driver(state, combine=Sum())
    batches.commit({"a": 5})
    batches.commit({"a": -7, "b": EDGE - 2})

    texts = [raw.get(f'{{{state.prefix}:0}}:k:["{word}"]') for word in "ab"]

    assert texts == ["[2,0,-2,5]", f"[2,0,{EDGE - 2},null]"]
    records = state.backing().multi_get([("a",), ("b",)])
    assert [encode_record(StateKind.OPAQUE, record) for record in records] == texts


def test_a_record_newer_than_the_batch_stops_it_before_anything_is_written(url):
    state = counting(url)
    batches = driver(state, combine=Sum())
    batches.commit({"a": 1})
    state.backing().multi_put([("b",)], [OpaqueValue(9, 0, 1)])
    batches.claim()

    with pytest.raises(StaleBatchError) as caught:
        batches.write({"a": 1, "b": 1})

    assert (caught.value.txid, caught.value.stored, caught.value.key) == (2, 9, ("b",))
    assert state.backing().multi_get([("a",)]) == [OpaqueValue(1, 0, 1)]


@pytest.mark.parametrize(
    ("values", "combiner", "can"),
    [
        ("n bigint", Sum(), True),
        ("n tinyint", Min(), True),
        ("n int", Max(), True),
        ("n double", Sum(), False),
        ("n decimal(10,0)", Sum(), False),
        ("n bigint, m bigint", Sum(), False),
        ("n", Sum(), False),
    ],
)
def test_only_whole_numbers_in_one_column_are_combined_in_the_server(values, combiner, can):
    state = RedisState.opaque("redis://db", prefix="words").bind(WORDS, Schema.parse(values))

    assert state.backing().can_combine(combiner) is can


@pytest.mark.parametrize("layout", ["string", soaked("hash")])
def test_a_hundred_thousand_keys_go_in_one_batch(url, layout):
    words = {f"word {n}": n for n in range(100_000)}
    state = counting(url, layout=layout)
    batches = driver(state, combine=Sum())
    batches.lose(dict.fromkeys(words, 10**6))
    batches.commit(words)
    batches.commit(words)

    found = {key[0]: value for chunk in batches.state.scan() for key, value in chunk}

    assert found == {word: 2 * n for word, n in words.items()}


def test_texts_larger_than_a_chunk_are_split(url, raw):
    big = ["x" * 1_500_000 + str(n) for n in range(8)]
    batches = driver(RedisState.opaque(url, prefix=uuid4().hex))
    batches.state.enroll(batches.writer)
    batches.claim()
    batches.state.begin_commit(1, 0)
    batches.state.multi_put([(n,) for n in range(8)], big)
    batches.state.commit(1)
    batches.mark()
    batches.settle()

    assert batches.values(*range(8)) == big
