"""`partition_aggregate`: each partition of a batch becomes what an aggregator makes of it."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import ran_once, stream_of
from waterspout.trident import (
    Aggregator,
    Count,
    ReducerAggregator,
    Sum,
    aggregator,
    arrow_aggregator,
    expr,
)

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = [(f"k{i % 2}", i) for i in range(30)]


class Total(ReducerAggregator[int]):
    def init(self):
        return 1000

    def reduce(self, value, tuple):
        return value + tuple["n"]

    def output_types(self, inputs):
        return ["bigint"]


class Silent(Aggregator[None]):
    """Emits what it sees at once, and nothing at the end."""

    def init(self, batch_id, collector):
        return None

    def aggregate(self, value, tuple, collector):
        if tuple["n"] % 10 == 0:
            collector.emit((tuple["n"],))

    def complete(self, value, collector):
        pass


@aggregator
def sizes(tuples) -> int:
    return len(tuples)


@arrow_aggregator
def table_sizes(table) -> int:
    return table.num_rows


FORMS = {"combiner": Count(), "reducer": Total(), "function": sizes, "table": table_sizes}


def build(look):
    topology, stream = stream_of("k string, n bigint", ROWS)
    even = stream.global_().shuffle().parallelism_hint(3)
    nothing = even.filter("n", lambda n: n < 0)
    look("one partition", stream.partition_aggregate("n", Sum(), out="total"))
    look("grouped", stream.group_by("k").partition_aggregate("n", Sum(), out="total"))
    look("grouped nothing", nothing.group_by("k").partition_aggregate("n", Sum(), out="total"))
    look("silent", even.partition_aggregate(Silent(), out="n bigint"))
    if look.on_spark:
        look("example", even.partition_aggregate(Count(), out="count"))
        look("batch", even.partition_aggregate(Count(), out="count").aggregate("count", Sum(), "n"))
        look("some empty", even.filter("n", lambda n: n == 7).partition_aggregate(Count(), out="c"))
        for form, counting in FORMS.items():
            look(f"nothing {form}", nothing.partition_aggregate("n", counting, out="c"))
        folded = even.filter(expr("1 = 2")).partition_aggregate(Count(), out="c")
        look("nothing by an expression", folded)
        by_key = even.group_by("k").partition_aggregate(Count(), out="c")
        look("per partition", by_key)
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert ran["example"] == [(10,), (10,), (10,)]


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_without_a_hint_there_is_one_partition(ran):
    assert ran["one partition"] == [(sum(range(30)),)]
    assert ran["grouped"] == [("k0", sum(range(0, 30, 2))), ("k1", sum(range(1, 30, 2)))]


def test_a_group_is_not_brought_together(ran):
    assert len(ran["per partition"]) > 2
    for key in ("k0", "k1"):
        assert sum(c for k, c in ran["per partition"] if k == key) == 15


def test_what_comes_out_can_be_aggregated_over_the_batch(ran):
    assert ran["batch"] == [(30,)]


def test_an_empty_partition_gives_zero_init_or_what_complete_emits(ran):
    assert ran["some empty"] == [(0,), (0,), (1,)]
    assert ran["nothing combiner"] == [(0,)] * 3
    assert ran["nothing reducer"] == [(1000,)] * 3
    assert ran["nothing function"] == ran["nothing table"] == [(0,)] * 3


def test_also_where_spark_knows_that_nothing_passes(ran):
    assert ran["nothing by an expression"] == [(0,)] * 3


def test_no_group_no_result(ran):
    assert ran["grouped nothing"] == []


def test_an_aggregator_emits_when_and_as_often_as_it_likes(ran):
    assert ran["silent"] == [(0,), (10,), (20,)]
