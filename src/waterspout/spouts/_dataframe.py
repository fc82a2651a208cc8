"""A spout whose batch is a DataFrame: `spark.read...` of a range that was pinned before."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from waterspout._safe_repr import shown
from waterspout._schema import FieldNames, Schema
from waterspout._signatures import takes
from waterspout.errors import TopologyError
from waterspout.spouts._base import (
    AdaptedSource,
    BatchPlanner,
    LookingPlanner,
    RunsIn,
    SpoutContext,
    SpoutKind,
    as_json,
)
from waterspout.spouts._reads import FrameRead, Read

__all__ = ["DataFrameSource", "DataFrameSpout"]


class DataFrameSpout(ABC):
    """A source that Spark reads by itself: no row of it passes through Python.

        class Orders(DataFrameSpout):
            schema = "id bigint, amount double"

            def next_range(self, txid, previous):
                start = 0 if previous is None else previous[1]
                end = min(start + 100_000, self.newest_id() + 1)
                return [start, end] if end > start else None

            def read(self, spark, range):
                orders = spark.read.parquet("/data/orders")
                return orders.where(f"id >= {range[0]} and id < {range[1]}")

    Transactional: the range of a batch is stored before it is read, and every attempt reads it.
    So the same range must always give the same rows: rows may be added, but not into ranges that
    were given out. With `kind = SpoutKind.OPAQUE` the range is chosen anew for each attempt.
    """

    kind: SpoutKind = SpoutKind.TRANSACTIONAL

    schema: FieldNames | Schema
    """The fields of the stream, with types. `read` must return them; more are dropped."""

    @abstractmethod
    def next_range(self, txid: int, previous: Any) -> Any:
        """Return the range after `previous` (None: the first), as JSON; None: there is none now.

        Called in the driver, by one thread, often, also to see whether there is anything: must
        be quick. The answer is stored before the batch is read.

        Written with a third parameter, `target=None`, and with `size_of`, it is asked for batches
        of about so many rows, as large as suits (`batch_interval_millis`); None: as you see fit.
        """

    @abstractmethod
    def read(self, spark: Any, range: Any) -> Any:
        """Return the DataFrame of a range; called in the driver for each attempt at its batch.

        A pure function of the range: what it returns is evaluated later, perhaps more than once.
        """

    def lag(self, previous: Any) -> int | None:
        """Return how many rows wait behind this range (None: all); None if nobody can tell.

        For who watches a run, and for the sizes of batches. Called in the driver, about once a
        second: must be quick.
        """
        return None

    def size_of(self, range: Any) -> int | None:
        """Return about how many rows a range has; None if nobody can tell. Must be quick."""
        return None

    def succeeded(self, txid: int, range: Any) -> None:  # noqa: B027  (optional hook)
        """A batch has committed. Not called if the driver dies just then."""

    def close(self) -> None:  # noqa: B027  (optional hook)
        """Give up connections; not called if the process dies."""

    @staticmethod
    def of(
        schema: FieldNames | Schema,
        next_range: Callable[[int, Any], Any],
        read: Callable[[Any, Any], Any],
        *,
        kind: SpoutKind = SpoutKind.TRANSACTIONAL,
    ) -> DataFrameSpout:
        """Return a spout made of two functions, where a class would be too much."""
        return _OfFunctions(schema, next_range, read, kind)


class _OfFunctions(DataFrameSpout):
    def __init__(
        self,
        schema: FieldNames | Schema,
        next_range: Callable[[int, Any], Any],
        read: Callable[[Any, Any], Any],
        kind: SpoutKind,
    ) -> None:
        self.schema = schema
        self._next_range = next_range
        self._read = read
        self.kind = kind

    def next_range(self, txid: int, previous: Any) -> Any:
        return self._next_range(txid, previous)

    def read(self, spark: Any, range: Any) -> Any:
        return self._read(spark, range)


class DataFrameSource(AdaptedSource[DataFrameSpout]):
    """Recipe of the stream of a `DataFrameSpout`.

    Metadata of a batch: the range before it, and its own (None: it has nothing in this batch).
    """

    read_in = RunsIn.JVM

    def __init__(self, spout: DataFrameSpout, spout_id: str, schema: Schema) -> None:
        if not isinstance(spout.kind, SpoutKind):
            raise TopologyError(
                f"spout {spout_id!r}: kind is SpoutKind.TRANSACTIONAL or SpoutKind.OPAQUE, not "
                f"{spout.kind!r}"
            )
        super().__init__(spout, spout_id, schema, spout.kind)

    def open(self, context: SpoutContext) -> BatchPlanner:
        return _RangePlanner(self.original, self._where, context)

    def read(self, metadata: Any) -> Read:
        _, pinned = metadata
        make = None if pinned is None else partial(_read, self.original, pinned)
        return FrameRead(self._schema, make, json.dumps(pinned), self._where)


def _read(spout: DataFrameSpout, pinned: Any, spark: Any) -> Any:
    return spout.read(spark, pinned)


class _RangePlanner(LookingPlanner):
    def __init__(self, spout: DataFrameSpout, where: str, context: SpoutContext) -> None:
        super().__init__(context)
        self._spout = spout
        self._where = where
        self._is_sized = takes(spout.next_range, 3)

    def look(self, txid: int, previous: Any, target: int | None = None) -> Any:
        last, sized = _last(previous), self._is_sized and target is not None
        wish = (target,) if sized else ()
        found = self._spout.next_range(txid, last, *wish)
        otherwise = f"{self._where}: next_range gave {shown(found)}, which is not JSON"
        return [last, as_json(found, otherwise)]

    def size_of(self, metadata: Any) -> int | None:
        if not self._is_sized:
            return None
        return 0 if metadata[1] is None else self._spout.size_of(metadata[1])

    def lag(self, previous: Any) -> Mapping[str, int]:
        rows = self._spout.lag(_last(previous))
        return {} if rows is None else {"rows": rows}

    def holds_data(self, metadata: Any) -> bool | None:
        return metadata[1] is not None

    def succeeded(self, txid: int, metadata: Any) -> None:
        self._spout.succeeded(txid, metadata[1])

    def close(self) -> None:
        self._spout.close()


def _last(previous: Any) -> Any:
    """Return the newest range up to a batch, which itself may have had nothing."""
    if previous is None:
        return None
    before, own = previous
    return before if own is None else own
