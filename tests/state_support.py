"""What tests of states share: updaters, a spy, and someone who drives batches through a state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings

from waterspout.serde import encode_key
from waterspout.state.base import BackingMap, Combiner, FencedMap, ValueUpdater
from waterspout.state.batched import BatchedMap
from waterspout.state.head import Writer
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.transactional.ledger import Ledger

OWNER = "word-count"


def examples(number: int = 100) -> settings:
    """Return the settings of a property test, whatever else the machine is doing today."""
    slow = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=number, deadline=None, suppress_health_check=slow)


class StoreDown(Exception):
    """What a store raises that is not there."""


@dataclass(frozen=True)
class Add(ValueUpdater[int]):
    amount: int

    def update(self, stored: int | None) -> int:
        return (stored or 0) + self.amount


@dataclass(frozen=True)
class SumUp(Combiner):
    merge = "sum"

    def combine(self, left: Any, right: Any) -> Any:
        return left + right


@dataclass(frozen=True)
class Least(Combiner):
    merge = "min"

    def combine(self, left: Any, right: Any) -> Any:
        return min(left, right)


@dataclass(frozen=True)
class Greatest(Combiner):
    merge = "max"

    def combine(self, left: Any, right: Any) -> Any:
        return max(left, right)


class SpyMap(BackingMap[Any]):
    """A store with nothing but the two methods of a store author; notes how it is called."""

    def __init__(self, records: Mapping[tuple[Any, ...], Any] | None = None) -> None:
        self.records = {encode_key(key): record for key, record in (records or {}).items()}
        self.gets: list[list[tuple[Any, ...]]] = []
        self.puts: list[dict[tuple[Any, ...], Any]] = []
        self.fail_before_put = False
        self.fail_after_put = False

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[Any]:
        self.gets.append([tuple(key) for key in keys])
        return [self.records.get(encode_key(key)) for key in keys]

    def multi_put(self, keys: Sequence[Sequence[Any]], values: Sequence[Any]) -> None:
        if self.fail_before_put:
            raise StoreDown
        self.puts.append({tuple(key): value for key, value in zip(keys, values, strict=True)})
        self.records.update(zip(map(encode_key, keys), values, strict=True))
        if self.fail_after_put:
            raise StoreDown

    def at(self, *key: Any) -> Any:
        return self.records.get(encode_key(key))


def committed(state: BatchedMap[Any, Any], txid: int, updates: Mapping[Any, int], **begin: Any):
    """Add numbers to keys in a batch without a fence; return the new values."""
    state.begin_commit(txid, **begin)
    new = state.multi_update(keys_of(updates), [Add(n) for n in updates.values()])
    state.commit(txid)
    return new


def keys_of(updates: Mapping[Any, Any]) -> list[tuple[Any, ...]]:
    return [key if isinstance(key, tuple) else (key,) for key in updates]


@dataclass
class Batches:
    """Drives batches through one state with a real ledger, as the coordination loop does."""

    state: BatchedMap[Any, Any]
    epoch: int = 1
    combine: Combiner | None = None
    ledger: Ledger = field(default_factory=lambda: Ledger(OWNER))
    attempt: int = -1
    save: Callable[[Ledger], None] = lambda ledger: None

    def __post_init__(self) -> None:
        self.state.enroll(self.writer)

    @property
    def writer(self) -> Writer:
        return Writer(OWNER, self.epoch)

    @property
    def txid(self) -> int:
        return self.ledger.current

    @property
    def history(self) -> Mapping[str, int]:
        """Which attempt of each batch has committed."""
        return self.ledger.committed_metadata or {}

    def claim(self) -> int:
        """Begin the next attempt at the current batch and move the head to it."""
        self.attempt += 1
        attempt = TransactionAttempt(self.txid, self.attempt)
        metadata = {**self.history, str(self.txid): self.attempt}
        self._record(self.ledger.emit(attempt, metadata).begin(attempt))
        self.state.claim(
            self.txid,
            self.attempt,
            committed_attempt=self.ledger.committed_attempt,
            resolved=self.ledger.resolved,
        )
        return self.attempt

    def write(self, updates: Mapping[Any, Any]) -> None:
        """Do what a commit task does."""
        keys, amounts = keys_of(updates), list(updates.values())
        self.state.begin_commit(self.txid, self.attempt, self.ledger.resolved)
        if self.combine is not None:
            self.state.multi_combine(keys, amounts, self.combine, want_new=False)
        else:
            self.state.multi_update(keys, [Add(n) for n in amounts])
        self.state.commit(self.txid)

    def mark(self) -> None:
        attempt = TransactionAttempt(self.txid, self.attempt)
        keep = not self.state.undoes_lost_attempts
        self._record(self.ledger.commit(attempt, keep_resolved=keep))
        self.attempt = -1

    def settle(self) -> None:
        assert self.ledger.committed_attempt is not None
        self.state.settle(self.txid - 1, self.ledger.committed_attempt)

    def lose(self, updates: Mapping[Any, Any]) -> None:
        """Let an attempt write and then fail."""
        self.claim()
        self.write(updates)

    def commit(self, updates: Mapping[Any, Any]) -> None:
        """Let an attempt write, be marked and settled."""
        self.lose(updates)
        self.mark()
        self.settle()

    def values(self, *keys: Any) -> list[Any]:
        """Read as someone outside of any batch."""
        return self.state.multi_get([k if isinstance(k, tuple) else (k,) for k in keys])

    def _record(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.save(ledger)


def fence_of(backing: BackingMap[Any]) -> FencedMap[Any]:
    fence = backing.fence
    assert fence is not None
    return fence
