"""Updates and queries of a state, for the rows of one partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from waterspout import faults
from waterspout._config import Config
from waterspout._serde import encode_key
from waterspout._tuples import TridentTuple
from waterspout.errors import ResultError, TopologyError
from waterspout.state._base import MapState, Snapshottable, State, ValueUpdater
from waterspout.state._batched import BatchedMap, CombinerValueUpdater
from waterspout.state._head import Claim, Writer
from waterspout.state._headed import HeadedState
from waterspout.state._kinds import SnapshottableMap
from waterspout.state._rows import RowsState
from waterspout.transactional._states import begin_commit
from waterspout.trident.operations.contracts import (
    CombinerAggregator,
    OperationContext,
    ReducerAggregator,
    TableUpdater,
    TridentCollector,
    describe,
)
from waterspout.trident.plan.nodes import (
    LATE,
    CombineInto,
    NewValues,
    Query,
    ReduceInto,
    Update,
    UpdateWith,
)
from waterspout.trident.plan.plan import Plan, Shape, StateSpec
from waterspout.trident.runtime.finishing import finishing
from waterspout.trident.runtime.rows import append_repeated, as_tuples, prepared, rows_to_batch
from waterspout.waves.garbage import no_collection

__all__ = [
    "new_values",
    "open_headed_states",
    "open_state",
    "publish_rows",
    "run_query",
    "run_update",
]


def open_state(
    spec: StateSpec,
    conf: Config,
    partition: int,
    writer: Writer | None,
    pause: Callable[[str], None] | None = None,
) -> State:
    """Make the live state of one partition.

    `pause`: a reader outside of the batches waits for one that is being committed, if it must.
    """
    state = spec.factory.make_state(conf, partition, spec.partitions)
    if isinstance(state, HeadedState) and writer is not None:
        state.enroll(writer, spec.name)
    if isinstance(state, BatchedMap) and pause is not None:
        state.wait_for_commits(pause)
    return state


def open_headed_states(plan: Plan, conf: Config) -> dict[str, HeadedState]:
    """Open the states whose heads a driver moves: those that the plan updates and that have one."""
    states: dict[str, HeadedState] = {}
    for name, spec in plan.states.items():
        state = None if spec.static else open_state(spec, conf, 0, None)
        if isinstance(state, HeadedState):
            states[name] = state
            if spec.factory.fenced and not state.is_fenced:
                raise TopologyError(
                    f"the recipe of {name}, {type(spec.factory).__name__}, says fenced = True, but "
                    "the map that it makes has no fence. Make it a FencedMap or a ComparingMap, "
                    "or leave fenced out."
                )
        elif state is not None:
            state.close()
    return states


@no_collection()
def run_update(
    node: Update,
    spec: StateSpec,
    state: State,
    table: pa.Table,
    claim: Claim,
    conf: Config,
    partition: int,
    *,
    want_new: bool,
) -> pa.Table | None:
    """Update a state with one partition's rows. Return the new values.

    No rows, no call, unless every batch is wanted.
    """
    updating, written = node.updating, claim.writing(node.state)
    if table.num_rows == 0 and not node.every_batch:
        return None
    used = _as_shape(node, spec, state)
    begin_commit(used, claim.attempt, claim.resolved)
    made: Sequence[Sequence[Any]] | pa.Table | None
    with prepared(node.operations, conf, OperationContext(partition, spec.partitions)):
        match updating:
            case CombineInto():
                made = _combine_into(updating, used, table, want_new)
            case ReduceInto():
                made = _reduce_into(updating, used, table)
            case UpdateWith():
                made = _update_with(node.title, updating, used, table, partition, claim)
    used.commit(claim.attempt.txid)
    if isinstance(state, HeadedState):
        written.add(state.written)
    if not want_new or made is None:
        return None
    if isinstance(made, pa.Table):
        return made
    return pa.Table.from_batches([rows_to_batch(made, node.schema, node.title)])


def publish_rows(state: Callable[[], State], node: Update, claim: Claim) -> None:
    """Show the rows that all partitions have put down, where a state shows them only then.

    Called in the driver, when all of a state is written and before its batch is marked. `state` is
    asked for it only if there is something to show.
    """
    receipts = claim.writing(node.state).receipts
    if receipts:
        found = state()
        assert isinstance(found, RowsState), "only rows have receipts"
        found.publish(claim, receipts)


def new_values(node: NewValues, table: pa.Table) -> pa.Table:
    """Return what a stream has of what an update emitted."""
    if node.late is None:
        return table
    chosen = table.column(LATE) if node.late else pc.invert(table.column(LATE))
    return table.filter(chosen).select(list(node.schema.names))


def run_query(
    node: Query,
    spec: StateSpec,
    state: State,
    batch: pa.RecordBatch,
    claim: Claim | None,
    conf: Config,
    partition: int,
) -> pa.RecordBatch:
    """Append a state's answers. With a claim, the state is seen as that batch finds it."""
    used = state
    if spec.shape is Shape.SNAPSHOT and isinstance(state, BatchedMap):
        used = SnapshottableMap(state)
    if claim is not None:
        begin_commit(used, claim.attempt, claim.resolved)
    if spec.finisher is not None:
        used = finishing(used, spec.finisher)
    query = node.query
    with prepared([query], conf, OperationContext(partition, spec.partitions)):
        rows = as_tuples(batch, node.fields)
        answers = list(query.batch_retrieve(used, rows)) if rows else []
        if len(answers) != len(rows):
            raise ResultError(f"{node.title} gave {len(answers)} answers for {len(rows)} tuples")
        collector, counts = TridentCollector(), []
        for row, answer in zip(rows, answers, strict=True):
            before = len(collector.rows)
            query.execute(row, answer, collector)
            counts.append(len(collector.rows) - before)
    made = rows_to_batch(collector.rows, node.out, node.title)
    return append_repeated(batch, counts, made, node.out)


