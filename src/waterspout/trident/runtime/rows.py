"""Functions and filters over one Arrow batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from waterspout.arrow import arrow_type, make_array
from waterspout.config import Config
from waterspout.schema import Schema
from waterspout.trident.operations.adapters import ArrowFunction, PandasFunction
from waterspout.trident.operations.contracts import (
    Filter,
    Function,
    Operation,
    OperationContext,
    TridentCollector,
)
from waterspout.trident.plan.nodes import Each, Keep, Node, Project
from waterspout.tuples import TridentTuple, field_index

__all__ = ["RowStep", "append_repeated", "as_tuples", "row_step", "rows_to_batch", "run_steps"]


@dataclass(frozen=True, slots=True)
class RowStep:
    """One operation over batches, with what it must know of its node; picklable."""

    title: str
    operation: Any
    fields: tuple[str, ...]
    out: Schema | None = None


def row_step(node: Node) -> RowStep | None:
    """Return a node as a step over batches, if that is what it is."""
    match node:
        case Each(fields=fields, function=function, out=out):
            return RowStep(node.title, function, fields, out)
        case Keep(fields=fields, predicate=predicate):
            return RowStep(node.title, predicate, fields)
        case Project(fields=fields):
            return RowStep(node.title, None, fields)
    return None


def run_steps(
    steps: Sequence[RowStep],
    batches: Iterable[pa.RecordBatch],
    conf: Config,
    context: OperationContext,
) -> Iterator[pa.RecordBatch]:
    """Run steps over a partition: prepare all, pass every batch through, clean up."""
    operations = [s.operation for s in steps if isinstance(s.operation, Operation)]
    for operation in operations:
        operation.prepare(conf, context)
    try:
        for batch in batches:
            for step in steps:
                batch = _apply(step, batch)
            yield batch
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


def rows_to_batch(rows: Sequence[Sequence[Any]], schema: Schema, where: str) -> pa.RecordBatch:
    """Return emitted rows as a batch; a row of the wrong width or type is an error."""
    width = len(schema)
    for row in rows:
        if isinstance(row, (str, bytes)) or not hasattr(row, "__len__"):
            raise TypeError(
                f"{where} emitted {row!r}, which is not one value for each of its fields "
                f"({schema}); emit a tuple"
            )
        if len(row) != width:
            raise ValueError(
                f"{where} emitted {len(row)} values, but its output has {width} fields ({schema})"
            )
    columns = list(zip(*rows, strict=True)) if rows else [()] * width
    arrays = [
        _array(column, arrow_type(kind or "?"), name, where)
        for column, (name, kind) in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(schema.names))


def _apply(step: RowStep, batch: pa.RecordBatch) -> pa.RecordBatch:
    operation = step.operation
    if operation is None:
        return batch.select(list(step.fields))
    if isinstance(operation, Function):
        assert step.out is not None
        return _each(step, operation, step.out, batch)
    if isinstance(operation, Filter):
        keep = [bool(operation.is_keep(row)) for row in as_tuples(batch, step.fields)]
        return batch.filter(pa.array(keep, pa.bool_()))
    inputs = batch.select(list(step.fields))
    if isinstance(operation, ArrowFunction):
        result = operation.function(inputs)
    else:
        assert isinstance(operation, PandasFunction), operation
        result = operation.function(inputs.to_pandas())
    if step.out is None:
        return batch.filter(_mask(result, batch.num_rows, step.title))
    return _append_columns(step, step.out, batch, result)


def _each(step: RowStep, function: Function, out: Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    collector = TridentCollector()
    execute, rows = function.execute, collector.rows
    counts, before = [], 0
    for row in as_tuples(batch, step.fields):
        execute(row, collector)
        after = len(rows)
        counts.append(after - before)
        before = after
    made = rows_to_batch(rows, out, step.title)
    return append_repeated(batch, counts, made, out)


def append_repeated(
    batch: pa.RecordBatch, counts: Sequence[int], made: pa.RecordBatch, out: Schema
) -> pa.RecordBatch:
    """Repeat each row as often as its count says, and append the columns that were made."""
    if any(count != 1 for count in counts):
        batch = batch.take(_repeat(counts))
    return _join_columns(batch, made.columns, out)


def _repeat(counts: Sequence[int]) -> pa.Array:
    """Return each row number as often as the row was multiplied."""
    indices: list[int] = []
    extend = indices.extend
    for row, count in enumerate(counts):
        if count == 1:
            indices.append(row)
        elif count:
            extend([row] * count)
    return pa.array(indices, pa.int64())


def _append_columns(
    step: RowStep, out: Schema, batch: pa.RecordBatch, result: Any
) -> pa.RecordBatch:
    if isinstance(result, tuple) and len(result) == 2 and _has_indices(result, out):
        batch = batch.take(pa.array(result[0], pa.int64()))
        result = result[1]
    arrays = [
        _column(part, arrow_type(kind or "?"), name, step.title)
        for part, (name, kind) in zip(_parts(result, out, step.title), out, strict=True)
    ]
    for array, name in zip(arrays, out.names, strict=True):
        if len(array) != batch.num_rows:
            raise ValueError(
                f"{step.title} gave {len(array)} values for field {name!r} from "
                f"{batch.num_rows} rows; return as many, or (indices, columns)"
            )
    return _join_columns(batch, arrays, out)


def _has_indices(result: tuple[Any, Any], out: Schema) -> bool:
    # Where there are two output fields, (indices, columns) is told from two columns by its
    # second part, which then is not a column but several.
    return len(out) != 2 or isinstance(result[1], tuple) or _names_of(result[1]) is not None


def _names_of(result: Any) -> list[str] | None:
    """Return the column names of a table of any kind; None if it is none."""
    if isinstance(result, (pa.RecordBatch, pa.Table)):
        return list(result.schema.names)
    if hasattr(result, "columns") and hasattr(result, "iloc"):
        return list(result.columns)
    return None


def _parts(result: Any, out: Schema, where: str) -> Sequence[Any]:
    names = _names_of(result)
    if names is not None:
        for name in out.names:
            if name not in names:
                found = ", ".join(map(str, names))
                raise ValueError(f"{where} gave no field {name!r}; it gave {found}")
        return [result[name] for name in out.names]
    if isinstance(result, tuple) or (isinstance(result, list) and len(out) != 1):
        parts: Sequence[Any] = result
    else:
        parts = [result]
    if len(parts) != len(out):
        raise ValueError(
            f"{where} gave {len(parts)} columns, but its output has {len(out)} fields ({out})"
        )
    return parts


def _column(part: Any, kind: pa.DataType, name: str, where: str) -> pa.Array:
    if isinstance(part, pa.ChunkedArray):
        part = part.combine_chunks()
    try:
        if isinstance(part, pa.Array):
            return part if part.type == kind else part.cast(kind)
        if hasattr(part, "to_numpy"):
            return pa.Array.from_pandas(part, type=kind)
        return _array(list(part), kind, name, where)
    except pa.ArrowException as error:
        raise TypeError(
            f"{where} gave values for field {name!r} that do not fit {kind}: {error}"
        ) from error


def _array(values: Sequence[Any], kind: pa.DataType, name: str, where: str) -> pa.Array:
    if pa.types.is_integer(kind):
        for value in values:
            # Arrow would cut the fraction off without a word.
            if isinstance(value, float) and not value.is_integer():
                raise TypeError(
                    f"{where} gave {value!r} for field {name!r}, which is declared as {kind}"
                )
    return make_array(values, kind, field=name, where=where)


def _mask(result: Any, rows: int, where: str) -> pa.Array:
    mask = _column(result, pa.bool_(), "keep", where)
    if len(mask) != rows:
        raise ValueError(f"{where} gave {len(mask)} answers for {rows} rows")
    return mask


def _join_columns(batch: pa.RecordBatch, added: Sequence[pa.Array], out: Schema) -> pa.RecordBatch:
    names = [*batch.schema.names, *out.names]
    return pa.RecordBatch.from_arrays([*batch.columns, *added], names=names)
