"""Writes that fail before, halfway or after they were done: the replay makes them exact."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterspout import faults
from waterspout.errors import StoreError
from waterspout.faults import Fault, FaultPlan, InjectedError
from waterspout.state._base import StateKind
from waterspout.state._cache import CachedMap
from waterspout.testing._batches import Batches
from waterspout.testing._faulty import FaultyMap, WriteFault
from waterspout.testing.conformance.hooks import (
    OPAQUE,
    TRANSACTIONAL,
    StoreHooks,
    each_exact_kind,
    examples,
)

__all__ = ["LossSuite"]

BEFORE, AFTER = WriteFault("before"), WriteFault("after")
write_faults = st.sampled_from([BEFORE, AFTER]) | st.integers(0, 15).map(
    lambda stored: WriteFault("halfway", stored)
)
plans = st.lists(st.none() | write_faults, max_size=12)
batch = st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), min_size=1)
each_fault = pytest.mark.parametrize(
    "fault",
    [BEFORE, AFTER, WriteFault("halfway", 0b01), WriteFault("halfway", 0b10)],
    ids=["nothing was done", "all was done", "one key was written", "the other was written"],
)


class LossSuite(StoreHooks):
    """After every failure another attempt follows, as in the coordination loop."""

    def _failed(self, kind: StateKind, fault: WriteFault, updates: dict[str, int]) -> Batches:
        """Return batches of which the second one has failed in a write."""
        faulty = FaultyMap(self.new(kind))
        batches = self.batches(kind, faulty)
        batches.commit({"x": 1, "y": 1})
        batches.claim()
        faulty.plan[:] = [fault]
        with pytest.raises(StoreError, match="injected"):
            batches.write(updates)
        return batches

    @each_fault
    @each_exact_kind
    def test_a_failed_write_is_made_good_by_the_replay(
        self, kind: StateKind, fault: WriteFault
    ) -> None:
        batches = self._failed(kind, fault, {"x": 10, "y": 10})

        batches.commit({"x": 10, "y": 10})

        assert batches.found("x", "y") == batches.values("x", "y") == [11, 11]

    @each_fault
    def test_a_failed_write_of_an_opaque_batch_leaves_no_trace_when_its_tuples_change(
        self, fault: WriteFault
    ) -> None:
        batches = self._failed(OPAQUE, fault, {"x": 100, "new": 100})

        batches.commit({"y": 1})
        assert batches.found("x", "y", "new") == [1, 2, None]
        batches.commit({"x": 1, "new": 1})

        assert batches.found("x", "y", "new") == [2, 2, 1]

    @pytest.mark.parametrize("fault", [BEFORE, AFTER], ids=["not done", "done"])
    @each_exact_kind
    def test_a_failed_claim_is_followed_by_the_next(
        self, kind: StateKind, fault: WriteFault
    ) -> None:
        faulty = FaultyMap(self.fenced(kind))
        batches = self.batches(kind, faulty)
        batches.commit({"x": 1})
        batches.lose({"x": 2})
        faulty.plan[:] = [fault]
        with pytest.raises(StoreError, match="injected"):
            batches.claim()

        batches.commit({"x": 2})

        assert batches.values("x") == [3]

    @pytest.mark.parametrize("fault", [BEFORE, AFTER], ids=["not done", "done"])
    @each_exact_kind
    def test_a_failed_settling_is_made_good_by_the_next_claim(
        self, kind: StateKind, fault: WriteFault
    ) -> None:
        faulty = FaultyMap(self.fenced(kind))
        batches = self.batches(kind, faulty)
        batches.lose({"x": 1})
        batches.mark()
        faulty.plan[:] = [fault]
        with pytest.raises(StoreError, match="injected"):
            batches.settle()

        batches.commit({"x": 2})

        assert batches.values("x") == [3]

    @pytest.mark.parametrize("point", ["write.before", "write.after"])
    def test_a_crash_around_a_write_is_repaired_by_the_next_attempt(self, point: str) -> None:
        batches = self.batches(OPAQUE, self.new(OPAQUE))
        batches.commit({"x": 1, "y": 1})
        faults.install(FaultPlan([Fault(point, "raise", where={"txid": 2})]))
        try:
            with pytest.raises(InjectedError):
                batches.lose({"x": 10, "z": 10})
        finally:
            faults.install(None)
        assert batches.found("x", "y", "z") == [1, 1, None]

        batches.commit({"y": 5})
        assert batches.found("x", "y", "z") == [1, 6, None]
        batches.commit({"x": 10, "z": 10})

        assert batches.found("x", "y", "z") == [11, 6, 10]

    @each_exact_kind
    @pytest.mark.parametrize("cached", [False, True], ids=["uncached", "cached"])
    @examples(15)
    @given(history=st.lists(batch, min_size=1, max_size=4), others=st.lists(batch), plan=plans)
    def test_sums_are_exact_whatever_writes_failed_and_however(
        self, kind: StateKind, cached: bool, history: Any, others: Any, plan: Any
    ) -> None:
        faulty = FaultyMap(self.fresh(kind), list(plan))
        batches = self.batches(kind, CachedMap(faulty, 2) if cached else faulty)
        truth: Counter[str] = Counter()

        for updates in history:
            if kind is not TRANSACTIONAL and others:
                # An attempt with other tuples, which is lost even if all its writes succeed.
                with suppress(StoreError):
                    batches.lose(others.pop())
            batches.persist(updates)
            truth.update(updates)
            assert [value or 0 for value in batches.found(*"abcd")] == [truth[k] for k in "abcd"]
