"""One value with the guarantee of the map it is kept in."""

from __future__ import annotations

from tests.state_support import Add, SpyMap
from waterspout.state._kinds import (
    NonTransactionalMap,
    OpaqueMap,
    OpaqueValue,
    SnapshottableMap,
    TransactionalMap,
    TransactionalValue,
)


def test_the_value_is_under_the_empty_key_unless_another_is_named():
    store = SpyMap()

    SnapshottableMap(NonTransactionalMap(store)).set(1)
    SnapshottableMap(NonTransactionalMap(store), ["total"]).set(2)

    assert (store.at(), store.at("total")) == (1, 2)


def test_there_is_nothing_before_the_first_update():
    assert SnapshottableMap(OpaqueMap(SpyMap())).get() is None


def test_updates_of_a_batch_are_folded_seen_and_put_once():
    store = SpyMap({(): OpaqueValue(1, 0, 10)})
    snapshot = SnapshottableMap(OpaqueMap(store))

    snapshot.begin_commit(2)
    new = [snapshot.update(Add(1)), snapshot.update(Add(2)), snapshot.get()]
    snapshot.commit(2)

    assert new == [11, 13, 13]
    assert store.puts == [{(): OpaqueValue(2, 0, 13, prev=10)}]


def test_a_replayed_opaque_batch_starts_from_the_value_before_it():
    store = SpyMap({(): OpaqueValue(2, 0, 4, prev=1)})
    snapshot = SnapshottableMap(OpaqueMap(store))

    snapshot.begin_commit(2, attempt=1)
    snapshot.update(Add(2))
    snapshot.commit(2)

    assert store.at() == OpaqueValue(2, 1, 3, prev=1)


def test_attempt_and_resolved_attempts_reach_the_map():
    store = SpyMap({(): OpaqueValue(2, 0, 99, prev=1)})
    snapshot = SnapshottableMap(OpaqueMap(store))

    snapshot.begin_commit(3, attempt=5, resolved={2: 1})
    snapshot.update(Add(1))
    snapshot.commit(3)

    assert store.at() == OpaqueValue(3, 5, 2, prev=1)


def test_a_replayed_transactional_batch_is_skipped():
    store = SpyMap({(): TransactionalValue(2, 0, 4)})
    snapshot = SnapshottableMap(TransactionalMap(store))

    snapshot.begin_commit(2, attempt=1)
    assert snapshot.update(Add(2)) == 4
    snapshot.commit(2)

    assert store.puts == []


def test_set_replaces_the_value_within_a_batch():
    store = SpyMap({(): OpaqueValue(1, 0, 10)})
    snapshot = SnapshottableMap(OpaqueMap(store))

    snapshot.begin_commit(2)
    snapshot.set(3)
    snapshot.commit(2)

    assert store.at() == OpaqueValue(2, 0, 3, prev=10)
