"""The three kinds of state over the store: worked examples, replays, the opaque hole."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterspout.errors import StaleBatchError
from waterspout.state._base import StateKind
from waterspout.testing._batches import Add, committed
from waterspout.testing.conformance.hooks import (
    OPAQUE,
    PLAIN,
    TRANSACTIONAL,
    StoreHooks,
    each_exact_kind,
    each_kind,
    examples,
    record,
)

__all__ = ["SemanticsSuite"]

COUNT = ("count",)
# The opaque hole (docs/decisions/0001). Batch 2 holds one x and one y. Before its second attempt
# the broker with x goes down, so that the replay holds y alone, and x comes in batch 3.
FIRST, LOST, REPLAYED, LATER = {"x": 1, "y": 1}, {"x": 1, "y": 1}, {"y": 1}, {"x": 1}

partials = st.dictionaries(st.sampled_from("abc"), st.integers(1, 9), max_size=3)
attempts = st.tuples(st.lists(partials, max_size=2), partials, st.booleans(), st.booleans())
histories = st.lists(attempts, min_size=1, max_size=4)


class SemanticsSuite(StoreHooks):
    """What the maps of waterspout make of the store's two methods."""

    @pytest.mark.parametrize(
        ("txid", "attempt", "after"),
        [(3, 0, (3, 0, 6, 4)), (2, 1, (2, 1, 3, 1))],
        ids=["the next batch", "a replay"],
    )
    def test_opaque_value_4_prev_1_txid_2_of_the_trident_documentation(
        self, txid: int, attempt: int, after: tuple[int, ...]
    ) -> None:
        backing = self.new(OPAQUE)
        backing.multi_put([COUNT], [record(OPAQUE, 4, txid=2, prev=1)])

        new = committed(self.state(OPAQUE, backing), txid, {"count": 2}, attempt)

        txid, attempt, value, prev = after
        assert new == [value]
        assert backing.multi_get([COUNT]) == [record(OPAQUE, value, txid, attempt, prev)]

    def test_transactional_man_dog_apple_of_the_trident_documentation(self) -> None:
        backing = self.new(TRANSACTIONAL)
        keys = [("man",), ("dog",), ("apple",)]
        before = [record(TRANSACTIONAL, v, txid=t) for v, t in ((3, 1), (4, 3), (10, 2))]
        backing.multi_put(keys, before)
        state = self.state(TRANSACTIONAL, backing)

        state.begin_commit(3, attempt=1)
        new = state.multi_update([keys[0], keys[0], keys[1]], [Add(1), Add(1), Add(1)])
        state.commit(3)

        assert new == [4, 5, 4]
        man = record(TRANSACTIONAL, 5, txid=3, attempt=1)
        assert backing.multi_get(keys) == [man, *before[1:]]

    def test_non_transactional_counts_a_replay_twice(self) -> None:
        backing = self.new(PLAIN)
        state = self.state(PLAIN, backing)

        committed(state, 1, {"x": 2}, attempt=0)
        committed(state, 1, {"x": 2}, attempt=1)

        assert backing.multi_get([("x",)]) == [4]

    @each_exact_kind
    def test_a_replay_of_the_same_batch_counts_once(self, kind: StateKind) -> None:
        batches = self.batches(kind, self.new(kind))
        batches.commit({"x": 1, "y": 1})
        for _ in range(3):
            batches.lose({"x": 10, "new": 10})

        batches.commit({"x": 10, "new": 10})

        assert batches.found("x", "y", "new") == [11, 1, 10]

    @each_exact_kind
    def test_a_task_retried_within_one_attempt_counts_once(self, kind: StateKind) -> None:
        batches = self.batches(kind, self.new(kind))
        batches.commit({"x": 1})
        batches.claim()
        for _ in range(3):
            batches.write({"x": 10, "new": 10})
        batches.finish()

        assert batches.found("x", "new") == [11, 10]

    @each_kind
    def test_batches_without_any_trouble_add_up(self, kind: StateKind) -> None:
        batches = self.batches(kind, self.new(kind))
        for n in range(1, 8):
            batches.commit({"all": n, f"batch {n}": 1})

        assert batches.found("all", "batch 1", "batch 7", "batch 8") == [28, 1, 1, None]
        assert batches.values("all", "batch 1", "batch 7", "batch 8") == [28, 1, 1, None]

    def test_an_opaque_batch_may_come_back_with_other_tuples(self) -> None:
        batches = self.batches(OPAQUE, self.new(OPAQUE))
        batches.commit({"x": 1})
        batches.lose({"x": 100, "y": 100})
        batches.commit({"x": 7})
        batches.commit({"y": 1})

        assert batches.found("x", "y") == [8, 1]

    def test_the_opaque_hole_is_closed_by_the_ledger_and_the_head(self) -> None:
        batches = self.batches(OPAQUE, self.new(OPAQUE))
        batches.commit(FIRST)
        batches.lose(LOST)
        batches.commit(REPLAYED)
        after_replay = batches.found("x", "y")
        batches.commit(LATER)

        assert after_replay == [1, 2]
        assert batches.found("x", "y") == batches.values("x", "y") == [2, 2]

    def test_the_opaque_hole_is_closed_without_a_fence(self) -> None:
        backing = self.new(OPAQUE)
        state = self.state(OPAQUE, backing)
        committed(state, 1, FIRST)
        committed(state, 2, LOST, attempt=0)
        committed(state, 2, REPLAYED, attempt=1)
        committed(state, 3, LATER, resolved={2: 1})

        found = backing.multi_get([("x",), ("y",)])
        assert found == [record(OPAQUE, 2, 3, 0, 1), record(OPAQUE, 2, 2, 1, 1)]

    def test_tuples_1_to_50_then_1_to_40_then_41_to_90_count_once_each(self) -> None:
        def tuples(first: int, last: int) -> dict[Any, int]:
            return {f"tuple {n}": 1 for n in range(first, last + 1)}

        batches = self.batches(OPAQUE, self.new(OPAQUE))
        batches.lose(tuples(1, 50))
        batches.commit(tuples(1, 40))
        batches.commit(tuples(41, 90))

        assert batches.found(*tuples(1, 90)) == [1] * 90

    @each_exact_kind
    def test_a_batch_behind_the_record_is_refused_and_changes_nothing(
        self, kind: StateKind
    ) -> None:
        backing = self.new(kind)
        newer = record(kind, 50, txid=900, prev=49)
        backing.multi_put([("x",)], [newer])
        state = self.state(kind, backing)
        state.begin_commit(3)

        with pytest.raises(StaleBatchError, match=r"batch 3 .*\('x',\).* batch 900"):
            state.multi_update([("y",), ("x",)], [Add(1), Add(1)])

        assert backing.multi_get([("x",), ("y",)]) == [newer, None]

    @each_exact_kind
    def test_a_write_without_a_batch_stays_whether_the_batch_is_replayed_or_not(
        self, kind: StateKind
    ) -> None:
        backing = self.new(kind)
        batches, outside = self.batches(kind, backing), self.state(kind, backing)
        batches.commit({"x": 1})
        batches.lose({"x": 10})
        outside.multi_update([("x",), ("own",)], [Add(100), Add(100)])
        batches.commit({"x": 10})
        outside.multi_update([("x",)], [Add(1000)])
        batches.commit({"x": 10, "own": 10})

        assert batches.found("x", "own") == [1121, 110]

    @each_kind
    def test_one_key_twice_in_a_batch_is_read_once_and_put_once(self, kind: StateKind) -> None:
        state = self.state(kind, self.new(kind))
        state.begin_commit(1)
        new = state.multi_update([("a",), ("b",), ("a",)], [Add(1), Add(5), Add(2)])
        state.commit(1)

        assert new == [1, 5, 3]
        assert state.multi_get([("a",), ("b",)]) == [3, 5]

    def test_readers_see_committed_values_at_every_moment(self) -> None:
        backing = self.fenced(OPAQUE)
        batches, reader = self.batches(OPAQUE, backing), self.state(OPAQUE, self.client(backing))
        batches.commit({"x": 1})
        seen = []

        def look() -> None:
            seen.append(reader.multi_get([("x",), ("new",)]))

        batches.lose({"x": 100, "new": 100})
        look()
        batches.claim()
        look()
        batches.write({"x": 2, "new": 5})
        look()
        batches.mark()
        look()
        batches.settle()
        look()

        assert seen == [[1, None]] * 4 + [[3, 5]]

    @each_exact_kind
    @examples(15)
    @given(histories)
    def test_sums_are_exact_whatever_was_lost_restarted_or_left_unsettled(
        self, kind: StateKind, history: list[Any]
    ) -> None:
        backing = self.fresh(kind)
        batches = self.batches(kind, backing)
        truth: Counter[str] = Counter()

        for lost, last, settles, restarts in history:
            for updates in lost:
                # A transactional batch is replayed with the same tuples; a lost attempt may have
                # written some of its keys.
                part = {k: v for k, v in last.items() if k in updates}
                batches.lose(part if kind is TRANSACTIONAL else updates)
            if restarts:
                batches = batches.restarted(self.state(kind, self.client(backing)))
            batches.lose(last)
            batches.mark()
            if settles:
                batches.settle()
            truth.update(last)
            assert [value or 0 for value in batches.found(*"abc")] == [truth[k] for k in "abc"]
        batches.settle()
        if batches.state.is_fenced:  # without a fence, a reader may see a lost attempt
            assert [value or 0 for value in batches.values(*"abc")] == [truth[k] for k in "abc"]
