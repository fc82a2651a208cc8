"""Every operation on real Spark: the rows it gives, in each way to write it."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest

from tests.trident.support import capture, finish
from waterspout import Config, submit
from waterspout.errors import RunFailedError, TopologyError
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import (
    Aggregator,
    CombinerAggregator,
    Count,
    Equals,
    Filter,
    FilterNull,
    Function,
    MapGet,
    Negate,
    ReducerAggregator,
    Split,
    Sum,
    TridentTopology,
    arrow_function,
    expr,
    pandas_function,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

ODD = [
    None,
    "",
    " ",
    "a",
    " a  b ",
    "日本 語 🐄",
    "a\tb",
    "x\ny z",
    "no\u00a0break",
    'q"uote \\ back',
    "a" * 5000 + " b",
]


def stream_of(fields, rows, size=10_000):
    topology = TridentTopology("operations")
    return topology, topology.new_stream("rows", FixedBatchSpout(fields, size, rows))


# --- functions ---------------------------------------------------------------------------


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


def test_every_way_to_write_a_function_gives_the_same_rows(spark):
    topology, sentences = stream_of("id bigint, s string", list(enumerate(ODD)))
    kept = {
        way: capture(sentences.each("s", split, out="word string"), "id", "word")
        for way, split in SPLITS.items()
    }

    finish(topology, spark)

    expected = sorted(((i, word) for i, s in enumerate(ODD) for word in words(s)), key=repr)
    assert len(expected) == 15
    for way, rows in kept.items():
        assert rows.rows == expected, way


def test_sparks_split_takes_a_separator_as_text_like_pythons(spark):
    text = "a.b|c\\d$^e  f ab(g)[a]h.."
    separators = [".", "|", "\\", "$^", "  ", "[a]"]
    topology, sentences = stream_of("s string", [text, "", None])
    kept = {s: capture(sentences.each("s", Split(s), out="w"), "w") for s in separators}

    finish(topology, spark)

    assert {s: rows.rows for s, rows in kept.items()} == {
        s: sorted(((w,) for w in text.split(s) if w), key=repr) for s in separators
    }


def test_a_value_per_tuple_is_the_same_from_every_kind_of_function(spark):
    from pyspark.sql import functions as F

    class Size(Function):
        def execute(self, tuple, collector):
            collector.emit((len(tuple["s"]) if tuple["s"] is not None else -1,))

        def output_types(self, inputs):
            return ["bigint"]

    ways = {
        "function": Size(),
        "lambda": lambda s: -1 if s is None else len(s),
        "arrow": arrow_function(lambda b: pc.fill_null(pc.utf8_length(b.column("s")), -1)),
        "pandas": pandas_function(lambda f: f["s"].str.len().fillna(-1)),
        "sql": expr("coalesce(length(s), -1)"),
        "column": F.coalesce(F.length("s"), F.lit(-1)),
    }
    topology, sentences = stream_of("s string", ODD)
    kept = {
        way: capture(sentences.each("s", function, out="n bigint"), "n")
        for way, function in ways.items()
    }

    finish(topology, spark)

    expected = sorted(((-1 if s is None else len(s),) for s in ODD), key=repr)
    assert {way: rows.rows for way, rows in kept.items()} == dict.fromkeys(ways, expected)


def test_functions_chain_in_python_and_back_in_the_jvm(spark):
    topology, numbers = stream_of("n bigint", [1, 2, 3])
    chained = (
        numbers.each("n", lambda n: n * 10, out="a bigint")
        .each("a", expr("a + 1"), out="b int")
        .each(["a", "b"], lambda a, b: (a + b, str(a)), out="c bigint, d string")
        .filter(["c"], lambda c: c > 21)
        .project(["d", "c", "n"])
        .each("d", expr("concat(d, '!')"), out="e string")
    )
    kept = capture(chained)

    finish(topology, spark)

    assert kept.rows == [("20", 41, 2, "20!"), ("30", 61, 3, "30!")]


def test_a_declared_type_wins_over_the_one_that_spark_would_give(spark):
    topology, rows = stream_of("s string", ["1 2", "3"])
    split = rows.each("s", Split(), out="n bigint").each("n", lambda n: n + 1, out="m bigint")
    counted = rows.aggregate(Count(), out="c int").each("c", lambda c: c + 1, out="d int")
    kept_split, kept_count = capture(split, "n", "m"), capture(counted)

    finish(topology, spark)

    assert kept_split.rows == [(1, 2), (2, 3), (3, 4)]
    assert kept_count.rows == [(2, 3)]


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


def test_nan_infinity_and_minus_zero_go_through_python_unchanged(spark):
    odd = [math.nan, math.inf, -math.inf, -0.0]
    topology, numbers = stream_of("x double", odd)
    kept = capture(numbers.each("x", lambda x: x, out="y double"))

    finish(topology, spark)

    assert [repr(y) for _, y in kept.rows] == sorted(map(repr, odd))


def test_a_wrong_type_stops_the_run_naming_function_field_and_value(spark):
    def half(n):
        return n / 2

    topology, numbers = stream_of("n bigint", [2, 3])
    capture(numbers.each("n", half, out="m bigint"))

    with pytest.raises(
        RunFailedError, match=r"each\(half\) gave 1\.5 for field 'm', which is declared as int64"
    ):
        finish(topology, spark, Config(max_retries=0))


def test_a_function_lives_as_long_as_its_partition_however_many_chunks_that_is(spark):
    class Numbered(Function):
        def prepare(self, conf, context):
            self.n = 0

        def execute(self, tuple, collector):
            self.n += 1
            collector.emit((self.n,))

        def output_types(self, inputs):
            return ["bigint"]

    topology, numbers = stream_of("i bigint", range(25_000), size=25_000)
    counted = numbers.each("i", Numbered(), out="n").parallelism_hint(1)
    last = counted.aggregate("n", Largest(), out="n")
    kept, total = capture(last), capture(counted.aggregate(Count(), out="c"))

    finish(topology, spark)

    assert (kept.rows, total.rows) == ([(25_000,)], [(25_000,)])


class Tracked(Function):
    """Writes down what is called, where, in a file per partition."""

    def __init__(self, folder):
        self._folder = str(folder)

    def prepare(self, conf, context):
        self._path = Path(self._folder) / f"{context.partition_index}"
        self._note(f"prepare {conf.state_partitions}")

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


def test_prepare_and_cleanup_are_called_once_per_partition_of_the_hint(spark, tmp_path):
    topology, numbers = stream_of("n bigint", range(30))
    kept = capture(numbers.each("n", Tracked(tmp_path), out="where").parallelism_hint(3), "where")

    finish(topology, spark, Config(state_partitions=1))

    logs = {int(path.name): path.read_text().splitlines() for path in tmp_path.glob("[0-9]")}
    assert sorted(logs) == [0, 1, 2]
    for (where,), rows in Counter(kept.rows).items():
        assert logs[where] == ["prepare 1", *["execute"] * rows, "cleanup"]


def test_a_hint_on_the_spouts_own_stream_spreads_what_follows(spark, tmp_path):
    topology, numbers = stream_of("n bigint", range(40))
    kept = capture(numbers.parallelism_hint(4).each("n", Tracked(tmp_path), out="where"), "where")

    finish(topology, spark)

    assert set(kept.rows) == {(0,), (1,), (2,), (3,)}


def counting_calls(path):
    def note(n):
        with open(path, "a") as file:
            file.write("x")
        return n

    return note


def test_a_stream_used_twice_is_computed_once(spark, tmp_path):
    calls = tmp_path / "calls"
    topology, numbers = stream_of("n bigint", range(7))
    shared = numbers.each("n", counting_calls(str(calls)), out="m bigint")
    first, second = capture(shared.filter("m", expr("m < 2")), "m"), capture(shared, "n")
    total = capture(shared.aggregate("m", Sum(), out="total"))

    finish(topology, spark)

    assert calls.read_text() == "x" * 7
    assert (first.rows, len(second.rows), total.rows) == ([(0,), (1,)], 7, [(21,)])


def test_a_stream_used_in_both_phases_is_computed_once(spark, tmp_path):
    calls = tmp_path / "calls"
    topology, numbers = stream_of("n bigint", range(7))
    shared = numbers.each("n", counting_calls(str(calls)), out="m bigint")
    counts = shared.group_by("m").persistent_aggregate(MemoryMapState(), Count(), out="c")
    capture(shared.state_query(counts, "m", MapGet(), out="c"))

    finish(topology, spark)

    assert calls.read_text() == "x" * 7


# --- filters, projection, transform ----------------------------------------------------


class Short(Filter):
    def is_keep(self, tuple):
        return tuple[0] is not None and len(tuple[0]) < 3


def test_every_way_to_write_a_filter_keeps_the_same_rows(spark):
    from pyspark.sql import functions as F

    ways = {
        "filter": Short(),
        "negated": Negate(Negate(Short())),
        "lambda": lambda s: s is not None and len(s) < 3,
        "arrow": arrow_function(lambda b: pc.less(pc.utf8_length(b.column("s")), 3)),
        "pandas": pandas_function(lambda f: f["s"].str.len() < 3),
        "sql": expr("length(s) < 3"),
        "column": F.length("s") < 3,
    }
    topology, sentences = stream_of("s string, id bigint", [(s, i) for i, s in enumerate(ODD)])
    kept = {way: capture(sentences.filter("s", keep), "id") for way, keep in ways.items()}

    finish(topology, spark)

    expected = [(i,) for i, s in enumerate(ODD) if s is not None and len(s) < 3]
    assert {way: rows.rows for way, rows in kept.items()} == dict.fromkeys(ways, expected)


def test_a_filter_without_fields_sees_the_whole_tuple(spark):
    topology, pairs = stream_of("a bigint, b bigint", [(1, 1), (1, 2), (None, None), (None, 3)])
    equal, full = capture(pairs.filter(Equals())), capture(pairs.filter(FilterNull()))
    both = capture(pairs.filter(lambda a, b: a == 1 and b == 2))

    finish(topology, spark)

    assert equal.rows == [(1, 1), (None, None)]
    assert full.rows == [(1, 1), (1, 2)]
    assert both.rows == [(1, 2)]


def test_project_keeps_fields_in_the_order_asked_for(spark):
    topology, rows = stream_of("a bigint, b string, c double", [(1, "x", 0.5)])
    kept = capture(rows.project(["c", "a"]))

    finish(topology, spark)

    assert kept.rows == [(0.5, 1)]


def test_a_transform_stays_in_the_jvm_and_declares_what_comes_out(spark):
    from pyspark.sql import functions as F

    def squares(frame):
        return frame.where("n > 1").withColumn("square", F.col("n") ** 2).withColumn("x", F.lit(0))

    topology, numbers = stream_of("n bigint", [1, 2, 3])
    same = capture(numbers.transform(lambda frame: frame.where("n <> 2")))
    other = capture(numbers.transform(squares, out="square bigint, n string"))

    finish(topology, spark)

    assert same.rows == [(1,), (3,)]
    # What was not declared is dropped, and what was has the type declared.
    assert other.rows == [(4, "2"), (9, "3")]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda s: s.transform(lambda frame: 5), r"must return a DataFrame; it gave 5"),
        (
            lambda s: s.transform(lambda frame: frame, out="n bigint, more string"),
            r"declared to give n bigint, more string, but more is missing \(it gave n\); write out",
        ),
        (
            lambda s: s.each("n", expr("upper(nope)"), out="x string"),
            r"each\(upper\(nope\)\) does not fit its stream: .*nope",
        ),
        (
            lambda s: s.filter("n", expr("n +")),
            r"each\(n \+\) does not fit its stream: ",
        ),
        (
            lambda s: s.each("n", expr("n"), out="a bigint, b bigint"),
            r"each\(n\) is one expression, but has 2 outputs",
        ),
    ],
    ids=["no frame", "missing field", "unknown column", "bad sql", "two outputs"],
)
def test_what_does_not_fit_the_stream_is_refused_before_the_run(spark, home, build, said):
    topology, numbers = stream_of("n bigint", [1])
    capture(build(numbers))

    with pytest.raises(TopologyError, match=said):
        submit(topology, spark)

    assert not home.exists()


# --- aggregation -------------------------------------------------------------------------


class Largest(CombinerAggregator[int]):
    def init(self, tuple):
        return tuple[0]

    def combine(self, left, right):
        return max(left, right)

    def zero(self):
        return -1

    def output_types(self, inputs):
        return ["bigint"]


class Total(ReducerAggregator[int]):
    def init(self):
        return 1000

    def reduce(self, value, tuple):
        return value + tuple["n"]

    def output_types(self, inputs):
        return ["bigint"]


class Extremes(Aggregator[list]):
    """Emits two tuples, or one that says there was nothing."""

    def init(self, batch_id, collector):
        self.batch_id = batch_id
        return []

    def aggregate(self, value, tuple, collector):
        value.append(tuple["n"])

    def complete(self, value, collector):
        for n in {min(value), max(value)} if value else {None}:
            collector.emit((n, self.batch_id))


EVERY_AGGREGATOR = {
    "count": (Count(), "out", [(0,)]),
    "sum": (Sum(), "out", [(0,)]),
    "combiner": (Largest(), "out", [(-1,)]),
    "reducer": (Total(), "out", [(1000,)]),
    "aggregator": (Extremes(), "out bigint, batch bigint", [(None, 1)]),
}


def test_an_empty_batch_gives_one_tuple_ungrouped_and_none_grouped(spark):
    topology, numbers = stream_of("n bigint, k string", [(1, "a")])
    nothing = numbers.filter("n", expr("n > 1"))
    whole, grouped = {}, {}
    for name, (aggregator, out, _) in EVERY_AGGREGATOR.items():
        whole[name] = capture(nothing.aggregate("n", aggregator, out))
        grouped[name] = capture(nothing.group_by("k").aggregate("n", aggregator, out))

    finish(topology, spark)

    assert {name: kept.rows for name, kept in whole.items()} == {
        name: made for name, (_, _, made) in EVERY_AGGREGATOR.items()
    }
    assert {name: kept.rows for name, kept in grouped.items()} == {name: [] for name in grouped}


def some_rows(dice, keys, n=300):
    return [(dice.choice(keys), dice.randint(0, 99)) for _ in range(n)]


def recount(rows):
    """Every aggregator again, in plain Python: by key, and over all."""
    groups = {}
    for key, n in rows:
        groups.setdefault("nan" if key != key else key, []).append(n)
    return {
        "count": {key: [(len(ns),)] for key, ns in groups.items()},
        "sum": {key: [(sum(ns),)] for key, ns in groups.items()},
        "combiner": {key: [(max(ns),)] for key, ns in groups.items()},
        "reducer": {key: [(1000 + sum(ns),)] for key, ns in groups.items()},
        "aggregator": {key: [(n, 1) for n in {min(ns), max(ns)}] for key, ns in groups.items()},
    }


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("string", ["a", "", None, "é", "b" * 100]),
        ("double", [0.0, 1.5, math.nan, None, -1e300]),
    ],
)
def test_every_aggregator_equals_a_recount_by_key(spark, kind, keys):
    rows = some_rows(random.Random(11), keys)
    topology, stream = stream_of(f"k {kind}, n bigint", rows)
    stream = stream.parallelism_hint(3).filter(expr("true"))
    kept = {
        name: capture(stream.group_by("k").aggregate("n", aggregator, out))
        for name, (aggregator, out, _) in EVERY_AGGREGATOR.items()
    }

    finish(topology, spark)

    for name, groups in recount(rows).items():
        expected = [(key, *made) for key, all_made in groups.items() for made in all_made]
        found = [("nan" if key != key else key, *made) for key, *made in kept[name].rows]
        assert sorted(found, key=repr) == sorted(expected, key=repr), name


def test_every_aggregator_equals_a_recount_over_the_whole_batch(spark):
    rows = some_rows(random.Random(12), ["all"])
    topology, stream = stream_of("k string, n bigint", rows)
    stream = stream.parallelism_hint(3).filter(expr("true"))
    kept = {
        name: capture(stream.aggregate("n", aggregator, out))
        for name, (aggregator, out, _) in EVERY_AGGREGATOR.items()
    }

    finish(topology, spark)

    assert {name: rows.rows for name, rows in kept.items()} == {
        name: sorted(groups["all"], key=repr) for name, groups in recount(rows).items()
    }


def test_minus_zero_and_zero_are_one_group_for_every_kind_of_aggregator(spark):
    topology, stream = stream_of("k double, n bigint", [(0.0, 1), (-0.0, 2), (1.0, 4)])
    stream = stream.parallelism_hint(3).filter(expr("true"))
    kept = [
        capture(stream.group_by("k").aggregate("n", aggregator, "out"), "out")
        for aggregator in (Sum(), Total(), Largest())
    ]

    finish(topology, spark)

    assert [rows.rows for rows in kept] == [[(3,), (4,)], [(1003,), (1004,)], [(2,), (4,)]]


def test_sums_keep_their_kind_of_number_and_take_nulls_as_nothing(spark):
    rows = [(1, 0.5, Decimal("0.10")), (None, None, None), (2**40, 0.25, Decimal("0.20"))]
    topology, numbers = stream_of("i bigint, x float, d decimal(10,2)", rows)
    kept = [capture(numbers.aggregate(field, Sum(), out="s")) for field in "ixd"]
    nulls = numbers.filter("i", expr("i is null"))
    none = [capture(nulls.group_by("i").aggregate(f, Sum(), out="s"), "s") for f in "ixd"]

    finish(topology, spark)

    assert [rows.rows for rows in kept] == [[(2**40 + 1,)], [(0.75,)], [(Decimal("0.30"),)]]
    assert [rows.rows for rows in none] == [[(0,)], [(0.0,)], [(Decimal("0.00"),)]]


def test_numpy_and_pandas_values_are_taken_as_what_they_are(spark):
    topology, numbers = stream_of("n bigint", [1, 2])
    made = numbers.each(
        "n",
        lambda n: (np.int64(n), np.float64(n) / 2, pd.Timestamp(n, unit="s", tz="UTC")),
        out="i bigint, x double, at timestamp",
    )
    kept = capture(made, "i", "x", "at")

    finish(topology, spark)

    at = [dt.datetime.fromtimestamp(n, dt.UTC) for n in (1, 2)]
    assert kept.rows == [(1, 0.5, at[0]), (2, 1.0, at[1])]


def test_a_table_of_arrow_data_may_hold_no_rows_at_all(spark):
    topology, numbers = stream_of("n bigint", [1])
    empty = numbers.filter("n", lambda n: False)
    kept = capture(empty.each("n", arrow_function(lambda b: b.column("n")), out="m bigint"))
    total = capture(empty.each("n", lambda n: n, out="m bigint").aggregate(Count(), out="c"))

    finish(topology, spark)

    assert (kept.rows, total.rows) == ([], [(0,)])
