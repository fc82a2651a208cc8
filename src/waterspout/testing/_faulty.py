"""A backing map whose writes go wrong as a test tells them to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from waterspout.errors import StoreError
from waterspout.state._base import BackingMap, Combiner, Key, LayeredMap
from waterspout.state._head import Head, Stamp

__all__ = ["FaultyMap", "WriteFault"]

V = TypeVar("V")


@dataclass(frozen=True)
class WriteFault:
    """How one write fails: before it, after it, or halfway, with some pairs stored.

    `stored` says which pairs a write that fails halfway has stored: bit n stands for pair n, for
    pair n + 64, and so on.
    """

    when: Literal["before", "halfway", "after"]
    stored: int = 0

    def chosen(self, number: int) -> list[int]:
        """Return which of `number` pairs are stored."""
        if self.when == "halfway":
            return [n for n in range(number) if self.stored >> (n % 64) & 1]
        return list(range(number)) if self.when == "after" else []


class FaultyMap(LayeredMap[V]):
    """Stand in front of a map, and make its next writes fail, one by one, as `plan` says.

    None in the plan means that a write succeeds; so do all writes after the end of the plan. A
    move of the head is one pair. A store with a fence writes all pairs of a task or none: a write
    that fails halfway then stands for two tasks, of which only one has written.
    """

    def __init__(self, backing: BackingMap[V], plan: Sequence[WriteFault | None] = ()) -> None:
        super().__init__(backing)
        self._original = self
        self.plan = list(plan)
        self.after_get: Callable[[], None] | None = None
        """Called once, after the next read: what happens between a read and a write."""
        self.before_call: Callable[[], None] | None = None
        """Called before each call of the map below."""

    @property
    def uncached(self) -> BackingMap[V]:
        """This map over the one that reads the store itself, with the same plan and callbacks."""
        below = self._backing.uncached
        if below is self._backing:
            return self
        other = copy(self)
        other._backing = below
        return other

    def multi_get(self, keys: Sequence[Key]) -> list[V | None]:
        self._announce()
        found = self._backing.multi_get(keys)
        self._interrupt()
        return found

    def multi_put(self, keys: Sequence[Key], values: Sequence[V]) -> None:
        self._write(len(keys), lambda n: self._backing.multi_put(_of(keys, n), _of(values, n)))

    def read_head(self) -> Head | None:
        self._announce()
        return super().read_head()

    def move_head(self, expected: Head | None, new: Head) -> None:
        self._write(1, lambda n: self._below.move_head(expected, new) if n else None)

    def fenced_put(
        self,
        stamp: Stamp,
        keys: Sequence[Key],
        values: Sequence[V],
        read: Sequence[V | None] | None = None,
    ) -> None:
        def put(n: list[int]) -> None:
            found = None if read is None else _of(read, n)
            self._below.fenced_put(stamp, _of(keys, n), _of(values, n), found)

        self._write(len(keys), put)

    def multi_compare_and_put(
        self, keys: Sequence[Key], read: Sequence[V | None], values: Sequence[V]
    ) -> list[bool]:
        stored: list[bool] = []

        def put(n: list[int]) -> None:
            below = self._below
            stored[:] = below.multi_compare_and_put(_of(keys, n), _of(read, n), _of(values, n))

        self._write(len(keys), put)
        return stored

    def can_combine(self, combiner: Combiner) -> bool:
        below = self._backing.fence
        return below is not None and below.can_combine(combiner)

    def fenced_combine(
        self, stamp: Stamp, keys: Sequence[Key], values: Sequence[Any], combiner: Combiner
    ) -> None:
        def combine(n: list[int]) -> None:
            self._below.fenced_combine(stamp, _of(keys, n), _of(values, n), combiner)

        self._write(len(keys), combine)

    def _announce(self) -> None:
        if self._original.before_call is not None:
            self._original.before_call()

    def _interrupt(self) -> None:
        act, self._original.after_get = self._original.after_get, None
        if act is not None:
            act()

    def _write(self, number: int, write: Callable[[list[int]], None]) -> None:
        self._announce()
        fault = self.plan.pop(0) if self.plan else None
        if fault is None:
            write(list(range(number)))
            return
        chosen = fault.chosen(number)
        if chosen:
            write(chosen)
        raise StoreError(f"injected: {len(chosen)} of {number} were written ({fault.when})")


def _of(items: Sequence[Any], chosen: list[int]) -> list[Any]:
    return [items[n] for n in chosen]
