"""Our own maps run through the kit that every store author runs; what is theirs alone is below."""

from __future__ import annotations

import sqlite3
from itertools import count

import pytest

from tests.state_support import Add
from waterspout._schema import Schema
from waterspout.errors import StoreError
from waterspout.state._cache import CachedMap
from waterspout.state._comparing import ComparingMap
from waterspout.state._kinds import OpaqueMap
from waterspout.state._memory import MemoryMap, MemoryMapState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import StateConformance


class TestMemoryMap(StateConformance):
    def make_backing(self, kind):
        return MemoryMap()

    def make_recipe(self, kind):
        return MemoryMapState(kind)

    def lose_records(self, backing):
        backing._records.clear()
        return True


class TestSQLiteMap(StateConformance):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path):
        self.path, self.tables, self.states = tmp_path / "states.db", count(), {}

    def make_backing(self, kind):
        return self._made(self.make_recipe(kind))

    def make_recipe(self, kind):
        return SQLiteState(self.path, f"state{next(self.tables)}", kind=kind)

    def lose_records(self, backing):
        with sqlite3.connect(self.path) as db:
            db.execute(f"DELETE FROM {backing._table}")
        return True

    def make_int_backing(self, kind):
        state = self.make_recipe(kind)
        return self._made(state.bind(Schema.parse("word string"), Schema.parse("n bigint")))

    def reopen(self, backing):
        return self._made(self.states[id(backing)][0])

    def _made(self, state):
        backing = state.backing()
        self.states[id(backing)] = (state, backing)  # the map too: an id may come again
        return backing


@pytest.mark.soak
class TestCachedSQLiteMap(TestSQLiteMap):
    many = 1_000

    def make_backing(self, kind):
        return CachedMap(super().make_backing(kind), 50)

    def make_int_backing(self, kind):
        return None

    def lose_records(self, backing):
        return super().lose_records(backing.uncached)

    def reopen(self, backing):
        # One cache for all clients of a process, as `cache_at` has it.
        return CachedMap(super().reopen(backing.uncached), backing._cache)


class MemoryComparingMap(MemoryMap, ComparingMap):
    """A map in memory that looks at the head and then compares key by key, as Memcached does."""

    title = "the comparing map"
    fenced_put = ComparingMap.fenced_put


class TestComparingMap(StateConformance):
    many = 1_000

    def make_backing(self, kind):
        return MemoryComparingMap()


class AmongRecords(ComparingMap):
    """A dictionary whose author wrote only what is asked for: the head is one of its records."""

    title = "the map of three methods"

    def __init__(self, kind):
        self.kind = kind
        self._memory = MemoryMap()

    def multi_get(self, keys):
        return self._memory.multi_get(keys)

    def multi_put(self, keys, values):
        self._memory.multi_put(keys, values)

    def multi_compare_and_put(self, keys, read, values):
        return self._memory.multi_compare_and_put(keys, read, values)

    def scan(self, shard=0, shards=1):
        for chunk in self._memory.scan(shard, shards):
            yield [(key, record) for key, record in chunk if key != self.head_key]


class TestAmongRecords(StateConformance):
    many = 1_000

    def make_backing(self, kind):
        return AmongRecords(kind)


class TestCachedComparingMap(StateConformance):
    """A cache over memory, which undoes nothing; over SQLite, which does, it was tried above."""

    many = 1_000

    def make_backing(self, kind):
        return CachedMap(MemoryComparingMap(), 50)


def test_keys_that_always_change_are_given_up_on():
    backing = MemoryMap()
    backing.multi_compare_and_put = lambda keys, read, values: [False] * len(keys)

    with pytest.raises(StoreError, match="change faster than they can be updated"):
        OpaqueMap(backing).multi_update([("x",)], [Add(1)])


def test_only_the_keys_that_changed_meanwhile_are_updated_again():
    backing, tries = MemoryMap(), []
    real = backing.multi_compare_and_put

    def refuse_one_once(keys, read, values):
        tries.append(list(keys))
        if len(tries) > 1:
            return real(keys, read, values)
        return [*real(keys[:1], read[:1], values[:1]), False]

    backing.multi_compare_and_put = refuse_one_once
    state = OpaqueMap(backing)

    assert state.multi_update([("x",), ("y",), ("x",)], [Add(1), Add(10), Add(2)]) == [1, 10, 3]
    assert tries == [[("x",), ("y",)], [("y",)]]
    assert state.multi_get([("x",), ("y",)]) == [3, 10]
