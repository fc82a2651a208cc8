"""The first row of each key: the update of a state of keys, which emits the rows that pass.

What passes is a function of the rows of the batch, in any order, and of what the state held before
the batch; so every attempt at a batch lets the same rows pass.
"""

from __future__ import annotations

import datetime as dt
import math
from abc import abstractmethod
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from waterspout._serde import encode_key, encode_value
from waterspout._tuples import TridentTuple
from waterspout.state._base import MapState
from waterspout.state._head import Claim
from waterspout.trident.deduplication.recent import RecentKeys
from waterspout.trident.operations.contracts import StateUpdater, TridentCollector

__all__ = ["Deduplicate", "DeduplicateWithin"]

_ORDERED = (bool, int, float, str, bytes, Decimal, dt.date, dt.timedelta)  # datetimes are dates
_Key = tuple[Any, ...]


class _FirstRows(StateUpdater[MapState[Any]]):
    """Emits the rows whose keys have not passed, one of each key, in the order in which they came.

    Of several rows of one key in one batch the least passes, whatever their order.
    """

    def __init__(self, key_fields: Sequence[str]) -> None:
        self.key_fields = tuple(key_fields)
        self.label = f"deduplicate({', '.join(key_fields)})"

    @abstractmethod
    def _admit(self, state: MapState[Any], keys: dict[str, _Key]) -> set[str]:
        """Return the texts of those keys that may pass, and note in the state that they do."""

    def update_state(
        self,
        state: MapState[Any],
        tuples: Sequence[TridentTuple],
        collector: TridentCollector,
    ) -> None:
        keys: dict[str, _Key] = {}
        firsts: dict[str, TridentTuple] = {}
        for row in tuples:
            key = tuple(row[name] for name in self.key_fields)
            text = encode_key(key)
            other = firsts.get(text)
            if other is None or _comes_before(row, other):
                keys[text], firsts[text] = key, row
        passing = self._admit(state, keys)
        for text, row in firsts.items():
            if text in passing:
                collector.emit(row.values)


class Deduplicate(_FirstRows):
    """Lets the first row of a key pass, and no other ever after: a record for each key."""

    def __init__(self, key_fields: Sequence[str]) -> None:
        super().__init__(key_fields)
        self.keys = list(key_fields)

    def begin_batch(self, claim: Claim, partition: int) -> None:
        """Learn which batch follows: that is noted with each key."""
        self._txid = claim.attempt.txid

    def _admit(self, state: MapState[Any], keys: dict[str, _Key]) -> set[str]:
        found = state.multi_get(list(keys.values()))
        new = {t: k for (t, k), seen in zip(keys.items(), found, strict=True) if seen is None}
        state.multi_put(list(new.values()), [self._txid] * len(new))
        return set(new)


class DeduplicateWithin(_FirstRows):
    """Lets a row pass if no row of its key has passed for so many milliseconds."""

    in_one = "forgets old keys together"

    ends: tuple[tuple[int, int], ...] = ()
    """The windows at whose ends a batch is due: none, but batches need a time."""

    def __init__(self, key_fields: Sequence[str], within_millis: int) -> None:
        super().__init__(key_fields)
        self.within_millis = within_millis

    def begin_batch(self, claim: Claim, partition: int) -> None:
        """Learn which partition of the state follows, and what time it is in its batch."""
        self._partition = partition
        self._batch_time = claim.batch_time

    def _admit(self, state: MapState[Any], keys: dict[str, _Key]) -> set[str]:
        assert self._batch_time is not None, "a batch whose keys grow old has a time"
        now = round(self._batch_time * 1000)
        recent = RecentKeys(state, self._partition, self.key_fields, now, self.within_millis)
        return recent.admit(list(keys))


def _comes_before(row: TridentTuple, other: TridentTuple) -> bool:
    """Compare two rows: field by field, null first, NaN last; then as texts."""
    for one, two in zip(row.values, other.values, strict=True):
        left, right = _comparable(one), _comparable(two)
        if left != right:
            return left < right
    # What looks the same may still differ: -0.0 and 0.0.
    return encode_value(list(row.values)) < encode_value(list(other.values))


def _comparable(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    return (1, value if isinstance(value, _ORDERED) else encode_value(value))
