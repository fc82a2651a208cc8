"""Batch bolts by column: the same batches, the same counts, whoever emits and whoever takes."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from waterspout import BasicBolt, Config, FailedException
from waterspout.drpc import LinearDRPCTopologyBuilder
from waterspout.errors import EmitError, TopologyError
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import check_emitter
from waterspout.testing._batch_bolts import LocalBatches
from waterspout.transactional import (
    BatchBolt,
    Committer,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)

WORDS = ["the", "cow", "jumped", "over", "moon", None]
SHAPES = pytest.mark.parametrize("collapse", [0, 2000], ids=["spread", "collapsed"])


class Words(TransactionalSpout):
    """Batches of ten words with a number each; by column, or not."""

    output_fields = ("tx", "word", "n")

    def __init__(self, batches: int, by_column: bool) -> None:
        self.batches, self.by_column = batches, by_column

    def get_coordinator(self, conf, context):
        return _Cut(self.batches)

    def get_emitter(self, conf, context):
        tasks = len(context.tasks[context.this_component_id])
        return _Emit(context.this_task_index, tasks, self.by_column)


class _Cut:
    def __init__(self, batches):
        self.left = batches

    def is_ready(self):
        return self.left > 0

    def initialize_transaction(self, txid, previous):
        self.left -= 1
        return 10 * (txid - 1)


class _Emit:
    def __init__(self, index, tasks, by_column):
        self.index, self.tasks, self.by_column = index, tasks, by_column

    def emit_batch(self, attempt, start, collector):
        numbers = list(range(start + self.index, start + 10, self.tasks))
        words = [WORDS[n * n % len(WORDS)] for n in numbers]
        if self.by_column:
            collector.emit_batch({"word": words, "n": numbers})
            return
        for word, n in zip(words, numbers, strict=True):
            collector.emit([attempt, word, n])


TRUTH: Counter[str | None] = Counter()
for _number in range(50):
    TRUTH[WORDS[_number * _number % len(WORDS)]] += 2 * _number


class Twice(BatchBolt):
    """Each word with twice its number, as soon as it comes."""

    output_fields = ("tx", "word", "n")

    def execute(self, tuple):
        assert tuple["tx"] == self.id
        self.collector.emit([self.id, tuple["word"], 2 * tuple["n"]])


class TwiceByColumn(BatchBolt):
    output_fields = ("tx", "word", "n")

    def execute_batch(self, batch):
        assert batch.column("tx").null_count == batch.num_rows
        assert batch.schema.metadata == {b"component": b"words", b"stream": b"default"}
        doubled = pc.multiply(batch.column("n"), 2)
        self.collector.emit_batch(batch.set_column(2, "n", doubled))


class TwiceBasic(BasicBolt):
    output_fields = ("tx", "word", "n")

    def execute(self, tuple, collector):
        collector.emit([tuple["tx"], tuple["word"], 2 * tuple["n"]])


class Sums(BatchBolt, Committer):
    """Adds numbers to the sum of their word."""

    output_fields = ("tx", "word", "sum")

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.sums, self.states = Counter(), context.state("sums")
        self.task = context.this_task_index

    def execute(self, tuple):
        self.sums[tuple["word"]] += tuple["n"]

    def finish_batch(self):
        for word, n in self.sums.items():
            self.states.update(word, lambda old, n=n: (old or 0) + n)


class SumsByColumn(Sums):
    def execute_batch(self, batch):
        grouped = pa.table({"w": batch.column("word"), "n": batch.column("n")})
        for row in grouped.group_by("w").aggregate([("n", "sum")]).to_pylist():
            self.sums[row["w"]] += row["n_sum"]


def run(tmp_path, by_column, middle, last, collapse, **more):
    builder = TransactionalTopologyBuilder("t", "words", Words(5, by_column), 3)
    builder.set_bolt("twice", middle, 2).shuffle_grouping("words")
    sums = builder.set_bolt("sums", last, 3).fields_grouping("twice", "word")
    recipe = SQLiteState.opaque(tmp_path / "sums.db", table="sums")
    sums.with_state("sums", recipe, keys="word string", values="sum bigint")
    config = Config(home=tmp_path, wave_collapse_tuples=collapse, max_spout_pending=3)
    local = LocalBatches(builder.build_topology(), config, **more)
    try:
        local.finish()
    finally:
        local.close()
    with sqlite3.connect(tmp_path / "sums.db") as found:
        return dict(found.execute("SELECT word, sum FROM sums"))


@SHAPES
@pytest.mark.parametrize("last", [Sums, SumsByColumn])
@pytest.mark.parametrize("middle", [Twice, TwiceByColumn, TwiceBasic])
@pytest.mark.parametrize("by_column", [False, True], ids=["rows", "columns"])
def test_rows_and_columns_are_the_same_tuples(tmp_path, by_column, middle, last, collapse):
    assert run(tmp_path, by_column, middle(), last(), collapse) == TRUTH


@pytest.mark.parametrize("seed", range(10))
def test_by_column_everything_counts_once_whoever_dies(tmp_path, seed):
    dice = random.Random(seed)
    found = run(
        *(tmp_path, True, TwiceByColumn(), SumsByColumn(), dice.choice([0, 2000])),
        loses_result=lambda: dice.random() < 0.3,
        workers=dice.choice([1, 2, 4]),
    )

    assert found == TRUTH


FAILS: list[str] = []


class Stumbles(SumsByColumn):
    """Fails where half of it is done: some rows were taken, or some updates were told."""

    def execute_batch(self, batch):
        super().execute_batch(batch)
        if "execute" in FAILS:
            FAILS.remove("execute")
            raise FailedException("not now")

    def finish_batch(self):
        super().finish_batch()
        if "finish" in FAILS:
            FAILS.remove("finish")
            raise FailedException("not now")


@SHAPES
def test_a_batch_by_column_that_fails_is_replayed_whole(tmp_path, collapse):
    FAILS[:] = ["execute", "finish", "finish"]

    assert run(tmp_path, True, TwiceByColumn(), Stumbles(), collapse) == TRUTH
    assert FAILS == []


class Mixed(BatchBolt):
    output_fields = ("tx", "word", "n")

    def execute(self, tuple):
        for n in (tuple["n"], str(tuple["n"])):
            self.collector.emit([self.id, tuple["word"], n])


def test_values_of_several_types_cannot_be_a_column(tmp_path):
    expected = r"'twice' emitted values for field 'n' of stream 'default' that execute_batch cannot"
    with pytest.raises(EmitError, match=expected + r".*Emit values of one type, or write execute"):
        run(tmp_path, False, Mixed(), SumsByColumn(), 2000)


class Neither(BatchBolt):
    pass


def test_a_bolt_that_nobody_could_call_is_refused():
    builder = TransactionalTopologyBuilder("t", "words", Words(1, True))

    with pytest.raises(TopologyError, match=r"Neither has neither execute\(tuple\) nor execute_ba"):
        builder.set_bolt("neither", Neither())
    with pytest.raises(TopologyError, match=r"SumsOnly has no execute\(tuple\); the tuples of a r"):
        LinearDRPCTopologyBuilder("sums").add_bolt(SumsOnly())


class SumsOnly(BatchBolt):
    def execute_batch(self, batch):
        pass


def test_an_emitter_by_column_can_be_checked():
    by_row = check_emitter(Words(3, False), batches=3)

    assert check_emitter(Words(3, True), batches=3) == by_row
    assert [len(batch) for batch in by_row] == [10, 10, 10]
