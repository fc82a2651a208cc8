"""Tests of a topology: in this process, without Spark, in milliseconds."""

import pytest
from words import word_count

from waterspout import Config, faults
from waterspout.state import MemoryMapState
from waterspout.testing import Fault, FaultPlan, FixedBatchSpout, run_in_process

LINES = ["to be or", "not to be", "1863"]


def test_words_are_counted_and_numbers_are_not():
    topology, counts = word_count(FixedBatchSpout("line", 2, LINES), MemoryMapState())

    run_in_process(topology)

    assert counts.multi_get(["to", "be", "or", "1863"]) == [2, 2, 1, None]


@pytest.mark.parametrize("point", ["processing", "write.before", "write.after"])
def test_a_batch_that_fails_anywhere_is_counted_once(point):
    topology, counts = word_count(FixedBatchSpout("line", 2, LINES), MemoryMapState())
    faults.install(FaultPlan([Fault(point, "fail")]))

    try:
        run_in_process(topology, Config(retry_backoff_millis=1))
    finally:
        faults.install(None)

    assert counts.multi_get(["to", "be"]) == [2, 2]


def test_every_state_is_exactly_once():
    topology, _ = word_count(FixedBatchSpout("line", 2, LINES), MemoryMapState())

    assert "not exactly-once" not in topology.explain(Config(strict=True))
