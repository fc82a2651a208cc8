"""Combining in the store has the same result as reading, combining in Python and writing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterspout.errors import FencedError, StaleBatchError
from waterspout.state._base import BackingMap, Combiner, FencedMap, StateKind
from waterspout.state._memory import MemoryMap
from waterspout.testing._batches import Batches, committed
from waterspout.testing._faulty import FaultyMap, WriteFault
from waterspout.testing.conformance.hooks import (
    OPAQUE,
    PLAIN,
    TRANSACTIONAL,
    StoreHooks,
    at,
    each_exact_kind,
    each_kind,
    examples,
)
from waterspout.trident import Max, Min, Sum

__all__ = ["CombineSuite"]

COMBINERS = (Sum(), Min(), Max())
each_combiner = pytest.mark.parametrize("combiner", COMBINERS, ids=lambda combiner: combiner.merge)
histories = st.lists(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), st.integers(-20, 20), max_size=3),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=4,
)


class CombineSuite(StoreHooks):
    """`fenced_combine`, for the combiners of which `can_combine` says yes."""

    def _combining(self, kind: StateKind, combiner: Combiner) -> FencedMap[Any]:
        backing: BackingMap[Any] | None = self.make_int_backing(kind)
        if backing is None:
            pytest.skip("this store has no typed columns in which it could combine")
        self._opened.append(backing)
        fence = backing.fence
        if fence is None or not fence.can_combine(combiner):
            pytest.skip(f"this store leaves {combiner.merge} to Python")
        return fence

    @each_combiner
    @each_kind
    @examples(10)
    @given(history=histories)
    def test_combining_in_the_store_equals_combining_in_python(
        self, kind: StateKind, combiner: Combiner, history: Any
    ) -> None:
        self._close_all()
        store, model = self._combining(kind, combiner), MemoryMap[Any]()
        seen = []
        for backing in (store, model):
            batches = self.batches(kind, backing, combine=combiner)
            for attempts in history:
                for n, updates in enumerate(attempts):
                    # A transactional batch is replayed with the same tuples; a lost attempt may
                    # have written some of its keys.
                    whole = attempts[-1]
                    part = {k: v for k, v in whole.items() if k in updates}
                    batches.lose(part if kind is TRANSACTIONAL else updates)
                    if n == len(attempts) - 1:
                        batches.finish()
                seen.append(batches.values(*"abc"))

        assert seen[: len(history)] == seen[len(history) :]

    @pytest.mark.parametrize(("kind", "count"), [(OPAQUE, 3), (TRANSACTIONAL, 3), (PLAIN, 5)])
    def test_a_task_retried_within_one_attempt_combines_from_the_same_value(
        self, kind: StateKind, count: int
    ) -> None:
        batches = self.batches(kind, self._combining(kind, Sum()), combine=Sum())
        batches.commit({"a": 1})
        batches.claim()
        batches.write({"a": 2, "b": 2})
        batches.write({"a": 2, "b": 2})
        batches.finish()

        assert batches.values("a", "b") == [count, count - 1]

    @each_kind
    def test_the_records_are_those_that_python_would_have_written(self, kind: StateKind) -> None:
        store, model = self._combining(kind, Sum()), MemoryMap[Any]()
        records = []
        for backing in (store, model):
            batches = self.batches(kind, backing, combine=Sum())
            batches.commit({"a": 1})
            batches.commit({"a": 2, "b": 2})
            records.append(batches.state.records([("a",), ("b",), ("c",)]))

        assert records[0] == records[1]

    @each_kind
    def test_combining_with_any_other_stamp_is_refused_and_changes_nothing(
        self, kind: StateKind
    ) -> None:
        fence = self._combining(kind, Sum())
        batches = self.batches(kind, fence, combine=Sum())
        batches.lose({"a": 1})
        batches.claim()
        before = fence.multi_get([("a",), ("b",)])

        for stamp in (at(1, 0).stamp, at(2, 1).stamp, at(1, 1, epoch=2).stamp):
            with pytest.raises(FencedError):
                fence.fenced_combine(stamp, [("a",), ("b",)], [100, 100], Sum())

        assert fence.multi_get([("a",), ("b",)]) == before

    @each_exact_kind
    def test_combining_a_batch_behind_a_record_is_refused_and_changes_nothing(
        self, kind: StateKind
    ) -> None:
        fence = self._combining(kind, Sum())
        batches = self.batches(kind, fence, combine=Sum())
        batches.commit({"a": 1})
        committed(self.state(kind, fence), 9, {"b": 1})
        batches.claim()
        before = fence.multi_get([("a",), ("b",)])

        with pytest.raises(StaleBatchError, match=r"batch 2 .*\('b',\).* batch 9"):
            batches.write({"a": 1, "b": 1})

        assert fence.multi_get([("a",), ("b",)]) == before

    @each_exact_kind
    def test_a_failed_combine_is_made_good_by_the_replay(self, kind: StateKind) -> None:
        for fault in (WriteFault("before"), WriteFault("after"), WriteFault("halfway", 1)):
            faulty = FaultyMap(self._combining(kind, Sum()))
            batches: Batches = self.batches(kind, faulty, combine=Sum())
            batches.commit({"a": 1})
            faulty.plan[:] = [None, fault]
            batches.persist({"a": 10, "b": 10})

            assert batches.values("a", "b") == [11, 10], fault

    def test_many_keys_are_combined_in_one_call(self) -> None:
        batches = self.batches(OPAQUE, self._combining(OPAQUE, Sum()), combine=Sum())
        updates = {f"word {n}": n for n in range(self.many // 5)}
        batches.commit(updates)
        batches.commit(updates)

        assert batches.values(*updates) == [2 * n for n in updates.values()]