def _combine_into(
    updating: CombineInto, state: State, table: pa.Table, want_new: bool
) -> list[tuple[Any, ...]] | None:
    columns = [table.column(name).to_pylist() for name in updating.values]
    wide = len(columns) > 1
    partials = list(zip(*columns, strict=True)) if wide else columns[0]
    if isinstance(state, Snapshottable):
        values: Sequence[Any] = [
            state.update(CombinerValueUpdater(updating.operation, partial)) for partial in partials
        ]
        last = _finished(updating.operation, values[-1:])[0]
        return [tuple(last) if wide else (last,)]
    keys = _keys(table, updating.keys)
    if isinstance(state, BatchedMap):
        new = state.multi_combine(keys, partials, updating.operation, want_new=want_new)
    else:
        assert isinstance(state, MapState)
        updaters = [CombinerValueUpdater(updating.operation, partial) for partial in partials]
        new = state.multi_update(keys, updaters)
    if new is None:
        return None
    finished = _finished(updating.operation, new)
    rows: Sequence[Any] = finished if wide else [(value,) for value in finished]
    return [(*key, *row) for key, row in zip(keys, rows, strict=True)]


def _finished(aggregator: CombinerAggregator[Any], values: Sequence[Any]) -> Sequence[Any]:
    """Return values as a reader sees them."""
    if not aggregator.finishes:
        return values
    return [None if value is None else aggregator.finish(value) for value in values]


def _reduce_into(updating: ReduceInto, state: State, table: pa.Table) -> list[tuple[Any, ...]]:
    groups: dict[str, tuple[tuple[Any, ...], list[TridentTuple]]] = {}
    rows = as_tuples(table, updating.fields)
    for key, row in zip(_keys(table, updating.keys), rows, strict=True):
        groups.setdefault(encode_key(key), (key, []))[1].append(row)
    keys = [key for key, _ in groups.values()]
    updaters = [_Reduction(updating.operation, tuples) for _, tuples in groups.values()]
    if isinstance(state, Snapshottable):
        return [(state.update(updaters[0]),)]
    assert isinstance(state, MapState)
    new = state.multi_update(keys, updaters)
    return [(*key, value) for key, value in zip(keys, new, strict=True)]


def _update_with(
    title: str, updating: UpdateWith, state: State, table: pa.Table, partition: int, claim: Claim
) -> list[Sequence[Any]] | pa.Table:
    collector, txid = TridentCollector(), claim.attempt.txid
    learn = getattr(updating.operation, "begin_batch", None)
    if learn is not None:
        learn(claim, partition)
    fenced = isinstance(state, HeadedState)
    if isinstance(state, BatchedMap) and updating.keys is not None:
        who = f"{title}: {describe(updating.operation)} declares keys {', '.join(updating.keys)},"
        state.confine(_keys(table, updating.keys), len(updating.keys), who)
    if not fenced:
        faults.point("write.before", txid=txid, partition=partition)
    made: list[Sequence[Any]] | pa.Table = collector.rows
    if isinstance(updating.operation, TableUpdater):
        made = updating.operation.update_table(state, table.select(list(updating.fields)))
    else:
        updating.operation.update_state(state, as_tuples(table, updating.fields), collector)
    if not fenced:
        faults.point("write.after", txid=txid, partition=partition)
    return made


@dataclass(frozen=True, slots=True)
class _Reduction(ValueUpdater[Any]):
    aggregator: ReducerAggregator[Any]
    tuples: Sequence[TridentTuple]

    def update(self, stored: Any | None) -> Any:
        value = self.aggregator.init() if stored is None else stored
        for row in self.tuples:
            value = self.aggregator.reduce(value, row)
        return value


def _keys(table: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    if not names:
        return [()] * int(table.num_rows)
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


_WANTED: dict[Shape, type[State]] = {
    Shape.MAP: MapState,
    Shape.SNAPSHOT: Snapshottable,
    Shape.ROWS: RowsState,
    Shape.OWN: State,
}


def _as_shape(node: Update, spec: StateSpec, state: State) -> State:
    shape = spec.shape
    if shape is Shape.SNAPSHOT and isinstance(state, BatchedMap):
        return SnapshottableMap(state)
    wanted = _WANTED[shape]
    if not isinstance(state, wanted):
        raise TopologyError(
            f"{node.title} needs a {wanted.__name__}; its factory made a {type(state).__name__}"
        )
    return state
