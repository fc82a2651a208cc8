"""Functions and filters over one Arrow batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from waterspout._arrow import arrow_type, make_array
from waterspout._causes import naming
from waterspout._config import Config
from waterspout._fitting import exact_array, exact_cast
from waterspout._schema import Schema
from waterspout._tuples import TridentTuple, field_index
from waterspout.errors import EmitError, ResultError
from waterspout.trident.operations.adapters import (
    ArrowFunction,
    PandasFunction,
    PlainFilter,
    PlainFlatMap,
    PlainFunction,
    PlainMap,
)
from waterspout.trident.operations.contracts import (
    Consumer,
    Filter,
    FlatMapFunction,
    MapFunction,
    Operation,
    OperationContext,
    TridentCollector,
)
from waterspout.trident.plan.nodes import Each, Keep, Mapped, Node, Project

__all__ = [
    "RowStep",
    "append_repeated",
    "apply_step",
    "as_tuples",
    "prepared",
    "row_step",
    "rows_to_batch",
    "run_steps",
]


@dataclass(frozen=True, slots=True)
class RowStep:
    """One operation over batches, with what it must know of its node; picklable."""

    title: str
    operation: Any
    fields: tuple[str, ...]
    out: Schema | None = None
    replaces: bool = False
    kept: tuple[str, ...] | None = None
    """The fields that anybody reads behind this step; None: all."""

    beside: tuple[str, ...] = ()
    """Hidden fields that stay with a tuple even where another takes its place."""


def row_step(node: Node, kept: Schema | None = None) -> RowStep | None:
    """Return a node as a step over batches, if that is what it is.

    `kept` are the fields of its output that are read by anybody.
    """
    names = None if kept is None or len(kept) == len(node.schema) else kept.names
    match node:
        case Each(fields=fields, operation=operation, out=out):
            return RowStep(node.title, operation, fields, out, kept=names)
        case Mapped(fields=fields, operation=operation, beside=beside):
            out = node.schema.without(beside)
            return RowStep(
                node.title, operation, fields, out, replaces=True, kept=names, beside=beside
            )
        case Keep(fields=fields, operation=operation):
            return RowStep(node.title, operation, fields, kept=names)
        case Project(fields=fields):
            return RowStep(node.title, None, fields if names is None else names)
    return None


def run_steps(
    steps: Sequence[RowStep],
    batches: Iterable[pa.RecordBatch],
    conf: Config,
    context: OperationContext,
) -> Iterator[pa.RecordBatch]:
    """Run steps over a partition: prepare all, pass every batch through, clean up."""
    with prepared([step.operation for step in steps], conf, context):
        for batch in batches:
            for step in steps:
                with naming(step.title):
                    batch = apply_step(step, batch)
            yield batch


@contextmanager
def prepared(functions: Iterable[Any], conf: Config, context: OperationContext) -> Iterator[None]:
    """Call `prepare` of all that are operations, and `cleanup` whatever happens then."""
    operations = [each for each in functions if isinstance(each, Operation)]
    for operation in operations:
        operation.prepare(conf, context)
    try:
        yield
    finally:
        for operation in operations:
            operation.cleanup()


def as_tuples(batch: pa.RecordBatch | pa.Table, fields: Sequence[str]) -> list[TridentTuple]:
    """Return some fields of every row as tuples."""
    index = field_index(fields)
    if not fields:
        return [TridentTuple((), index)] * int(batch.num_rows)
    columns = [batch.column(name).to_pylist() for name in fields]
    return [TridentTuple(values, index) for values in zip(*columns, strict=True)]


def rows_to_batch(
    rows: Sequence[Sequence[Any]], schema: Schema, where: str, *, combined: bool = False
) -> pa.RecordBatch:
    """Return emitted rows as a batch; a row of the wrong width or type is an error."""
    # Most rows are tuples and lists, of the right width: told without a loop in Python.
    if not {tuple, list}.issuperset(map(type, rows)) or set(map(len, rows)) - {len(schema)}:
        rows = _fitting(rows, schema, where)
    arrays = [
        make_array(
            list(map(itemgetter(index), rows)),
            arrow_type(kind or "?"),
            field=name,
            where=where,
            combined=combined,
        )
        for index, (name, kind) in enumerate(schema)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(schema.names))


def _fitting(rows: Sequence[Sequence[Any]], schema: Schema, where: str) -> list[tuple[Any, ...]]:
    """Return rows of any kind as tuples; refuse what is no row, or of another width."""
    width = len(schema)
    for row in rows:
        if isinstance(row, (str, bytes)) or not hasattr(row, "__len__"):
            raise EmitError(
                f"{where} emitted {row!r}, which is not one value for each of its fields "
                f"({schema}); emit a tuple"
            )
        if len(row) != width:
            raise EmitError(
                f"{where} emitted {len(row)} values, but its output has {width} fields ({schema})"
            )
    return [tuple(row) for row in rows]


def apply_step(step: RowStep, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Apply a step to a batch."""
    operation = step.operation
    if operation is None:
        return batch.select([*step.fields, *step.beside])
    if isinstance(operation, Filter):
        return _carried(step, batch).filter(_keep(operation, batch, step.fields))
    if isinstance(operation, Consumer):
        for row in as_tuples(batch, step.fields):
            operation.accept(row)
        return _carried(step, batch)
    if isinstance(operation, (ArrowFunction, PandasFunction)):
        return _vectorised(step, operation, batch)
    assert step.out is not None, operation
    counts, made = _called(step, operation, step.out, batch)
    return _append_made(step, batch, counts, made)


