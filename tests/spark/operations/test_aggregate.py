"""`aggregate`: each batch, or each group of it, becomes what an aggregator makes of it."""

from __future__ import annotations

import math
import random
from decimal import Decimal

import pytest

from tests.spark.operations.support import ran_once, stream_of
from tests.trident.support import capture, finish
from waterspout import Config
from waterspout.errors import NumberTooLargeError, RunFailedError
from waterspout.testing import run_in_process
from waterspout.trident import (
    Aggregator,
    CombinerAggregator,
    Count,
    ReducerAggregator,
    Sum,
    expr,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


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
BY_NUMBER = ("sum", "combiner", "reducer")  # in the JVM, in two steps, in one
WORDS = ["a", "", None, "é", "b" * 100]
NUMBERS = [0.0, 1.5, math.nan, None, -1e300, -0.0]
DICE = random.Random(11)
ROWS = [(DICE.choice(WORDS), DICE.choice(NUMBERS), DICE.randint(0, 99)) for _ in range(300)]


def build(look):
    topology, rows = stream_of("k string, x double, n bigint", ROWS)
    stream = rows.parallelism_hint(3).filter("n", lambda n: True)
    nothing = rows.filter("n", lambda n: n < 0)
    look("example", stream.aggregate("n", Sum(), out="total"))
    look("same name", stream.aggregate("n", Sum(), out="n"))
    for name, (aggregator, out, _) in EVERY_AGGREGATOR.items():
        look(f"all {name}", stream.aggregate("n", aggregator, out))
        look(f"by k {name}", stream.group_by("k").aggregate("n", aggregator, out))
        look(f"none {name}", nothing.aggregate("n", aggregator, out))
        look(f"none by k {name}", nothing.group_by("k").aggregate("n", aggregator, out))
        if name in BY_NUMBER and look.on_spark:  # which zero stands for both is not the same
            look(f"by x {name}", stream.group_by("x").aggregate("n", aggregator, out))
    if look.on_spark:
        look("sql", stream.aggregate(expr("max(n) - min(n)"), out="range bigint"))
    return topology


ran = ran_once(build)


def recount(keys):
    """Every aggregator again, in plain Python, for each key."""
    groups = {}
    for key, (_, _, n) in zip(keys, ROWS, strict=True):
        groups.setdefault(key, []).append(n)
    return {
        "count": {key: [(len(ns),)] for key, ns in groups.items()},
        "sum": {key: [(sum(ns),)] for key, ns in groups.items()},
        "combiner": {key: [(max(ns),)] for key, ns in groups.items()},
        "reducer": {key: [(1000 + sum(ns),)] for key, ns in groups.items()},
        "aggregator": {key: [(n, 1) for n in {min(ns), max(ns)}] for key, ns in groups.items()},
    }


def same(x):
    """One key for numbers that count as equal."""
    return "nan" if x != x else x if x is None else x + 0.0


def test_the_documented_example(ran):
    assert ran["example"] == ran["same name"] == [(sum(n for _, _, n in ROWS),)]


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_an_empty_batch_gives_one_tuple_ungrouped_and_none_grouped(ran):
    for name, (_, _, made) in EVERY_AGGREGATOR.items():
        assert ran[f"none {name}"] == made, name
        assert ran[f"none by k {name}"] == [], name


def test_every_aggregator_equals_a_recount_over_the_whole_batch(ran):
    for name, groups in recount(["all"] * len(ROWS)).items():
        assert ran[f"all {name}"] == sorted(groups["all"], key=repr), name


def test_every_aggregator_equals_a_recount_by_key(ran):
    for name, groups in recount([k for k, _, _ in ROWS]).items():
        expected = [(key, *made) for key, all_made in groups.items() for made in all_made]
        assert ran[f"by k {name}"] == sorted(expected, key=repr), name


def test_zero_and_minus_zero_are_one_group_and_so_are_all_nans(ran):
    recounted = recount([same(x) for _, x, _ in ROWS])
    for name in BY_NUMBER:
        expected = [(key, *made) for key, all_made in recounted[name].items() for made in all_made]
        found = [(same(x), *made) for x, *made in ran[f"by x {name}"]]
        assert sorted(found, key=repr) == sorted(expected, key=repr), name


def test_an_expression_aggregates_in_the_jvm(ran):
    numbers = [n for _, _, n in ROWS]

    assert ran["sql"] == [(max(numbers) - min(numbers),)]


def sums(look):
    rows = [(1, 0.5, Decimal("0.10")), (None, None, None), (2**40, 0.25, Decimal("0.20"))]
    topology, numbers = stream_of("i bigint, x float, d decimal(10,2)", rows)
    nulls = numbers.filter("i", lambda i: i is None)
    for field in "ixd":
        look(field, numbers.aggregate(field, Sum(), out="s"))
        look(f"no {field}", nulls.group_by("i").aggregate(field, Sum(), out="s"), "s")
    return topology


summed = ran_once(sums)


def test_sums_keep_their_kind_of_number_and_take_nulls_as_nothing(summed):
    assert [summed[f] for f in "ixd"] == [[(2**40 + 1,)], [(0.75,)], [(Decimal("0.30"),)]]
    assert [summed[f"no {f}"] for f in "ixd"] == [[(0,)], [(0.0,)], [(Decimal("0.00"),)]]
    assert summed.differences == {}


class PythonSum(Sum):
    """The same in Python: a subclass has no form of Spark's own."""


@pytest.mark.parametrize(
    ("aggregator", "ansi"),
    [(Sum(), "false"), (PythonSum(), "true")],
    ids=["in the JVM, which would wrap around", "in Python"],
)
def test_a_sum_beyond_64_bits_fails_the_batch_whatever_computes_it(
    spark, tmp_path, aggregator, ansi
):
    topology, numbers = stream_of("n bigint", [(2**62,), (2**62,)])
    capture(numbers.aggregate("n", aggregator, out="total"))
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)

    try:
        with pytest.raises(RunFailedError) as failed:
            finish(topology, spark, Config(home=str(tmp_path), max_retries=0), timeout=100)
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)

    assert type(failed.value.__cause__) is NumberTooLargeError
    assert "cannot hold" in str(failed.value.__cause__)


@pytest.mark.parametrize("digits", [28, 37])
def test_a_sum_of_decimals_has_all_its_digits_in_python_as_in_the_jvm(digits):
    large = Decimal("9" * digits)
    topology, numbers = stream_of("d decimal(38,0)", [(large,), (Decimal(1),)])
    total = capture(numbers.aggregate("d", Sum(), out="total"))
    run_in_process(topology)

    assert total.rows == [(Decimal("1" + "0" * digits),)]


def test_a_sum_that_is_too_large_for_its_declared_type_fails_the_batch(spark):
    topology, numbers = stream_of("n bigint", [2**31 - 1, 1])
    capture(numbers.aggregate("n", Sum(), out="total int"))
    wraps = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(RunFailedError, match="declared as int, and cannot hold 2147483648"):
            finish(topology, spark, Config(max_retries=0))
    finally:
        spark.conf.set("spark.sql.ansi.enabled", wraps)
