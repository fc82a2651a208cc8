"""Transactional spouts as sources of batches: how their metadata is chosen, in the driver."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from waterspout._schema import Schema
from waterspout.errors import FailedException, SourceError
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
from waterspout.transactional._spouts import (
    OpaquePartitionedTransactionalSpout,
    TransactionalSpout,
    learned,
)

__all__ = ["EmittedSource", "EmittedSpout"]

log = logging.getLogger(__name__)


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

    def open(self, context: SpoutContext) -> BatchPlanner:
        conf = {**context.conf.to_dict(), **self._options}
        is_whole = isinstance(self._spout, TransactionalSpout)
        planner = _Whole if is_whole else _ByPartition
        return planner(self._spout, conf, self._context, context)


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
        )


class _EmitterPlanner(LookingPlanner):
    """What the planners of all three kinds share."""

    def __init__(
        self, spout: Any, conf: Mapping[str, Any], topology: TopologyContext, context: SpoutContext
    ) -> None:
        super().__init__(context)
        self._opaque = isinstance(spout, OpaquePartitionedTransactionalSpout)
        self._name = topology.this_component_id
        self._coordinator = spout.get_coordinator(conf, topology)
        self._emitter = spout.get_emitter(conf, topology)

    def succeeded(self, txid: int, metadata: Any) -> None:
        self._emitter.cleanup_before(txid)

    def close(self) -> None:
        for each in (self._coordinator, self._emitter):
            each.close()

    def _plain(self, metadata: Any) -> Any:
        return as_json(metadata, f"spout {self._name!r} gave metadata that is not JSON")


class _Whole(_EmitterPlanner):
    """Plans for a `TransactionalSpout`, whose coordinator makes the whole metadata."""

    def is_ready(self, previous: Any) -> bool:
        return bool(self._coordinator.is_ready())

    def look(self, txid: int, previous: Any) -> Any:
        return self._plain(self._coordinator.initialize_transaction(txid, previous))


class _ByPartition(_EmitterPlanner):
    """Metadata of a batch: for each partition, where the last batch ended and what this one has.

    A partition that has nothing (or is down, or is not counted for a while) keeps its last position
    for the batches to come.
    """

    def is_ready(self, previous: Any) -> bool:
        return bool(self._coordinator.is_ready()) and super().is_ready(previous)

    def holds_data(self, metadata: Any) -> bool | None:
        return any(held is not None for _, held in metadata)

    def look(self, txid: int, previous: Any) -> list[Any]:
        owner = self._emitter if self._opaque else self._coordinator
        before = previous or []
        there = owner.num_partitions()
        planned = []
        for partition in range(max(there, len(before))):
            last, metadata = before[partition] if partition < len(before) else (None, None)
            start = last if metadata is None else metadata
            following = self._next(txid, partition, start) if partition < there else None
            planned.append([start, self._plain(following)])
        return planned

    def _next(self, txid: int, partition: int, last: Any) -> Any:
        choose = getattr(self._emitter, "next_metadata", None)
        try:
            if choose is not None:
                return choose(txid, partition, last)
            emit = self._emitter.emit_partition_batch
            return learned(emit, self._emitter, txid, partition, last)
        except (FailedException, SourceError) as error:
            if not self._opaque:
                raise
            log.warning("partition %d of %r gives nothing: %s", partition, self._name, error)
            return None
