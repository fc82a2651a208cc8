"""`chained_agg` ... `chain_end`: several aggregators over the same tuples."""

from __future__ import annotations

import itertools

import pytest

from tests.spark.operations.support import ran_once, stream_of
from waterspout.trident import Aggregator, Count, Sum, expr, reducer

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = [("a", 1), ("a", 3), ("b", 5), (None, None)]


class Each(Aggregator[list]):
    """Emits every value, in order; nothing for nothing."""

    def init(self, batch_id, collector):
        return []

    def aggregate(self, value, tuple, collector):
        value.append(tuple[0])

    def complete(self, value, collector):
        for one in value:
            collector.emit((one,))


@reducer(init=0)
def last(value, n) -> int:
    return value if n is None else n


def chain(stream):
    return stream.chained_agg().aggregate(Count(), out="count").aggregate("n", Sum(), out="total")


def build(look):
    topology, stream = stream_of("k string, n bigint", ROWS)
    stream = stream.parallelism_hint(2).filter("k", lambda k: True)
    nothing = stream.filter("n", lambda n: n == 99)
    look("example", chain(stream.group_by("k")).chain_end())
    look("whole", chain(stream).chain_end())
    look("none", chain(nothing).chain_end())
    look("none grouped", chain(nothing.group_by("k")).chain_end())
    one_partition = stream.global_()
    product = one_partition.chained_agg().aggregate("k", Each(), "k1 string")
    look("product", product.aggregate("n", Each(), "n1 bigint").chain_end())
    three = product_of_three(one_partition)
    look("three", three)
    mixed = one_partition.group_by("k").chained_agg().aggregate(Count(), out="count")
    look("mixed", mixed.aggregate("n", last, out="last").chain_end())
    silent = (
        nothing.chained_agg().aggregate(Count(), out="count").aggregate("n", Each(), "n bigint")
    )
    look("silent", silent.chain_end())
    single = one_partition.chained_agg().aggregate("n", Each(), "n bigint").chain_end()
    look("single", single)
    in_parts = one_partition.chained_agg().partition_aggregate(Count(), out="count")
    look("in parts", in_parts.partition_aggregate("n", Sum(), out="total").chain_end())
    if look.on_spark:
        sql = stream.group_by("k").chained_agg().aggregate(expr("max(n)"), out="most bigint")
        look("sql", sql.aggregate(expr("count(*)"), out="count bigint").chain_end())
    return topology


def product_of_three(stream):
    chained = stream.chained_agg().aggregate("k", Each(), "a string")
    chained = chained.aggregate("n", Sum(), out="b").aggregate("n", Each(), "c bigint")
    return chained.chain_end()


def order_of(ran):
    """The numbers in the order in which their partition had them."""
    return [n for (n,) in ran.spark["single"].in_order]


ran = ran_once(build)


def test_the_documented_example(ran):
    assert ran["example"] == [("a", 2, 4), ("b", 1, 5), (None, 1, 0)]


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_the_whole_batch_gives_one_tuple_also_an_empty_one(ran):
    assert ran["whole"] == [(4, 9)]
    assert ran["none"] == [(0, 0)]
    assert ran["none grouped"] == []


def test_each_result_comes_with_each_of_the_others(ran):
    keys, numbers = [k for k, _ in ROWS], [n for _, n in ROWS]

    assert ran["product"] == sorted(itertools.product(keys, numbers), key=repr)
    assert ran["three"] == sorted(itertools.product(keys, [9], numbers), key=repr)


def test_the_last_aggregator_varies_fastest(ran):
    first, *_ = ran.spark["product"].in_order

    assert ran.spark["product"].in_order[:4] == [(first[0], n) for n in order_of(ran)]


def test_combiners_and_others_can_be_chained(ran):
    assert ran["mixed"] == [("a", 2, 3), ("b", 1, 5), (None, 1, 0)]


def test_one_that_emits_nothing_leaves_nothing(ran):
    assert ran["silent"] == []


def test_a_chain_of_one_passes_its_tuples_through(ran):
    assert ran["single"] == [(1,), (3,), (5,), (None,)]


def test_a_chain_over_partitions(ran):
    assert ran["in parts"] == [(4, 9)]


def test_expressions_can_be_chained_with_each_other(ran):
    assert ran["sql"] == [("a", 3, 2), ("b", 5, 1), (None, None, 1)]
