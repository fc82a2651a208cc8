"""How the keys and texts of a call become arguments of scripts of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = [
    "CHUNK_KEYS",
    "WATCHED_KEYS",
    "Chunk",
    "batched",
    "lines",
    "picked",
    "split",
]

T = TypeVar("T")

# A script, or a transaction, of so many runs for some 10 ms; nobody else is served meanwhile.
CHUNK_KEYS = 5_000
WATCHED_KEYS = 10_000
CHUNK_CHARS = 4_000_000
PIPELINE_CHARS = 16_000_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some of a call's keys, all of one slot: their numbers in the call, and their names."""

    slot: int
    numbers: Sequence[int]
    names: Sequence[str]
    size: int


def picked(column: Sequence[T], numbers: Sequence[int]) -> Sequence[T]:
    """Return some rows of a column, quickly if they stand together."""
    if isinstance(numbers, range):
        return column[numbers.start : numbers.stop]
    return [column[i] for i in numbers]


def lines(texts: Iterable[str]) -> str:
    """Return texts as one argument of a script."""
    return "\n".join(texts) + "\n"


def split(
    slot: int, numbers: Sequence[int], names: Sequence[str], texts: Sequence[str] | None
) -> Iterator[Chunk]:
    """Yield one chunk, or several if these keys and texts are large."""
    mine = picked(names, numbers)
    size = sum(map(len, mine))
    if texts is not None:
        size += sum(map(len, picked(texts, numbers)))
    if size <= CHUNK_CHARS or len(numbers) == 1:
        yield Chunk(slot, numbers, mine, size)
        return
    half = len(numbers) // 2
    yield from split(slot, numbers[:half], names, texts)
    yield from split(slot, numbers[half:], names, texts)


def batched(
    items: Iterable[T], size: Callable[[T], int], *, most: int | None = None
) -> Iterator[list[T]]:
    """Yield lists of items that are not too large to be sent, or kept, at once."""
    some: list[T] = []
    room = PIPELINE_CHARS
    for item in items:
        if some and (size(item) > room or len(some) == most):
            yield some
            some, room = [], PIPELINE_CHARS
        some.append(item)
        room -= size(item)
    if some:
        yield some
