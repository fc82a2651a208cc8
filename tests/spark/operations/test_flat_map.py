"""`flat_map`: any number of other tuples in the place of each."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

from tests.spark.operations.support import ran_once, stream_of
from waterspout.trident import FlatMapFunction, arrow_function, expr

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = [(1, "a b"), (2, ""), (3, None), (4, "c")]


class Pairs(FlatMapFunction):
    def execute(self, tuple):
        return [(word, tuple["id"]) for word in (tuple["s"] or "").split()]


@arrow_function
def arrow_words(batch):
    lists = pc.split_pattern(batch.column("s"), " ")
    return pc.list_parent_indices(lists), pc.list_flatten(lists)


def build(look):
    topology, stream = stream_of("id bigint, s string", ROWS)
    look("example", stream.flat_map(lambda id, s: (s or "").split(), out="word string"))
    look("class", stream.flat_map(Pairs(), out="word string, id bigint"))
    look("same fields", stream.flat_map(lambda id, s: [(id, s), (id, "again")]))
    look("arrow", stream.filter(lambda id, s: s).flat_map(arrow_words, out="word string"))
    look("never", stream.flat_map(lambda id, s: (), out="x double"))
    if look.on_spark:
        words = stream.flat_map(expr("explode(split(s, ' '))"), out="word string")
        look("sql", words.filter("word", expr("word <> ''")))
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert ran["example"] == [("a",), ("b",), ("c",)]


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_the_tuples_are_replaced(ran):
    assert ran["class"] == [("a", 1), ("b", 1), ("c", 4)]


def test_without_out_the_fields_are_the_same(ran):
    assert ran["same fields"] == sorted([*ROWS, *((i, "again") for i, _ in ROWS)], key=repr)


def test_a_function_that_gives_nothing_drops_all(ran):
    assert ran["never"] == []


def test_every_form_gives_the_same(ran):
    assert (ran["arrow"], ran["sql"]) == (ran["example"], ran["example"])
