"""Updates outside of any batch: neither they nor those of a batch are lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from waterspout.state._base import StateKind
from waterspout.testing._batches import Add
from waterspout.testing._faulty import FaultyMap
from waterspout.testing.conformance.hooks import (
    OPAQUE,
    StoreHooks,
    each_exact_kind,
    each_kind,
    record,
)

__all__ = ["OutsideSuite"]

A, B, C = ("a",), ("b",), ("c",)
THREADS, TIMES = 4, 8


class OutsideSuite(StoreHooks):
    """`multi_compare_and_put`, and the updates outside of batches that need it."""

    @each_kind
    def test_compare_and_put_stores_where_the_record_is_the_one_that_was_read(
        self, kind: StateKind
    ) -> None:
        fence = self.fenced(kind)
        fence.multi_put([A], [record(kind, float("nan"), prev=1)])

        read = fence.multi_get([A, B])
        stored = fence.multi_compare_and_put([A, B], read, [record(kind, 5), record(kind, 6)])

        assert stored == [True, True]
        assert fence.multi_get([A, B]) == [record(kind, 5), record(kind, 6)]

    @pytest.mark.parametrize(
        "read",
        [
            None,
            record(OPAQUE, 1, txid=2),
            record(OPAQUE, 1, attempt=1),
            record(OPAQUE, 1, prev=0),
            record(OPAQUE, 2),
            record(OPAQUE, "1"),
        ],
        ids=[
            "was absent",
            "another batch",
            "another attempt",
            "another prev",
            "another value",
            "another type",
        ],
    )
    def test_compare_and_put_leaves_a_key_alone_whose_record_is_another(self, read: Any) -> None:
        fence = self.fenced(OPAQUE)
        fence.multi_put([A, C], [record(OPAQUE, 1), record(OPAQUE, 3)])

        stored = fence.multi_compare_and_put(
            [B, A, C], [None, read, record(OPAQUE, 3)], [record(OPAQUE, n) for n in (6, 5, 7)]
        )

        assert stored == [True, False, True]
        assert fence.multi_get([A, B, C]) == [record(OPAQUE, n) for n in (1, 6, 7)]

    def test_compare_and_put_does_not_make_a_key_that_was_there_and_is_gone(self) -> None:
        fence = self.fenced(OPAQUE)

        assert fence.multi_compare_and_put([A], [record(OPAQUE, 1)], [record(OPAQUE, 2)]) == [False]

        assert fence.multi_get([A]) == [None]

    @each_kind
    def test_compare_and_put_of_nothing_is_no_trouble(self, kind: StateKind) -> None:
        assert self.fenced(kind).multi_compare_and_put([], [], []) == []

    @each_exact_kind
    def test_a_batch_that_commits_while_a_key_is_amended_is_not_lost(self, kind: StateKind) -> None:
        backing = self.fenced(kind)
        batches = self.batches(kind, backing)
        batches.commit({"x": 1})
        faulty = FaultyMap(self.client(backing))
        faulty.after_get = lambda: batches.commit({"x": 10})

        new = self.state(kind, faulty).multi_update([("x",), ("y",)], [Add(100), Add(5)])

        assert new == [111, 5]
        assert batches.values("x", "y") == [111, 5]

    def test_a_replay_while_a_key_is_amended_does_not_bring_the_lost_attempt_back(self) -> None:
        backing = self.fenced(OPAQUE)
        batches = self.batches(OPAQUE, backing)
        batches.commit({"x": 1})
        batches.lose({"x": 1000})
        faulty = FaultyMap(self.client(backing))
        faulty.after_get = lambda: batches.commit({"x": 10})

        self.state(OPAQUE, faulty).multi_update([("x",)], [Add(100)])

        assert batches.values("x") == [111]
        batches.commit({"x": 1})
        assert batches.values("x") == [112]

    def test_an_amendment_returns_what_a_reader_would_see(self) -> None:
        backing = self.fenced(OPAQUE)
        batches, outside = self.batches(OPAQUE, backing), self.state(OPAQUE, backing)
        batches.commit({"x": 1})
        batches.lose({"x": 1000})

        assert outside.multi_update([("x",), ("y",)], [Add(100), Add(5)]) == [101, 5]
        assert outside.multi_get([("x",), ("y",)]) == [101, 5]

    @each_kind
    def test_no_update_of_many_at_once_is_lost(self, kind: StateKind) -> None:
        backing = self.fenced(kind)
        backing.multi_put([A], [record(kind, 0)])
        clients = [self.client(backing) for _ in range(THREADS)]

        def count(state: Any) -> None:
            for _ in range(TIMES):
                state.multi_update([A], [Add(1)])

        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(count, [self.state(kind, client) for client in clients]))

        assert self.state(kind, backing).multi_get([A]) == [THREADS * TIMES]
