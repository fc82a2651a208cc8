"""Sources of batches for transactional topologies: three contracts, as small as Storm's.

Metadata pins what a batch holds. It is chosen in the driver and stored before anything is emitted;
emitters then run on the executors, and may run again for the same batch: **what an emitter emits
must be a pure function of its metadata** (and of the partition). Metadata is JSON: numbers, text,
lists, dicts, None.

*Transactional*: the metadata of a txid is chosen once, and every attempt gets it. *Opaque*: it is
chosen for each attempt anew, from where the last committed batch ended.
"""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from waterspout.errors import TopologyError
from waterspout.topology._component import Component
from waterspout.topology._context import TopologyContext
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._bolts import BatchCollector, TakenTuples

__all__ = [
    "AnyTransactionalSpout",
    "BatchCoordinator",
    "BatchEmitter",
    "EmitterAnswer",
    "OpaqueEmitter",
    "OpaquePartitionedTransactionalSpout",
    "PartitionCoordinator",
    "PartitionEmitter",
    "PartitionedTransactionalSpout",
    "SourceCoordinator",
    "TransactionalSpout",
    "asked",
    "coordinator_of",
    "emitter_of",
]


@dataclass(frozen=True, slots=True)
class EmitterAnswer:
    """What an emitter in Storm's form gave when it was asked what comes after a position."""

    metadata: Any
    taken: TakenTuples
    moved: bool
    """Whether it says that the source goes on: with tuples, or at another position."""


def asked(
    emit: Callable[..., Any],
    emitter: object,
    txid: int,
    partition: int,
    last: Any,
    *,
    keeps: bool = False,
) -> EmitterAnswer:
    """Run an emitter's method to learn what comes after `last`; what it emits is counted, or kept.

    An emitter that has nothing returns None or `last`. One that returns something else without a
    tuple has passed over a part of its source.
    """
    attempt = TransactionAttempt(txid, 0)
    taken = TakenTuples(attempt, keeps=keeps)
    metadata = emit(attempt, taken, partition, last)
    if taken.count and metadata is None:
        raise TopologyError(
            f"{type(emitter).__name__} emitted {taken.count} tuples and returned None as their "
            "metadata: they could not be emitted again. Return what pins them."
        )
    stays = metadata is None or (not taken.count and _is_same(metadata, last))
    return EmitterAnswer(metadata, taken, moved=not stays)


def _is_same(metadata: Any, last: Any) -> bool:
    try:
        # As it was stored: a tuple has become a list.
        return bool(json.loads(json.dumps(metadata)) == last)
    except (TypeError, ValueError):
        return False  # whoever stores it refuses it


class SourceCoordinator:
    """What the driver's side of every transactional spout has. One thread calls it."""

    def is_ready(self) -> bool:
        """Whether another batch may begin. Called often; must be quick."""
        return True

    def close(self) -> None:
        """Give up connections; not called if the process dies."""


class _SourceEmitter:
    """What the executors' side of every transactional spout has."""

    def cleanup_before(self, txid: int) -> None:
        """Batches before this one have committed. Called in the driver, on an emitter there."""

    def close(self) -> None:
        """Give up connections; not called if the process dies."""


class BatchCoordinator(SourceCoordinator, ABC):
    """The driver's side of a `TransactionalSpout`."""

    @abstractmethod
    def initialize_transaction(self, txid: int, previous: Any) -> Any:
        """Return the metadata of a new batch; `previous` is that of the batch before, or None.

        The answer is stored, before anything of the batch is emitted, and used for every attempt:
        called once for each txid, restarts included. Only if the driver dies before the answer is
        stored, the next one asks again.
        """


class BatchEmitter(_SourceEmitter, ABC):
    """The executors' side: one for each task of the spout."""

    @abstractmethod
    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Any, collector: BatchCollector
    ) -> None:
        """Emit this task's share of a batch: `[attempt, ...]`. Every task gets all metadata."""


class TransactionalSpout(Component, ABC):
    """A source that knows batches; its coordinator says what is in each."""

    read_on_executors = True

    @abstractmethod
    def get_coordinator(
        self, conf: Mapping[str, Any], context: TopologyContext
    ) -> BatchCoordinator:
        """Return the `BatchCoordinator`; called in the driver."""

    @abstractmethod
    def get_emitter(self, conf: Mapping[str, Any], context: TopologyContext) -> BatchEmitter:
        """Return the `BatchEmitter` of a task; called where it runs."""


class PartitionCoordinator(SourceCoordinator, ABC):
    """The driver's side of a partitioned source."""

    @abstractmethod
    def num_partitions(self) -> int:
        """Return how many partitions there are now. A batch keeps the number it began with."""


class PartitionEmitter(_SourceEmitter, ABC):
    """Emits one partition's share of a batch. Implement `emit_partition_batch` and one more.

    With `next_metadata` nothing is read in the driver. With Storm's `emit_partition_batch_new`
    the driver calls that to learn the metadata, and throws away what it emits: the partition is
    read twice. It returns None, or `last`, where there is nothing more; what it returns else is
    where the next batch goes on, also if no tuple came (all were filtered out, say).
    """

    def next_metadata(self, txid: int, partition: int, last: Any) -> Any:
        """Return what comes after `last` (None: from the start), or None if that is nothing.

        Called in the driver, also to see whether there is anything: more than once for a txid.
        """
        answer = asked(self.emit_partition_batch_new, self, txid, partition, last)
        return answer.metadata if answer.moved else None

    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, collector: BatchCollector, partition: int, last: Any
    ) -> Any:
        """Emit what comes after `last` and return its metadata."""
        raise TopologyError(
            f"{type(self).__name__} has neither next_metadata nor emit_partition_batch_new; "
            "implement one of them, to say what comes after a batch"
        )

    @abstractmethod
    def emit_partition_batch(
        self, attempt: TransactionAttempt, collector: BatchCollector, partition: int, metadata: Any
    ) -> None:
        """Emit exactly what the metadata pins."""


