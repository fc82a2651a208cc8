"""`scan`: every record is listed once, over any number of shards."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from waterspout._serde import encode_key, normalize_key
from waterspout.errors import StoreError
from waterspout.state._base import BackingMap, StateKind
from waterspout.testing.conformance.hooks import OPAQUE, StoreHooks, at, each_kind, record

__all__ = ["ScanSuite"]

NUMBER = 500


class ScanSuite(StoreHooks):
    """What `scan` yields."""

    def _listable(self, kind: StateKind) -> BackingMap[Any]:
        backing = self.new(kind)
        try:
            for _ in backing.scan():
                pass
        except StoreError as error:
            pytest.skip(f"this store cannot be read as a whole, only key by key: {error}")
        return backing

    @each_kind
    def test_an_empty_store_lists_nothing(self, kind: StateKind) -> None:
        backing = self._listable(kind)

        assert [pair for shard in range(3) for pair in _pairs(backing, shard, 3)] == []

    @pytest.mark.parametrize("shards", [1, 2, 3, 16])
    def test_every_record_is_listed_once_over_any_number_of_shards(self, shards: int) -> None:
        backing = self._listable(OPAQUE)
        keys = [(f"word {n}", n) for n in range(NUMBER)]
        backing.multi_put(keys, [record(OPAQUE, n) for n in range(NUMBER)])

        found = [pair for shard in range(shards) for pair in _pairs(backing, shard, shards)]

        listed, there = Counter(key for key, _ in found), Counter(keys)
        # Not `==`: of two large values pytest shows each difference, for minutes where CI is set.
        assert not there - listed, "these were not listed"
        assert not listed - there, "these were listed more than once"
        assert {key: r.value for key, r in found} == {key: key[1] for key in keys}

    def test_odd_keys_are_listed_as_they_were(self) -> None:
        backing = self._listable(OPAQUE)
        keys = self.odd_keys
        backing.multi_put(keys, [record(OPAQUE, n) for n in range(len(keys))])

        found = [(encode_key(key), repr(key), r) for key, r in _pairs(backing)]

        expected = [
            (encode_key(key), repr(normalize_key(key)), record(OPAQUE, n))
            for n, key in enumerate(keys)
        ]
        assert sorted(found, key=str) == sorted(expected, key=str)

    @each_kind
    def test_a_record_that_was_replaced_is_listed_as_it_is_now(self, kind: StateKind) -> None:
        backing = self._listable(kind)
        backing.multi_put([("a",)], [record(kind, 1)])
        backing.multi_put([("a",)], [record(kind, 2, txid=2)])

        assert _pairs(backing) == [(("a",), record(kind, 2, txid=2))]

    @each_kind
    def test_the_head_is_not_listed(self, kind: StateKind) -> None:
        backing = self._listable(kind)
        if backing.fence is None:
            pytest.skip("this store has no head that it could list")
        backing.fence.move_head(None, at(1))

        assert _pairs(backing) == []

    def test_what_only_a_lost_attempt_has_written_is_left_out(self) -> None:
        backing = self._listable(OPAQUE)
        if backing.fence is None:
            pytest.skip("without a head, a reader cannot know which attempts were lost")
        batches = self.batches(OPAQUE, backing)
        batches.commit({"kept": 1, "changed": 1})
        batches.lose({"changed": 100, "lost": 100})
        during = dict(pair for chunk in batches.state.scan() for pair in chunk)
        batches.commit({"kept": 1})
        after = dict(pair for chunk in batches.state.scan() for pair in chunk)

        assert during == {("kept",): 1, ("changed",): 1}
        assert after == {("kept",): 2, ("changed",): 1}


def _pairs(backing: BackingMap[Any], shard: int = 0, shards: int = 1) -> list[Any]:
    return [(tuple(key), r) for chunk in backing.scan(shard, shards) for key, r in chunk]
