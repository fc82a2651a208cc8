"""`merge`: the tuples of several streams as one."""

from __future__ import annotations

import pytest

from tests.spark.operations.support import ran_once
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Count, TridentTopology

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(240)]

CLICKS = [("ann", 1), ("bob", 2), ("cat", 3)]
VIEWS = [("ann", 10), (None, None)]


def build(look):
    topology = TridentTopology("operations")
    clicks = topology.new_stream("clicks", FixedBatchSpout("user string, n bigint", 2, CLICKS))
    views = topology.new_stream("views", FixedBatchSpout("who string, times bigint", 2, VIEWS))
    look("example", topology.merge(clicks, views))
    look("a list", topology.merge([clicks, views]))
    look("renamed", topology.merge(clicks, views, out="name, m"), "m", "name")
    swapped = views.project(["times", "who"]).map(lambda n, w: (w, n), out="w string, n bigint")
    look("three", topology.merge(clicks, views, swapped).aggregate(Count(), out="c"))
    look("itself", topology.merge(clicks, clicks))
    nobody = views.filter("who", lambda w: w == "nobody")
    look("one empty", topology.merge(nobody, clicks))
    look("all empty", topology.merge(nobody, nobody).aggregate(Count(), out="c"))
    return topology


ran = ran_once(build)


def test_the_documented_example(ran):
    """Both streams have batches of their own, and those of one number go together."""
    assert ran.batches("example") == {
        1: sorted([*CLICKS[:2], *VIEWS], key=repr),
        2: CLICKS[2:],
    }


def test_the_engine_without_spark_agrees(ran):
    assert ran.differences == {}


def test_streams_may_be_given_as_a_list(ran):
    assert ran.batches("a list") == ran.batches("example")


def test_fields_go_by_position_under_new_names(ran):
    assert ran["renamed"] == sorted([(n, name) for name, n in CLICKS + VIEWS], key=repr)


def test_more_than_two_streams(ran):
    assert ran.batches("three") == {1: [(6,)], 2: [(1,)]}


def test_a_stream_with_itself_comes_twice(ran):
    assert ran["itself"] == sorted(2 * CLICKS)


def test_an_empty_stream_adds_nothing(ran):
    assert ran["one empty"] == CLICKS
    assert ran.batches("all empty") == {1: [(0,)], 2: [(0,)]}
