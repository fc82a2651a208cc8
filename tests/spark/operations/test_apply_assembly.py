"""`apply_assembly`: a piece of a stream that is made of other operations."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import ran_once, stream_of
from waterspout.trident import Assembly, Count, FirstN

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = [("a", 3), ("b", None), ("c", 1), ("d", 3), ("e", 2), ("f", 5)]


class Tally(Assembly):
    """Counts by a field."""

    def __init__(self, field):
        self._field = field

    def apply(self, stream):
        return stream.group_by(self._field).aggregate(Count(), out="count")


def build(look):
    topology, stream = stream_of("name string, score bigint", ROWS, size=5)
    stream = stream.parallelism_hint(2)
    look("example", stream.apply_assembly(FirstN(2, "score", reverse=True)))
    look("least", stream.apply_assembly(FirstN(2, "score")))
    look("any", stream.apply_assembly(FirstN(3)).aggregate(Count(), out="c"))
    look("few", stream.apply_assembly(FirstN(100, "name")), "name")
    look("own", stream.apply_assembly(Tally("score")))
    look("function", stream.apply_assembly(lambda s: s.filter("score", lambda n: n == 1)))
    none = stream.filter("name", lambda n: n == "z")
    look("nothing", none.apply_assembly(FirstN(2, "score")))
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    """Equal ones by their other fields."""
    assert ran.batches("example") == {1: [("a", 3), ("d", 3)], 2: [("f", 5)]}


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_in_order_a_null_is_the_least(ran):
    assert ran.spark["least"].in_order == [("b", None), ("c", 1), ("f", 5)]


def test_without_a_field_any_of_them(ran):
    assert ran.batches("any") == {1: [(3,)], 2: [(1,)]}


def test_fewer_than_n_are_all(ran):
    assert ran["few"] == [(name,) for name, _ in ROWS]
    assert ran["nothing"] == []


def test_an_assembly_of_ones_own_or_a_function(ran):
    assert ran.batches("own") == {1: [(1, 1), (2, 1), (3, 2), (None, 1)], 2: [(5, 1)]}
    assert ran["function"] == [("c", 1)]
