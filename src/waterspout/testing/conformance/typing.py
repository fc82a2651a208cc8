"""A state of typed keys and values takes and refuses the same, whatever store is below it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.errors import NumberTooLargeError, SerdeError
from waterspout.state._base import StateKind
from waterspout.state._batched import BatchedMap
from waterspout.testing._batches import Batches
from waterspout.testing.conformance.hooks import OPAQUE, StoreHooks, each_exact_kind, each_kind
from waterspout.trident import Sum

__all__ = ["TypesSuite"]

NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
NAIVE = NOON.replace(tzinfo=None)
NINES = "9" * 37


class TypesSuite(StoreHooks):
    """Types of keys and values, sums that outgrow their type, and keys that are removed."""

    def typed(self, kind: StateKind, keys: str, values: str) -> BatchedMap[Any, Any]:
        """Return a new state bound to keys and values, or skip the test."""
        recipe = self.make_recipe(kind)
        if recipe is None:
            pytest.skip("this store has no recipe that could be bound to keys and values")
        bound = recipe.bind(Schema.parse(keys), Schema.parse(values))
        state: BatchedMap[Any, Any] = bound.make_state(Config(), 0, 1)
        self._opened.append(state._backing)  # to be closed at the end of the test
        return state

    @each_kind
    @pytest.mark.parametrize("in_store", [True, False], ids=["combined", "updated"])
    @pytest.mark.parametrize(("start", "more"), [(2**63 - 1, 1), (-(2**63), -1), (2**62, 2**62)])
    def test_a_sum_beyond_64_bits_fails_its_batch_and_changes_nothing(
        self, kind: StateKind, in_store: bool, start: int, more: int
    ) -> None:
        state = self.typed(kind, "word string", "n bigint")
        batches = Batches(state, combine=Sum() if in_store else None)
        batches.commit({"a": start, "b": 1})
        batches.claim()

        with pytest.raises(NumberTooLargeError, match=r"key \('a',\): column 'n' cannot hold"):
            batches.write({"a": more})

        batches.state.begin_commit(None)
        assert batches.values("a", "b") == [start, 1]

    @each_exact_kind
    def test_a_sum_of_decimals_is_exact_to_38_digits_and_refused_beyond(
        self, kind: StateKind
    ) -> None:
        batches = Batches(self.typed(kind, "word string", "n decimal(38,0)"), combine=Sum())
        batches.commit({"a": Decimal(NINES + "4")})
        batches.commit({"a": Decimal(5)})
        found = batches.values("a")
        batches.claim()

        with pytest.raises(NumberTooLargeError, match="has 38 digits before the point"):
            batches.write({"a": Decimal(1)})

        batches.state.begin_commit(None)
        assert found == batches.values("a") == [Decimal(NINES + "9")]

    @each_kind
    @pytest.mark.parametrize(
        ("kind_of_value", "value"),
        [("int", 2**31), ("smallint", 2**15), ("tinyint", -129), ("bigint", 1.0), ("string", 1)],
    )
    def test_a_value_of_another_type_or_beyond_it_is_refused(
        self, kind: StateKind, kind_of_value: str, value: Any
    ) -> None:
        state = self.typed(kind, "word string", f"n {kind_of_value}")

        with pytest.raises(SerdeError, match=r"key \('a',\): column 'n'"):
            state.multi_put([("a",)], [value])

        assert state.multi_get([("a",)]) == [None]

    @each_kind
    @pytest.mark.parametrize("key", [(1,), (b"a",), ("a", "b"), (), (None, None)])
    def test_a_key_of_another_type_or_width_is_refused_to_readers_and_writers(
        self, kind: StateKind, key: Any
    ) -> None:
        state = self.typed(kind, "word string", "n bigint")
        state.multi_put([("a",)], [1])

        with pytest.raises(SerdeError):
            state.multi_get([("a",), key])
        with pytest.raises(SerdeError):
            state.multi_put([("a",), key], [2, 2])

        assert state.multi_get([("a",)]) == [1]

    @each_kind
    def test_a_timestamp_is_a_moment_in_any_zone_and_refused_without_one(
        self, kind: StateKind
    ) -> None:
        state = self.typed(kind, "at timestamp", "n bigint")
        state.multi_put([(NOON,)], [1])

        assert state.multi_get([(NOON.astimezone(timezone(timedelta(hours=3))),)]) == [1]
        with pytest.raises(SerdeError, match="a timestamp has a time zone; give it one"):
            state.multi_get([(NAIVE,)])

    @each_kind
    def test_a_timestamp_ntz_has_no_zone_and_is_refused_with_one(self, kind: StateKind) -> None:
        state = self.typed(kind, "at timestamp_ntz", "n bigint")
        state.multi_put([(NAIVE,)], [1])

        assert state.multi_get([(NAIVE,)]) == [1]
        with pytest.raises(SerdeError, match="a timestamp_ntz has no time zone"):
            state.multi_get([(NOON,)])

    @each_exact_kind
    def test_a_key_that_a_batch_removes_is_gone_and_may_come_again(self, kind: StateKind) -> None:
        batches = Batches(self.typed(kind, "word string", "n bigint"))
        batches.commit({"a": 1, "b": 1})
        _remove(batches, "a")
        after = batches.values("a", "b")
        batches.commit({"b": 1})
        later = batches.values("a", "b")
        (left,) = batches.state.records([("a",)])
        batches.commit({"a": 5})

        assert (after, later, batches.values("a", "b")) == ([None, 1], [None, 2], [5, 2])
        assert left is None or (self.keeps_removed and left.value is None)

    def test_a_key_that_a_lost_attempt_removed_is_there_for_the_next(self) -> None:
        batches = Batches(self.typed(OPAQUE, "word string", "n bigint"))
        batches.commit({"a": 7, "c": 7})  # the head names one of them
        _remove(batches, "a", "c", commits=False)
        batches.commit({"b": 1})
        batches.commit({"a": 1, "c": 1})

        assert batches.values("a", "b", "c") == [8, 1, 8]

    @each_kind
    def test_a_key_that_is_removed_outside_of_any_batch_is_gone(self, kind: StateKind) -> None:
        state = self.typed(kind, "word string", "n bigint")
        state.multi_put([("a",), ("b",)], [1, 2])

        state.multi_remove([("a",), ("never there",)])

        assert state.multi_get([("a",), ("b",), ("never there",)]) == [None, 2, None]


def _remove(batches: Batches, *keys: str, commits: bool = True) -> None:
    batches.claim()
    batches.state.begin_commit(batches.txid, batches.attempt, batches.ledger.resolved)
    batches.state.multi_remove([(key,) for key in keys])
    batches.state.commit(batches.txid)
    if commits:
        batches.finish()
