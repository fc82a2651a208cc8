"""`each`: appends what a function gives for each tuple, or keeps what a filter lets through."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest

from tests.spark.operations.support import ran_once, stream_of
from tests.trident.support import capture, finish
from waterspout import Config, submit
from waterspout.errors import RunFailedError, TopologyError
from waterspout.trident import Count, Function, Split, arrow_function, expr, pandas_function

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

ODD = [
    None, "", " ", "a", " a  b ", "日本 語 🐄", "a\tb", "x\ny z", "no\u00a0break",
    'q"uote \\ back', "a" * 5000 + " b",
]  # fmt: skip


class PythonSplit(Split):
    """Not Split itself, so it is not replaced by Spark's own."""


def words(sentence):
    for word in (sentence or "").split(" "):
        if word:
            yield word


@arrow_function
def arrow_split(batch):
    lists = pc.split_pattern(batch.column("s"), " ")
    flat, rows = pc.list_flatten(lists), pc.list_parent_indices(lists)
    full = pc.not_equal(flat, "")
    return rows.filter(full), flat.filter(full)


@pandas_function
def pandas_split(frame):
    flat = frame["s"].str.split(" ").explode()
    flat = flat[flat.notna() & (flat != "")]
    return flat.index, flat


SPLITS = {
    "native": Split(),
    "python": PythonSplit(),
    "generator": words,
    "arrow": arrow_split,
    "pandas": pandas_split,
    "sql": expr("explode(filter(split(s, ' ', -1), word -> word != ''))"),
}


class Size(Function):
    def execute(self, tuple, collector):
        collector.emit((len(tuple["s"]) if tuple["s"] is not None else -1,))

    def output_types(self, inputs):
        return ["bigint"]


def sizes():
    from pyspark.sql import functions as F

    return {
        "function": Size(),
        "lambda": lambda s: -1 if s is None else len(s),
        "arrow": arrow_function(lambda b: pc.fill_null(pc.utf8_length(b.column("s")), -1)),
        "pandas": pandas_function(lambda f: f["s"].str.len().fillna(-1)),
        "sql": expr("coalesce(length(s), -1)"),
        "column": F.coalesce(F.length("s"), F.lit(-1)),
    }


class Repeated(Function):
    """Emits as many tuples as it is told: none drops the tuple."""

    def execute(self, tuple, collector):
        for i in range(tuple["n"]):
            collector.emit((i, tuple["n"] * 10))


SEPARATORS = [".", "|", "\\", "$^", "  ", "[a]"]
SEPARATED = "a.b|c\\d$^e  f ab(g)[a]h.."


def build(look):
    topology, s = stream_of("id bigint, s string, n bigint", [
        (i, text, i % 4) for i, text in enumerate(ODD)
    ])  # fmt: skip
    look("example", s.each("s", Split(), out="word"), "id", "word")
    look("appended", s.each("n", lambda n: n * 2, out="double bigint"), "double", "n", "id")
    look("repeated", s.each("n", Repeated(), out="i bigint, tens bigint"), "id", "i", "tens")
    look("all fields", s.each(lambda id, s, n: id + n, out="both bigint"), "both")
    look("filter", s.each("n", lambda n: n == 3), "id")
    nothing = s.filter("n", lambda n: False)
    look("nothing", nothing.each("n", arrow_function(lambda b: b.column("n")), out="m bigint"))
    look("none", nothing.each("n", lambda n: n, out="m bigint").aggregate(Count(), out="c"))
    text = s.filter("id", lambda i: i < 3).project("s").map(lambda s: s if not s else SEPARATED)
    for separator in SEPARATORS:
        look(f"by {separator}", text.each("s", Split(separator), out="w"), "w")
    for way, split in SPLITS.items():
        if way != "sql" or look.on_spark:
            look(f"split {way}", s.each("s", split, out="word string"), "id", "word")
    if look.on_spark:
        for way, size in sizes().items():
            look(f"size {way}", s.each("s", size, out="size bigint"), "id", "size")
        several = s.each("n", [expr("n + 1"), expr("n * 2")], out="more bigint, twice bigint")
        look("expressions", several.filter(expr("id < 2")), "n", "more", "twice")
        declared = s.filter(expr("id = 3")).each("s", expr("7"), out="m bigint")
        look("declared", declared.each("m", lambda m: m + 1, out="after bigint"), "m", "after")
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    expected = sorted(((i, word) for i, s in enumerate(ODD) for word in words(s)), key=repr)

    assert len(expected) == 15
    assert ran["example"] == expected


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_every_way_to_write_a_function_gives_the_same_rows(ran):
    for way in SPLITS:
        assert ran[f"split {way}"] == ran["example"], way


def test_a_value_per_tuple_is_the_same_from_every_kind_of_function(ran):
    expected = sorted(((i, -1 if s is None else len(s)) for i, s in enumerate(ODD)), key=repr)

    for way in sizes():
        assert ran[f"size {way}"] == expected, way


def test_the_fields_that_are_there_stay(ran):
    assert ran["appended"] == sorted(((i % 4 * 2, i % 4, i) for i in range(len(ODD))), key=repr)


def test_no_emit_drops_a_tuple_and_several_multiply_it(ran):
    assert ran["repeated"] == sorted(
        ((i, j, i % 4 * 10) for i in range(len(ODD)) for j in range(i % 4)), key=repr
    )


def test_without_fields_a_function_reads_the_whole_tuple(ran):
    assert ran["all fields"] == sorted(((i + i % 4,) for i in range(len(ODD))), key=repr)


def test_without_out_it_is_a_filter(ran):
    assert ran["filter"] == [(3,), (7,)]


