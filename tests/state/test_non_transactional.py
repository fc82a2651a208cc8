"""Non-transactional states: the value alone, and so every replay counts."""

from __future__ import annotations

from tests.state_support import Add, Batches, SpyMap, committed
from waterspout.state._kinds import NonTransactionalMap
from waterspout.state._memory import MemoryMap


def test_only_the_value_is_stored():
    store = SpyMap()

    assert committed(NonTransactionalMap(store), 1, {"a": 2}) == [2]

    assert store.at("a") == 2


def test_a_replay_counts_again():
    store = SpyMap()
    state = NonTransactionalMap(store)

    committed(state, 1, {"a": 2}, attempt=0)
    committed(state, 1, {"a": 2}, attempt=1)

    assert store.at("a") == 4


def test_several_updates_of_a_key_in_a_batch_are_put_once():
    store = SpyMap({("a",): 1})
    state = NonTransactionalMap(store)
    state.begin_commit(9)

    assert state.multi_update([("a",), ("a",), ("b",)], [Add(1), Add(1), Add(1)]) == [2, 3, 1]
    assert state.multi_get([("a",)]) == [3]
    state.commit(9)

    assert store.puts == [{("a",): 3, ("b",): 1}]


def test_without_a_txid_updates_are_applied_at_once():
    store = SpyMap({("a",): 1})
    state = NonTransactionalMap(store)

    state.begin_commit(None)

    assert state.multi_update([("a",), ("a",)], [Add(1), Add(1)]) == [2, 3]
    assert store.puts == [{("a",): 3}]


def test_multi_put_sets_the_values():
    store = SpyMap({("a",): 1})
    state = NonTransactionalMap(store)

    state.multi_put([("a",), ("b",)], [7, None])

    assert state.multi_get([("a",), ("b",), ("c",)]) == [7, None, None]


def test_readers_see_what_is_there_in_every_phase():
    batches = Batches(NonTransactionalMap(MemoryMap()))

    batches.lose({"a": 1})

    assert batches.values("a") == [1]
