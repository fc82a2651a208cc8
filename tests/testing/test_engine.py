"""The in-process engine: driven by hand, step by step."""

from __future__ import annotations

import pytest

from tests.trident.support import capture, put
from waterspout import Config, faults
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.events import BatchCommitted, BatchCommitting, BatchEmitted
from waterspout.coordination.preflight import prepare
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.errors import ForeignStoreError, SourceError, StoreError, TopologyError
from waterspout.spouts.files import FileSpout
from waterspout.state import MemoryMapState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout, LocalRun, SimulatedCrash, run_in_process
from waterspout.trident import Count, TridentTopology


class Listener:
    def __init__(self):
        self.heard = []

    def __call__(self, event):
        match event:
            case BatchEmitted(attempt=attempt):
                self.heard.append(("emitted", attempt.txid))
            case BatchCommitting(attempt=attempt):
                self.heard.append(("committing", attempt.txid))
            case BatchCommitted(attempt=attempt):
                self.heard.append(("committed", attempt.txid))


def counting(rows="abcabc", state=None, size=2):
    topology = TridentTopology("local")
    words = topology.new_stream("words", FixedBatchSpout("word", size, list(rows)))
    counts = words.group_by("word").persistent_aggregate(
        state or MemoryMapState(), Count(), out="count"
    )
    return topology, counts


def test_batches_process_together_and_commit_in_order():
    listener = Listener()
    run = LocalRun(counting()[0], Config(max_spout_pending=3), listener=listener)

    run.finish()
    run.close()

    assert listener.heard[:3] == [("emitted", 1), ("emitted", 2), ("emitted", 3)]
    commits = [entry for entry in listener.heard if entry[0] != "emitted"]
    assert commits == [(what, txid) for txid in (1, 2, 3) for what in ("committing", "committed")]


def test_whoever_drives_it_chooses_which_phase_goes_on():
    listener = Listener()
    topology, counts = counting()
    run = LocalRun(topology, Config(max_spout_pending=3), listener=listener)
    run.loop.step()

    last = lambda n: n - 1  # noqa: E731
    while run.engine.waiting:
        run.engine.step(last)
    assert [entry for entry in listener.heard if entry[0] == "committed"] == []

    run.finish()
    run.close()
    assert counts.multi_get(["a", "b", "c"]) == [2, 2, 2]


def test_a_second_run_over_the_same_ledger_goes_on_where_the_first_ended():
    ledger = SharedMemory()
    state = MemoryMapState()
    first, _ = counting("abc", state)
    run = LocalRun(first, store=MemoryCoordinationStore("local", ledger))
    run.finish()
    run.close()

    listener = Listener()
    more, counts = counting("abcab", state)
    run = LocalRun(more, store=MemoryCoordinationStore("local", ledger), listener=listener)
    run.finish()
    run.close()

    assert counts.multi_get(["a", "b", "c"]) == [2, 2, 1]
    assert listener.heard[0] == ("emitted", 3)


def test_a_changed_graph_is_refused():
    ledger = SharedMemory()
    LocalRun(counting()[0], store=MemoryCoordinationStore("local", ledger)).close()
    other = TridentTopology("local")
    capture(other.new_stream("numbers", FixedBatchSpout("n", 1, [1])))

    with pytest.raises(ForeignStoreError, match="'local' has changed since its last run"):
        LocalRun(other, store=MemoryCoordinationStore("local", ledger))


def test_a_simulated_crash_is_caught_by_nobody_on_the_way():
    def crash(name, context):
        if name == "mark.before":
            raise SimulatedCrash(name)

    run = LocalRun(counting()[0])
    faults.install(crash)

    with pytest.raises(SimulatedCrash, match=r"mark\.before"):
        run.finish()


def test_a_run_that_does_not_end_is_not_waited_for_for_ever():
    topology = TridentTopology("endless")
    capture(topology.new_stream("words", FixedBatchSpout("word", 1, ["a"], cycle=True)))
    run = LocalRun(topology)

    with pytest.raises(TimeoutError, match="endless was not done after 50 steps"):
        run.finish(max_steps=50)
    run.close()


def test_sqlite_states_are_the_same_as_on_spark(tmp_path):
    topology, counts = counting(state=SQLiteState.opaque(tmp_path / "s.db", table="counts"))

    run_in_process(topology)

    assert counts.multi_get(["a", "b", "c"]) == [2, 2, 2]


def file_count(tmp_path, counts=None):
    topology = TridentTopology("files")
    lines = topology.new_stream("lines", FileSpout(tmp_path / "in", max_files=1))
    counts = counts or SQLiteState.opaque(tmp_path / "counts.db", table="counts")
    return topology, lines.group_by("value").persistent_aggregate(counts, Count(), out="n")


def test_files_are_read_once_over_all_runs_with_a_store(tmp_path):
    config, counted = Config(home=str(tmp_path / "home"), strict=True), []
    for name in ("1", "2", "3", "4"):
        put(tmp_path / "in" / name, f"all\n{name}\n")
        topology, counts = file_count(tmp_path)
        run = LocalRun(topology, config, store=EmbeddedStore(tmp_path / "home", "files"))
        run.finish()
        run.close()
        counted.append(counts.multi_get([["all"], ["1"]]))

    assert counted == [[1, 1], [2, 1], [3, 1], [4, 1]]


def test_strict_refuses_in_process_what_it_refuses_on_spark(tmp_path):
    (tmp_path / "in").mkdir()
    topology, _ = file_count(tmp_path, MemoryMapState.non_transactional())
    with pytest.raises(TopologyError, match="strict=True refuses") as on_spark:
        prepare(topology, Config(strict=True))

    with pytest.raises(TopologyError) as in_process:
        run_in_process(topology, Config(strict=True))

    assert str(in_process.value) == str(on_spark.value)
    run_in_process(topology, Config(strict=False))


def test_sources_and_stores_are_checked_before_anything_runs(tmp_path):
    with pytest.raises(SourceError, match="in is not there; create the directory first"):
        run_in_process(file_count(tmp_path)[0])
    (tmp_path / "in").mkdir()

    with pytest.raises(StoreError, match="nowhere"):
        run_in_process(
            file_count(tmp_path, SQLiteState.opaque(tmp_path / "nowhere" / "s.db", "t"))[0]
        )
