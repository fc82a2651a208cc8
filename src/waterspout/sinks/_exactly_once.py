"""`exactly_once`: the function to give to `writeStream.foreachBatch`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from waterspout._config import Config
from waterspout._schema import FieldNames, check_topology_id
from waterspout.errors import TopologyError
from waterspout.state._base import StateFactory
from waterspout.state._foreach_batch import QueryIdentity
from waterspout.trident._counting import Target
from waterspout.trident.operations.accepted import ColumnOperation
from waterspout.trident.operations.aggregators import Columns
from waterspout.trident.operations.row_updaters import AppendRows, RowUpdater, UpsertRows

if TYPE_CHECKING:
    from waterspout.spark.sink import SinkRun

__all__ = ["ExactlyOnce", "exactly_once"]


def exactly_once(
    factory: StateFactory,
    *,
    keys: FieldNames = (),
    append: bool = False,
    upsert: FieldNames | None = None,
    order_by: str | None = None,
    **columns: ColumnOperation,
) -> ExactlyOnce:
    """Return a function for `foreachBatch` that writes each batch to a state exactly once.

    Each keyword is a column of the state: an aggregator over whole rows, or a pair of a field (or
    a list of fields) and an aggregator over it.

        counts = PostgresState.opaque(dsn, table="counts")
        sink = exactly_once(counts, keys=["word"], count=Count(), total=("amount", Sum()))
        df.writeStream.foreachBatch(sink).option("checkpointLocation", ...).start()

    Instead of counting, `append=True` appends each row as it is, and `upsert=["id"]` puts it in
    place of the row with its key; with `order_by` only if that is not a later one (see `AppendRows`
    and `UpsertRows`).
    """
    rows = _Rows(append, upsert, order_by)
    return ExactlyOnce((_target(factory, keys, rows, columns),))


@dataclass(frozen=True)
class _Rows:
    """What was said of rows that are written as they are."""

    append: bool
    upsert: FieldNames | None
    order_by: str | None

    def updater(self, counted: Sequence[str]) -> RowUpdater | None:
        """Return how rows are written, None if they are counted; refuse what does not fit."""
        if not isinstance(self.append, bool):
            raise TopologyError(f"append is True or False, not {self.append!r}")
        if self.order_by is not None and self.upsert is None:
            raise TopologyError(
                "order_by says which of two rows of a key is the later one: it goes with "
                'upsert=["id"]'
            )
        if not self.append and self.upsert is None:
            return None
        if self.append and self.upsert is not None:
            raise TopologyError(
                "rows are appended or upserted, not both: give append=True or upsert=[...]; for "
                "two tables, exactly_once(...).also(...)"
            )
        if counted:
            what = "append=True" if self.append else "upsert=[...]"
            raise TopologyError(
                f"{what} writes rows as they are; keys and aggregates ({', '.join(counted)}) do "
                "not go with it. To count as well, add a state: exactly_once(...).also(...)"
            )
        return AppendRows() if self.upsert is None else UpsertRows(self.upsert, self.order_by)


def _target(
    factory: StateFactory, keys: FieldNames, rows: _Rows, columns: dict[str, ColumnOperation]
) -> Target:
    counted = [*(["keys"] if keys else []), *columns]
    if (updater := rows.updater(counted)) is not None:
        return Target(factory, (), updater)
    names = (keys,) if isinstance(keys, str) else tuple(keys)
    if not all(isinstance(name, str) and name for name in names):
        raise TopologyError(f'keys are the names of columns, such as keys=["word"]; got {keys!r}')
    both = set(names) & set(columns)
    if both:
        raise TopologyError(f"{sorted(both)} cannot be keys and aggregates of one state")
    return Target(factory, names, Columns(**columns))


@dataclass(eq=False)
class ExactlyOnce:
    """The sink: Spark calls it with each batch. It can be pickled at any time."""

    targets: tuple[Target, ...]
    name: str = "foreachBatch"
    starts_at: int | None = None
    config: Config = field(default_factory=Config)
    _run: SinkRun | None = field(default=None, init=False, repr=False)
    _home: Any = field(default=None, init=False, repr=False)
    """The Connect session that the query was started in, where this is a copy on its server."""

    def __post_init__(self) -> None:
        locations = [target.factory.location() for target in self.targets]
        if len(set(locations)) < len(locations):
            raise TopologyError(
                f"two states of one sink are kept in {locations[-1]}; use two tables"
            )
        check_topology_id(self.name)

    def also(
        self,
        factory: StateFactory,
        *,
        keys: FieldNames = (),
        append: bool = False,
        upsert: FieldNames | None = None,
        order_by: str | None = None,
        **columns: ColumnOperation,
    ) -> ExactlyOnce:
        """Return a sink that also writes each batch to this state, as `exactly_once` would."""
        rows = _Rows(append, upsert, order_by)
        return replace(self, targets=(*self.targets, _target(factory, keys, rows, columns)))

    def named(self, name: str) -> ExactlyOnce:
        """Return the sink under this name. A state accepts only the sink that wrote it first."""
        return replace(self, name=name)

    def starting_at(self, batch_id: int) -> ExactlyOnce:
        """Return a sink whose states begin with this batch, for a query that has run before.

        The state notes it with its first batch. From then on it need not be said again, and
        another number is refused.
        """
        if not isinstance(batch_id, int) or isinstance(batch_id, bool) or batch_id < 0:
            raise TopologyError(f"a batch id is a number from 0 on, not {batch_id!r}")
        return replace(self, starts_at=batch_id)

    def configured(self, config: Config) -> ExactlyOnce:
        """Return the sink with other settings (`state_partitions`, `commit_in` and the like)."""
        return replace(self, config=config)

    def __call__(self, frame: Any, batch_id: int) -> None:
        """Write a batch (a DataFrame), unless the states have it already."""
        from waterspout.spark.sink import SinkRun, query_id

        # Asked for each time: one sink may be given to two queries, and then the second of them
        # must meet the head of the state as itself.
        query = query_id(frame, batch_id, self._home)
        run = self._run
        if run is None or run.query != query:
            who = QueryIdentity(f"sink {self.name}", query, self.starts_at)
            run = self._run = SinkRun(self.targets, self.name, who, self.config, frame)
        run.take(frame, batch_id)

    def __getstate__(self) -> dict[str, Any]:
        # Connections and sessions cannot travel; they are made again where Spark calls.
        return {**self.__dict__, "_run": None, "_home": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if os.environ.get("SPARK_CONNECT_MODE_ENABLED"):
            from waterspout.spark.sink import active_connect_session

            # Only now: with the first batch Spark makes a copy of the session the active one.
            self._home = active_connect_session()
