"""A state of a topology, to be queried, read, or followed by its new values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.errors import TopologyError
from waterspout.state._base import Key, MapState, Snapshottable
from waterspout.state._rows import RowsState
from waterspout.trident.operations.contracts import QueryFunction
from waterspout.trident.operations.queries import JoinGet, MapGet
from waterspout.trident.plan.nodes import NewValues, Node
from waterspout.trident.plan.plan import StateSpec
from waterspout.trident.runtime.finishing import finishing
from waterspout.trident.runtime.scan import ScanTask

if TYPE_CHECKING:
    from waterspout.trident._stream import Stream
    from waterspout.trident._topology import TridentTopology

__all__ = ["TridentState"]


class TridentState:
    """A handle on a state; holds no connection."""

    def __init__(
        self,
        topology: TridentTopology,
        name: str,
        keys: Schema,
        values: Schema,
        update: Node | None,
        *,
        rows: Schema | None = None,
    ) -> None:
        self.topology = topology
        self.name = name
        self._keys = keys
        self._values = values
        self._update = update
        self._rows = rows

    @property
    def node(self) -> Node | None:
        """The node of the plan that updates it; None if it is only read here."""
        return self._update

    @property
    def keys(self) -> Schema:
        """The fields of the key; none if they are not known, or there is one value only."""
        return self._keys

    @property
    def values(self) -> Schema:
        """The fields of a value, as a reader sees them; none if they are not known."""
        return self._values

    @property
    def keeps_rows(self) -> bool:
        """Whether it is a table of rows, which cannot be asked for the value of a key."""
        return self.topology.state_spec(self.name).factory.keeps_rows

    def new_values_stream(self) -> Stream:
        """Return, for each batch, the keys that it changed with their new values."""
        if self._rows is not None:
            raise TopologyError(
                f"state {self.name!r} is given rows and emits none; go on with the stream itself"
            )
        if self._update is None:
            raise TopologyError(f"state {self.name!r} is not updated here: it has no new values")
        update, name = self._update, f"new values of {self.name}"
        return self.topology.add(NewValues, name, update.schema, [update])

    def parallelism_hint(self, n: int) -> TridentState:
        """Spread the state over `n` partitions."""
        self.topology.set_partitions(self.name, n)
        return self

    def get(self, key: Key | None = None) -> Any:
        """Return the committed value of a key (of the whole state, if it is a global one).

        A key of one field may be given as the bare value.
        """
        return self._ask(None if key is None else [key])[0]

    def multi_get(self, keys: Sequence[Key]) -> list[Any]:
        """Return the committed values of many keys, without a Spark job."""
        return self._ask(keys)

    def to_dataframe(self, spark: Any, *, partitions: int = 4) -> Any:
        """Return the whole state as a DataFrame: the key fields, then the values; or its rows.

        Committed values only, where the state can tell them. Executors read it in `partitions`
        shards at once; a state that only the driver reaches is read here, now.
        """
        if self._update is None:
            raise TopologyError(
                f"state {self.name!r} is only read here, so its fields are not known; ask the "
                "topology that updates it"
            )
        schema = Schema(self._keys.fields + self._values.fields)
        spec = self.topology.state_spec(self.name)
        frame = self._as_frame(spark, spec, schema, partitions)
        # A table of rows has the fields in the order that its stream has.
        return frame if self._rows is None else frame.select(*self._rows.names)

    def _as_frame(self, spark: Any, spec: StateSpec, schema: Schema, partitions: int) -> Any:
        if spec.factory.driver_only:
            table = ScanTask(spec, schema, len(self._keys), 1).everything()
            if table.num_rows == 0:
                return spark.createDataFrame([], schema.ddl())
            return spark.createDataFrame(table)
        task = ScanTask(spec, schema, len(self._keys), partitions)
        shards = spark.range(0, partitions, 1, numPartitions=partitions)
        return shards.mapInArrow(task, schema.ddl())

    def _ask(self, keys: Sequence[Key] | None) -> list[Any]:
        spec = self.topology.state_spec(self.name)
        state = spec.factory.make_state(Config(), 0, spec.partitions)
        if spec.finisher is not None:
            state = finishing(state, spec.finisher)
        try:
            if keys is None and isinstance(state, Snapshottable):
                return [state.get()]
            if isinstance(state, RowsState):
                raise TopologyError(
                    f"state {self.name!r} keeps rows, which have no key to be asked by; read them "
                    "with to_dataframe(), or in the store itself"
                )
            if not isinstance(state, MapState):
                raise TopologyError(f"state {self.name!r} is not a map; it cannot be asked by key")
            return state.multi_get([()] if keys is None else [_as_key(key) for key in keys])
        finally:
            state.close()

    def get_columns(self, width: int, where: str) -> QueryFunction[Any, Any]:
        """Return the query that looks keys up, with a field for each column of the values."""
        columns = self._values.names
        if len(columns) != width:
            raise TopologyError(
                f"{where} looks up {', '.join(columns)} in {self.name}; "
                f'write out="{", ".join(columns)}", or as many other names'
            )
        return MapGet() if width == 1 else JoinGet(missing=True, width=width)

    def value_types(self, width: int) -> Sequence[str | None]:
        """Return the types of the values, for a query that gives as many fields."""
        return self._values.types if len(self._values) == width else (None,) * width

    def tuple_types(self, width: int) -> Sequence[str | None]:
        """Return the types of keys and values, for a query that gives as many fields."""
        types = (*self._keys.types, *self._values.types)
        return types if len(types) == width else (None,) * width


def _as_key(key: Any) -> Key:
    return tuple(key) if isinstance(key, (tuple, list)) else (key,)
