"""Operations over batches that put bad rows aside, and take replayed rows in."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from waterspout._arrow import arrow_schema
from waterspout._config import Config
from waterspout._letters import DeadLetter
from waterspout._schema import Schema
from waterspout.errors import DeadLettersFullError, FailedException
from waterspout.spouts._reads import POSITION
from waterspout.trident.isolation.letters import (
    ASIDE,
    LetterRequest,
    Seen,
    letter_of,
    read_aside,
    to_aside,
)
from waterspout.trident.isolation.replay import fit_row
from waterspout.trident.operations.contracts import OperationContext
from waterspout.trident.plan.nodes import Isolated
from waterspout.trident.runtime.rows import RowStep, apply_step, as_tuples, prepared, row_step

__all__ = ["IsolatedStep", "bisect", "isolated_steps", "run_isolated"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class IsolatedStep:
    """One operation of a chain; picklable.

    `node` is its name in letters; without one its errors fail the batch, as usual.
    """

    step: RowStep
    inputs: Schema
    outputs: Schema
    node: str | None


def isolated_steps(node: Isolated) -> tuple[IsolatedStep, ...]:
    """Return a chain as steps over batches."""
    steps = []
    for one, address in zip(node.chain, node.addresses, strict=True):
        step = row_step(one)
        assert step is not None, one
        step = replace(step, beside=node.beside)
        steps.append(IsolatedStep(step, one.parents[0].schema, one.schema, address))
    return tuple(steps)


def run_isolated(
    steps: Sequence[IsolatedStep],
    batches: Iterable[pa.RecordBatch],
    conf: Config,
    context: OperationContext,
) -> Iterator[pa.RecordBatch]:
    """Run a chain over a partition.

    What comes out has the fields of the last step, the position if that came in, and the hidden
    column, which is null in the good rows. Last come rows in which only that column is set.
    """
    with prepared([step.step.operation for step in steps], conf, context):
        chain = _Chain(steps, conf.dead_letters_max)
        for batch in batches:
            yield from chain.run(batch)
        yield from chain.asides()


def bisect(call: Callable[[int, int], T], rows: int) -> tuple[list[T], list[tuple[int, Exception]]]:
    """Call for all rows at once; where that fails, for each half of them, and so on.

    `call(start, stop)` works on a range of rows. Returns the results of the ranges that
    succeeded, in order, and each row that fails alone, with its error. With k bad rows among n
    these are at most about 2 k (1 + log2 n) calls; with none, one. An error that tells of the
    whole batch or of the machine, not of a row, is raised at once.
    """
    results: list[T] = []
    bad: list[tuple[int, Exception]] = []
    todo = [(0, rows)]
    while todo:
        start, stop = todo.pop()
        try:
            results.append(call(start, stop))
        except (FailedException, MemoryError):
            raise
        except Exception as error:
            if stop == start:
                raise
            if stop - start == 1:
                bad.append((start, error))
            else:
                middle = (start + stop) // 2
                # The first half comes next, so that results are in the order of the rows.
                todo += [(middle, stop), (start, middle)]
    return results, bad


class _Chain:
    def __init__(self, steps: Sequence[IsolatedStep], limit: int) -> None:
        self._steps = steps
        self._limit = limit
        self._letters: list[DeadLetter] = []
        self._seen = Counter[str]()
        self._positions = POSITION in steps[0].step.beside

    def run(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Pass rows through all steps; replayed rows begin at the step where they failed."""
        rows, replayed = _sorted_out(batch)
        if rows.num_rows:
            yield _with_aside(self._pass(rows, 0, None))
        for letter in replayed:
            for number, step in enumerate(self._steps):
                if step.node == letter.failed_in:
                    one = self._replayed(letter, step.inputs)
                    yield _with_aside(self._pass(one, number, letter))

    def asides(self) -> Iterator[pa.RecordBatch]:
        """Yield the letters, and how many rows there were."""
        texts = [to_aside(letter) for letter in self._letters]
        if self._seen:
            texts.append(to_aside(Seen(dict(self._seen))))
        if texts:
            fields = self._schema(self._steps[-1].outputs)
            nothing = [pa.nulls(len(texts), field.type) for field in fields]
            yield pa.RecordBatch.from_arrays(
                [*nothing, pa.array(texts, pa.string())], names=[*fields.names, ASIDE]
            )

    def _pass(self, batch: pa.RecordBatch, start: int, origin: DeadLetter | None) -> pa.RecordBatch:
        for step in self._steps[start:]:
            if step.node is None:
                batch = apply_step(step.step, batch)
            else:
                batch = self._guarded(step, step.node, batch, origin)
            # A step may leave hidden fields anywhere; they belong last.
            batch = batch.select(self._schema(step.outputs).names)
        return batch

    def _guarded(
        self, step: IsolatedStep, node: str, batch: pa.RecordBatch, origin: DeadLetter | None
    ) -> pa.RecordBatch:
        if origin is None:
            self._seen[node] += batch.num_rows
        good: list[pa.RecordBatch] = []
        bad: list[tuple[int, Exception]] = []
        if batch.num_rows:  # no row can be blamed if a function fails on none
            good, bad = bisect(
                lambda start, stop: apply_step(step.step, batch.slice(start, stop - start)),
                batch.num_rows,
            )
        if bad:
            self._put_aside(step, node, batch, bad, origin)
        if good:
            return good[0] if len(good) == 1 else pa.concat_batches(good)
        return pa.RecordBatch.from_pylist([], schema=self._schema(step.outputs))

    def _put_aside(
        self,
        step: IsolatedStep,
        node: str,
        batch: pa.RecordBatch,
        bad: Sequence[tuple[int, Exception]],
        origin: DeadLetter | None,
    ) -> None:
        if len(self._letters) + len(bad) > self._limit:
            raise DeadLettersFullError(
                f"{node} fails on more rows of one batch than there may be dead letters at all "
                f"({self._limit:,}, dead_letters_max), for example: {bad[0][1]}"
            )
        numbers = [number for number, _ in bad]
        guilty = batch.take(pa.array(numbers, pa.int64()))
        rows = as_tuples(guilty, step.inputs.names)
        positions = guilty.column(POSITION).to_pylist() if self._positions else [None] * len(bad)
        now = time.time()
        for row, position, (_, error) in zip(rows, positions, bad, strict=True):
            self._letters.append(
                letter_of(
                    error,
                    node=node,
                    schema=step.inputs,
                    values=row.values,
                    position=position,
                    now=now,
                    origin=origin,
                )
            )

    def _replayed(self, letter: DeadLetter, inputs: Schema) -> pa.RecordBatch:
        columns = fit_row(letter, inputs)
        if self._positions:
            columns[POSITION] = pa.array([letter.position], pa.string())
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _schema(self, fields: Schema) -> pa.Schema:
        schema = arrow_schema(fields)
        return schema.append(pa.field(POSITION, pa.string())) if self._positions else schema


def _sorted_out(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[DeadLetter]]:
    """Return the rows of the stream, and the letters to be replayed that came between them."""
    if ASIDE not in batch.schema.names:
        return batch, []
    column = batch.column(ASIDE)
    texts = column.drop_null().to_pylist()
    rows = batch.drop_columns([ASIDE])
    if texts:
        rows = rows.filter(pc.is_null(column))
    found = [read_aside(text) for text in texts]
    requests = [each for each in found if isinstance(each, LetterRequest)]
    return rows, [each.letter for each in requests if each.action == "replay"]


def _with_aside(batch: pa.RecordBatch) -> pa.RecordBatch:
    nothing = pa.nulls(batch.num_rows, pa.string())
    return pa.RecordBatch.from_arrays([*batch.columns, nothing], names=[*batch.schema.names, ASIDE])
