"""The cache: never ahead of the store, never behind it, never larger than it may be."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.state_support import (
    OWNER,
    Batches,
    SpyMap,
    StoreDown,
    committed,
    fence_of,
    pairs_of,
)
from waterspout._schema import Schema
from waterspout.errors import ConfigError, FencedError, StoreError
from waterspout.state._cache import CachedMap, RecordCache, cache_at
from waterspout.state._head import Stamp, Writer
from waterspout.state._kinds import OpaqueMap, OpaqueValue, TransactionalMap, TransactionalValue
from waterspout.state._memory import MemoryMap
from waterspout.state.sqlite import SQLiteState
from waterspout.testing._faulty import FaultyMap, WriteFault
from waterspout.testing.conformance.hooks import at
from waterspout.trident import Sum

A, B, C, D = ("a",), ("b",), ("c",), ("d",)


def spied(backing):
    """Note what is read from a map from now on."""
    reads, real = [], backing.multi_get
    backing.multi_get = lambda keys: reads.append(list(keys)) or real(keys)
    return reads


def test_a_key_is_read_from_the_store_once():
    store = SpyMap({A: 1, B: 2})
    cache = CachedMap(store, 10)

    assert [cache.multi_get([A, B]), cache.multi_get([B, A])] == [[1, 2], [2, 1]]

    assert store.gets == [[A, B]]


def test_a_key_that_is_not_there_is_looked_for_once():
    store = SpyMap()
    cache = CachedMap(store, 10)

    assert [cache.multi_get([A]), cache.multi_get([A])] == [[None], [None]]

    assert store.gets == [[A]]


def test_only_the_keys_that_are_missing_are_read_in_one_call_and_each_once():
    store = SpyMap({A: 1, B: 2, C: 3})
    cache = CachedMap(store, 10)
    cache.multi_get([B])

    assert cache.multi_get([A, B, C, A]) == [1, 2, 3, 1]

    assert store.gets == [[B], [A, C]]


def test_the_key_used_longest_ago_is_dropped_first_and_reading_is_use():
    store = SpyMap({A: 1, B: 2, C: 3})
    cache = CachedMap(store, 2)
    cache.multi_get([A, B])
    cache.multi_get([A])
    cache.multi_get([C])
    store.gets.clear()

    cache.multi_get([A])
    cache.multi_get([C])
    cache.multi_get([B])

    assert store.gets == [[B]]


def test_writing_is_use_too():
    store = SpyMap({A: 1, B: 2, C: 3})
    cache = CachedMap(store, 2)
    cache.multi_get([A, B])
    cache.multi_put([A], [9])
    cache.multi_get([C])
    store.gets.clear()

    assert cache.multi_get([A]) == [9]
    assert store.gets == []


def test_a_call_with_more_keys_than_the_cache_holds_is_answered_in_full():
    store = SpyMap({A: 1, B: 2, C: 3, D: 4})
    cache = CachedMap(store, 2)

    assert cache.multi_get([A, B, C, D, A]) == [1, 2, 3, 4, 1]
    cache.multi_put([A, B, C], [7, 8, 9])

    assert cache.multi_get([A, B, C, D]) == [7, 8, 9, 4]


def test_keys_that_are_equal_only_to_python_are_cached_apart():
    keys, names = [(1,), ("1",), (1.0,), (True,)], ["int", "text", "float", "bool"]
    store = SpyMap()
    store.multi_put(keys, names)
    cache = CachedMap(store, 10)

    assert [cache.multi_get(keys), cache.multi_get(keys)] == [names, names]
    assert len(store.gets) == 1


@pytest.mark.parametrize("size", [0, -1, True, 1.5])
def test_a_cache_of_no_size_is_refused(size):
    with pytest.raises(ConfigError, match=f"at least 1, not {size}"):
        CachedMap(SpyMap(), size)


def test_a_write_goes_to_the_store_and_is_then_read_from_the_cache():
    store = SpyMap({A: 1})
    cache = CachedMap(store, 10)

    cache.multi_put([A, B], [5, 6])

    assert (store.puts, cache.multi_get([A, B]), store.gets) == ([{A: 5, B: 6}], [5, 6], [])


@pytest.mark.parametrize("fault", ["fail_before_put", "fail_after_put"])
def test_after_a_failed_write_the_store_is_asked_again(fault):
    store = SpyMap({A: 1, B: 1})
    cache = CachedMap(store, 10)
    cache.multi_get([A, B])
    store.gets.clear()
    setattr(store, fault, True)

    with pytest.raises(StoreDown):
        cache.multi_put([A], [2])

    assert cache.multi_get([A, B]) == [1 if fault == "fail_before_put" else 2, 1]
    assert store.gets == [[A]]


def test_faults_0_3_a_failed_write_is_not_taken_for_done_when_the_batch_is_replayed():
    store = SpyMap({A: TransactionalValue(1, 0, 1)})
    state = TransactionalMap(CachedMap(store, 10))
    store.fail_before_put = True
    with pytest.raises(StoreDown):
        committed(state, 2, {"a": 1}, attempt=0)
    store.fail_before_put = False

    committed(state, 2, {"a": 1}, attempt=1)

    assert store.at("a") == TransactionalValue(txid=2, attempt=1, value=2)
    assert state.multi_get([A]) == [2]


def test_a_compare_and_put_that_fails_makes_the_cache_look_again():
    below = MemoryMap()
    cache = CachedMap(below, 10)
    cache.multi_get([A])
    below.multi_put([A], [1])

    assert cache.multi_compare_and_put([A], [None], [2]) == [False]

    assert cache.multi_get([A]) == [1]
    assert cache.multi_compare_and_put([A], [1], [2]) == [True]
    assert (cache.multi_get([A]), below.multi_get([A])) == ([2], [2])


def test_a_compare_and_put_leaves_its_keys_to_be_read_again_and_the_others_alone():
    below = MemoryMap()
    below.multi_put([A, B, C], [1, 2, 3])
    cache = CachedMap(below, 10)
    cache.multi_get([A, B, C])
    reads = spied(below)

    assert cache.multi_compare_and_put([A, B], [1, 99], [5, 6]) == [True, False]

    assert cache.multi_get([A, B, C]) == [5, 2, 3]
    assert reads == [[A, B]]


def test_the_keys_are_forgotten_though_the_answer_to_a_compare_and_put_was_lost():
    faulty = FaultyMap(MemoryMap())
    cache = CachedMap(faulty, 10)
    assert cache.multi_get([A]) == [None]
    faulty.plan.append(WriteFault("after"))

    with pytest.raises(StoreError, match="injected"):
        cache.multi_compare_and_put([A], [None], [1])

    assert cache.multi_get([A]) == [1]


def test_a_cache_is_fenced_if_the_map_below_it_is():
    over_plain, over_fenced = CachedMap(SpyMap(), 1), CachedMap(MemoryMap(), 1)

    assert over_plain.fence is None
    assert over_fenced.fence is over_fenced
    assert not OpaqueMap(over_plain).is_fenced
    assert OpaqueMap(over_fenced).is_fenced


def test_a_refused_write_is_not_cached():
    below = MemoryMap()
    cache = CachedMap(below, 10)
    batches = Batches(OpaqueMap(cache))
    batches.claim()
    batches.write({"a": 1})

    with pytest.raises(FencedError):
        cache.fenced_put(Stamp(Writer(OWNER, 1), 1, 99), [A, B], ["zombie", "zombie"])

    assert cache.multi_get([A, B]) == [OpaqueValue(1, 0, 1), None]


def test_the_head_is_never_cached():
    below = MemoryMap()
    cached, other = Batches(OpaqueMap(CachedMap(below, 10))), Batches(OpaqueMap(below), epoch=2)
    cached.claim()
    cached.write({"a": 1})

    other.ledger, other.attempt = cached.ledger, cached.attempt
    other.claim()

    assert cached.state.read_head() == below.read_head()
    with pytest.raises(FencedError):
        cached.write({"a": 1})


def test_void_records_in_the_cache_are_told_apart_as_they_are_in_the_store():
    batches = Batches(OpaqueMap(CachedMap(MemoryMap(), 10)))
    batches.commit({"x": 1, "y": 1})
    batches.lose({"x": 100, "y": 1})
    batches.commit({"y": 1})
    batches.commit({"x": 1})

    assert batches.values("x", "y") == [2, 2]


@pytest.fixture
def cached_sqlite(tmp_path):
    below = SQLiteState.opaque(tmp_path / "counts.db", "counts").backing()
    yield CachedMap(below, 10), below
    below.close()


def test_what_the_store_undoes_leaves_the_cache(cached_sqlite):
    cache, below = cached_sqlite
    batches = Batches(OpaqueMap(cache))
    batches.commit({"x": 1})
    batches.lose({"x": 100, "new": 100})
    assert cache.multi_get([("x",), ("new",)]) == below.multi_get([("x",), ("new",)])

    batches.claim()

    undone = [OpaqueValue(0, 0, 1), None]
    assert cache.multi_get([("x",), ("new",)]) == below.multi_get([("x",), ("new",)]) == undone


def test_what_is_read_while_the_head_moves_is_not_kept(cached_sqlite):
    cache, below = cached_sqlite
    batches = Batches(OpaqueMap(cache))
    batches.lose({"x": 100})
    move = below.move_head

    def read_and_move(expected, new):
        cache.multi_get([("x",)])
        move(expected, new)

    below.move_head = read_and_move
    batches.claim()

    assert cache.multi_get([("x",)]) == [None]


def test_the_cache_is_cleared_though_the_answer_to_the_claim_was_lost(cached_sqlite):
    cache, below = cached_sqlite
    batches = Batches(OpaqueMap(cache))
    batches.lose({"x": 100})
    move = below.move_head

    def move_and_lose_the_answer(expected, new):
        move(expected, new)
        raise StoreDown

    below.move_head = move_and_lose_the_answer
    with pytest.raises(StoreDown):
        batches.claim()

    assert cache.multi_get([("x",)]) == [None]


def test_settling_and_moving_on_keep_the_cache():
    below = MemoryMap()
    batches = Batches(OpaqueMap(CachedMap(below, 10)))
    batches.commit({"x": 1})
    reads = spied(below)

    batches.commit({"x": 1})

    assert reads == []
    assert batches.values("x") == [2]


@pytest.mark.parametrize(
    ("moves", "kept"),
    [
        ([at(2), at(2, committed=True)], True),
        ([at(2), at(2, committed=True), at(3)], True),
        ([at(2), at(3)], True),
        ([at(2), at(2)], True),
        ([at(2), at(2, 1)], False),
        ([at(2), at(3, epoch=2)], False),
        ([at(2), at(2, committed=True), at(3, lease="another")], False),
    ],
    ids=[
        "settled",
        "settled, then the next batch",
        "the next batch, before this one was settled",
        "claimed again",
        "another attempt",
        "another driver",
        "another lease",
    ],
)
def test_the_cache_lives_as_long_as_one_writer_goes_from_batch_to_batch(moves, kept):
    below = MemoryMap()
    cache = CachedMap(below, 10)
    cache.move_head(None, moves[0])
    cache.fenced_put(moves[0].stamp, [A], [1])
    reads = spied(below)

    for expected, new in pairwise(moves):
        cache.move_head(expected, new)

    assert cache.multi_get([A]) == [1]
    assert reads == ([] if kept else [[A]])


def test_the_first_head_of_a_store_finds_the_cache_empty():
    below = MemoryMap()
    cache = CachedMap(below, 10)
    cache.multi_get([A])
    reads = spied(below)

    cache.move_head(None, at(1))

    assert (cache.multi_get([A]), reads) == ([None], [[A]])


def test_readers_outside_of_a_batch_read_the_store_and_not_the_cache():
    below = MemoryMap()
    cache = CachedMap(below, 10)
    assert cache.multi_get([A]) == [None]
    below.multi_put([A], [OpaqueValue(1, 0, 7)])

    assert OpaqueMap(cache).multi_get([A]) == [7]
    assert cache.multi_get([A]) == [None]
    assert cache.uncached is below


def test_two_maps_that_share_a_cache_know_of_each_others_writes_and_moves():
    below = MemoryMap()
    shared = RecordCache(10)
    one, other = CachedMap(below, shared), CachedMap(below, shared)
    one.multi_put([A], [1])
    reads = spied(below)
    assert (other.multi_get([A]), reads) == ([1], [])

    other.move_head(None, at(1))

    assert (one.multi_get([A]), reads) == ([1], [[A]])


def test_a_place_has_one_cache_and_another_place_or_size_another():
    here = cache_at("test_cache:here", 5)

    assert cache_at("test_cache:here", 5) is here
    assert here not in (cache_at("test_cache:there", 5), cache_at("test_cache:here", 6))
    assert here.size == 5


def test_states_that_a_recipe_makes_one_after_the_other_share_their_cache(tmp_path):
    factory = SQLiteState.opaque(tmp_path / "counts.db", "counts", cache=10)
    batches = Batches(factory.make_state(None, 0, 1))
    batches.commit({"x": 1})
    state = factory.make_state(None, 0, 1)
    reads = spied(state._backing.uncached)
    state.begin_commit(2)

    assert (state.multi_get([("x",)]), reads) == ([1], [])
    for made in (batches.state, state):
        made.close()


def test_a_closed_cache_still_holds_what_the_store_holds():
    below = MemoryMap()
    cache = CachedMap(below, 10)
    cache.multi_put([A], [1])
    reads = spied(below)

    cache.close()

    assert (cache.multi_get([A]), reads) == ([1], [])


def test_a_cache_never_combines_in_the_store(tmp_path):
    columns = Schema.parse("word string"), Schema.parse("n bigint")
    below = SQLiteState.opaque(tmp_path / "counts.db", "counts").bind(*columns).backing()

    assert not CachedMap(below, 10).can_combine(Sum())
    below.close()


def test_a_cache_lists_what_the_store_holds():
    below = MemoryMap()
    cache = CachedMap(below, 10)
    cache.multi_get([A])
    below.multi_put([A], [1])

    assert pairs_of(cache) == [(A, 1)]


def test_a_cache_knows_whether_the_store_undoes(cached_sqlite):
    cache, _ = cached_sqlite

    assert fence_of(cache).undoes_lost_attempts
    assert not CachedMap(MemoryMap(), 1).undoes_lost_attempts
    assert not CachedMap(SpyMap(), 1).undoes_lost_attempts
