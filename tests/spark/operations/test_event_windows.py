"""Windows of event time and `join_static` on Spark: the same rows as without it, and exact ones."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.operations.support import ran_once
from tests.trident.event_windows_support import Oracle, SessionOracle, all_of
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Average, CollectSet, Columns, Count, Max, Sum, TridentTopology

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

EPOCH = dt.datetime(2026, 3, 29, 0, 59, 59, tzinfo=dt.UTC)  # clocks go forward in Europe
SECOND = dt.timedelta(seconds=1)
TIMES = [1, 9, 7, None, 14, -3, 12, 31, 25, 2, 26, None, 30, 60, 47, 48]
ROWS = [("ab"[i % 2] if i % 5 else None, at, 2**i) for i, at in enumerate(TIMES)]
SIZE = 4
PEOPLE = pa.table({"who": ["a", "b", "b"], "city": ["Rome", "Oslo", "Lima"]})


def moment(at):
    return None if at is None else EPOCH + at * SECOND


def build(look):
    topology = TridentTopology("operations")
    rows = [(key, None if at is None else 1000 * at, moment(at), v) for key, at, v in ROWS]
    spout = FixedBatchSpout("key string, ms bigint, at timestamp, v bigint", SIZE, rows)
    stream = topology.new_stream("rows", spout)
    late = {
        "event_time": "ms",
        "lag": 5 * SECOND,
        "late": lambda s: look("late", s, "key", "ms", "v"),
    }
    groups = stream.group_by("key")
    total = Columns(n=Count(), total=("v", Sum()))
    look("tumbling", groups.tumbling_window(10 * SECOND, total, **late))
    by_at = {"event_time": "at", "lag": 5 * SECOND}
    wide = Columns(n=Count(), mean=("v", Average()), ids=("v", CollectSet()), last=("at", Max()))
    look("sliding", stream.sliding_window(20 * SECOND, 10 * SECOND, wide, **by_at))
    look("sessions", groups.session_window(6 * SECOND, total, **by_at))
    people = SparkSession.builder.getOrCreate().createDataFrame(PEOPLE)
    look("inner", stream.join_static(people, on={"key": "who"}), "key", "v", "city")
    look("left", stream.join_static(PEOPLE, {"key": "who"}, "left"), "key", "v", "city")
    return topology


ran = ran_once(build)


def batches():
    return [ROWS[i : i + SIZE] for i in range(0, len(ROWS), SIZE)]


def test_spark_gives_what_the_engine_without_it_gives(ran):
    assert ran.differences == {}


def test_windows_and_late_rows_are_those_of_the_oracle(ran):
    oracle = Oracle(10, 10, 5, lambda values: (len(values), sum(values)))
    results, late = all_of(oracle, batches())

    made = [(key, 1000 * start, 1000 * end, *rest) for key, start, end, *rest in results]
    assert ran["tumbling"] == sorted(made, key=repr)
    assert len(made) > 5
    assert ran["late"] == sorted(
        [(key, None if at is None else 1000 * at, v) for key, at, v in late], key=repr
    )
    assert len(late) > 2


def test_sessions_of_timestamps_are_those_of_the_oracle(ran):
    oracle = SessionOracle(6, 5, lambda values: (len(values), sum(values)))
    results, _ = all_of(oracle, batches())

    made = [(key, moment(start), moment(end), *rest) for key, start, end, *rest in results]
    assert ran["sessions"] == sorted(made, key=repr)
    assert len(made) > 3


def test_tables_are_joined_by_key(ran):
    cities = {"a": ["Rome"], "b": ["Oslo", "Lima"]}
    inner = [(key, v, city) for key, _, v in ROWS for city in cities.get(key, ())]
    missing = [(key, v, None) for key, _, v in ROWS if key not in cities]

    assert ran["inner"] == sorted(inner, key=repr)
    assert ran["left"] == sorted([*inner, *missing], key=repr)
