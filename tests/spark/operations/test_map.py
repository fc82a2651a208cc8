"""`map`: another tuple in the place of each."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

from tests.spark.operations.support import ran_once, stream_of
from waterspout.trident import MapFunction, arrow_function, expr, pandas_function

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

ROWS = [("a", 1), ("b", None), (None, 3)]


class Swap(MapFunction):
    def execute(self, tuple):
        return (tuple["n"], tuple["word"])


def loud(word, n) -> tuple[str, int]:
    return (word or "").upper(), n


def build(look):
    topology, stream = stream_of("word string, n bigint", ROWS)
    look("example", stream.map(lambda word, n: ((word or "").upper(), n)))
    look("annotated", stream.map(loud, out="loud, times"))
    look("other fields", stream.map(Swap(), out="number bigint, word string"))
    look("one field", stream.map(lambda word, n: n or 0, out="n bigint"))
    look("arrow", stream.map(arrow_function(lambda b: pc.add(b.column("n"), 1)), out="m bigint"))
    look("pandas", stream.map(pandas_function(lambda f: f["n"] + 1), out="m bigint"))
    look("empty", stream.filter("n", lambda n: n == 7).map(Swap(), out="n bigint, word string"))
    if look.on_spark:
        look("sql", stream.map(expr("n + 1"), out="m bigint"))
        look("several", stream.map([expr("n"), expr("upper(word)")], out="a bigint, b string"))
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert ran["example"] == [("", 3), ("A", 1), ("B", None)]


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_the_tuple_is_replaced_and_not_appended_to(ran):
    assert ran["other fields"] == sorted(((n, word) for word, n in ROWS), key=repr)
    assert ran["one field"] == [(0,), (1,), (3,)]


def test_an_annotation_gives_the_types(ran):
    assert ran["annotated"] == ran["example"]


def test_every_form_gives_the_same(ran):
    for form in ("arrow", "pandas", "sql"):
        assert ran[form] == [(2,), (4,), (None,)], form
    assert ran["several"] == sorted([(1, "A"), (None, "B"), (3, None)], key=repr)


def test_nothing_comes_of_nothing(ran):
    assert ran["empty"] == []
