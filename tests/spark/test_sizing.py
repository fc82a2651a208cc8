"""Batches that size themselves on Spark: the default, and nothing is set."""

from __future__ import annotations

import pytest

from waterspout import Config, submit
from waterspout.events import BatchSized
from waterspout.state import MemoryMapState
from waterspout.testing import FeederSpout
from waterspout.trident import Count, TridentTopology

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

MESSAGES = 20_000


def test_a_backlog_becomes_larger_batches_without_any_setting(spark, tmp_path):
    feeder = FeederSpout("n")
    for n in range(MESSAGES):
        feeder.feed([n % 10])
    topology = TridentTopology("sized")
    rows = topology.new_stream("rows", feeder, out="n bigint")
    counts = rows.group_by("n").persistent_aggregate(MemoryMapState(), Count(), out="times")
    # The aim is far off, so that a busy machine makes no difference to what is chosen.
    conf = Config(home=str(tmp_path), batch_interval_millis=60_000)
    heard: list[BatchSized] = []

    run = submit(topology, spark, conf)
    run.subscribe(lambda event: heard.append(event) if isinstance(event, BatchSized) else None)
    run.process_all_available(timeout=100)
    snapshot = run.snapshot()
    run.stop()

    sizes = [progress.sizes["rows"] for progress in run.recent_progress]
    assert sizes[:2] == [1000, 1000]  # as large as the spout makes them, until one was measured
    assert max(sizes) >= 4000
    assert sum(sizes) == MESSAGES
    assert counts.multi_get([(n,) for n in range(10)]) == [MESSAGES // 10] * 10
    assert snapshot.sizing is not None
    assert snapshot.sizing.targets["rows"] >= 4000
    assert any("behind, and a batch takes" in event.sizing.reason for event in heard)
