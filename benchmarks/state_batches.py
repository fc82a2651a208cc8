"""Batches driven through one state as the engine drives them, and the words that are in them."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from waterspout import Config
from waterspout._schema import Schema
from waterspout.state import StoreState
from waterspout.state._batched import BatchedMap
from waterspout.state._head import Claim, Writer
from waterspout.testing._batches import Add
from waterspout.transactional import TransactionAttempt
from waterspout.trident import Count
from waterspout.waves.garbage import no_collection

__all__ = ["COMBINE", "Driver", "Keys", "Words", "bound", "word"]

WORD = Schema.parse("word string")
VALUES = Schema.parse("n bigint")
WRITER = Writer("benchmark", 1, "home", "lease")
COMBINE, UPDATE, EITHER = "combine", "update", "combine or update"
CHECKED = 1_000  # keys of a state that are compared with what should be there

Keys = Sequence[tuple[str]]


def word(number: int) -> str:
    """Return the key with this number, as every store is filled with it."""
    return f"word-{number:08d}"


def bound(recipe: StoreState) -> StoreState:
    """Return the recipe for words and their counts."""
    return recipe.bind(WORD, VALUES)


class Words:
    """Draws batches of distinct words out of the first `known`, in no order; seed 7."""

    def __init__(self, known: int) -> None:
        self._known = known
        self._random = random.Random(7)

    def all(self) -> tuple[Keys, list[int]]:
        """Return every word once."""
        return [(word(i),) for i in range(self._known)], [1] * self._known

    def draw(self, number: int) -> tuple[Keys, list[int]]:
        """Return some words, and what is to be added to each."""
        chosen = self._random.sample(range(self._known), number)
        return [(word(i),) for i in chosen], self._random.choices(range(1, 100), k=number)


class Driver:
    """Whole batches over one state: claim, update, commit, settle.

    The head is moved by a state that lives as long as the driver. The updates go through one that
    is made for the batch, as in a task; through one that is kept, if only the driver can commit.
    """

    def __init__(self, recipe: StoreState) -> None:
        self._recipe = recipe
        self._head = self._open()
        self._kept = self._open() if recipe.driver_only else None
        self.txid = 0
        self._batches: list[tuple[Keys, list[int]]] = []

    def _open(self) -> BatchedMap[Any, Any]:
        state = self._recipe.make_state(Config(), 0, 1)
        state.enroll(WRITER)
        return state

    @property
    def ways(self) -> tuple[str, ...]:
        """How a batch can be done; only one, where a combiner is an updater like any other."""
        fence = self._recipe.backing().fence
        can_combine = fence is not None and fence.can_combine(Count())
        return (COMBINE, UPDATE) if can_combine else (EITHER,)

    def batch(self, keys: Keys, values: list[int], *, combine: bool = True) -> float:
        """Commit one batch and return the seconds it took."""
        self.txid += 1
        txid, before = self.txid, 0 if self.txid > 1 else None
        count = Count()
        began = time.perf_counter()
        self._head.claim(Claim(TransactionAttempt(txid, 0), before, begun=(0,)))
        state = self._kept or self._open()
        with no_collection():  # as wherever a partition is written
            state.begin_commit(txid, 0)
            if combine:
                state.multi_combine(keys, values, count, want_new=False)
            else:
                state.multi_update(keys, [Add(value) for value in values])
            state.commit(txid)
        if state is not self._kept:
            state.close()
        self._head.settle(txid, 0)
        took = time.perf_counter() - began
        # Summed up when they are asked for: whoever measures this call measures no more of it.
        self._batches.append((keys, values))
        return took

    def check(self) -> None:
        """Refuse to go on if the state does not hold what was added to it."""
        truth: Counter[tuple[str]] = Counter()
        for keys, values in self._batches:
            truth.update(dict(zip(keys, values, strict=True)))
        chosen = random.Random(7).sample(list(truth), min(CHECKED, len(truth)))
        found = self._head.multi_get(chosen)
        wrong = sum(n != truth[key] for key, n in zip(chosen, found, strict=True))
        if wrong:
            raise SystemExit(f"{self._recipe.title}: {wrong} of {len(chosen)} words are wrong")

    def close(self) -> None:
        """Give up what the states hold."""
        for state in (self._head, self._kept):
            if state is not None:
                state.close()
