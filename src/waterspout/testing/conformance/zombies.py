"""Zombies: tasks of an old attempt that were paused or retried, and write too late."""

from __future__ import annotations

from typing import Any

import pytest

from waterspout.errors import FencedError, StaleBatchError
from waterspout.state._base import FencedMap, StateKind
from waterspout.state._batched import BatchedMap
from waterspout.state._head import Stamp
from waterspout.testing._batches import Add, Batches
from waterspout.testing.conformance.hooks import (
    OPAQUE,
    TRANSACTIONAL,
    StoreHooks,
    each_exact_kind,
    record,
)

__all__ = ["ZombieSuite"]

KEYS = [("both",), ("zombies",), ("new",)]
WAKES: dict[str, tuple[str, ...]] = {
    "after the next claim": ("claim",),
    "after the next write": ("claim", "write"),
    "after the mark": ("claim", "write", "mark"),
    "after the settling": ("claim", "write", "mark", "settle"),
    "when the next batch has begun": ("claim", "write", "mark", "settle", "claim"),
    "a batch later": ("claim", "write", "mark", "settle") * 2,
}
each_awakening = pytest.mark.parametrize("wakes", WAKES.values(), ids=WAKES)


class ZombieSuite(StoreHooks):
    """No write of an old attempt ever counts."""

    def _asleep(
        self, kind: StateKind, batches: Batches, fence: FencedMap[Any]
    ) -> BatchedMap[Any, Any]:
        """Return a state in the middle of attempt 0 of batch 2: it has read, and not written."""
        batches.commit({"both": 1, "zombies": 1})
        batches.claim()
        zombie = self.state(kind, self.client(fence))
        zombie.enroll(batches.writer)
        zombie.begin_commit(2, batches.attempt, batches.ledger.resolved)
        zombie.multi_update(KEYS, [Add(100)] * 3)
        return zombie

    @each_awakening
    @each_exact_kind
    def test_a_zombies_put_is_refused_and_changes_no_record(
        self, kind: StateKind, wakes: tuple[str, ...]
    ) -> None:
        fence = self.fenced(kind)
        batches = self.batches(kind, fence)
        zombie = self._asleep(kind, batches, fence)
        for step in wakes:
            getattr(batches, step)(*[{"both": 1}] * (step == "write"))
        before = fence.uncached.multi_get(KEYS)

        with pytest.raises((FencedError, StaleBatchError), match="batch 2"):
            zombie.commit(2)

        assert fence.uncached.multi_get(KEYS) == before

    def test_a_zombie_that_passed_the_check_does_not_overwrite_and_does_not_count(self) -> None:
        fence = self.comparing(OPAQUE)
        batches = self.batches(OPAQUE, fence)
        batches.commit({"both": 1, "zombies": 1})
        batches.lose({})
        read = fence.uncached.multi_get(KEYS)
        batches.lose({"both": 1})

        late = [record(OPAQUE, 101, 2, 0, 1), record(OPAQUE, 101, 2, 0, 1)]
        stored = self._late_put(fence, read, [*late, record(OPAQUE, 100, 2, 0)])

        assert stored == [False, True, True]
        batches.finish()
        assert batches.values("both", "zombies", "new") == [2, 1, None]
        batches.commit({"zombies": 1, "new": 1})
        assert batches.values("both", "zombies", "new") == [2, 2, 1]

    def test_an_attempt_that_meets_the_late_write_of_a_zombie_counts_all_the_same(self) -> None:
        fence = self.comparing(OPAQUE)
        batches = self.batches(OPAQUE, fence)
        batches.commit({"both": 1})
        batches.lose({})
        batches.claim()
        late = record(OPAQUE, 101, 2, 0, 1)
        store = fence.uncached.fence
        assert store is not None
        stamp = Stamp(batches.writer, 2, batches.attempt)
        read = store.multi_get(KEYS[:1])
        assert store.multi_compare_and_put(KEYS[:1], read, [late]) == [True]

        try:
            store.fenced_put(stamp, KEYS[:1], [record(OPAQUE, 2, 2, 1, 1)], read)
        except FencedError:
            batches.commit({"both": 1})  # it is told, and the batch is replayed
        else:
            batches.finish()  # it has written over the zombie's record

        assert batches.values("both") == [2]

    def test_a_zombie_of_a_transactional_batch_writes_what_its_replay_writes(self) -> None:
        fence = self.comparing(TRANSACTIONAL)
        batches = self.batches(TRANSACTIONAL, fence)
        batches.commit({"both": 1, "zombies": 1})
        batches.lose({})
        read = fence.uncached.multi_get(KEYS)
        batches.lose({"both": 1, "zombies": 1, "new": 1})

        late = [record(TRANSACTIONAL, n, 2, 0) for n in (2, 2, 1)]
        stored = self._late_put(fence, read, late)

        assert stored == [False, False, False]
        batches.finish()
        assert batches.values("both", "zombies", "new") == [2, 2, 1]

    @staticmethod
    def _late_put(fence: FencedMap[Any], read: list[Any], late: list[Any]) -> list[bool]:
        store = fence.uncached.fence
        assert store is not None
        return store.multi_compare_and_put(KEYS, read, late)

    @each_exact_kind
    def test_a_zombie_that_wrote_before_the_next_claim_leaves_nothing_that_counts(
        self, kind: StateKind
    ) -> None:
        same = {"both": 100, "zombies": 100, "new": 100}
        batches = self.batches(kind, self.new(kind))
        batches.commit({"both": 1, "zombies": 1})
        batches.lose(same)
        batches.commit({"both": 1} if kind is OPAQUE else same)
        batches.commit({"zombies": 1, "new": 1})

        truth = [2, 2, 1] if kind is OPAQUE else [101, 102, 101]
        assert batches.found("both", "zombies", "new") == truth

    @each_exact_kind
    def test_a_zombie_driver_moves_no_head(self, kind: StateKind) -> None:
        fence = self.fenced(kind)
        old = self.batches(kind, fence)
        old.commit({"x": 1})
        old.claim()
        seen = fence.read_head()
        new = old.restarted(self.state(kind, self.client(fence)))
        new.commit({"x": 1})
        now = fence.read_head()

        assert seen is not None
        assert now is not None
        with pytest.raises(FencedError):
            fence.move_head(seen, seen)
        with pytest.raises(FencedError):
            old.claim()
        with pytest.raises(FencedError):
            old.state.settle(1, 0)
        old.settle()  # does not even try: it has claimed the batch after that
        assert fence.read_head() == now
