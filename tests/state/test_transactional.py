"""Transactional states: a batch that a key already has is skipped."""

from __future__ import annotations

import pytest

from tests.state_support import Add, Batches, SpyMap, StoreDown, committed
from waterspout.errors import StaleBatchError
from waterspout.state._kinds import TransactionalMap, TransactionalValue
from waterspout.state._memory import MemoryMap


def test_seed_man_dog_apple_man_is_counted_dog_skipped_apple_left_alone():
    store = SpyMap(
        {
            ("man",): TransactionalValue(txid=1, attempt=0, value=3),
            ("dog",): TransactionalValue(txid=3, attempt=0, value=4),
            ("apple",): TransactionalValue(txid=2, attempt=0, value=10),
        }
    )
    state = TransactionalMap(store)
    state.begin_commit(3, attempt=1)

    new = state.multi_update([("man",), ("man",), ("dog",)], [Add(1), Add(1), Add(1)])
    state.commit(3)

    assert new == [4, 5, 4]
    assert store.at("man") == TransactionalValue(txid=3, attempt=1, value=5)
    assert store.at("dog") == TransactionalValue(txid=3, attempt=0, value=4)
    assert store.at("apple") == TransactionalValue(txid=2, attempt=0, value=10)
    assert store.puts == [{("man",): TransactionalValue(3, 1, 5)}]


def test_a_key_that_was_not_there_starts_from_the_batch_alone():
    store = SpyMap()

    assert committed(TransactionalMap(store), 4, {"new": 2}) == [2]

    assert store.at("new") == TransactionalValue(4, 0, 2)


def test_several_updates_of_a_key_in_a_batch_are_all_applied_and_put_once():
    store = SpyMap({("a",): TransactionalValue(1, 0, 10)})
    state = TransactionalMap(store)
    state.begin_commit(2)

    state.multi_update([("a",), ("a",)], [Add(1), Add(2)])
    state.multi_update([("a",)], [Add(3)])
    state.commit(2)

    assert store.puts == [{("a",): TransactionalValue(2, 0, 16)}]


def test_a_replay_of_a_batch_that_was_written_in_part_completes_it():
    store = SpyMap({("a",): TransactionalValue(1, 0, 1), ("b",): TransactionalValue(1, 0, 1)})
    state = TransactionalMap(store)
    committed(state, 2, {"a": 1}, attempt=0)

    assert committed(state, 2, {"a": 1, "b": 1}, attempt=1) == [2, 2]

    assert store.at("a") == TransactionalValue(2, 0, 2)
    assert store.at("b") == TransactionalValue(2, 1, 2)


def test_a_write_that_was_done_though_it_raised_is_not_done_again():
    store = SpyMap({("a",): TransactionalValue(1, 0, 1)})
    state = TransactionalMap(store)
    store.fail_after_put = True
    with pytest.raises(StoreDown):
        committed(state, 2, {"a": 1})
    store.fail_after_put = False

    committed(state, 2, {"a": 1}, attempt=1)

    assert store.at("a") == TransactionalValue(2, 0, 2)


def test_a_record_of_an_older_batch_counts_whichever_attempt_wrote_it():
    store = SpyMap({("a",): TransactionalValue(2, 0, 5)})

    committed(TransactionalMap(store), 3, {"a": 1}, resolved={2: 1})

    assert store.at("a") == TransactionalValue(3, 0, 6)


def test_a_batch_behind_the_record_is_refused_and_both_txids_are_named():
    store = SpyMap({("a",): TransactionalValue(900, 0, 50)})
    state = TransactionalMap(store)
    state.begin_commit(3)

    with pytest.raises(StaleBatchError, match=r"batch 3 .*\('a',\).* batch 900") as caught:
        state.multi_update([("a",)], [Add(1)])

    assert (caught.value.txid, caught.value.stored) == (3, 900)
    assert store.at("a") == TransactionalValue(900, 0, 50)


def test_multi_put_is_skipped_as_an_update_is_where_the_batch_is_already_in():
    store = SpyMap({("a",): TransactionalValue(2, 0, 5), ("b",): TransactionalValue(1, 0, 5)})
    state = TransactionalMap(store)
    state.begin_commit(2)

    state.multi_put([("a",), ("b",)], [7, 8])
    state.commit(2)

    assert store.puts == [{("b",): TransactionalValue(2, 0, 8)}]


def test_reads_in_a_batch_see_its_own_writes():
    state = TransactionalMap(SpyMap({("a",): TransactionalValue(1, 0, 1)}))
    state.begin_commit(2)

    state.multi_update([("a",)], [Add(1)])

    assert state.multi_get([("a",), ("b",)]) == [2, None]


def test_without_a_txid_the_value_is_amended_and_its_batch_kept():
    store = SpyMap({("a",): TransactionalValue(7, 2, 10)})
    state = TransactionalMap(store)

    state.begin_commit(None)
    assert state.multi_update([("a",), ("b",)], [Add(1), Add(5)]) == [11, 5]
    state.commit(None)

    assert store.at("a") == TransactionalValue(7, 2, 11)
    assert store.at("b") == TransactionalValue(0, 0, 5)
    assert committed(state, 7, {"a": 1, "b": 1}) == [11, 6]


def test_readers_outside_of_a_batch_are_read_uncommitted():
    backing = MemoryMap()
    batches, reader = Batches(TransactionalMap(backing)), TransactionalMap(backing)
    batches.commit({"a": 1})

    batches.lose({"a": 2, "b": 3})

    assert reader.multi_get([("a",), ("b",)]) == [3, 3]


def test_keys_1_and_text_1_and_1_point_0_and_true_are_four_keys():
    keys = [(1,), ("1",), (1.0,), (True,), (), (None,)]
    state = TransactionalMap(SpyMap())
    state.begin_commit(1)

    state.multi_update(keys, [Add(n) for n in range(6)])
    state.commit(1)

    assert state.multi_get(keys) == [0, 1, 2, 3, 4, 5]
