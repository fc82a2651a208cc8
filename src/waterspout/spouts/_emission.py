"""Running emitters for a stream: one task's share of a batch, as Arrow data. No Spark in here."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from waterspout._arrow import table_of_rows
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout._tuples import Fields
from waterspout.spouts._reads import POSITION, EmitRead
from waterspout.topology._context import TopologyContext
from waterspout.topology._ports import Outlet, Port
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._bolts import RowByRowCollector
from waterspout.transactional._runtime import emit_partition
from waterspout.transactional._spouts import emitter_of
from waterspout.waves.frames import unpack

__all__ = ["emitted", "emitting_context"]

log = logging.getLogger(__name__)

CHUNK_ROWS = 10_000

_HERE = (0,)


def emitting_context(
    topology: str, spout_id: str, names: tuple[str, ...], index: int, tasks: int
) -> TopologyContext:
    """Return the context of an emitter, in which the spout is the only component."""
    all_tasks = tuple(range(1, tasks + 1))
    streams = {spout_id: {"default": Fields(*names)}}
    return TopologyContext(topology, spout_id, index + 1, {spout_id: all_tasks}, streams)


def emitted(
    read: EmitRead,
    conf: Config,
    attempt: TransactionAttempt,
    index: int,
    tasks: int,
    *,
    with_position: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Emit one task's share of a batch; the same read always gives the same tuples."""
    spout = unpack(read.spout)
    names = ("tx", *read.schema.names)
    context = emitting_context(read.topology, read.spout_id, names, index, tasks)
    emitter = emitter_of(spout, {**conf.to_dict(), **read.options}, context)
    collector = _Rows(read.spout_id, attempt, read.schema, with_position=with_position)
    try:
        if not read.is_partitioned:
            collector.begin({"task": index, "metadata": read.metadata})
            emitter.emit_batch(attempt, read.metadata, collector)
            yield from collector.chunks()
            return
        for partition in read.partitions[index::tasks]:
            pinned, taken = read.metadata[partition][1], read.taken.get(partition)
            collector.begin({"partition": partition, "metadata": pinned})
            emit_partition(spout, emitter, attempt, partition, pinned, taken, collector)
            yield from collector.chunks()
    finally:
        emitter.close()


class _Rows(RowByRowCollector):
    """Collects tuples as Arrow data, which needs less memory than Python objects."""

    __slots__ = ("_box", "_chunks", "_done", "_position", "_schema", "_with_position")

    def __init__(
        self, spout_id: str, attempt: TransactionAttempt, schema: Schema, *, with_position: bool
    ) -> None:
        outlet = Outlet("default", ("tx", *schema.names), lambda _: _HERE)
        super().__init__(Port(spout_id, {"default": outlet}), attempt)
        self._box = outlet.box(0)
        self._schema = schema
        self._with_position = with_position
        self._chunks: list[pa.RecordBatch] = []
        self._done = 0
        self._position = ""

    def begin(self, position: Mapping[str, Any]) -> None:
        """Note where in the source the tuples that follow come from."""
        self._position = json.dumps(position)[:-1]
        self._done = 0

    def emit(self, values: Any, stream: str = "default") -> tuple[int, ...]:
        """Take a tuple `[attempt, ...]`."""
        targets = super().emit(values, stream)
        if len(self._box.values) >= CHUNK_ROWS:
            self._pack()
        return targets

    def chunks(self) -> Iterator[pa.RecordBatch]:
        """Return what was taken and not yet returned."""
        self._pack()
        chunks, self._chunks = self._chunks, []
        yield from chunks

    def _pack(self) -> None:
        rows = [values[1:] for values in self._box.rows]
        if not rows:
            return
        self._box.values.clear()
        self._box.anchors.clear()
        table = table_of_rows(self._schema, rows, where=f"spout {self.port.component!r}")
        if self._with_position:
            numbers = range(self._done, self._done + len(rows))
            positions = [f'{self._position}, "row": {number}}}' for number in numbers]
            table = table.append_column(POSITION, pa.array(positions, pa.string()))
        self._done += len(rows)
        self._chunks += table.to_batches()
