"""`project`: some of the fields."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import ran_once, stream_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def build(look):
    topology, stream = stream_of("a bigint, b string, c double", [(1, "x", 0.5), (1, "x", None)])
    look("example", stream.project(["c", "a"]))
    look("one", stream.project("b"))
    behind = stream.each("a", lambda a: a + 1, out="d bigint").project(["d", "b"])
    look("behind python", behind.map(lambda d, b: (d, b)))
    look("twice", stream.project(["b", "a"]).project("a"))
    look("narrow", stream.project("a").filter("a", lambda a: a == 1))
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert ran["example"] == [(0.5, 1), (None, 1)]


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_it_keeps_every_tuple_also_equal_ones(ran):
    assert ran["one"] == [("x",), ("x",)]
    assert ran["twice"] == ran["narrow"] == [(1,), (1,)]


def test_fields_made_in_python_can_be_kept_too(ran):
    assert ran["behind python"] == [(2, "x"), (2, "x")]
