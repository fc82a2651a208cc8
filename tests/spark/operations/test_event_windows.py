"""Windows of event time and `join_static` on Spark: the same rows as without it, and exact ones."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.spark.operations.support import ran_once
from tests.trident.event_windows_support import Oracle, SessionOracle, all_of
from tests.trident.support import capture, finish
from waterspout import Config
from waterspout.spark import lowerings
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Average, CollectSet, Columns, Count, Max, Sum, TridentTopology

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

EPOCH = dt.datetime(2026, 3, 29, 0, 59, 59, tzinfo=dt.UTC)  # clocks go forward in Europe
SECOND = dt.timedelta(seconds=1)
TIMES = [1, 9, 7, None, 14, -3, 12, 31, 25, 2, 26, None, 30, 60, 47, 48]
ROWS = [("ab"[i % 2] if i % 5 else None, at, 2**i) for i, at in enumerate(TIMES)]
SIZE = 4
PEOPLE = pa.table({"who": ["a", "b", "b"], "city": ["Rome", "Oslo", "Lima"]})
NAMELESS = pa.table({"who": ["a", "b", None, "b"], "city": ["Rome", "Oslo", "Ulm", "Lima"]})


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
    nameless = SparkSession.builder.getOrCreate().createDataFrame(NAMELESS)
    named = nameless.where("who IS NOT NULL")  # Spark then knows that each row has a value
    look("inner", stream.join_static(named, on={"key": "who"}), "key", "v", "city")
    look("left", stream.join_static(PEOPLE, {"key": "who"}, "left"), "key", "v", "city")
    look("nulls", stream.join_static(NAMELESS, on={"key": "who"}), "key", "v", "city")
    look("nulls of a frame", stream.join_static(nameless, {"key": "who"}), "key", "v", "city")
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
    assert len(missing) > 2


def test_a_null_key_of_a_table_equals_a_null_key_of_the_stream(ran):
    cities = {"a": ["Rome"], "b": ["Oslo", "Lima"], None: ["Ulm"]}
    wanted = [(key, v, city) for key, _, v in ROWS for city in cities[key]]

    assert ran["nulls"] == ran["nulls of a frame"] == sorted(wanted, key=repr)


def test_a_table_of_arrows_is_sent_to_spark_once_and_a_frame_is_read_in_each_batch(
    spark, tmp_path, monkeypatch
):
    sent = []
    real = lowerings.from_table
    monkeypatch.setattr(lowerings, "from_table", lambda *of: sent.append(of) or real(*of))
    # What time it is Spark says anew in each job.
    looked = spark.range(1).select(F.lit("a").alias("who"), F.current_timestamp().alias("now"))
    topology = TridentTopology("joins")
    spout = FixedBatchSpout("key string, n int", 1, [("a", n) for n in range(4)])
    stream = topology.new_stream("rows", spout)
    kept = capture(stream.join_static(PEOPLE, on={"key": "who"}))
    times = capture(stream.join_static(looked, on={"key": "who"}))

    finish(topology, spark, Config(home=str(tmp_path), max_spout_pending=1))

    assert kept.batches == {n + 1: [("a", n, "Rome")] for n in range(4)}
    assert len(sent) == 2  # for the look at the plan before the first batch, and for all batches
    assert len({now for _, _, now in times.rows}) == 4
