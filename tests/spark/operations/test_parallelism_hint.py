"""`parallelism_hint`: over how many partitions the operations since the last shuffle run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.spark.operations.support import placed, ran_once, stream_of
from tests.trident.support import capture, finish
from waterspout import Config
from waterspout.trident import CombinerAggregator, Count, Function

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]


class Tracked(Function):
    """Writes down what is called, where, in a file per partition."""

    def __init__(self, folder):
        self._folder = str(folder)

    def prepare(self, conf, context):
        self._path = Path(self._folder) / f"{context.partition_index}"
        self._note(f"prepare {context.num_partitions} {conf.state_partitions}")

    def execute(self, tuple, collector):
        self._note("execute")
        collector.emit((int(self._path.name),))

    def cleanup(self):
        self._note("cleanup")

    def output_types(self, inputs):
        return ["int"]

    def _note(self, what):
        with self._path.open("a") as file:
            file.write(f"{what}\n")


class Largest(CombinerAggregator[int]):
    def init(self, tuple):
        return tuple[0]

    def combine(self, left, right):
        return max(left, right)

    def zero(self):
        return -1

    def output_types(self, inputs):
        return ["bigint"]


class Numbered(Function):
    def prepare(self, conf, context):
        self.n = 0

    def execute(self, tuple, collector):
        self.n += 1
        collector.emit((self.n,))

    def output_types(self, inputs):
        return ["bigint"]


def build(look):
    topology, numbers = stream_of("i bigint", range(25_000), size=25_000)
    counted = numbers.each("i", Numbered(), out="n").parallelism_hint(1)
    look("last", counted.aggregate("n", Largest(), out="n"))
    look("all", counted.aggregate(Count(), out="c"))
    if look.on_spark:
        few = numbers.filter("i", lambda i: i < 40)
        twice = few.shuffle().parallelism_hint(2).filter("i", lambda i: True).parallelism_hint(3)
        look("example", placed(few.shuffle().parallelism_hint(4)), "at", "of")
        look("greatest", placed(twice), "at", "of")
        behind = twice.shuffle().parallelism_hint(2)
        look("behind", placed(behind), "at", "of")
        grouped = few.each("i", lambda i: i % 8, out="k bigint").group_by("k")
        hinted = grouped.aggregate(Count(), out="c").parallelism_hint(3)
        look("aggregated", placed(hinted), "at", "of")
        look("none given", placed(few.shuffle()), "of")
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert set(ran["example"]) == {(0, 4), (1, 4), (2, 4), (3, 4)}


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_of_several_hints_the_greatest_counts(ran):
    assert set(ran["greatest"]) == {(0, 3), (1, 3), (2, 3)}


def test_a_shuffle_begins_a_number_of_its_own(ran):
    assert set(ran["behind"]) == {(0, 2), (1, 2)}


def test_it_can_be_given_behind_an_aggregation(ran):
    assert {of for _, of in ran["aggregated"]} == {3}
    assert {at for at, _ in ran["aggregated"]} <= {0, 1, 2}


def test_where_spark_chooses_nobody_says_how_many_there_are(ran):
    assert set(ran["none given"]) == {(None,)}


def test_a_function_lives_as_long_as_its_partition_however_many_chunks_that_is(ran):
    assert (ran["last"], ran["all"]) == ([(25_000,)], [(25_000,)])


def test_prepare_and_cleanup_are_called_once_per_partition_of_the_hint(spark, tmp_path):
    topology, numbers = stream_of("n bigint", range(30))
    folders = [tmp_path / "each", tmp_path / "source"]
    for folder in folders:
        folder.mkdir()
    behind = numbers.shuffle().each("n", Tracked(folders[0]), out="at").parallelism_hint(3)
    kept = capture(behind, "at")
    other, rows = stream_of("n bigint", range(40))
    spread = capture(rows.parallelism_hint(4).each("n", Tracked(folders[1]), out="at"), "at")

    finish(topology, spark, Config(state_partitions=1), timeout=200)
    finish(other, spark, Config(home=str(tmp_path / "other")), timeout=200)

    assert sorted(path.name for path in folders[0].glob("[0-9]")) == ["0", "1", "2"]
    for (at,), rows in Counter(kept.rows).items():
        lines = (folders[0] / f"{at}").read_text().splitlines()
        assert lines == ["prepare 3 1", *["execute"] * rows, "cleanup"]
    # A hint on the spout's own stream spreads what follows.
    assert set(spread.rows) == {(0,), (1,), (2,), (3,)}
