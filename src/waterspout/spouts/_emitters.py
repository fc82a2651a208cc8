"""Transactional spouts as sources of batches: how their metadata is chosen, in the driver."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from waterspout._schema import Schema
from waterspout.errors import DataLossError, SourceError, TopologyError
from waterspout.spouts._base import (
    AdaptedSource,
    BatchPlanner,
    LookingPlanner,
    PlannedSpout,
    RunsIn,
    SpoutContext,
    SpoutKind,
    as_json,
)
from waterspout.spouts._emission import emitting_context
from waterspout.spouts._reads import EmitRead, Read
from waterspout.topology._builder import SpoutDeclarer
from waterspout.topology._context import TopologyContext
from waterspout.topology._pickling import require_picklable
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._away import PartitionsAway, is_away, read_away_error
from waterspout.transactional._builder import TransactionalTopology
from waterspout.transactional._spouts import (
    OpaquePartitionedTransactionalSpout,
    PartitionEmitter,
    TransactionalSpout,
    asked,
    coordinator_of,
    emitter_of,
)

__all__ = ["EmittedSource", "EmittedSpout"]

log = logging.getLogger(__name__)

_EMPTY_RANGES = 10
"""How often an emitter is asked at once that moves on and gives no tuple."""


class EmittedSpout(PlannedSpout):
    """Any of the three transactional spouts, planned here and emitted on the executors."""

    def __init__(
        self, spout: Any, context: TopologyContext, options: Mapping[str, Any] = {}
    ) -> None:
        self._spout = spout
        self._context = context
        self._options = options
        is_opaque = isinstance(spout, OpaquePartitionedTransactionalSpout)
        self.kind = SpoutKind.OPAQUE if is_opaque else SpoutKind.TRANSACTIONAL
        # In Storm's form an opaque emitter gives what there is, not what metadata names.
        self.repeats = not is_opaque
        self._planner: _EmitterPlanner | None = None

    @classmethod
    def of(cls, topology: TransactionalTopology) -> EmittedSpout:
        """Return the spout of a transactional topology."""
        spec = topology.components[topology.spout_id]
        context = topology.context(topology.tasks[spec.id][0])
        return cls(spec.component, context, spec.configuration)

    def open(self, context: SpoutContext) -> BatchPlanner:
        conf = {**context.conf.to_dict(), **self._options}
        is_whole = isinstance(self._spout, TransactionalSpout)
        planner = _Whole if is_whole else _ByPartition
        self._planner = planner(self._spout, conf, self._context, context)
        return self._planner

    def taken(self, metadata: Any) -> Mapping[int, bytes]:
        """Return, by partition, what the driver has taken of the emitters for this metadata."""
        return {} if self._planner is None else self._planner.taken(metadata)


class EmittedSource(AdaptedSource[Any]):
    """Recipe of the stream of a transactional spout: planned here, emitted on the executors."""

    read_in = RunsIn.PYTHON

    def __init__(self, spout: Any, topology: str, spout_id: str, schema: Schema) -> None:
        self._topology = topology
        self._pickled = require_picklable(spout, f"spout {spout_id!r}")
        self._options = SpoutDeclarer(spout_id, spout, 1).spec().configuration
        context = emitting_context(topology, spout_id, ("tx", *schema.names), 0, 1)
        self._planned = EmittedSpout(spout, context, self._options)
        super().__init__(spout, spout_id, schema, self._planned.kind)
        self.repeats = self._planned.repeats

    def open(self, context: SpoutContext) -> BatchPlanner:
        return self._planned.open(context)

    def read(self, metadata: Any) -> Read:
        return EmitRead(
            schema=self._schema,
            spout=self._pickled,
            topology=self._topology,
            spout_id=self._spout_id,
            options=self._options,
            metadata=metadata,
            is_partitioned=not isinstance(self.original, TransactionalSpout),
            taken=self._planned.taken(metadata),
        )


class _EmitterPlanner(LookingPlanner):
    """What the planners of all three kinds share."""

    def __init__(
        self, spout: Any, conf: Mapping[str, Any], topology: TopologyContext, context: SpoutContext
    ) -> None:
        super().__init__(context)
        self._opaque = isinstance(spout, OpaquePartitionedTransactionalSpout)
        self._name = topology.this_component_id
        self._coordinator = coordinator_of(spout, conf, topology)
        self._emitter = emitter_of(spout, conf, topology)

    def succeeded(self, txid: int, metadata: Any) -> None:
        self._emitter.cleanup_before(txid)
        # Which attempt has committed is not known after a restart; its txid is.
        self._emitter.success(TransactionAttempt(txid, 0))
        self._coordinator.success(txid)

    def taken(self, metadata: Any) -> Mapping[int, bytes]:
        """Return, by partition, what was taken in the driver for the attempt of this metadata."""
        return {}

    def close(self) -> None:
        for each in (self._coordinator, self._emitter):
            each.close()

    def _plain(self, metadata: Any) -> Any:
        return as_json(metadata, f"spout {self._name!r} gave metadata that is not JSON")


class _Whole(_EmitterPlanner):
    """Plans for a `TransactionalSpout`, whose coordinator makes the whole metadata."""

    def is_ready(self, previous: Any) -> bool:
        return bool(self._coordinator.is_ready(self._following))

    def look(self, txid: int, previous: Any) -> Any:
        return self._plain(self._coordinator.initialize_transaction(txid, previous))


class _ByPartition(_EmitterPlanner):
    """Metadata of a batch: for each partition, where the last batch ended and what this one has.

    A partition that has nothing (or is down, or is not counted for a while) keeps its last position
    for the batches to come. Of an opaque emitter in Storm's form the tuples are kept as well: it is
    asked once for an attempt. Then a third item says under which name, and how many there are.
    """

    def __init__(
        self, spout: Any, conf: Mapping[str, Any], topology: TopologyContext, context: SpoutContext
    ) -> None:
        super().__init__(spout, conf, topology, context)
        self._choose = _choosing(self._emitter.given)
        self._owner = _who_counts(self._emitter, self._coordinator, spout)
        self._clock = context.clock
        self._away = PartitionsAway(context.conf.retry_backoff, context.clock)
        self._run = secrets.token_hex(4)
        self._looks = 0
        self._ahead: tuple[str, dict[int, bytes]] = ("", {})
        """What the last look has taken, by partition, and its name."""
        self._kept: dict[int, tuple[str, dict[int, bytes]]] = {}
        """The same of the newest attempt of each batch in flight."""
        self._passed: dict[int, tuple[Any, Any]] = {}
        """Up to where a partition has nothing, and from where that was found."""

    def is_ready(self, previous: Any) -> bool:
        return bool(self._coordinator.is_ready(self._following)) and super().is_ready(previous)

    def is_drained(self) -> bool:
        """Whether every partition was asked; one that rests may have something."""
        return not self._away.left_alone

    def unreachable(self) -> Mapping[int, str]:
        return self._away.errors

    def lag(self, previous: Any) -> Mapping[str, int]:
        """Add up what the emitter tells of the partitions that can be reached."""
        behind = getattr(self._emitter.given, "lag", None)
        if behind is None:
            return {}
        ends = [e[0] if e[1] is None else e[1] for e in previous or []]
        there = [p for p in range(self._owner.num_partitions()) if p not in self._away.errors]
        return {"offsets": sum(behind(p, ends[p] if p < len(ends) else None) for p in there)}

    def attempt_failed(self, error: BaseException) -> None:
        told = read_away_error(error, self._name) if self._opaque else None
        if told is not None:
            self._away.read_in_vain(*told)

    def goes_on(self, metadata: Any) -> bool:
        return any(entry[1] is not None for entry in metadata)

    def holds_data(self, metadata: Any) -> bool | None:
        held = [entry for entry in metadata if entry[1] is not None]
        return any(len(entry) == 2 or entry[2]["tuples"] for entry in held)

    def look(self, txid: int, previous: Any) -> list[Any]:
        before = previous or []
        there = self._owner.num_partitions()
        self._away.begin_look()
        self._looks += 1
        self._ahead = (f"{self._run}-{self._looks}", {})
        planned = []
        for partition in range(max(there, len(before))):
            last, metadata = before[partition][:2] if partition < len(before) else (None, None)
            start = last if metadata is None else metadata
            nothing = [start, None]
            planned.append(self._next(txid, partition, start) if partition < there else nothing)
        return planned

    def plan(self, txid: int, previous: Any) -> Any:
        metadata = super().plan(txid, previous)
        # When a batch fails, all later ones are planned again too.
        earlier = {t: kept for t, kept in self._kept.items() if t < txid}
        self._kept = {**earlier, txid: self._ahead}
        return metadata

    def taken(self, metadata: Any) -> Mapping[int, bytes]:
        """Return what was taken for the attempt of this metadata. Called by any thread."""
        names = {entry[2]["taken"] for entry in metadata if len(entry) > 2}
        for name, taken in self._kept.values():
            if names == {name}:
                return taken
        if names:
            raise SourceError(
                f"spout {self._name!r}: what was taken for this attempt is given up; a new attempt "
                "takes it anew"
            )
        return {}

    def succeeded(self, txid: int, metadata: Any) -> None:
        self._kept = {t: kept for t, kept in self._kept.items() if t > txid}
        for partition, entry in enumerate(metadata or ()):
            if entry[1] is not None:
                self._away.committed(partition)
        super().succeeded(txid, metadata)

    def _next(self, txid: int, partition: int, start: Any) -> list[Any]:
        """Return a partition's entry in the metadata of a batch that begins at `start`."""
        if not self._opaque:
            return self._found(txid, partition, start)
        if not self._away.may_ask(partition):
            return [start, None]
        began = self._clock()
        try:
            found = self._found(txid, partition, start)
        except Exception as error:
            if isinstance(error, FileNotFoundError) and start is not None:
                raise DataLossError(
                    f"partition {partition} of spout {self._name!r} was read up to {start!r}, and "
                    f"now it is gone: {error}. Put it back as it was; nothing was skipped."
                ) from error
            if not is_away(error):
                raise
            self._away.asked_in_vain(partition, error, began)
            return [start, None]
        self._away.answered(partition)
        return found

    def _found(self, txid: int, partition: int, start: Any) -> list[Any]:
        if self._choose is not None:
            return [start, self._plain(self._choose(txid, partition, start))]
        return self._asked(txid, partition, start)

    def _asked(self, txid: int, partition: int, start: Any) -> list[Any]:
        """Ask an emitter in Storm's form, and again where it moves on without a tuple.

        A position that moves as often as that is stored, with a batch that has no tuples.
        """
        emitter = self._emitter
        emit = emitter.emit_partition_batch if self._opaque else emitter.emit_partition_batch_new
        passed = self._passed.pop(partition, None)
        begin = passed[1] if passed is not None and passed[0] == start else start
        for left in reversed(range(_EMPTY_RANGES)):
            answer = asked(emit, emitter, txid, partition, begin, keeps=self._opaque)
            if not answer.moved:
                if begin != start:
                    self._passed[partition] = (start, begin)
                return [start, None]
            found = self._plain(answer.metadata)
            if answer.taken.count or not left:
                break
            begin = found
        if not answer.taken.count:
            log.info(
                "partition %d of %r has moved to %s without a tuple", partition, self._name, found
            )
        if not self._opaque:
            return [begin, found]
        name, taken = self._ahead
        taken[partition] = answer.taken.packed()
        return [begin, found, {"taken": name, "tuples": answer.taken.count}]


def _who_counts(emitter: Any, coordinator: Any, spout: Any) -> Any:
    """Return who knows the number of partitions: in Storm, the emitter of an opaque spout."""
    if not isinstance(spout, OpaquePartitionedTransactionalSpout):
        return coordinator
    for each in (emitter, coordinator):
        if hasattr(each.given, "num_partitions"):
            return each
    raise TopologyError(
        f"{type(spout).__name__}: its emitter, a {type(emitter.given).__name__}, has no method "
        "num_partitions, and its coordinator has none either"
    )


def _choosing(emitter: Any) -> Callable[[int, int, Any], Any] | None:
    """Return the emitter's own `next_metadata`; None if it is in Storm's form, which has none."""
    choose = getattr(emitter, "next_metadata", None)
    inherited = getattr(choose, "__func__", None) is PartitionEmitter.next_metadata
    return None if inherited else choose
