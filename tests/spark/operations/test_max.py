"""`max`: the tuple for which a key is greatest, in each partition of a batch."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import ran_once, stream_of

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

ROWS = [("a", 3, 4), ("b", 5, 2), ("c", 1, 1), ("d", None, 0), ("e", 1, 6)]


def area(tuple):
    return None if tuple["w"] is None else tuple["w"] * tuple["h"]


def build(look):
    topology, stream = stream_of("name string, w bigint, h bigint", ROWS)
    look("example", stream.max(area))
    look("a tuple of keys", stream.max(lambda t: (t["w"], t["h"])))
    look("ties", stream.max(lambda t: 0), "name")
    look("nothing", stream.filter("w", lambda w: w == 9).max(area))
    if look.on_spark:
        look("per partition", stream.partition_by("w").parallelism_hint(16).max(area), "name")
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    assert ran["example"] == [("a", 3, 4)]


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_keys_may_be_of_several_parts(ran):
    assert ran["a tuple of keys"] == [("b", 5, 2)]


def test_of_equal_ones_the_later_stays(ran):
    assert ran["ties"] == [("e",)]


def test_nothing_comes_of_nothing(ran):
    assert ran["nothing"] == []


def test_each_partition_has_its_own(ran):
    assert ran["per partition"] == [("a",), ("b",), ("e",)]
