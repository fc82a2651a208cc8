"""`transform`: a function from DataFrame to DataFrame; stays in the JVM."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import ran_once, stream_of
from tests.trident.support import capture
from waterspout import submit
from waterspout.errors import TopologyError
from waterspout.trident import Count, expr

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def squares(frame):
    from pyspark.sql import functions as F

    return frame.where("n > 1").withColumn("square", F.col("n") ** 2).withColumn("x", F.lit(0))


def build(look):
    topology, numbers = stream_of("n bigint, word string", [(1, "b"), (2, "a"), (3, None)])
    look("all", numbers)
    if look.on_spark:
        look("example", numbers.transform(lambda frame: frame.where("n <> 2").limit(10)))
        look("other", numbers.transform(squares, out="square double, x bigint"))
        in_python = numbers.each("n", lambda n: n + 1, out="m bigint")
        look("python", in_python.transform(lambda frame: frame.orderBy("m")).filter(keep_even))
        gone = numbers.transform(lambda frame: frame.where("1 = 2"))
        look("nothing", gone.aggregate(Count(), out="c"))
        look("sorted", numbers.transform(lambda frame: frame.orderBy("word")))
    return topology


def keep_even(n, word, m):
    return m % 2 == 0


ran = ran_once(build)


def test_the_documented_example(ran):
    assert ran["example"] == [(1, "b"), (3, None)]


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_what_was_not_declared_is_dropped_and_a_narrower_type_is_widened(ran):
    assert ran["other"] == [(4.0, 0), (9.0, 0)]
    assert [type(value) for value in ran["other"][0]] == [float, int]


def test_python_may_come_before_and_behind(ran):
    assert ran["python"] == [(1, "b", 2), (3, None, 4)]


def test_nothing_is_aggregated_like_an_empty_batch(ran):
    assert ran["nothing"] == [(0,)]


def test_any_dataframe_code_will_do(ran):
    assert ran.spark["sorted"].in_order == [(3, None), (2, "a"), (1, "b")]


def halved(frame):
    return frame.selectExpr("n / 2 as n", "'5' as word", "array(n / 2) as list", "n as big")


# What Spark's cast would cut, parse or wrap: 1.7 must not be stored as 1.
CUT = {
    "a fraction": (
        lambda s: s.transform(halved, out="n bigint"),
        r"transform\(halved\) gives n as double, but it is declared as bigint, which does not "
        r'hold every double; write out="n double", or cast it yourself',
    ),
    "a text": (lambda s: s.transform(halved, out="word int"), "gives word as string, but it is"),
    "32 bits": (lambda s: s.transform(halved, out="big int"), "gives big as bigint, but it is"),
    "2^53": (lambda s: s.transform(halved, out="big double"), "gives big as bigint, but it is"),
    "within an array": (
        lambda s: s.transform(halved, out="list array<bigint>"),
        "gives list as array<double>, but it is declared as array<bigint>",
    ),
    "an expression": (
        lambda s: s.each(expr("n / 2"), out="half bigint"),
        "gives half as double, but it is declared as bigint",
    ),
    "an expression in place of the row": (
        lambda s: s.map(expr("n / 2"), out="half bigint"),
        "gives half as double, but it is declared as bigint",
    ),
    "an aggregate": (
        lambda s: s.aggregate(expr("avg(n)"), out="mean bigint"),
        "gives mean as double, but it is declared as bigint",
    ),
}


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda s: s.transform(lambda frame: 5), r"must return a DataFrame; it gave 5"),
        (
            lambda s: s.transform(lambda frame: frame, out="n bigint, more string"),
            r"declared to give n bigint, more string, but more is missing \(it gave n\); write out",
        ),
        *CUT.values(),
    ],
    ids=["no frame", "missing field", *CUT],
)
def test_what_does_not_fit_the_stream_is_refused_before_the_run(spark, home, build, said):
    topology, numbers = stream_of("n bigint", [1])
    capture(build(numbers))

    with pytest.raises(TopologyError, match=said):
        submit(topology, spark)

    assert not home.exists()
