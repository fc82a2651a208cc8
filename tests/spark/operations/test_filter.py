"""`filter`: keeps the tuples that a predicate lets through."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

from tests.spark.operations.support import ran_once, stream_of
from waterspout.trident import (
    Equals,
    Filter,
    FilterNull,
    Negate,
    TrueFilter,
    arrow_function,
    expr,
    pandas_function,
)

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

TEXTS = [None, "", "a", "ab", "abc", "日本", "🐄🐄🐄"]
PAIRS = [(1, 1), (1, 2), (None, None), (None, 3)]


class Short(Filter):
    def is_keep(self, tuple):
        return tuple[0] is not None and len(tuple[0]) < 3


def ways():
    from pyspark.sql import functions as F

    return {
        "filter": Short(),
        "negated": Negate(Negate(Short())),
        "lambda": lambda s: s is not None and len(s) < 3,
        "arrow": arrow_function(lambda b: pc.less(pc.utf8_length(b.column("s")), 3)),
        "pandas": pandas_function(lambda f: f["s"].str.len() < 3),
        "sql": expr("length(s) < 3"),
        "column": F.length("s") < 3,
    }


def build(look):
    rows = [(s, i, *PAIRS[i % 4]) for i, s in enumerate(TEXTS)]
    topology, stream = stream_of("s string, id bigint, a bigint, b bigint", rows)
    look("example", stream.filter("a", lambda a: a == 1), "id")
    for way, keep in ways().items():
        if look.on_spark or way not in ("sql", "column"):
            look(f"short {way}", stream.filter("s", keep), "id")
    pairs = stream.filter("id", lambda i: i < 4).project(["a", "b"])
    look("equal", pairs.filter(Equals()))
    look("different", pairs.filter(Negate(Equals())))
    look("full", pairs.filter(FilterNull()))
    look("whole tuple", pairs.filter(lambda a, b: a == 1 and b == 2))
    look("null is no", pairs.filter(lambda a, b: a and None))
    look("all", pairs.filter(TrueFilter()))
    look("none", pairs.filter(lambda a, b: False))
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert ran["example"] == [(0,), (1,), (4,), (5,)]


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_every_way_to_write_a_filter_keeps_the_same_rows(ran):
    expected = [(i,) for i, s in enumerate(TEXTS) if s is not None and len(s) < 3]

    for way in ways():
        assert ran[f"short {way}"] == expected, way


def test_a_filter_without_fields_sees_the_whole_tuple(ran):
    assert ran["equal"] == [(1, 1), (None, None)]
    assert ran["different"] == [(1, 2), (None, 3)]
    assert ran["full"] == [(1, 1), (1, 2)]
    assert ran["whole tuple"] == [(1, 2)]


def test_only_true_keeps_a_tuple(ran):
    assert (ran["null is no"], ran["none"]) == ([], [])
    assert ran["all"] == sorted(PAIRS, key=repr)