def _append_made(
    step: RowStep, batch: pa.RecordBatch, counts: Sequence[int], made: pa.RecordBatch
) -> pa.RecordBatch:
    """Return what a step gives: as many tuples for each row as its count says."""
    if step.replaces and not step.beside:
        return made if step.kept is None else made.select(list(step.kept))
    assert step.out is not None
    return _kept(step, append_repeated(_carried(step, batch), counts, made, step.out))


def _kept(step: RowStep, made: pa.RecordBatch) -> pa.RecordBatch:
    """Return the fields that are read behind a step, in the order of its output."""
    if step.kept is not None:
        return made.select(list(step.kept))
    if step.replaces and step.beside:
        assert step.out is not None
        return made.select([*step.out.names, *step.beside])
    return made


def _carried(step: RowStep, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the fields of the input that are read behind the step."""
    if step.replaces:
        return batch.select(list(step.beside))
    if step.kept is None:
        return batch
    return batch.select([name for name in batch.schema.names if name in step.kept])


def _vectorised(
    step: RowStep, operation: ArrowFunction | PandasFunction, batch: pa.RecordBatch
) -> pa.RecordBatch:
    inputs = batch.select(list(step.fields))
    if isinstance(operation, ArrowFunction):
        result = operation.function(inputs)
    else:
        result = operation.function(inputs.to_pandas())
    if step.out is None:
        return _carried(step, batch).filter(_mask(result, batch.num_rows, step.title))
    carried = _carried(step, batch)
    return _kept(step, _append_columns(step, step.out, carried, result, batch.num_rows))


def _called(
    step: RowStep, operation: Any, out: Schema, batch: pa.RecordBatch
) -> tuple[Sequence[int], pa.RecordBatch]:
    """Call an operation for each row; return how many rows each gave, and all of these.

    Not how many, where no field of the input goes on: nothing has to be repeated then.
    """
    if isinstance(operation, (PlainFunction, PlainMap, PlainFlatMap)):
        rows_in = _bare_rows(batch, step.fields)
        counts: Sequence[int] = ()
        if _carried(step, batch).num_columns:
            counts, results = operation.call_with(rows_in)
        else:
            results = operation.results_of(rows_in)
        if len(out) != 1:
            return counts, rows_to_batch(results, out, step.title)
        ((name, kind),) = out
        array = make_array(results, arrow_type(kind or "?"), field=name, where=step.title)
        return counts, pa.RecordBatch.from_arrays([array], names=[name])
    tuples = as_tuples(batch, step.fields)
    if isinstance(operation, MapFunction):
        rows: Sequence[Sequence[Any]] = [operation.execute(row) for row in tuples]
        return [1] * len(rows), rows_to_batch(rows, out, step.title)
    if isinstance(operation, FlatMapFunction):
        each = [list(operation.execute(row)) for row in tuples]
        rows = [row for made in each for row in made]
        return [len(made) for made in each], rows_to_batch(rows, out, step.title)
    collector, gave = TridentCollector(), []
    execute, emitted, before = operation.execute, collector.rows, 0
    for row in tuples:
        execute(row, collector)
        after = len(emitted)
        gave.append(after - before)
        before = after
    return gave, rows_to_batch(emitted, out, step.title)


def _keep(operation: Filter, batch: pa.RecordBatch, fields: Sequence[str]) -> pa.Array:
    """Return, for each row, whether a filter lets it through."""
    if isinstance(operation, PlainFilter):
        _, answers = operation.call_with(_bare_rows(batch, fields))
    else:
        answers = [operation.is_keep(row) for row in as_tuples(batch, fields)]
    return pa.array(map(bool, answers), pa.bool_(), size=batch.num_rows)


def _bare_rows(batch: pa.RecordBatch, fields: Sequence[str]) -> Iterable[tuple[Any, ...]]:
    """Return some fields of every row, without names."""
    if not fields:
        return [()] * int(batch.num_rows)
    return zip(*(batch.column(name).to_pylist() for name in fields), strict=True)


def append_repeated(
    batch: pa.RecordBatch, counts: Sequence[int], made: pa.RecordBatch, out: Schema
) -> pa.RecordBatch:
    """Repeat each row as often as its count says, and append the columns that were made."""
    if batch.num_columns and any(count != 1 for count in counts):
        batch = batch.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
    return _join_columns(batch, made.columns, out)


def _append_columns(
    step: RowStep, out: Schema, batch: pa.RecordBatch, result: Any, rows: int
) -> pa.RecordBatch:
    if isinstance(result, tuple) and len(result) == 2 and _has_indices(result, out):
        indices = pa.array(result[0], pa.int64())
        batch, rows = batch.take(indices) if batch.num_columns else batch, len(indices)
        result = result[1]
    arrays = [
        _column(column, arrow_type(kind or "?"), name, step.title)
        for column, (name, kind) in zip(_columns(result, out, step.title), out, strict=True)
    ]
    for array, name in zip(arrays, out.names, strict=True):
        if len(array) != rows:
            raise ResultError(
                f"{step.title} gave {len(array)} values for field {name!r} from "
                f"{rows} rows; return as many, or (indices, columns)"
            )
    return _join_columns(batch, arrays, out)


def _has_indices(result: tuple[Any, Any], out: Schema) -> bool:
    # Where there are two output fields, (indices, columns) is told from two columns by its
    # second element, which then is not a column but several.
    return len(out) != 2 or isinstance(result[1], tuple) or _names_of(result[1]) is not None


def _names_of(result: Any) -> list[str] | None:
    """Return the column names of a table of any kind; None if it is none."""
    if isinstance(result, (pa.RecordBatch, pa.Table)):
        return list(result.schema.names)
    if hasattr(result, "columns") and hasattr(result, "iloc"):
        return list(result.columns)
    return None


def _columns(result: Any, out: Schema, where: str) -> Sequence[Any]:
    names = _names_of(result)
    if names is not None:
        for name in out.names:
            if name not in names:
                found = ", ".join(map(str, names))
                raise ResultError(f"{where} gave no field {name!r}; it gave {found}")
        return [result[name] for name in out.names]
    if isinstance(result, tuple) or (isinstance(result, list) and len(out) != 1):
        columns: Sequence[Any] = result
    else:
        columns = [result]
    if len(columns) != len(out):
        raise ResultError(
            f"{where} gave {len(columns)} columns, but its output has {len(out)} fields ({out})"
        )
    return columns


def _column(column: Any, kind: pa.DataType, name: str, where: str) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    try:
        if hasattr(column, "to_numpy") and not isinstance(column, pa.Array):
            column = _from_pandas(column, kind)
        if isinstance(column, pa.Array):
            return exact_cast(column, kind)
        return make_array(list(column), kind, field=name, where=where)
    except pa.ArrowException as error:
        raise ResultError(
            f"{where} gave values for field {name!r} that do not fit {kind}: {error}"
        ) from error


def _from_pandas(column: Any, kind: pa.DataType) -> pa.Array:
    """Return a series as an array, of its own type if it has one; what is missing is null."""
    if str(column.dtype) != "object":
        return pa.Array.from_pandas(column)
    return exact_array(
        [None if gone else v for v, gone in zip(column, column.isna(), strict=True)], kind
    )


def _mask(result: Any, rows: int, where: str) -> pa.Array:
    mask = _column(result, pa.bool_(), "keep", where)
    if len(mask) != rows:
        raise ResultError(f"{where} gave {len(mask)} answers for {rows} rows")
    return mask


def _join_columns(batch: pa.RecordBatch, added: Sequence[pa.Array], out: Schema) -> pa.RecordBatch:
    names = [*batch.schema.names, *out.names]
    return pa.RecordBatch.from_arrays([*batch.columns, *added], names=names)
