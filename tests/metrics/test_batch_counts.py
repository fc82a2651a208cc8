"""The counters of transactional topologies: what committed batches have done, once."""

from __future__ import annotations

import pytest

from waterspout import BasicBolt, Config, faults
from waterspout.faults import Fault, FaultPlan
from waterspout.metrics import RunStats
from waterspout.metrics._tables import parts_of
from waterspout.state import MemoryMapState
from waterspout.testing import LocalBatches
from waterspout.transactional import (
    BatchBolt,
    Committer,
    MemoryTransactionalSpout,
    TransactionalTopologyBuilder,
)


@pytest.fixture(autouse=True)
def _no_faults():
    yield
    faults.install(None)


class Twice(BasicBolt):
    output_fields = ("tx", "word")

    def execute(self, tuple, collector):
        collector.emit(tuple.values)
        collector.emit(tuple.values)


class Keep(BatchBolt, Committer):
    output_fields = ("tx", "n")
    count = 0

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.counts = context.state("counts")

    def execute(self, tuple):
        self.count += 1

    def finish_batch(self):
        self.counts.multi_update([("all",)], [lambda n: (n or 0) + self.count])
        self.collector.emit([self.id, self.count])


def topology(*, commits: bool = True):
    spout = MemoryTransactionalSpout([["a", "b", "c"], ["d", "e"]], "word", 2)
    builder = TransactionalTopologyBuilder("counted", "words", spout)
    builder.set_bolt("twice", Twice(), 2).shuffle_grouping("words")
    if commits:
        keep = builder.set_committer_bolt("keep", Keep(), 1).global_grouping("twice")
        keep.with_state("counts", MemoryMapState.opaque())
    return builder.build_topology()


def rows(stats: RunStats) -> dict[str, dict]:
    tables = stats.components()
    return {row["id"]: row for row in [*tables["spouts"], *tables["bolts"], *tables["states"]]}


def finished(topology, **options) -> RunStats:
    stats = RunStats()
    config = Config(retry_backoff_millis=1)
    LocalBatches(topology, config, listener=stats, keep_emitted=False, **options).finish()
    return stats


@pytest.mark.parametrize("trouble", ["none", "a failed commit", "lost workers"])
def test_what_a_batch_has_done_counts_once_however_often_it_was_tried(trouble):
    options = {}
    if trouble == "a failed commit":
        where = {"txid": 1, "component": "keep"}
        faults.install(FaultPlan([Fault("write.before", "fail", where=where)]))
    if trouble == "lost workers":
        lost = iter([True, False] * 1000)
        options["loses_result"] = lambda: next(lost)

    stats = finished(topology(), **options)

    found = rows(stats)
    assert (found["words"]["emitted"], found["words"]["transferred"]) == (5, 5)
    twice, keep = found["twice"], found["keep"]
    assert [twice[k] for k in ("executed", "acked", "failed", "emitted")] == [5, 5, 0, 10]
    assert [keep[k] for k in ("executed", "acked", "emitted", "transferred")] == [10, 10, 2, 0]
    assert keep["finish_ms"] > 0
    assert (found["counts"]["batches"], found["counts"]["rows"]) == (2, None)
    assert stats.totals()["attempts_failed"] == (trouble == "a failed commit")
    edges = {(e["source"], e["target"], e["tuples"]) for e in stats.components()["edges"]}
    assert edges == {("words", "twice", 5), ("twice", "keep", 10)}


def test_tables_have_what_has_done_nothing_yet():
    stats = RunStats(parts=parts_of(topology()))

    tables = stats.components()

    assert [(row["id"], row["tasks"]) for row in tables["spouts"]] == [("words", 1)]
    assert [(row["id"], row["tasks"]) for row in tables["bolts"]] == [("twice", 2), ("keep", 1)]
    assert [(row["id"], row["batches"]) for row in tables["states"]] == [("counts", 0)]