def test_no_rows_are_no_problem(ran):
    assert (ran["nothing"], ran["none"]) == ([], [(0,)])


def test_sparks_split_takes_a_separator_as_text_like_pythons(ran):
    for separator in SEPARATORS:
        expected = sorted(((w,) for w in SEPARATED.split(separator) if w), key=repr)
        assert ran[f"by {separator}"] == expected, separator


def test_several_expressions_make_several_fields(ran):
    assert ran["expressions"] == [(0, 1, 0), (1, 2, 2)]


def test_a_declared_type_may_be_wider_than_the_one_that_spark_would_give(ran):
    assert ran["declared"] == [(7, 8)]


def test_functions_chain_in_python_and_back_in_the_jvm(spark):
    topology, numbers = stream_of("n bigint", [1, 2, 3])
    chained = (
        numbers.each("n", lambda n: n * 10, out="a bigint")
        .each("a", expr("a + 1"), out="b bigint")
        .each(["a", "b"], lambda a, b: (a + b, str(a)), out="c bigint, d string")
        .filter(["c"], lambda c: c > 21)
        .project(["d", "c", "n"])
        .each("d", expr("concat(d, '!')"), out="e string")
    )
    kept = capture(chained)
    split = numbers.map(lambda n: "1 2", out="s string").each("s", Split(), out="w")
    kept_split = capture(split.each("w", lambda w: int(w) + 1, out="m bigint"), "w", "m")
    counted = numbers.aggregate(Count(), out="c int").each("c", lambda c: c + 1, out="d int")
    kept_count = capture(counted)

    finish(topology, spark)

    assert kept.rows == [("20", 41, 2, "20!"), ("30", 61, 3, "30!")]
    assert kept_split.rows == sorted([("1", 2), ("2", 3)] * 3)
    assert kept_count.rows == [(3, 4)]


NOON = dt.datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=dt.UTC)
TYPES = {
    "string": "日本 🐄",
    "bigint": -(2**63),
    "int": 2**31 - 1,
    "smallint": -32768,
    "tinyint": 127,
    "double": 1e300,
    "float": 0.5,
    "boolean": True,
    "binary": b"\x00\xff",
    "date": dt.date(1600, 2, 29),
    "timestamp": NOON,
    "timestamp_ntz": NOON.replace(tzinfo=None),
    "decimal(20,4)": Decimal("1234567890123456.7891"),
    "array<bigint>": [1, None, 3],
    "array<struct<a:int,b:string>>": [{"a": 1, "b": "x"}, {"a": None, "b": None}],
    "struct<a:bigint,b:array<string>>": {"a": 1, "b": ["x", None]},
    "map<string,bigint>": [("a", 1), ("b", None)],
}


def test_every_column_type_goes_through_python_unchanged_nulls_included(spark):
    names = [f"c{i}" for i in range(len(TYPES))]
    fields = ", ".join(f"{name} {kind}" for name, kind in zip(names, TYPES, strict=True))
    out = ", ".join(f"d{i} {kind}" for i, kind in enumerate(TYPES))
    full, empty = tuple(TYPES.values()), (None,) * len(TYPES)
    topology, rows = stream_of(fields, [full, empty])
    # Seen by one function, made by it, and then seen by another after a visit to the JVM.
    made = rows.each(names, lambda *values: values, out=out).transform(lambda frame: frame)
    seen = made.filter(lambda *values: len(values) == 2 * len(TYPES))
    kept = capture(seen, *(f"d{i}" for i in range(len(TYPES))))

    finish(topology, spark)

    assert kept.rows == sorted([full, empty], key=repr)


def test_odd_numbers_of_python_numpy_and_pandas_are_taken_as_what_they_are(spark):
    odd = [math.nan, math.inf, -math.inf, -0.0]
    topology, numbers = stream_of("n bigint", [1, 2])
    made = numbers.each(
        "n",
        lambda n: (np.int64(n), np.float64(n) / 2, pd.Timestamp(n, unit="s", tz="UTC")),
        out="i bigint, x double, at timestamp",
    )
    kept = capture(made, "i", "x", "at")
    floats = numbers.filter("n", lambda n: n == 1).flat_map(lambda n: odd, out="x double")
    kept_odd = capture(floats.each("x", lambda x: x, out="y double"))

    finish(topology, spark)

    at = [dt.datetime.fromtimestamp(n, dt.UTC) for n in (1, 2)]
    assert kept.rows == [(1, 0.5, at[0]), (2, 1.0, at[1])]
    assert [repr(y) for _, y in kept_odd.rows] == sorted(map(repr, odd))


def test_a_wrong_type_stops_the_run_naming_function_field_and_value(spark):
    def half(n):
        return n / 2

    topology, numbers = stream_of("n bigint", [2, 3])
    capture(numbers.each("n", half, out="m bigint"))

    with pytest.raises(
        RunFailedError, match=r"each\(half\) gave 1\.5 for field 'm', which is declared as int64"
    ):
        finish(topology, spark, Config(max_retries=0))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda s: s.each("n", expr("upper(nope)"), out="x string"),
            r"each\(upper\(nope\)\) does not fit its stream: .*nope",
        ),
        (lambda s: s.filter("n", expr("n +")), r"each\(n \+\) does not fit its stream: "),
    ],
    ids=["unknown column", "bad sql"],
)
def test_an_expression_that_does_not_fit_is_refused_before_the_run(spark, home, build, said):
    topology, numbers = stream_of("n bigint", [1])
    capture(build(numbers))

    with pytest.raises(TopologyError, match=said):
        submit(topology, spark)

    assert not home.exists()
