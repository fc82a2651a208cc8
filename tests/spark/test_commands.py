"""Commands from another terminal, to runs on Spark: between batches and waves, and counted once."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from tests.coordination.commanded import until
from waterspout import BasicBolt, Config, TopologyBuilder, submit
from waterspout.cli import main
from waterspout.spouts.rate import RateSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FeederSpout
from waterspout.trident import Columns, Count, Max, TridentTopology

pytestmark = pytest.mark.spark


@pytest.fixture
def command(tmp_path, capsys):
    """Give a command as another terminal does; return what it printed."""

    def give(*arguments):
        capsys.readouterr()
        code = main([*arguments, "--home", str(tmp_path / "home"), "--json"])
        out, err = capsys.readouterr()
        assert code == 0, out + err
        return json.loads(out)

    return give


def test_a_trident_run_is_held_rebalanced_and_killed_and_its_next_run_goes_on(
    spark, tmp_path, command
):
    topology = TridentTopology("ticks")
    stream = topology.new_stream("in", RateSpout(1000)).shuffle().name("dealt")
    state = SQLiteState.opaque(tmp_path / "ticks.db", table="ticks")
    stream.persistent_aggregate(state, Columns(count=Count(), top=("value", Max())))
    conf = Config(home=str(tmp_path / "home"), batch_emit_interval_millis=50)
    run = submit(topology, spark, conf)
    try:
        until(lambda: run.last_progress)
        moved = command("rebalance", "ticks", "--pending", "3", "-e", "dealt=2")
        assert moved["text"].endswith(": dealt=2, max_spout_pending=3")
        assert "2 partitions" in run.explain()
        until(lambda: len(run.snapshot().in_flight) > 1)
        command("deactivate", "ticks")
        until(lambda: command("show", "ticks")["status"] == "inactive")
        until(lambda: command("list")["topologies"][0]["snapshot"]["in_flight"] == [])
        command("activate", "ticks")
        before = run.last_progress.txid
        until(lambda: run.last_progress.txid > before)
        killed = command("kill", "ticks", "-w", "60")
        assert killed["emitted_again"] == []
        run.await_termination(timeout=30)
        assert killed["last_txid"] == run.last_progress.txid
    finally:
        run.stop()
    seen = command("show", "ticks")
    assert seen["status"] == "stopped"
    assert seen["resumes"]["txid"] == killed["last_txid"] + 1
    with closing(sqlite3.connect(tmp_path / "ticks.db")) as db:
        ((count, top),) = db.execute("SELECT count, top FROM ticks").fetchall()
    assert count == top + 1, "every number from 0 on was counted once"


class Tally(BasicBolt):
    """Counts words in memory and emits how often each was there."""

    output_fields = ("word", "times")

    def prepare(self, conf, context):
        self.counts = {}

    def execute(self, given, collector):
        word = given["word"]
        self.counts[word] = self.counts.get(word, 0) + 1
        collector.emit([word, self.counts[word]])


class Write(BasicBolt):
    output_fields = ()

    def __init__(self, path):
        self._path = path

    def execute(self, given, collector):
        with self._path.open("a") as file:
            file.write(f"{given['word']} {given['times']}\n")


def test_bolts_go_on_counting_when_a_core_run_is_rebalanced_and_killed(spark, tmp_path, command):
    spout, builder = FeederSpout("word", replay=True), TopologyBuilder()
    builder.set_spout("in", spout)
    builder.set_bolt("tally", Tally(), 4).fields_grouping("in", "word")
    builder.set_bolt("write", Write(tmp_path / "out")).global_grouping("tally")
    topology = builder.create_topology("core")
    conf = Config(home=str(tmp_path / "home"), wave_collapse_tuples=0, message_timeout_secs=60)
    run = submit(topology, spark, conf)
    try:
        for turn, change in enumerate((["-n", "1"], ["-n", "3", "-e", "tally=2"], None)):
            for n in range(30):
                spout.feed([f"w{n % 10}"], msg_id=(turn, n))
            run.process_all_available(timeout=60)
            if change:
                command("rebalance", "core", *change)
        assert "stage 1 (2 shards): tally" in run.explain()
        killed = command("kill", "core")
        assert (killed["acked"], killed["pending"]) == (90, 0)
    finally:
        run.stop()

    lines = (tmp_path / "out").read_text().split("\n")[:-1]
    assert sorted(lines) == sorted(f"w{n} {times}" for n in range(10) for times in range(1, 10))
