"""Transactional spouts as sources of batches: how their metadata is chosen, in the driver."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from waterspout.errors import FailedException, SourceError, TopologyError
from waterspout.schema import Schema
from waterspout.spouts.base import (
    AdaptedSource,
    BatchPlanner,
    PlannedSpout,
    RunsIn,
    SpoutContext,
    SpoutKind,
)
from waterspout.spouts.emission import emitting_context
from waterspout.spouts.reads import EmitRead, Read
from waterspout.topology.builder import SpoutDeclarer
from waterspout.topology.context import TopologyContext
from waterspout.topology.pickling import require_picklable
from waterspout.transactional.attempt import TransactionAttempt
from waterspout.transactional.collector import BatchCollector
from waterspout.transactional.spouts import (
    OpaquePartitionedTransactionalSpout,
    TransactionalSpout,
    pinned,
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
        if isinstance(self._spout, TransactionalSpout):
            return _Whole(self._spout, conf, self._context)
        opaque = self.kind is SpoutKind.OPAQUE
        following = max([context.current - 1, *context.known]) + 1
        return _ByPartition(self._spout, conf, self._context, following, opaque=opaque)


class EmittedSource(AdaptedSource[Any]):
    """Recipe of the stream of a transactional spout: planned here, emitted on the executors."""

    read_in = RunsIn.PYTHON

    def __init__(self, spout: Any, topology: str, spout_id: str, schema: Schema) -> None:
        self._topology = topology
        self._pickled = require_picklable(spout, f"spout {spout_id!r}")
        self._options = SpoutDeclarer(spout_id, spout, 1).spec(is_spout=True).configuration
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


class _EmitterPlanner(BatchPlanner):
    """What the planners of all three kinds share."""

    def __init__(self, spout: Any, conf: Mapping[str, Any], context: TopologyContext) -> None:
        self._name = context.this_component_id
        self._coordinator = spout.get_coordinator(conf, context)
        self._emitter = spout.get_emitter(conf, context)

    def succeeded(self, txid: int, metadata: Any) -> None:
        self._emitter.cleanup_before(txid)

    def close(self) -> None:
        for each in (self._coordinator, self._emitter):
            each.close()

    def _plain(self, metadata: Any) -> Any:
        """Return metadata as it will be read back, or say that it is not JSON."""
        try:
            return json.loads(json.dumps(metadata, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise TopologyError(
                f"spout {self._name!r} gave metadata that is not JSON: {error}. Use numbers, text, "
                "lists, dicts and None."
            ) from None


class _Whole(_EmitterPlanner):
    """Plans for a `TransactionalSpout`, whose coordinator makes the whole metadata."""

    def is_ready(self, previous: Any) -> bool:
        return bool(self._coordinator.is_ready())

    def plan(self, txid: int, previous: Any) -> Any:
        return self._plain(self._coordinator.initialize_transaction(txid, previous))


class _ByPartition(_EmitterPlanner):
    """Metadata of a batch: for each partition, where the last batch ended and what this one has.

    A partition that has nothing (or is down, or is not counted for a while) keeps its last position
    for the batches to come.
    """

    def __init__(
        self,
        spout: Any,
        conf: Mapping[str, Any],
        context: TopologyContext,
        following: int,
        *,
        opaque: bool,
    ) -> None:
        super().__init__(spout, conf, context)
        self._opaque = opaque
        self._following = following  # the first txid that was never planned
        self._looked: tuple[tuple[int, str], list[Any]] | None = None

    def is_ready(self, previous: Any) -> bool:
        if not self._coordinator.is_ready():
            return False
        planned = self._all(self._following, previous)
        self._looked = ((self._following, json.dumps(previous)), planned)
        return any(metadata is not None for _, metadata in planned)

    def plan(self, txid: int, previous: Any) -> Any:
        looked, self._looked = self._looked, None
        self._following = max(self._following, txid + 1)
        if looked is not None and looked[0] == (txid, json.dumps(previous)):
            return looked[1]
        return self._all(txid, previous)

    def holds_data(self, metadata: Any) -> bool | None:
        return any(held is not None for _, held in metadata)

    def _all(self, txid: int, previous: Any) -> list[Any]:
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
            nowhere = BatchCollector.counting()
            attempt = TransactionAttempt(txid, 0)
            metadata = self._emitter.emit_partition_batch(attempt, nowhere, partition, last)
        except (FailedException, SourceError) as error:
            if not self._opaque:
                raise
            log.warning("partition %d of %r gives nothing: %s", partition, self._name, error)
            return None
        return pinned(metadata, nowhere.count, type(self._emitter).__name__)
