"""Transactional topologies without Spark: `run_in_process` and `LocalBatches`."""

from __future__ import annotations

import pytest

from waterspout import Config, FailedException, TopologyBuilder
from waterspout.coordination.events import BatchProcessed
from waterspout.errors import TopologyError
from waterspout.testing import FeederSpout, LocalBatches, LocalRun, LocalWaves, run_in_process
from waterspout.testing._batch_bolts import InProcessBatchBolts
from waterspout.transactional import (
    BatchBolt,
    Committer,
    MemoryTransactionalSpout,
    TransactionalTopologyBuilder,
)


class Sum(BatchBolt, Committer):
    output_fields = ("tx", "sum")

    def __init__(self, fails=0):
        self.fails = fails

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.sum = 0

    def execute(self, tuple):
        self.sum += tuple["n"]

    def finish_batch(self):
        if self.id.attempt_id < self.fails:
            raise FailedException("again")
        self.collector.emit([self.id, self.sum])


def topology(fails=0):
    spout = MemoryTransactionalSpout([[1, 2, 3], [10]], "n", 2)
    builder = TransactionalTopologyBuilder("sums", "numbers", spout)
    builder.set_bolt("sum", Sum(fails)).global_grouping("numbers")
    return builder.build_topology()


def test_run_in_process_runs_all_batches_and_shows_what_was_emitted():
    run = run_in_process(topology())

    assert isinstance(run, LocalBatches)
    assert [(str(attempt), total) for attempt, total in run.emitted("sum")] == [
        ("1:0", 13), ("2:0", 3),
    ]  # fmt: skip
    assert [n for _, n in run.emitted("numbers")] == [1, 2, 10, 3]


def test_nobody_waits_for_a_replay():
    run = run_in_process(topology(fails=20), Config(retry_backoff_max_millis=60_000))

    assert [str(attempt) for attempt, _ in run.emitted("sum")] == ["1:20", "2:20"]


def test_each_kind_of_topology_has_its_driver():
    builder = TopologyBuilder()
    builder.set_spout("s", FeederSpout("a"))
    core = builder.create_topology("core")

    with pytest.raises(TopologyError, match=r"'sums' is a transactional topology.*LocalBatches"):
        LocalWaves(topology())
    with pytest.raises(TopologyError, match=r"'sums' is a transactional topology.*LocalBatches"):
        LocalRun(topology())
    with pytest.raises(TopologyError, match=r"'core' is a topology of spouts.*LocalWaves"):
        LocalRun(core)


def test_phases_of_several_batches_are_interleaved_as_the_chooser_says():
    seen = []

    def look(event):
        if isinstance(event, BatchProcessed):
            seen.append(event.attempt.txid)

    run = LocalBatches(topology(), Config(max_spout_pending=2), listener=look)
    while run.engine.waiting < 2:
        run.loop.step()
    while len(seen) < 2:
        run.step(choose=lambda n: n - 1)  # the latest one first
    run.finish()

    assert seen == [2, 1]
    assert [total for _, total in run.emitted("sum")] == [13, 3]


def test_a_cancelled_phase_goes_on_as_a_zombie_that_nobody_hears():
    finished, events = [], []

    class Noting(Sum):
        def finish_batch(self):
            finished.append(str(self.id))

    spout = MemoryTransactionalSpout([[1]], "n", 1)
    builder = TransactionalTopologyBuilder("zombies", "numbers", spout)
    builder.set_bolt("sum", Noting()).global_grouping("numbers")
    run = LocalBatches(builder.build_topology())
    while not run.loop.coordinator.in_flight:
        run.loop.step()
    attempt = run.loop.coordinator.in_flight[1][0]
    engine: InProcessBatchBolts = run.engine
    engine.report = lambda event: events.append(type(event).__name__)

    engine.cancel(attempt)
    while engine.step():
        pass

    assert events == ["Ended"]
    assert finished == []  # its commit phase never began


def test_a_result_that_is_lost_is_made_again_and_counted_once():
    lost = iter([True, False] * 1000)
    run = LocalBatches(topology(), loses_result=lambda: next(lost))

    run.finish()

    assert [total for _, total in run.emitted("sum")][-1] == 3
    assert run.loop.ledger.current == 3
