"""`max_by`: the tuple with the greatest value of a field, in each partition of a batch."""

from __future__ import annotations

import math

import pytest

from tests.spark.operations.support import ran_once, stream_of

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = [("a", 3, 2.0), ("b", None, math.nan), ("c", 1, None), ("d", 1, -1.0), ("e", 3, 2.0)]


def build(look):
    topology, stream = stream_of("device string, n bigint, x double", ROWS)
    look("example", stream.max_by("n"), "device", "n")
    look("by key", stream.max_by("n", lambda n: -n), "device", "n")
    look("text", stream.max_by("device"), "device")
    look("numbers", stream.max_by("x"), "device")
    look("all null", stream.filter("device", lambda d: d == "b").max_by("n"))
    look("nothing", stream.filter("n", lambda n: n == 7).max_by("n"))
    by_key = stream.filter("n", lambda n: n is not None).max_by("n", lambda n: n if n > 1 else None)
    look("key gives null", by_key, "device")
    if look.on_spark:
        two = stream.filter("n", lambda n: n is not None).partition_by("n").parallelism_hint(8)
        look("per partition", two.max_by("n"), "n")
        look("whole batch", two.max_by("n").global_().max_by("n"), "n")
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    """Nulls take no part; of equal ones the later stays."""
    assert ran["example"] == [("e", 3)]


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_a_key_gives_another_order(ran):
    assert ran["by key"] == [("d", 1)]


def test_any_type_with_an_order_will_do_and_nan_is_the_greatest(ran):
    assert (ran["text"], ran["numbers"]) == ([("e",)], [("b",)])


def test_nothing_comes_of_nothing_or_of_nulls(ran):
    assert (ran["all null"], ran["nothing"]) == ([], [])


def test_a_key_that_is_null_takes_no_part(ran):
    assert ran["key gives null"] == [("e",)]


def test_each_partition_has_its_own(ran):
    assert ran["per partition"] == [(1,), (3,)]
    assert ran["whole batch"] == [(3,)]
