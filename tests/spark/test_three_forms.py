"""One topology in every form: native, Arrow, pandas, and plain Python give the same rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from tests.trident.support import capture, finish
from waterspout._schema import Schema
from waterspout._tuples import field_index
from waterspout.spark.native import native_aggregates, native_finish
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import (
    Average,
    CollectSet,
    Columns,
    Count,
    CountDistinct,
    Split,
    Sum,
    TridentTopology,
    TridentTuple,
    aggregator,
    arrow_aggregator,
    arrow_function,
    expr,
    pandas_aggregator,
    pandas_function,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

OUT = "n bigint, total bigint, mean double, words array<string>, kinds bigint"


def add_mark(s) -> str:
    return None if s is None else s + "!"


def is_even(x):
    return x is not None and x % 2 == 0


def words_of(s):
    for word in (s or "").split(" "):
        if word:
            yield word


@aggregator
def summary(tuples):
    numbers = [t["x"] for t in tuples if t["x"] is not None]
    words = sorted({t["word"] for t in tuples})
    mean = float(sum(numbers)) / len(numbers) if numbers else None
    return len(tuples), sum(numbers), mean, words, len(words)


@arrow_function
def arrow_add_mark(batch):
    return pc.binary_join_element_wise(batch.column("s"), "!", "")


@arrow_function
def arrow_is_even(batch):
    return pc.equal(pc.bit_wise_and(batch.column("x"), 1), 0)


@arrow_function
def arrow_words(batch):
    lists = pc.split_pattern(batch.column("s"), " ")
    flat, rows = pc.list_flatten(lists), pc.list_parent_indices(lists)
    full = pc.not_equal(flat, "")
    return rows.filter(full), flat.filter(full)


@arrow_aggregator
def arrow_summary(table):
    words = pc.unique(table["word"])
    words = words.take(pc.sort_indices(words))
    total = pc.sum(table["x"], min_count=0)
    return table.num_rows, total, pc.mean(table["x"]), words.to_pylist(), len(words)


@pandas_function
def pandas_add_mark(frame):
    return frame["s"] + "!"


@pandas_function
def pandas_is_even(frame):
    return frame["x"] % 2 == 0


@pandas_function
def pandas_words(frame):
    flat = frame["s"].str.split(" ").explode()
    flat = flat[flat.notna() & (flat != "")]
    return flat.index, flat


@pandas_aggregator
def pandas_summary(frame):
    numbers, words = frame["x"].dropna(), sorted(set(frame["word"]))
    mean = float(numbers.mean()) if len(numbers) else None
    return len(frame), int(numbers.sum()), mean, words, len(words)


class PyCount(Count):
    """Not Count itself, so it is not replaced by Spark's own; so are the others."""


class PySum(Sum):
    pass


class PyAverage(Average):
    pass


class PyCollectSet(CollectSet):
    pass


class PyCountDistinct(CountDistinct):
    pass


def columns(count, total, mean, words, kinds):
    return Columns(
        n=count, total=("x", total), mean=("x", mean), words=("word", words), kinds=("word", kinds)
    )


NATIVE = columns(Count(), Sum(), Average(), CollectSet(), CountDistinct())
COMBINED = columns(PyCount(), PySum(), PyAverage(), PyCollectSet(), PyCountDistinct())

FORMS = {
    "native": (expr("s || '!'"), expr("x % 2 = 0"), Split(), NATIVE),
    "arrow": (arrow_add_mark, arrow_is_even, arrow_words, arrow_summary),
    "pandas": (pandas_add_mark, pandas_is_even, pandas_words, pandas_summary),
    "plain": (add_mark, is_even, words_of, summary),
    "combiners": (add_mark, is_even, words_of, COMBINED),
}

TEXTS = st.none() | st.text(st.sampled_from(["a", "b", " ", "é", "日", "🐄"]), max_size=8)
ROWS = st.lists(
    st.tuples(st.sampled_from([None, "", "k", "l"]), st.none() | st.integers(-50, 50), TEXTS),
    max_size=40,
)


def expected_rows(rows):
    groups: dict[str | None, list[tuple[int, str]]] = {}
    for k, x, s in rows:
        if is_even(x):
            for word in words_of(add_mark(s)):
                groups.setdefault(k, []).append((x, word))
    return sorted(
        (
            (k, len(of), sum(x for x, _ in of), float(sum(x for x, _ in of)) / len(of),
             sorted({w for _, w in of}), len({w for _, w in of}))
            for k, of in groups.items()
        ),
        key=repr,
    )  # fmt: skip


