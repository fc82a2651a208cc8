"""Records that are gone, or older than they were, while the head is there: found out at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterspout.errors import StateMismatchError
from waterspout.state._base import BackingMap, StateKind
from waterspout.testing._batches import Batches
from waterspout.testing.conformance.hooks import (
    OPAQUE,
    StoreHooks,
    each_exact_kind,
    each_kind,
    examples,
)

__all__ = ["WitnessSuite"]

written = st.dictionaries(st.sampled_from("abc"), st.integers(1, 9), max_size=3)
removed = st.sets(st.sampled_from("abc"), max_size=2)
attempts = st.lists(st.tuples(written, removed), min_size=1, max_size=3)
histories = st.lists(
    st.tuples(attempts, st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=8
)
"""Batches: attempts; whether it is settled; is rolled back; a new driver follows."""


class WitnessSuite(StoreHooks):
    """What a driver sees of lost records when it opens the state."""

    def _emptied(self, backing: BackingMap[object]) -> None:
        if not self.lose_records(backing):
            pytest.skip("nobody has said how records are lost and the head is not")

    @each_kind
    def test_a_store_that_was_emptied_under_its_head_stops_the_next_driver(
        self, kind: StateKind
    ) -> None:
        backing = self.fenced(kind)
        batches = self.batches(kind, backing)
        batches.commit({"x": 1})
        batches.commit({"y": 1})
        batches.commit({})
        self._emptied(backing)

        follower = batches.restarted(self.state(kind, self.client(backing)))

        with pytest.raises(StateMismatchError, match=r"holds no record of key \('y',\), which"):
            follower.verify()

    @each_exact_kind
    def test_a_store_that_was_emptied_in_the_middle_of_a_batch_stops_the_next_driver(
        self, kind: StateKind
    ) -> None:
        backing = self.fenced(kind)
        batches = self.batches(kind, backing)
        batches.commit({"x": 1})
        batches.lose({"x": 1, "y": 1})
        self._emptied(backing)

        with pytest.raises(StateMismatchError, match=r"no record of key \('x',\), which batch 1"):
            batches.restarted(self.state(kind, self.client(backing))).verify()

    @each_exact_kind
    def test_a_key_that_was_removed_outside_of_any_batch_is_not_missed(
        self, kind: StateKind
    ) -> None:
        backing = self.fenced(kind)
        batches = self.batches(kind, backing)
        batches.commit({"x": 1})
        self.state(kind, self.client(backing)).multi_remove([("x",)])
        batches.commit({"y": 1})
        batches.commit({"y": 1})

        follower = batches.restarted(self.state(kind, self.client(backing)))

        follower.verify()
        assert self.state(kind, self.client(backing)).multi_get([("x",), ("y",)]) == [None, 2]

    @examples(25)
    @given(histories)
    def test_no_history_of_a_state_that_is_whole_looks_like_a_loss(
        self, history: list[Any]
    ) -> None:
        fence = self.fresh(OPAQUE).fence
        if fence is None:
            pytest.skip("without a head there are no witnesses")
        batches = self.batches(OPAQUE, fence)
        for tries, settles, rolls_back, restarts in history:
            for updates, gone in tries:
                batches.claim()
                _write(batches, updates, gone)
                batches.restarted(self.state(OPAQUE, self.client(fence))).verify()
            batches.mark()
            if settles:
                batches.settle()
            batches.restarted(self.state(OPAQUE, self.client(fence))).verify()
            if rolls_back and settles and batches.ledger.why_not_roll_back() is None:
                batches.take_back()
                batches.restarted(self.state(OPAQUE, self.client(fence))).verify()
            if restarts:
                batches = batches.restarted(self.state(OPAQUE, self.client(fence)))
                batches.verify()
                batches.recover()


def _write(batches: Batches, updates: dict[str, int], gone: set[str]) -> None:
    batches.write(updates, removes=[key for key in gone if key not in updates])
