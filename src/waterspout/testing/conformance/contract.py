"""The two methods of every store: `multi_get` returns what `multi_put` stored, key by key."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterspout._serde import encode_key
from waterspout.state._base import Key, StateKind
from waterspout.testing.conformance.hooks import (
    EQUAL_KEYS,
    OPAQUE,
    StoreHooks,
    each_exact_kind,
    each_kind,
    examples,
    record,
)

__all__ = ["ContractSuite"]

A, B, C = ("a",), ("b",), ("c",)
VALUES: tuple[Any, ...] = (
    *(0, -1, 2**63, -(2**70), 1.5, -0.0, 1e308, float("nan"), float("-inf")),
    *("", "é\0'", "\ud800", "naïve ☃ 𝄞", "null", "1", True, False, b"", b"\x00\xff"),
    *([], [1, [2]], (1, (2,)), {"a": {"b": None}}, {1: 2}, {1, 2}),
    *(Decimal("1.50"), date(2024, 2, 29), datetime(2024, 2, 29, 12, tzinfo=UTC), timedelta(1)),
)
key_parts = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=2).map(tuple),
    max_leaves=4,
)
any_keys = st.lists(st.lists(key_parts, max_size=3).map(tuple), min_size=1, max_size=10)


class ContractSuite(StoreHooks):
    """Order, absence, replacement, types, and keys of every sort."""

    @each_kind
    def test_what_was_never_put_is_none(self, kind: StateKind) -> None:
        assert self.new(kind).multi_get([A, B]) == [None, None]

    @each_kind
    def test_what_was_put_is_got(self, kind: StateKind) -> None:
        backing = self.new(kind)
        backing.multi_put([A, B], [record(kind, 1), record(kind, 2, prev=1)])

        assert backing.multi_get([A, B]) == [record(kind, 1), record(kind, 2, prev=1)]

    @each_kind
    def test_answers_come_in_the_order_of_the_keys_one_for_each(self, kind: StateKind) -> None:
        backing = self.new(kind)
        one, two = record(kind, 1), record(kind, 2)
        backing.multi_put([A, B], [one, two])

        assert backing.multi_get([B, C, A, B, B]) == [two, None, one, two, two]

    @each_kind
    def test_a_put_replaces_and_leaves_other_keys_alone(self, kind: StateKind) -> None:
        backing = self.new(kind)
        backing.multi_put([A, B], [record(kind, 1), record(kind, 2)])
        backing.multi_put([A], [record(kind, 9, txid=2, prev=1)])

        assert backing.multi_get([A, B]) == [record(kind, 9, txid=2, prev=1), record(kind, 2)]

    @each_kind
    def test_the_same_put_twice_is_as_good_as_once(self, kind: StateKind) -> None:
        backing = self.new(kind)
        for _ in range(2):
            backing.multi_put([A, B], [record(kind, 1), record(kind, 2)])

        assert backing.multi_get([A, B]) == [record(kind, 1), record(kind, 2)]

    @each_kind
    def test_of_a_key_that_is_put_twice_in_one_call_the_last_record_stays(
        self, kind: StateKind
    ) -> None:
        backing = self.new(kind)
        backing.multi_put([A, A], [record(kind, 1), record(kind, 2)])

        assert backing.multi_get([A]) == [record(kind, 2)]

    @each_kind
    def test_no_keys_are_no_trouble(self, kind: StateKind) -> None:
        backing = self.new(kind)
        backing.multi_put([], [])

        assert backing.multi_get([]) == []

    @each_exact_kind
    def test_a_record_without_a_value_is_not_the_same_as_no_record(self, kind: StateKind) -> None:
        backing = self.new(kind)
        backing.multi_put([A], [record(kind, None)])

        assert backing.multi_get([A, B]) == [record(kind, None), None]

    @each_kind
    def test_a_value_comes_back_as_it_was_and_of_its_type(self, kind: StateKind) -> None:
        backing = self.new(kind)
        keys = [(n,) for n in range(len(VALUES))]
        records = [record(kind, value, prev=value) for value in VALUES]

        backing.multi_put(keys, records)

        assert [repr(found) for found in backing.multi_get(keys)] == [repr(r) for r in records]

    @each_exact_kind
    def test_batch_and_attempt_come_back_however_large(self, kind: StateKind) -> None:
        backing = self.new(kind)
        written = [record(kind, 1, txid=2**40, attempt=3), record(kind, 1, txid=1, attempt=2**31)]
        backing.multi_put([A, B], written)

        assert backing.multi_get([A, B]) == written

    def test_many_keys_go_in_one_call(self) -> None:
        backing = self.new(OPAQUE)
        numbers = range(self.many)
        keys = [(f"word {n}",) for n in numbers]
        backing.multi_put(keys, [record(OPAQUE, n) for n in numbers])

        found = backing.multi_get(keys[::-1])

        values = [-1 if r is None else r.value for r in found]
        assert len(values) == self.many
        # Not `==` of the lists: pytest would show each difference, for half a minute in CI.
        wrong = {n: value for n, value in zip(reversed(numbers), values, strict=True) if n != value}
        assert not wrong, "these have another value, or none (-1)"

    @each_kind
    def test_no_two_odd_keys_are_confused(self, kind: StateKind) -> None:
        backing, keys = self.new(kind), self.odd_keys
        backing.multi_put(keys, [record(kind, n) for n in range(len(keys))])

        found = backing.multi_get(list(reversed(keys)))

        assert found == [record(kind, n) for n in reversed(range(len(keys)))]

    @pytest.mark.parametrize(("one", "other"), EQUAL_KEYS, ids=repr)
    def test_equal_keys_are_one_key(self, one: Key, other: Key) -> None:
        backing = self.new(OPAQUE)
        backing.multi_put([one], [record(OPAQUE, 1)])

        assert backing.multi_get([other, one]) == [record(OPAQUE, 1)] * 2

    @examples(20)
    @given(any_keys)
    def test_any_keys_come_back_each_with_its_own_record(self, some: Sequence[Key]) -> None:
        # To each key add two that look like it: its fields as text, and all of it as one text.
        alike = [key for k in some for key in (k, tuple(map(str, k)), (encode_key(k),))]
        keys = list({encode_key(key): key for key in alike}.values())
        backing = self.fresh(OPAQUE)
        backing.multi_put(keys, [record(OPAQUE, n) for n in range(len(keys))])

        assert backing.multi_get(keys) == [record(OPAQUE, n) for n in range(len(keys))]

    @each_kind
    def test_another_client_finds_what_was_put_and_what_replaced_it(self, kind: StateKind) -> None:
        backing = self.new(kind)
        other = self.client(backing)
        assert other.uncached.multi_get([A]) == [None]
        backing.multi_put([A], [record(kind, 1)])
        assert other.uncached.multi_get([A]) == [record(kind, 1)]
        other.multi_put([A], [record(kind, 2, txid=2)])

        assert backing.uncached.multi_get([A]) == [record(kind, 2, txid=2)]

    @each_kind
    def test_what_was_put_is_still_there_after_closing(self, kind: StateKind) -> None:
        if not self.is_durable:
            pytest.skip("this store keeps nothing once it is closed")
        backing = self.new(kind)
        backing.multi_put([A], [record(kind, 1)])

        backing.close()

        assert self.client(backing).multi_get([A]) == [record(kind, 1)]
        assert backing.multi_get([A]) == [record(kind, 1)], "a closed map opens again by itself"

    def test_two_stores_are_two(self) -> None:
        one, other = self.new(OPAQUE), self.new(OPAQUE)
        one.multi_put([A], [record(OPAQUE, 1)])

        assert other.multi_get([A]) == [None]
