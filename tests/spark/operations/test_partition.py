"""`partition`: a custom grouping chooses the partitions of each tuple."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import placed, ran_once, stream_of
from tests.trident.support import capture, finish
from waterspout import Config
from waterspout.errors import RunFailedError
from waterspout.trident import Count

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]


class ByLength:
    """Long words to the last partition, the others by their length."""

    def prepare(self, context, stream, target_tasks):
        self._last = len(target_tasks) - 1

    def choose_tasks(self, task_id, values):
        return [min(len(values[0]), self._last)]


class Chosen:
    """As many partitions as the tuple says; no `prepare`, which need not be there."""

    def choose_tasks(self, task_id, values):
        return list(range(values[1]))


WORDS = [("", 0), ("a", 1), ("b", 2), ("long", 3), ("longer", 0)]


def build(look):
    topology, stream = stream_of("word string, n bigint", WORDS)
    dealt = stream.partition(ByLength()).parallelism_hint(3)
    look("content", dealt)
    look("chosen", stream.partition(Chosen()).parallelism_hint(3))
    look("one", stream.filter("n", lambda n: n < 2).partition(Chosen()))
    if look.on_spark:
        look("example", placed(dealt), "word", "at")
        look("chosen places", placed(stream.partition(Chosen()).parallelism_hint(3)), "word", "at")
        counted = stream.filter("n", lambda n: n == 3).partition(ByLength()).parallelism_hint(3)
        look("empty ones", placed(counted.partition_aggregate(Count(), out="c")), "c", "at")
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert ran["example"] == [("", 0), ("a", 1), ("b", 1), ("long", 2), ("longer", 2)]


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_content_stays_where_each_goes_to_one(ran):
    assert ran["content"] == WORDS


def test_a_tuple_goes_to_every_partition_chosen_and_to_none_if_none_is(ran):
    assert ran["chosen"] == [("a", 1), ("b", 2), ("b", 2), *[("long", 3)] * 3]
    assert ran["chosen places"] == [
        ("a", 0), ("b", 0), ("b", 1), ("long", 0), ("long", 1), ("long", 2),
    ]  # fmt: skip


def test_without_a_hint_there_is_one_partition_to_choose(ran):
    assert ran["one"] == [("a", 1)]


def test_a_partition_that_nothing_was_chosen_for_is_there_all_the_same(ran):
    assert ran["empty ones"] == [(0, 0), (0, 1), (1, 2)]


class OutOfRange:
    def choose_tasks(self, task_id, values):
        return [7]


def test_a_partition_that_is_not_there_stops_the_run_with_its_number(spark):
    topology, stream = stream_of("n bigint", [1])
    capture(stream.partition(OutOfRange()).parallelism_hint(2))

    with pytest.raises(RunFailedError, match="the grouping chose partition 7; there are 2, from 0"):
        finish(topology, spark, Config(max_retries=0))
