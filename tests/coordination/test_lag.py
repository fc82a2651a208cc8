"""What waits at the spouts: in snapshots and in the progress, of every kind of topology."""

from __future__ import annotations

import time

import pytest

from tests.trident.support import put
from waterspout import BasicBolt, Config, TopologyBuilder
from waterspout.coordination.events import BatchCommitted, WaveFinished
from waterspout.spouts import DataFrameSpout, SpoutContext
from waterspout.spouts._sources import source_of
from waterspout.spouts.files import FileSpout
from waterspout.spouts.lines import LinesSpout
from waterspout.spouts.rate import RateSpout
from waterspout.state import MemoryMapState
from waterspout.testing import FeederSpout, FixedBatchSpout, LocalBatches, LocalRun, LocalWaves
from waterspout.transactional import (
    BatchBolt,
    MemoryTransactionalSpout,
    OpaqueMemoryTransactionalSpout,
    TransactionalTopologyBuilder,
)
from waterspout.trident import Count, TridentTopology


def streams(spout, out=None):
    """A count over a stream, and the lag that each of its batches tells."""
    topology = TridentTopology("t")
    rows = topology.new_stream("rows", spout, out=out)
    rows.persistent_aggregate(MemoryMapState(), Count(), out="n")
    told = []

    def listen(event):
        if isinstance(event, BatchCommitted):
            told.append(dict(event.progress.lag))

    return LocalRun(topology, listener=listen), told


def test_files_and_bytes_wait_until_they_are_in_a_batch(tmp_path):
    for name, text in {"a": "1\n", "b": "22\n", "c": "333\n"}.items():
        put(tmp_path / name, text)
    run, told = streams(FileSpout(tmp_path, max_files=1))

    run.finish()

    assert told == [
        {"rows": {"files": 2, "bytes": 7}},
        {"rows": {"files": 1, "bytes": 4}},
        {"rows": {"files": 0, "bytes": 0}},
    ]


def test_files_that_come_while_others_wait_are_seen(tmp_path, monkeypatch):
    put(tmp_path / "a", "1\n")
    put(tmp_path / "b", "22\n")
    planner = FileSpout(tmp_path).open(SpoutContext(Config(), "in", None, {}, 1))
    assert planner.is_ready(None)
    put(tmp_path / "c", "333\n")

    before = planner.lag(None)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 60)

    assert before == {"files": 2, "bytes": 5}
    assert planner.lag(None) == {"files": 3, "bytes": 9}


def test_rows_that_are_due_wait():
    run, told = streams(FixedBatchSpout("n", 2, [1, 2, 3]))
    run.finish()
    now = [0.0]
    planner = RateSpout(10, clock=lambda: now[0]).open(SpoutContext(Config(), "r", None, {}, 1))
    now[0] = 2.0

    assert told == [{"rows": {"rows": 1}}, {"rows": {"rows": 0}}]
    assert planner.lag(None) == {"rows": 20}


@pytest.mark.parametrize("spout", [MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout])
def test_offsets_of_emitters_are_added_up_over_partitions(spout):
    rows = [["a", "b", "c"], ["d"]]
    run, told = streams(spout(rows, "word", 1), out="word string")
    run.finish()
    builder = TransactionalTopologyBuilder("t", "spout", spout(rows, "word", 1))
    builder.set_bolt("end", End()).global_grouping("spout")
    bolts = LocalBatches(builder.build_topology())
    bolts.finish()

    assert told == [{"rows": {"offsets": n}} for n in (2, 1, 0)]
    assert bolts.loop.lag == {"spout": {"offsets": 0}}


class End(BatchBolt):
    output_fields = ("tx",)

    def execute(self, tuple):
        pass


def test_a_data_frame_spout_may_tell_and_need_not():
    class Table(DataFrameSpout):
        schema = "n bigint"

        def next_range(self, txid, previous):
            return None

        def read(self, spark, range):
            raise NotImplementedError

    class Telling(Table):
        def lag(self, previous):
            return 7 if previous is None else 0

    context = SpoutContext(Config(), "t", None, {}, 1)
    opened = [source_of(s, topology="t", spout_id="s").open(context) for s in (Table(), Telling())]

    assert [planner.lag(None) for planner in opened] == [{}, {"rows": 7}]
    assert opened[1].lag([None, 3]) == {"rows": 0}


def test_messages_of_a_spout_wait_in_a_stream_too():
    feeder = FeederSpout("n")
    for n in range(5):
        feeder.feed([n])
    run, told = streams(feeder, out="n bigint")
    run.loop._setup.spouts["rows"]._planner._size = 2

    run.finish()

    assert told == [{"rows": {"messages": n}} for n in (3, 1, 0)]


class Nothing(BasicBolt):
    def execute(self, tuple, collector):
        pass


def waves(spout):
    builder = TopologyBuilder()
    builder.set_spout("spout", spout, 2)
    builder.set_bolt("bolt", Nothing()).shuffle_grouping("spout")
    told = []

    def listen(event):
        if isinstance(event, WaveFinished):
            told.append(dict(event.progress.lag))

    config = Config(wave_max_tuples=2)
    run = LocalWaves(builder.create_topology("t"), config)
    run.loop.events.subscribe(listen)
    run.finish()
    return run, told


def test_messages_of_a_core_spout_wait_and_are_counted_once_for_all_tasks():
    feeder = FeederSpout("n")
    for n in range(5):
        feeder.feed([n], n)

    run, told = waves(feeder)

    assert told[-1] == {"spout": {"messages": 0}}
    feeder.feed([9], 9)
    assert run.loop._measured() == {"spout": {"messages": 1}}


def test_offsets_of_a_log_wait_until_they_are_done(tmp_path):
    put(tmp_path / "f", "one\ntwo\nthree\n")

    run, told = waves(LinesSpout(tmp_path))

    assert told[-1] == {"spout": {"offsets": 0}}
    assert max(lag["spout"]["offsets"] for lag in told) <= 14
    put(tmp_path / "g", "four\n")
    run.loop.spouts.plan_reads(0)
    run.loop.spouts.plan_reads(8)
    assert run.loop._measured() == {"spout": {"offsets": 5}}


def test_a_spout_whose_lag_raises_harms_nobody():
    class Odd(FeederSpout):
        def lag(self):
            raise ConnectionError("no answer")

    feeder = Odd("n")
    feeder.feed([1], 1)

    _, told = waves(feeder)

    assert told == [{}]
    assert feeder.tracker.is_acked(1)
