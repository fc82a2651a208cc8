"""Bolts that take batches of columns, on Spark: exact counts, every message tracked by itself."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.soaking import soaked
from tests.spark.core_components import CountColumns, Sentences, Split, SplitColumns, counted
from tests.spark.test_core import COUNTS, SENTENCES, finish
from waterspout import Config, TopologyBuilder, faults, submit
from waterspout.faults import Fault, FaultPlan
from waterspout.testing import FeederSpout

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

SPREAD = Config(wave_collapse_tuples=0, retry_backoff_millis=10, max_replays=1)
COLLAPSED = Config(retry_backoff_millis=10, max_replays=1)


def topology(folder, spout, split):
    builder = TopologyBuilder()
    builder.set_spout("sentences", spout)
    builder.set_bolt("split", split, 3).shuffle_grouping("sentences")
    builder.set_bolt("count", CountColumns(folder), 5).fields_grouping("split", "word")
    return builder.create_topology("columns")


@pytest.mark.parametrize("config", [SPREAD, soaked(COLLAPSED)], ids=["spread", "collapsed"])
@pytest.mark.parametrize("split", [SplitColumns(), soaked(Split())], ids=["columns", "rows"])
def test_counts_by_column_are_exact_and_a_bad_row_is_a_dead_letter_alone(
    spark, tmp_path, config, split
):
    feeder = FeederSpout("sentence", replay=True)
    for number in range(100):
        feeder.feed([SENTENCES[number % 4]], msg_id=number)
    feeder.feed(["-x"], msg_id="bad")

    run = finish(submit(topology(tmp_path, feeder, split), spark, config))

    assert counted(tmp_path) == COUNTS
    assert feeder.tracker.acks == dict.fromkeys([*range(100), "bad"], 1)
    assert feeder.tracker.fails == {"bad": 1}
    (letter,) = run.dead_letters()
    assert (letter.values, letter.failed_in) == (("-x",), "count")
    assert letter.error == "ValueError: it begins with a dash"


def test_a_log_by_column_is_read_on_executors_and_a_killed_worker_loses_nothing(spark, tmp_path):
    sentences = SENTENCES * 25
    token = str(tmp_path / "killed")
    kill = Fault("wave.execute", "kill", where={"component": "count"}, token=token)
    faults.install(FaultPlan([kill]))

    finish(submit(topology(tmp_path, Sentences(sentences), SplitColumns()), spark, SPREAD))

    assert os.path.exists(token), "a worker was killed"

    assert counted(tmp_path) == dict(Counter(w for s in sentences for w in s.split()))
