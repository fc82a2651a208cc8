"""Core topologies for long, and at size: one bad record in a million, hundreds of waves."""

from __future__ import annotations

import gc
import os

import psutil
import pytest

from tests.spark.core_components import Count, Numbers, Split
from waterspout import BasicBolt, Config, TopologyBuilder, submit
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.testing import FeederSpout

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

BAD = 617_283


class Check(BasicBolt):
    """Cannot process one number."""

    def __init__(self):
        self.seen = 0

    def execute(self, tuple, collector):
        if tuple["n"] == BAD:
            raise ValueError(f"cannot do {tuple['n']}")
        self.seen += 1


def test_one_bad_record_in_a_million(spark, home, capsys):
    builder = TopologyBuilder()
    builder.set_spout("numbers", Numbers(1_000_000), 2)
    builder.set_bolt("check", Check(), 2).shuffle_grouping("numbers")
    run = submit(builder.create_topology("million"), spark)
    run.process_all_available(timeout=600)
    run.stop()

    (letter,) = DeadLetters(home / "million").all()
    assert (letter.values, letter.failed_in, letter.failures) == ((BAD,), "check", 4)
    assert letter.error == f"ValueError: cannot do {BAD}"
    progress = run.recent_progress
    executed = sum(entry["executed"].get("check", 0) for entry in progress)
    # Everything once, and the bad one three times more: nothing else was repeated for it.
    assert executed == 1_000_000 + 3
    assert sum(entry["acked"] for entry in progress) == 999_999
    assert sum(entry["failed"] for entry in progress) == 4
    (error,) = run.errors
    assert (error["component"], error["count"]) == ("check", 4)
    with capsys.disabled():
        seconds = progress[-1]["timestamp"] - progress[0]["timestamp"]
        print(f"\n1,000,000 messages in {len(progress)} waves and {seconds:.1f} s; one dead letter")


def memory(spark):
    """Return megabytes: this process, its Python workers, and the JVM's heap after collection."""
    gc.collect()
    jvm = spark._jvm.java.lang
    jvm.System.gc()
    runtime = jvm.Runtime.getRuntime()
    heap = (runtime.totalMemory() - runtime.freeMemory()) / 2**20
    me = psutil.Process(os.getpid())
    workers = [p for p in me.children(recursive=True) if "python" in p.name()]
    return me.memory_info().rss / 2**20, sum(p.memory_info().rss for p in workers) / 2**20, heap


def test_memory_is_flat_over_hundreds_of_waves(spark, tmp_path, capsys):
    feeder = FeederSpout("sentence")
    builder = TopologyBuilder()
    builder.set_spout("sentences", feeder)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("sentences")
    builder.set_bolt("count", Count(tmp_path), 2).fields_grouping("split", "word")
    run = submit(builder.create_topology("long"), spark, Config(wave_max_tuples=50))
    sentence = "to be or not to be that is the question"

    def waves(count):
        until = (run.last_progress or {"wave": 0})["wave"] + count
        while (run.last_progress or {"wave": 0})["wave"] < until:
            for _ in range(200):
                feeder.feed([sentence], msg_id=object())
            run.process_all_available(timeout=120)
        feeder.tracker._acks.clear()  # the test's own memory

    waves(150)
    before = memory(spark)
    waves(600)
    after = memory(spark)
    run.stop()

    with capsys.disabled():
        print("\nMB before and after 600 waves (driver, workers, heap):")
        print(*(f"{b:.0f} -> {a:.0f}" for b, a in zip(before, after, strict=True)), sep=", ")
    for old, new, allowed in zip(before, after, (15, 15, 18), strict=True):
        assert new - old < allowed
    assert run.errors == []
