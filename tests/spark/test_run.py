"""`Run` on real Spark: what it tells, what it obeys, what it refuses, and what it costs."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import sqlite3
import threading
from collections import Counter

import pytest

from tests.soaking import soaked
from tests.trident.support import Keep, capture, finish, wait_for
from waterspout import Config, faults, runs, submit
from waterspout.errors import (
    ForeignStoreError,
    LeaseHeldError,
    NotPicklableError,
    RunFailedError,
    StateMismatchError,
    TopologyError,
)
from waterspout.faults import Fault, FaultPlan, InjectedError
from waterspout.spark.audit import audit
from waterspout.spark.backfill import backfill
from waterspout.state import MemoryMapState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Columns, Count, Function, Max, Split, TridentTopology

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

SENTENCES = ["the cow jumped over the moon", "the man went to the store", "to be or not to be"]


def word_count(path, rows=SENTENCES, size=1, *, name="word-count", driver_only=True, spout="lines"):
    topology = TridentTopology(name)
    state = SQLiteState.opaque(path, table="words", driver_only=driver_only)
    (
        topology.new_stream(spout, FixedBatchSpout("line string", size, list(rows)))
        .each("line", Split(), out="word")
        .group_by("word")
        .persistent_aggregate(state, Count(), out="count")
    )
    return topology


def words(path):
    with sqlite3.connect(path) as db:
        return dict(db.execute("SELECT word, count FROM words"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "counts.db"


@pytest.fixture
def running(spark):
    """Submit topologies; whatever is left running is stopped at the end."""
    started = []

    def start(topology, config=None):
        started.append(submit(topology, spark, config or Config(retry_backoff_millis=1)))
        return started[-1]

    yield start
    for run in started:
        run.stop()


def hang(tmp_path, point, **where):
    """Let the first to pass a point wait until the returned file is made."""
    faults.install(FaultPlan([Fault(point, "hang", where=where, token=str(tmp_path / "hang"))]))
    return tmp_path / "hang.go"


def test_status_says_running_idle_inactive_stopped(running, path, tmp_path):
    go = hang(tmp_path, "mark.before", txid=2)
    run = running(word_count(path))
    seen = [run.status]
    wait_for((tmp_path / "hang").exists)
    seen.append(run.status)
    go.touch()
    run.process_all_available(timeout=60)
    seen.append(run.status)
    run.deactivate()
    seen.append(run.status)
    run.activate()
    run.process_all_available(timeout=60)
    seen.append(run.status)
    run.stop()
    seen.append(run.status)

    assert seen == ["running", "running", "idle", "inactive", "idle", "stopped"]


def test_progress_has_an_entry_for_every_batch(spark, path):
    run = finish(word_count(path), spark, Config(max_spout_pending=2))

    assert [p["txid"] for p in run.recent_progress] == [1, 2, 3]
    assert run.last_progress == run.recent_progress[-1]
    for entry, distinct in zip(run.recent_progress, (5, 5, 4), strict=True):
        assert set(entry) == {
            "name", "txid", "attempt", "timestamp", "in_flight", "replayed", "failures",
            "processing_s", "input_rows", "rows_per_s", "staged_rows", "commit_s", "written_rows",
            "executed_tuples", "committed_tuples", "lag", "unreachable", "inputs", "late_rows",
            "sizes", "targets", "max_in_flight", "throttled", "reason",
        }  # fmt: skip
        assert entry["name"] == "word-count"
        assert (entry["attempt"], entry["replayed"], entry["failures"]) == (0, 0, 0)
        assert entry["staged_rows"] == entry["written_rows"] == distinct
        assert entry["processing_s"] > 0
        assert entry["commit_s"] > 0
        took = entry["processing_s"] + entry["commit_s"]
        assert (entry["input_rows"], entry["rows_per_s"]) == (1, pytest.approx(1 / took))
    assert run.snapshot().totals.input_rows == 3


def test_there_is_no_progress_before_the_first_commit(running, path, tmp_path):
    go = hang(tmp_path, "mark.before", txid=1)
    run = running(word_count(path))
    wait_for((tmp_path / "hang").exists)

    assert (run.last_progress, run.recent_progress) == (None, [])
    go.touch()


def test_replays_show_in_progress_and_timeline(spark, path):
    faults.install(FaultPlan([Fault("write.before", "fail", where={"txid": 2})]))

    run = finish(word_count(path), spark, Config(retry_backoff_millis=1))

    assert [(p["txid"], p["attempt"]) for p in run.recent_progress] == [(1, 0), (2, 1), (3, 0)]
    assert (run.last_progress["replayed"], run.last_progress["failures"]) == (1, 1)
    failed = [entry for entry in run.timeline if entry["event"] == "failed"]
    assert [(e["txid"], e["attempt"], e["error"]) for e in failed] == [
        (2, 0, "injected at write.before")
    ]


def test_a_run_tells_what_happens_and_how_it_stands(running, path, tmp_path):
    go = hang(tmp_path, "mark.before", txid=1)
    run, heard = running(word_count(path)), []
    wait_for((tmp_path / "hang").exists)
    unsubscribe = run.subscribe(heard.append)

    (batch,) = run.snapshot().in_flight
    assert (batch.txid, batch.phase, batch.waits_for) == (1, "committing", "writing")
    go.touch()
    run.process_all_available(timeout=90)
    unsubscribe()

    steps = [
        *("BatchEmitted", "BatchProcessed", "begun", "BatchCommitting", "claimed", "written"),
        *("marked", "settled", "StateWritten", "BatchCommitted"),
    ]
    *of_batches, idle = heard
    told = [(getattr(e, "step", type(e).__name__), e.attempt.txid) for e in of_batches]
    first = [(step, 1) for step in steps[-4:]]
    assert type(idle).__name__ == "RunIdle"
    assert told == [*first, *((step, txid) for txid in (2, 3) for step in steps)]
    snapshot = run.snapshot()
    assert (snapshot.status, snapshot.in_flight, snapshot.totals.committed) == ("idle", (), 3)


def test_a_topology_that_is_submitted_again_may_replace_its_run(running, spark, path):
    first = running(word_count(path))
    first.process_all_available(timeout=90)
    with pytest.raises(LeaseHeldError):
        submit(word_count(path), spark)

    second = submit(word_count(path), spark, replace=True)

    try:
        assert (first.status, second.exception()) == ("stopped", None)
        assert [run for run in runs() if run.name == "word-count"] == [second]
    finally:
        second.stop()


def test_explain_of_a_run_is_the_plan_with_its_guarantees(running, path):
    run = running(word_count(path))

    assert run.name == "word-count"
    assert run.explain().startswith("topology word-count\nprocessing phase (")
    assert run.explain().endswith(
        f"state1 (sqlite:{path}#words): exactly-once: spout 'lines' is transactional, the state is "
        "opaque"
    )


def test_a_deactivated_run_starts_no_batch_until_it_is_activated(running, path, tmp_path):
    go = hang(tmp_path, "write.before", txid=1)
    run = running(word_count(path))
    wait_for((tmp_path / "hang").exists)
    run.deactivate()
    go.touch()

    run.process_all_available(timeout=60)
    finished = [p["txid"] for p in run.recent_progress]
    run.activate()
    run.process_all_available(timeout=60)

    # The batch in flight was finished, the next not begun.
    assert finished == [1]
    assert [p["txid"] for p in run.recent_progress] == [1, 2, 3]


def test_the_same_topology_goes_on_at_the_next_txid(spark, path):
    first = finish(word_count(path, SENTENCES[:2]), spark)
    again = finish(word_count(path, SENTENCES), spark)

    assert [p["txid"] for p in first.recent_progress] == [1, 2]
    assert [p["txid"] for p in again.recent_progress] == [3]
    assert words(path)["the"] == 4


def test_a_batch_in_flight_when_it_was_stopped_is_replayed_by_the_next_run(running, path, tmp_path):
    go = hang(tmp_path, "write.after", txid=2)
    run = running(word_count(path), Config(cancel_wait_secs=0.1))
    wait_for((tmp_path / "hang").exists)
    stopping = threading.Thread(target=run.stop)
    stopping.start()
    wait_for(lambda: run.status == "stopped")
    go.touch()
    stopping.join()
    faults.install(None)

    again = running(word_count(path))
    again.process_all_available(timeout=60)

    assert [(p["txid"], p["attempt"]) for p in again.recent_progress] == [(2, 1), (3, 0)]
    assert words(path)["the"] == 4


def test_await_termination_waits_no_longer_than_it_is_told(running, path):
    run = running(word_count(path))

    assert run.await_termination(timeout=0.01) is False
    run.stop()
    assert run.await_termination() is True
    assert run.exception() is None


class Broken(Function):
    def execute(self, tuple, collector):
        raise KeyError("cannot read this")

    def output_types(self, inputs):
        return ["string"]


def test_whatever_waits_gets_what_stopped_the_run(running):
    topology = TridentTopology("broken")
    rows = topology.new_stream("rows", FixedBatchSpout("n", 1, [1]))
    capture(rows.each("n", Broken(), out="x"))
    run = running(topology, Config(max_retries=0))

    line = Broken.execute.__code__.co_firstlineno + 1
    cause = f"KeyError: 'cannot read this' ({__file__}, line {line}, in execute)"
    for wait in (run.process_all_available, run.await_termination):
        with pytest.raises(RunFailedError) as failed:
            wait(timeout=60)
        assert str(failed.value) == f"run broken stopped: {cause}"
        assert failed.value.__cause__ is run.exception()
    assert str(run.exception()) == cause
    assert [(entry.component, entry.error) for entry in run.errors] == [("batch 1:0", cause)]
    assert "waterspout/spark/tasks.py" in run.errors[0].traceback
    assert run.status == "failed"


def test_process_all_available_gives_up_after_its_timeout(running, path, tmp_path):
    go = hang(tmp_path, "write.before", txid=1)
    run = running(word_count(path))

    with pytest.raises(TimeoutError, match=r"word-count was not done after 0\.2 s"):
        run.process_all_available(timeout=0.2)
    go.touch()
    run.process_all_available(timeout=60)


def test_a_given_session_is_used_and_never_stopped(spark, path):
    run = finish(word_count(path), spark)

    assert run.status == "stopped"
    assert spark.range(3).count() == 3


def test_a_second_run_of_the_same_topology_is_refused_with_pid_and_host(running, path):
    first = running(word_count(path))

    with pytest.raises(
        LeaseHeldError, match=rf"process {os.getpid()} on host {socket.gethostname()} runs it now"
    ):
        running(word_count(path))

    first.process_all_available(timeout=60)
    assert words(path)["the"] == 4


def test_a_changed_graph_is_refused_naming_what_changed(spark, path):
    finish(word_count(path), spark)
    before = path.read_bytes(), words(path)

    with pytest.raises(
        ForeignStoreError,
        match=r"'word-count' has changed since its last run, .* Spout lines is not in the topology "
        r"any more\. .*--retire lines",
    ):
        submit(word_count(path, spout="rows"), spark)

    assert (path.read_bytes(), words(path)) == before


@pytest.mark.soak
def test_a_deploy_adds_a_state_a_column_and_a_spout_and_the_next_batch_fails_half_way(spark, path):
    def grown():
        topology = TridentTopology("word-count")
        rows = {"lines": SENTENCES, "more": ["to the moon"]}
        streams = [
            topology.new_stream(spout, FixedBatchSpout("line string", 1, lines))
            for spout, lines in rows.items()
        ]
        split = topology.merge(*streams).each("line", Split(), out="word").group_by("word")
        for table, more in {"late": {}, "words": {"greatest": ("word", Max())}}.items():
            factory = SQLiteState.opaque(path, table=table)
            split.persistent_aggregate(factory, Columns(count=Count(), **more))
        return topology

    finish(word_count(path, SENTENCES[:2]), spark)
    faults.install(FaultPlan([Fault("write.after", "raise", nth=2)]))
    run = finish(grown(), spark, Config(retry_backoff_millis=1))

    with sqlite3.connect(path) as db:
        late = dict(db.execute("SELECT word, count FROM late"))
        column = dict(db.execute("SELECT word, greatest FROM words"))
    assert column == {word: word if word in late else None for word in words(path)}
    assert words(path) == Counter(" ".join([*SENTENCES, "to the moon"]).split())
    assert late == Counter(f"{SENTENCES[2]} to the moon".split())
    assert [(p["txid"], p["attempt"]) for p in run.recent_progress] == [(3, 1)]
    assert "  state state2 (sqlite late) began with batch 3" in run.explain()

    # What was added is filled from the source, though the first try ends half-way.
    faults.install(FaultPlan([Fault("fill.after", "raise")]))
    with pytest.raises(InjectedError):
        backfill(grown(), spark, Config())
    with pytest.raises(StateMismatchError, match="was filled in part, by a fill that did not end"):
        submit(grown(), spark)
    assert backfill(grown(), spark, Config()) == {"state1": 12, "state2": 12}
    assert backfill(grown(), spark, Config()) == {}
    assert [a.differences for a in audit(grown(), spark, Config()) if not a.unknown] == [(), ()]
    with sqlite3.connect(path) as db:
        assert dict(db.execute("SELECT word, count FROM late")) == words(path)
        assert all(w == g for w, g in db.execute("SELECT word, greatest FROM words"))
    again = finish(grown(), spark)
    assert again.recent_progress == []
    assert "state state2 (sqlite late) began" not in again.explain()


def test_a_state_that_is_further_than_the_coordinator_is_refused(spark, path, home):
    finish(word_count(path), spark)
    before = path.read_bytes(), words(path)
    shutil.rmtree(home)

    with pytest.raises(
        StateMismatchError, match="holds batch 3, but the coordination store is about to commit"
    ):
        submit(word_count(path), spark)

    assert not home.exists()
    assert (path.read_bytes(), words(path)) == before


def test_a_state_that_was_wiped_is_refused(spark, path):
    finish(word_count(path), spark)
    path.unlink()

    with pytest.raises(StateMismatchError, match="is empty, but 3 batches were committed to it"):
        submit(word_count(path), spark)

    assert not path.exists()


def test_a_state_of_another_topology_is_refused(spark, path):
    finish(word_count(path), spark)

    with pytest.raises(
        ForeignStoreError, match="belongs to topology 'word-count'; topology 'thief'"
    ):
        submit(word_count(path, name="thief"), spark)


class Holding(Function):
    def __init__(self):
        self.lock = threading.Lock()

    def execute(self, tuple, collector):
        collector.emit((1,))

    def output_types(self, inputs):
        return ["int"]


class HoldingUpdater(Keep):
    def __init__(self):
        self.lock = threading.Lock()


def test_what_cannot_be_pickled_is_refused_by_operation_and_attribute(spark, path, home):
    topology = word_count(path)
    numbers = topology.new_stream("numbers", FixedBatchSpout("n", 1, [1]))
    numbers.each("n", Holding(), out="x")

    with pytest.raises(
        NotPicklableError, match=r"each\(Holding\), attribute 'lock' cannot be pickled.*prepare\(\)"
    ):
        submit(topology, spark)

    assert not home.exists()
    assert not path.exists()


def test_tasks_cannot_write_a_state_that_only_the_driver_reaches(spark):
    topology = TridentTopology("mem")
    rows = topology.new_stream("rows", FixedBatchSpout("n", 1, [1]))
    rows.persistent_aggregate(MemoryMapState(), Count(), out="c")

    with pytest.raises(TopologyError, match="commit_in='tasks' is not possible with state1"):
        submit(topology, spark, Config(commit_in="tasks"))


def test_submit_takes_topologies_only(spark):
    with pytest.raises(TopologyError, match="submit takes a topology, not str"):
        submit("word-count", spark)


def test_batches_overlap_while_commits_are_one_at_a_time_and_in_order(spark, path):
    sentences = SENTENCES * 4

    run = finish(word_count(path, sentences), spark, Config(max_spout_pending=4))

    times = {(e["event"], e["txid"]): e["time"] for e in run.timeline}
    txids = range(1, len(sentences) + 1)
    for txid in txids[:-1]:
        assert times["processing starts", txid + 1] < times["commit ends", txid]
        assert times["commit ends", txid] <= times["commit starts", txid + 1]
    assert [p["txid"] for p in run.recent_progress] == list(txids)
    assert max(p["in_flight"] for p in run.recent_progress) == 3
    # And really at once: all four were emitted before the first was processed.
    assert times["processing starts", 4] < times["processing ends", 1]


def jobs_of(spark):
    return spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()


def stages_of(spark, jobs):
    """How many stages the jobs had that really ran."""
    tracker = spark.sparkContext.statusTracker()
    found = [tracker.getStageInfo(s) for j in jobs for s in tracker.getJobInfo(j).stageIds]
    return sum(1 for stage in found if stage is not None and stage.numCompletedTasks > 0)


@pytest.mark.parametrize(("where", "jobs", "stages"), [("driver", 1, 1), ("tasks", 2, 3)])
def test_a_batch_of_the_native_word_count_costs_so_many_jobs_and_stages(
    spark, path, where, jobs, stages
):
    sentences = SENTENCES * 2
    topology = word_count(path, sentences, driver_only=where == "driver")
    first = jobs_of(spark)

    finish(topology, spark, Config(commit_in=where))

    last = jobs_of(spark)
    assert last - first == jobs * len(sentences)
    assert stages_of(spark, range(first, last)) == stages * len(sentences)
    assert words(path)["the"] == 8


@pytest.mark.soak
def test_nothing_staged_outlives_its_batch(spark, path):
    sentences = SENTENCES * 4
    persistent = spark.sparkContext._jsc.sc().getPersistentRDDs
    run = submit(
        word_count(path, sentences, driver_only=False),
        spark,
        {"commit_in": "tasks", "topology.max.spout.pending": 4},
    )
    try:
        run.process_all_available(timeout=90)
        staged = dict(run._loop._setup.engine._work)
        left = persistent().size()
    finally:
        run.stop()

    assert len(run.recent_progress) == 12
    assert words(path)["the"] == 16
    assert (staged, left) == ({}, 0)


@pytest.mark.parametrize(
    "point", [soaked("commit.after_record"), "mark.before", soaked("mark.after")]
)
def test_nothing_staged_outlives_a_failed_attempt_or_a_stopped_run(running, spark, path, point):
    gc.collect()
    persistent = spark.sparkContext._jsc.sc().getPersistentRDDs
    faults.install(FaultPlan([Fault(point, "fail", where={"txid": 2})]))
    run = running(
        word_count(path, driver_only=False),
        Config(commit_in="tasks", max_spout_pending=3, retry_backoff_millis=1),
    )
    wait_for(lambda: run.exception() or run.status == "idle")
    run.stop()

    wait_for(lambda: persistent().size() == 0)