@settings(
    max_examples=max(1, settings().max_examples // 40),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(rows=ROWS)
def test_the_same_topology_in_every_form_gives_the_same_rows(spark, rows):
    rows = [("k", 2, "a b"), *rows]  # Spark is not started for nothing
    topology = TridentTopology("forms")
    source = topology.new_stream("rows", FixedBatchSpout("k string, x bigint, s string", 100, rows))
    kept = {}
    for form, (function, predicate, split, aggregate) in FORMS.items():
        stream = source.each("s", function, out="marked string").filter("x", predicate)
        stream = stream.project(["k", "x", "marked"]).transform(
            _as_s, out="k string, x bigint, s string"
        )
        stream = stream.each("s", split, out="word string")
        made = stream.group_by("k").aggregate(["x", "word"], aggregate, out=OUT)
        kept[form] = capture(made)

    finish(topology, spark, timeout=200)

    for form, found in kept.items():
        assert found.rows == expected_rows(rows), form


def _as_s(frame):
    return frame.withColumnRenamed("marked", "s")


@pytest.mark.soak
def test_what_spark_combined_goes_on_in_a_state_as_what_python_combined(spark):
    """A sketch, a sum and a set that Spark made are combined with stored ones by Python."""
    rows = [("k", i % 7, f"w{i % 5}") for i in range(40)]
    topology = TridentTopology("states")
    source = topology.new_stream(
        "rows", FixedBatchSpout("k string, x bigint, word string", 10, rows)
    )
    states = {
        form: source.group_by("k").persistent_aggregate(MemoryMapState(), combiner)
        for form, combiner in {"native": NATIVE, "combiners": COMBINED}.items()
    }

    finish(topology, spark)

    numbers = [x for _, x, _ in rows]
    expected = (40, sum(numbers), sum(numbers) / 40, [f"w{i}" for i in range(5)], 5)
    for form, state in states.items():
        assert state.get("k") == expected, form


@pytest.mark.parametrize("kind", ["bigint", "string"])
@pytest.mark.parametrize("n", [3, 300, 6000])
def test_a_sketch_by_spark_is_one_by_python(spark, kind, n):
    count, inputs = CountDistinct(), Schema.parse(f"x {kind}")
    frame = spark.range(n).select(F.col("id").cast(kind).alias("x")).repartition(3)
    (value,) = native_aggregates(count, inputs)
    finished = native_finish(count, F.col("sketch"))
    ((sketch, estimate),) = frame.agg(value.alias("sketch")).select("sketch", finished).collect()
    index, own = field_index(["x"]), count.zero()
    for i in range(n):
        row = TridentTuple((i if kind == "bigint" else str(i),), index)
        own = count.combine(own, count.init(row))
    ((of_own,),) = spark.createDataFrame([(own,)], "sketch binary").select(finished).collect()

    assert estimate == of_own == count.finish(bytes(sketch)) == count.finish(own)
    assert count.finish(count.combine(bytes(sketch), own)) == estimate
    assert n > 1000 or estimate == n


@pytest.mark.soak
def test_maps_in_every_form_replace_the_tuple(spark):
    topology = TridentTopology("maps")
    rows = [("a b", 1), (None, 2), ("", 3), ("c", None)]
    source = topology.new_stream("rows", FixedBatchSpout("s string, x bigint", 100, rows))
    maps = {
        "native": source.map(expr("x + 1"), out="y bigint"),
        "arrow": source.map(arrow_function(lambda b: pc.add(b.column("x"), 1)), out="y bigint"),
        "record batch": source.map(
            arrow_function(lambda b: pa.record_batch({"y": pc.add(b.column("x"), 1)})),
            out="y bigint",
        ),
        "pandas": source.map(pandas_function(lambda f: f["x"] + 1), out="y bigint"),
        "plain": source.map(lambda s, x: None if x is None else x + 1, out="y bigint"),
    }
    flat = {
        "native": source.flat_map(expr("explode(split(s, ' '))"), out="word string"),
        "arrow": source.flat_map(arrow_words, out="word string"),
        "pandas": source.flat_map(pandas_words, out="word string"),
        "plain": source.flat_map(lambda s, x: words_of(s), out="word string"),
    }
    kept = {form: capture(stream) for form, stream in maps.items()}
    words = {form: capture(s.filter(lambda w: w != "")) for form, s in flat.items()}

    finish(topology, spark)

    for form, found in kept.items():
        assert found.rows == sorted([(2,), (3,), (4,), (None,)], key=repr), form
    for form, found in words.items():
        assert found.rows == [("a",), ("b",), ("c",)], form
