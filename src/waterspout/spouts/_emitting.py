"""A batch spout in Storm's shape: it is asked for batch n, and emits its tuples."""

from __future__ import annotations

import logging
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from waterspout._schema import FieldNames, Schema
from waterspout.errors import SourceError
from waterspout.spouts._base import AdaptedSource, BatchPlanner, RunsIn, SpoutContext, SpoutKind
from waterspout.spouts._emission import emitting_context
from waterspout.spouts._reads import Read, RowsRead
from waterspout.topology._collector import Emitter
from waterspout.topology._context import TopologyContext
from waterspout.topology._ports import Outlet, Port

__all__ = ["EmittingSource", "EmittingSpout", "RowsCollector"]

log = logging.getLogger(__name__)

Rows = Sequence[tuple[Any, ...]]


class RowsCollector(Emitter):
    """Takes the tuples of one batch."""

    __slots__ = ("_outlet", "rows")

    def __init__(self, spout_id: str, names: Sequence[str]) -> None:
        self._outlet = Outlet("default", names, lambda _: ())
        super().__init__(Port(spout_id, {"default": self._outlet}))
        self.rows: list[tuple[Any, ...]] = []

    def emit(self, values: Sequence[Any]) -> None:
        """Add a tuple to the batch."""
        self.rows.append(self._outlet.fit(values))


class EmittingSpout(ABC):
    """A source that emits batch after batch, each when it is asked for it. Runs in the driver.

    A batch is as large as `emit_batch` makes it, and all of it is in the driver's memory: for
    small sources and for tests. One call at a time; not always on the same thread.

    What a replay holds is the spout's own affair. One that gives the same tuples whenever it is
    asked for the same batch, also after a restart, says `transactional = True`: then states can
    be exactly-once. Without, a replay may hold anything, and none is.
    """

    transactional: ClassVar[bool] = False

    output_fields: FieldNames | None = None
    """The fields, with types: `"word string, n bigint"`; None: `new_stream(out=...)` has them."""

    configuration: Mapping[str, Any] = {}
    """Options of this spout alone, by Storm's keys or your own."""

    def open(  # noqa: B027  (optional hook)
        self, conf: Mapping[str, Any], context: TopologyContext
    ) -> None:
        """Connect to the source. Called once per run."""

    @abstractmethod
    def emit_batch(self, batch_id: int, collector: RowsCollector) -> bool | None:
        """Emit the tuples of a batch: `collector.emit(values)`; nothing, if there are none now.

        Batches are numbered 1, 2, 3... A batch without tuples is not begun: the same number is
        asked for again, until there are some. Return True if this batch is a batch although it has
        no tuples, because all were filtered out, say: it is then begun, and the next number comes.
        A replay asks for the same number again. The first number that is asked for after `open`
        says that all batches before it have committed.
        """

    def ack(self, batch_id: int) -> None:  # noqa: B027  (optional hook)
        """A batch has committed. Not called if the driver dies just then."""

    def close(self) -> None:  # noqa: B027  (optional hook)
        """Give up connections; not called if the process dies."""


class EmittingSource(AdaptedSource[EmittingSpout]):
    """Recipe of the stream of an `EmittingSpout`."""

    read_in = RunsIn.PYTHON

    def __init__(self, spout: EmittingSpout, topology: str, spout_id: str, schema: Schema) -> None:
        is_exact = spout.transactional
        kind = SpoutKind.TRANSACTIONAL if is_exact else SpoutKind.NON_TRANSACTIONAL
        super().__init__(spout, spout_id, schema, kind)
        self._topology = topology
        self._planner: _EmittingPlanner | None = None

    def open(self, context: SpoutContext) -> BatchPlanner:
        names = self._schema.names
        where = emitting_context(self._topology, self._spout_id, names, 0, 1)
        self.original.open({**context.conf.to_dict(), **self.original.configuration}, where)
        self._planner = _EmittingPlanner(self.original, self._spout_id, names, context.current)
        return self._planner

    def read(self, metadata: Any) -> Read:
        """Return the rows of the batch; a transactional spout is asked for them again."""
        if self._planner is None:
            raise SourceError(f"{self._where} is not open: only a run can read it")
        rows = self._planner.rows_of(metadata)
        prefix = f"batch {metadata['txid']}, row "
        return RowsRead(self._schema, rows, prefix=prefix, where=self._where)


class _EmittingPlanner(BatchPlanner):
    """Emits the next batch when asked whether there is one, and keeps it until it is read."""

    def __init__(
        self, spout: EmittingSpout, spout_id: str, names: Sequence[str], current: int
    ) -> None:
        self._spout = spout
        self._spout_id = spout_id
        self._names = names
        self._first = current
        self._run = secrets.token_hex(4)
        self._ahead: tuple[int, Rows] | None = None
        self._kept: dict[int, tuple[str, Rows]] = {}
        """By txid, the newest attempt's name and rows."""
        self._plans = 0
        self._lock = threading.Lock()  # the engine's threads read

    def is_ready(self, previous: Any) -> bool:
        txid = self._first if previous is None else int(previous["txid"]) + 1
        with self._lock:
            if self._ahead is None or self._ahead[0] != txid:
                rows, goes_on = self._emit(txid)
                self._ahead = (txid, rows) if goes_on else None
            return self._ahead is not None

    def plan(self, txid: int, previous: Any, target: int | None = None) -> Any:
        with self._lock:
            ahead, self._ahead = self._ahead, None
            if ahead is not None and ahead[0] == txid:
                rows = ahead[1]
            else:
                rows, _ = self._emit(txid)
                self._ahead = ahead
            self._plans += 1
            name = f"{self._run}-{self._plans}"
            self._kept[txid] = (name, rows)
        return {"txid": txid, "rows": len(rows), "attempt": name}

    def holds_data(self, metadata: Any) -> bool | None:
        return bool(metadata["rows"])

    def rows_of(self, metadata: Any) -> Rows:
        """Return what this metadata stands for."""
        txid, count = metadata["txid"], metadata["rows"]
        with self._lock:
            name, rows = self._kept.get(txid, ("", ()))
            if name == metadata["attempt"]:
                if self._spout.transactional:
                    del self._kept[txid]  # a replay asks again, as in Storm
                return rows
            if not self._spout.transactional:
                raise SourceError(f"spout {self._spout_id!r} no longer has batch {txid}")
            # Pinned as empty: what is there by now belongs to a later batch.
            rows = self._emit(txid)[0] if count else ()
        if len(rows) != count:
            raise SourceError(
                f"spout {self._spout_id!r} says that it is transactional, but gave {len(rows)} "
                f"tuples for batch {txid} where it had given {count}; nothing of it was written. "
                "Let emit_batch give the same tuples for the same number, or leave "
                "`transactional` off."
            )
        return rows

    def succeeded(self, txid: int, metadata: Any) -> None:
        with self._lock:
            self._kept.pop(txid, None)
            self._spout.ack(txid)

    def close(self) -> None:
        with self._lock:
            self._spout.close()

    def _emit(self, txid: int) -> tuple[Rows, bool]:
        """Return the rows of a batch, and whether there is such a batch, rows or not."""
        collector = RowsCollector(self._spout_id, self._names)
        is_batch = self._spout.emit_batch(txid, collector)
        return collector.rows, bool(collector.rows) or is_batch is True
