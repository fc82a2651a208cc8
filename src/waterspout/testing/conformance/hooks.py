"""What a store author overrides, and what all suites share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from waterspout.state._base import BackingMap, FencedMap, Key, StateKind
from waterspout.state._batched import BatchedMap
from waterspout.state._comparing import ComparingMap
from waterspout.state._head import Head, Stamp, Writer
from waterspout.state._kinds import OpaqueValue, TransactionalValue, make_map
from waterspout.testing._batches import OWNER, Batches
from waterspout.testing._proxy import FaultProxy

__all__ = [
    "EQUAL_KEYS",
    "ODD_KEYS",
    "OPAQUE",
    "PLAIN",
    "TRANSACTIONAL",
    "StoreHooks",
    "at",
    "each_exact_kind",
    "each_kind",
    "examples",
    "record",
]

OPAQUE, TRANSACTIONAL, PLAIN = (
    StateKind.OPAQUE,
    StateKind.TRANSACTIONAL,
    StateKind.NON_TRANSACTIONAL,
)
each_kind = pytest.mark.parametrize("kind", list(StateKind), ids=lambda kind: kind.value)
each_exact_kind = pytest.mark.parametrize(
    "kind", [OPAQUE, TRANSACTIONAL], ids=lambda kind: kind.value
)

_ODD_TEXTS = (
    *("", "x" * 1_000_000, "x" * 1_000_000 + "y", "naïve ☃ 𝄞", "nai\u0308ve ☃ 𝄞", "\ud800"),
    *("a", "A", "a ", " a", "a\0b", "a\0c", "a:b", "a/b", "../a", "a\nb", "a\r\nb"),
    *("a,b", 'a","b', "a\\", "1", "null", '["a"]', "NaN", "*"),
    *("a'; DROP TABLE state0; --", "%s {} $1 ? :a"),
)
_ODD_VALUES = (
    *(None, 1, 1.0, True, b"1", 0, False, 10**30, -1, math.nan, math.inf, -math.inf),
    *((1, 2, 3), ()),
)
ODD_KEYS: tuple[tuple[Any, ...], ...] = (
    *((text,) for text in _ODD_TEXTS),
    *((value,) for value in _ODD_VALUES),
    *((), ("", ""), (None, None), ("a", "b"), ((1, 2), 3), (1, (2, 3))),
)
"""Keys that stores are known to confuse or to fail on; no two of them are equal."""

EQUAL_KEYS: tuple[tuple[Key, Key], ...] = (
    (("a", 1), ["a", 1]),
    ((0.0,), (-0.0,)),
    ((math.nan,), (float("nan"),)),
    (((1, [2]),), ([1, (2,)],)),
    ((b"x",), (bytearray(b"x"),)),
)
"""Pairs of keys that must be treated as the same key."""


class StoreHooks:
    """What a store author overrides; all but `make_backing` may be left as it is."""

    proxy: FaultProxy | None = None
    """The proxy through which stores of `make_backing` reach their server, if there is one."""

    commit_request: bytes | None = None
    """Bytes of the last request of a write (`COMMIT`), if a write takes several requests."""

    many: int = 100_000
    """How many keys the largest batch has."""

    odd_keys: Sequence[Key] = ODD_KEYS
    """Keys to try; leave out those that the store is documented to refuse."""

    keeps_removed: bool = False
    """Whether the record of a key that was removed stays, without a value."""

    is_durable: bool = True
    """Whether what was written is still there after the store was closed and opened again."""

    def make_backing(self, kind: StateKind) -> BackingMap[Any]:
        """Return a new, empty store for records of this kind. A test may call it many times."""
        raise NotImplementedError(f"{type(self).__name__} must say how a store is made")

    def reopen(self, backing: BackingMap[Any]) -> BackingMap[Any]:
        """Return another client of the same store, as a new process would open it."""
        return backing

    def make_int_backing(self, kind: StateKind) -> BackingMap[Any] | None:
        """Return a new store bound to keys `word string` and values `n bigint`, if it can."""
        return None

    def make_recipe(self, kind: StateKind) -> Any:
        """Return the recipe of a new state, to be bound to keys and values, if there is one."""
        return None

    def lose_records(self, backing: BackingMap[Any]) -> bool:
        """Remove all records of a store but not its head, past our back; False if it cannot be."""
        return False

    @pytest.fixture(autouse=True)
    def _close_stores(self) -> Iterator[None]:
        self._opened: list[BackingMap[Any]] = []
        yield
        self._close_all()

    def _close_all(self) -> None:
        while self._opened:
            self._opened.pop().close()

    def new(self, kind: StateKind) -> BackingMap[Any]:
        """Return a new store, closed at the end of the test."""
        backing = self.make_backing(kind)
        self._opened.append(backing)
        return backing

    def fresh(self, kind: StateKind) -> BackingMap[Any]:
        """Return a new store for one example of a property; close those of earlier examples."""
        self._close_all()
        return self.new(kind)

    def client(self, backing: BackingMap[Any]) -> BackingMap[Any]:
        """Return another client of a store, closed at the end of the test."""
        other = self.reopen(backing)
        if other is not backing:
            self._opened.append(other)
        return other

    def fenced(self, kind: StateKind) -> FencedMap[Any]:
        """Return a new store with a fence, or skip the test."""
        fence = self.new(kind).fence
        if fence is None:
            pytest.skip(
                "this store has no fence: it neither keeps a head nor refuses a write of an old "
                "attempt, so a paused task that wakes up may change a committed value"
            )
        return fence

    def comparing(self, kind: StateKind) -> FencedMap[Any]:
        """Return a new store that compares key by key, or skip the test."""
        fence = self.fenced(kind)
        if not isinstance(fence.uncached, ComparingMap):
            pytest.skip("this store checks the head with each write; it does not compare keys")
        return fence

    @staticmethod
    def state(kind: StateKind, backing: BackingMap[Any]) -> BatchedMap[Any, Any]:
        """Return the state of this kind over a store."""
        return make_map(kind, backing, name="the state")

    def batches(self, kind: StateKind, backing: BackingMap[Any], **options: Any) -> Batches:
        """Return a driver of batches over a store."""
        return Batches(self.state(kind, backing), **options)


def examples(number: int) -> settings:
    """Return the settings of a property that must hold on every store, even on slow ones."""
    slow = [
        HealthCheck.differing_executors,  # a suite is inherited by many classes
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
    ]
    return settings(max_examples=number, deadline=None, suppress_health_check=slow)


def record(
    kind: StateKind, value: Any, txid: int = 1, attempt: int = 0, prev: Any | None = None
) -> Any:
    """Return the record that a state of this kind keeps for a value."""
    if kind is OPAQUE:
        return OpaqueValue(txid, attempt, value, prev)
    return TransactionalValue(txid, attempt, value) if kind is TRANSACTIONAL else value


def at(
    txid: int,
    attempt: int = 0,
    *,
    committed: bool = False,
    epoch: int = 1,
    owner: str = OWNER,
    history: str = "",
    lease: str = "",
    resolved: dict[int, int] | None = None,
    name: str = "",
) -> Head:
    """Return a head."""
    writer = Writer(owner, epoch, history, lease)
    return Head(Stamp(writer, txid, attempt), committed, resolved or {}, name)
