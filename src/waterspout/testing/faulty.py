"""A backing map whose writes go wrong as a test tells them to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from waterspout.errors import StoreError
from waterspout.state.base import BackingMap, Combiner, FencedMap, Key
from waterspout.state.head import Head, Stamp

__all__ = ["FaultyMap", "WriteFault"]

V = TypeVar("V")


@dataclass(frozen=True)
class WriteFault:
    """What becomes of one write: nothing, part or all of it is done, and then it fails.

    `part` says which of the pairs are stored: bit n of it stands for pair n, and for every
    pair 64 places on.
    """

    when: Literal["before", "part", "after"]
    part: int = 0

    def chosen(self, number: int) -> list[int]:
        """Return which of so many pairs are stored."""
        if self.when == "part":
            return [n for n in range(number) if self.part >> (n % 64) & 1]
        return list(range(number)) if self.when == "after" else []


@dataclass
class FaultyMap(FencedMap[V]):
    """Stand in front of a map, and fail its next writes one by one as `plan` says.

    None in the plan stands for a write that goes well, as do all after its end. A head moves
    or does not: to it a part is nothing. A part of a batch is what is left when of two tasks
    only one had written; what one task writes, a store with a fence writes whole.
    """

    backing: BackingMap[V]
    plan: list[WriteFault | None] = field(default_factory=list)
    after_get: Callable[[], None] | None = None
    """Called once, after the next read: what happens between a read and a write."""
    before_call: Callable[[], None] | None = None
    """Called before each call of the map below."""

    @property
    def fence(self) -> FencedMap[V] | None:
        """This map, if there is a fence below it."""
        return self if self.backing.fence is not None else None

    @property
    def uncached(self) -> BackingMap[V]:
        """This map over the one that reads the store itself."""
        below = self.backing.uncached
        return self if below is self.backing else _Uncached(below, self)

    @property
    def undoes_lost_attempts(self) -> bool:  # type: ignore[override]
        """Whether the map below does."""
        below = self.backing.fence
        return below is not None and below.undoes_lost_attempts

    def multi_get(self, keys: Sequence[Key]) -> list[V | None]:
        """Read from the map below."""
        self._announce()
        found = self.backing.multi_get(keys)
        self._interrupt()
        return found

    def multi_put(self, keys: Sequence[Key], values: Sequence[V]) -> None:
        """Write to the map below, or fail."""
        self._write(len(keys), lambda n: self.backing.multi_put(_of(keys, n), _of(values, n)))

    def read_head(self) -> Head | None:
        """Return the head of the map below."""
        self._announce()
        return self._below().read_head()

    def move_head(self, expected: Head | None, new: Head) -> None:
        """Move the head of the map below, or fail."""
        self._write(1, lambda n: self._below().move_head(expected, new) if n else None)

    def fenced_put(
        self,
        stamp: Stamp,
        keys: Sequence[Key],
        values: Sequence[V],
        read: Sequence[V | None] | None = None,
    ) -> None:
        """Write to the map below under its fence, or fail."""

        def put(n: list[int]) -> None:
            found = None if read is None else _of(read, n)
            self._below().fenced_put(stamp, _of(keys, n), _of(values, n), found)

        self._write(len(keys), put)

    def multi_compare_and_put(
        self, keys: Sequence[Key], read: Sequence[V | None], values: Sequence[V]
    ) -> list[bool]:
        """Write to the map below, or fail."""
        stored: list[bool] = []

        def put(n: list[int]) -> None:
            below = self._below()
            stored[:] = below.multi_compare_and_put(_of(keys, n), _of(read, n), _of(values, n))

        self._write(len(keys), put)
        return stored

    def can_combine(self, combiner: Combiner) -> bool:
        """Whether the map below can."""
        below = self.backing.fence
        return below is not None and below.can_combine(combiner)

    def fenced_combine(
        self, stamp: Stamp, keys: Sequence[Key], values: Sequence[Any], combiner: Combiner
    ) -> None:
        """Combine in the map below, or fail."""

        def combine(n: list[int]) -> None:
            self._below().fenced_combine(stamp, _of(keys, n), _of(values, n), combiner)

        self._write(len(keys), combine)

    def scan(self, shard: int = 0, shards: int = 1) -> Iterator[list[tuple[Key, V]]]:
        """List what the map below holds."""
        return self.backing.scan(shard, shards)

    def close(self) -> None:
        """Close the map below."""
        self.backing.close()

    def _below(self) -> FencedMap[V]:
        below = self.backing.fence
        assert below is not None, "asked for a fence that is not there"
        return below

    def _announce(self) -> None:
        if self.before_call is not None:
            self.before_call()

    def _interrupt(self) -> None:
        act, self.after_get = self.after_get, None
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


class _Uncached(FaultyMap[V]):
    """The same map without the cache below it; interrupted and announced as the whole is."""

    def __init__(self, backing: BackingMap[V], whole: FaultyMap[V]) -> None:
        super().__init__(backing, whole.plan)
        self._whole = whole

    def _announce(self) -> None:
        self._whole._announce()

    def _interrupt(self) -> None:
        self._whole._interrupt()


def _of(items: Sequence[Any], chosen: list[int]) -> list[Any]:
    return [items[n] for n in chosen]