class PartitionedTransactionalSpout(Component, ABC):
    """A partitioned source that gives the same batch again: the metadata of a txid is fixed."""

    read_on_executors = True

    @abstractmethod
    def get_coordinator(
        self, conf: Mapping[str, Any], context: TopologyContext
    ) -> PartitionCoordinator:
        """Return the `PartitionCoordinator`; called in the driver."""

    @abstractmethod
    def get_emitter(self, conf: Mapping[str, Any], context: TopologyContext) -> PartitionEmitter:
        """Return a `PartitionEmitter`; called in the driver and in every task."""


class OpaqueEmitter(_SourceEmitter, ABC):
    """Emits one partition's share of an attempt, from where the last committed batch ended.

    With a method `next_metadata(txid, partition, last)`, as `PartitionEmitter` has it, the range is
    pinned in the driver and `emit_partition_batch` gets it.
    Without, `emit_partition_batch` gets `last` and returns the metadata, as in Storm. It is called
    in the driver, once for an attempt: what it emits then is what the attempt holds, however the
    source grows meanwhile. All of it is in the driver's memory until the batch has committed. It
    returns None, or `last`, where there is nothing more; what it returns else is where the next
    batch goes on, also if no tuple came (all were filtered out, say).
    """

    @abstractmethod
    def num_partitions(self) -> int:
        """Return how many partitions there are now."""

    @abstractmethod
    def emit_partition_batch(
        self, attempt: TransactionAttempt, collector: BatchCollector, partition: int, metadata: Any
    ) -> Any:
        """Emit what the metadata pins (or, without `next_metadata`, what comes after it)."""


class OpaquePartitionedTransactionalSpout(Component, ABC):
    """A partitioned source whose batches may differ between attempts; nothing is skipped."""

    read_on_executors = True

    @abstractmethod
    def get_coordinator(
        self, conf: Mapping[str, Any], context: TopologyContext
    ) -> SourceCoordinator:
        """Return an object with `is_ready()` and `close()`; called in the driver."""

    @abstractmethod
    def get_emitter(self, conf: Mapping[str, Any], context: TopologyContext) -> OpaqueEmitter:
        """Return an `OpaqueEmitter`; called in the driver and in every task."""


class _Adapted:
    """A coordinator or an emitter of any class: what it may leave out does nothing.

    Names and arguments may be those of Storm's transactional spouts or those of Trident's, which
    hand a txid to `is_ready`, a third argument to `initialize_transaction`, and tell of each batch
    that has committed by `success`.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        self._ready_takes_txid = _takes(getattr(given, "is_ready", None), 1)
        self._initializes_with_current = _takes(getattr(given, "initialize_transaction", None), 3)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.given, name)

    def is_ready(self, txid: int) -> bool:
        """Ask whether a batch may begin."""
        if not hasattr(self.given, "is_ready"):
            return True
        return bool(self.given.is_ready(*([txid] if self._ready_takes_txid else [])))

    def initialize_transaction(self, txid: int, previous: Any) -> Any:
        """Ask for the metadata of a batch that was never initialized before."""
        current = [None] if self._initializes_with_current else []
        return self.given.initialize_transaction(txid, previous, *current)

    def cleanup_before(self, txid: int) -> None:
        self._tell("cleanup_before", txid)

    def success(self, committed: Any) -> None:
        """Tell that a batch has committed: by its txid, or to an emitter by an attempt."""
        self._tell("success", committed)

    def close(self) -> None:
        self._tell("close")

    def _tell(self, method: str, *arguments: Any) -> None:
        told = getattr(self.given, method, None)
        if told is not None:
            told(*arguments)


def _takes(method: Any, wanted: int) -> bool:
    """Whether a method can be called with so many arguments; no, if nobody can tell."""
    if method is None:
        return False
    try:
        inspect.signature(method).bind(*range(wanted))
    except (TypeError, ValueError):
        return False
    return True


def coordinator_of(spout: Any, conf: Mapping[str, Any], context: TopologyContext) -> Any:
    """Return the coordinator of a spout, of whatever class it is; refuse one that lacks a method.

    An opaque spout needs none.
    """
    given = spout.get_coordinator(conf, context)
    if isinstance(spout, TransactionalSpout):
        _require(given, "coordinator", context, "initialize_transaction")
    elif isinstance(spout, PartitionedTransactionalSpout):
        _require(given, "coordinator", context, "num_partitions")
    return _Adapted(given)


def emitter_of(spout: Any, conf: Mapping[str, Any], context: TopologyContext) -> Any:
    """Return an emitter of a spout, of whatever class it is; refuse one that lacks a method."""
    given = spout.get_emitter(conf, context)
    if isinstance(spout, TransactionalSpout):
        _require(given, "emitter", context, "emit_batch")
        return _Adapted(given)
    _require(given, "emitter", context, "emit_partition_batch")
    if isinstance(spout, PartitionedTransactionalSpout):
        _require(given, "emitter", context, "next_metadata", "emit_partition_batch_new")
    return _Adapted(given)


def _require(given: Any, what: str, context: TopologyContext, *any_of: str) -> None:
    if not any(callable(getattr(given, name, None)) for name in any_of):
        raise TopologyError(
            f"spout {context.this_component_id!r}: its {what}, a {type(given).__name__}, has no "
            f"method {' or '.join(any_of)}; it needs no base class, but that method"
        )


AnyTransactionalSpout: TypeAlias = (
    TransactionalSpout | PartitionedTransactionalSpout | OpaquePartitionedTransactionalSpout
)
