"""Transactional topologies on Spark: phases, order, replays, restarts."""

from __future__ import annotations

import os
import threading
import time

import pytest

from tests.metrics.test_batch_counts import topology as counted_topology
from tests.soaking import soaked
from tests.transactional.components import (
    GlobalSum,
    Once,
    PartialCount,
    Record,
    RecordingCommitter,
    history,
    note,
    notes,
    total,
)
from waterspout import Config, submit
from waterspout.errors import FailedException
from waterspout.metrics import RunStats, stats_of
from waterspout.spark import batch_bolts
from waterspout.spark.submit import start
from waterspout.transactional import MemoryTransactionalSpout, TransactionalTopologyBuilder

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

DATA = {
    0: [["cat"], ["dog"], ["chicken"], ["cat"], ["dog"], ["apple"]],
    1: [["cat"], ["dog"], ["apple"], ["banana"]],
    2: [["cat"]] * 5 + [["dog"]] * 4,
}


def global_count(path, fail=None, name="global-count", data=DATA):
    spout = MemoryTransactionalSpout(data, "word", 3)
    builder = TransactionalTopologyBuilder(name, "words", spout, 3)
    builder.set_bolt("partial", PartialCount(), 5).none_grouping("words")
    builder.set_bolt("sum", GlobalSum(path, fail)).global_grouping("partial")
    return builder.build_topology()


def finish(run, timeout=120):
    try:
        run.process_all_available(timeout=timeout)
    finally:
        run.stop()
    return run


@pytest.mark.parametrize("pending", [soaked(1), 3])
@pytest.mark.parametrize("collapse", [0, 2_000], ids=["spread", "collapsed"])
def test_the_global_count_of_storms_documents(spark, tmp_path, pending, collapse):
    path = tmp_path / "total.db"
    config = Config(max_spout_pending=pending, wave_collapse_tuples=collapse)

    run = finish(submit(global_count(path), spark, config))

    assert history(path) == [(1, 9), (2, 16), (3, 19)]
    assert [entry["txid"] for entry in run.recent_progress] == [1, 2, 3]
    assert run.exception() is None


def test_a_committer_that_fails_after_its_write_is_replayed_and_counts_once(spark, tmp_path):
    path = tmp_path / "total.db"
    config = Config(max_spout_pending=3, retry_backoff_millis=10)

    run = finish(submit(global_count(path, Once(tmp_path / "failed")), spark, config))

    assert total(path) == (3, 19)
    assert history(path) == [(1, 9), (2, 16), (3, 19)]
    assert (tmp_path / "failed").exists()
    assert run.recent_progress[0]["attempt"] == 1
    assert run.exception() is None


@pytest.mark.parametrize("collapse", [0, 2_000], ids=["spread", "collapsed"])
def test_phases_of_a_b_c_d_are_as_described(spark, tmp_path, collapse):
    """A goes to B* and C, B* to C, C to D*: A finishes in processing, B, C and D in commit."""
    log = tmp_path / "log"
    spout = MemoryTransactionalSpout([[["s"], ["t"]]], "path", 2)
    builder = TransactionalTopologyBuilder("abcd", "spout", spout)
    builder.set_bolt("a", Record(log)).shuffle_grouping("spout")
    builder.set_committer_bolt("b", RecordingCommitter(log)).shuffle_grouping("a")
    builder.set_bolt("c", Record(log)).shuffle_grouping("a").shuffle_grouping("b")
    builder.set_bolt("d", RecordingCommitter(log)).shuffle_grouping("c")

    finish(submit(builder.build_topology(), spark, Config(wave_collapse_tuples=collapse)))

    calls = [(what, name) for what, name, *_ in notes(log)]
    finished = [name for what, name in calls if what == "finish"]
    assert finished == ["a", "b", "c", "d"]
    executed_before_commit = calls[: calls.index(("finish", "b"))]
    assert executed_before_commit.count(("execute", "b")) == 2
    assert executed_before_commit.count(("execute", "c")) == 2
    assert ("execute", "d") not in executed_before_commit
    assert notes(log)[-1] == [
        "finish", "d", "1:0", ["s>a>b>c", "s>a>c", "t>a>b>c", "t>a>c"],
    ]  # fmt: skip


@pytest.fixture
def checkpoints(spark, monkeypatch):
    """The number of frames that were kept on the executors, as the length of a list."""
    made, real = [], type(spark.range(1)).localCheckpoint

    def noted(frame, *args, **kwargs):
        made.append(frame)
        return real(frame, *args, **kwargs)

    monkeypatch.setattr(type(spark.range(1)), "localCheckpoint", noted)
    return made


@pytest.mark.parametrize(("limit", "kept"), [(0, 4), (1_000_000, 1)], ids=["there", "here"])
@pytest.mark.parametrize("collapse", [0, 2_000], ids=["spread", "collapsed"])
def test_half_done_bolts_wait_for_their_commit(
    spark, tmp_path, monkeypatch, checkpoints, limit, kept, collapse
):
    """Two committers behind each other: what is left are half-done bolts of two stages."""
    monkeypatch.setattr(batch_bolts, "_COLLECTED_BYTES", limit)
    log = tmp_path / "log"
    spout = MemoryTransactionalSpout([[[c] for c in "stuv"], [[c] for c in "STUV"]], "path", 1)
    builder = TransactionalTopologyBuilder("half-done", "spout", spout, 2)
    builder.set_committer_bolt("b", RecordingCommitter(log), 2).shuffle_grouping("spout")
    last = builder.set_bolt("d", RecordingCommitter(log))
    last.global_grouping("b").global_grouping("spout")

    config = Config(wave_collapse_tuples=collapse, max_spout_pending=1)
    finish(submit(builder.build_topology(), spark, config))

    ends = [
        (attempt, paths)
        for what, name, attempt, paths in notes(log)
        if (what, name) == ("finish", "d")
    ]
    assert ends == [
        (f"{n}:0", [a, f"{a}>b", b, f"{b}>b"])
        for n, (a, b) in enumerate(zip("STUV", "stuv", strict=True), 1)
    ]
    assert len(checkpoints) == kept


class WhereFinished(RecordingCommitter):
    """Notes in which process it finishes; computes as long as it is told."""

    def __init__(self, log, computes_s=0.0):
        super().__init__(log)
        self.computes_s = computes_s

    def finish_batch(self):
        until = time.thread_time() + self.computes_s
        while time.thread_time() < until:
            pass
        note(self.log, "finish", self.name, self.id, os.getpid())


@pytest.mark.parametrize(
    ("where", "computes_s", "tasks", "here"),
    [("auto", 0.0, 1, [2, 3, 4]), ("tasks", 0.0, 1, []), ("auto", 0.2, 1, [])],
    ids=["little to do", "as was said", "much to do"],
)
def test_bolts_that_have_little_to_do_finish_in_the_driver(
    spark, tmp_path, where, computes_s, tasks, here
):
    log = tmp_path / "log"
    spout = MemoryTransactionalSpout([[[c] for c in "stuv"]], "path", 1)
    builder = TransactionalTopologyBuilder("where", "spout", spout)
    builder.set_bolt("b", WhereFinished(log, computes_s), tasks).shuffle_grouping("spout")

    config = Config(max_spout_pending=1, commit_in=where)
    finish(submit(builder.build_topology(), spark, config))

    finished = [
        (int(attempt.partition(":")[0]), pid)
        for what, _, attempt, pid in notes(log)
        if what == "finish"
    ]
    assert [txid for txid, _ in finished] == [1, 2, 3, 4]
    assert [txid for txid, pid in finished if pid == os.getpid()] == here


class HangsOnce(RecordingCommitter):
    """Hangs in the first attempt at its third batch, wherever it runs, until it is let go."""

    def finish_batch(self):
        if str(self.id) == "3:0":
            hanging.set()
            released.wait(60)
        super().finish_batch()


hanging, released = threading.Event(), threading.Event()


def test_a_commit_that_hangs_in_the_driver_does_not_keep_the_next_attempt_from_committing(
    spark, tmp_path, caplog
):
    hanging.clear()
    released.clear()
    log = tmp_path / "log"
    spout = MemoryTransactionalSpout([[[c] for c in "stuv"]], "path", 1)
    builder = TransactionalTopologyBuilder("hangs", "spout", spout)
    builder.set_bolt("b", HangsOnce(log)).shuffle_grouping("spout")
    config = Config(
        max_spout_pending=1, batch_timeout_secs=12, cancel_wait_secs=0.1, retry_backoff_millis=5
    )

    run = finish(submit(builder.build_topology(), spark, config))
    was_hanging = hanging.is_set()
    released.set()

    assert was_hanging
    ends = [attempt for what, _, attempt, _ in notes(log) if what == "finish"]
    assert [end for end in ends if end != "3:0"] == ["1:0", "2:0", "3:1", "4:0"]
    assert [entry["attempt"] for entry in run.recent_progress] == [0, 0, 1, 0]
    assert "a commit that was cancelled has not ended" in caplog.text


def test_what_cannot_be_collected_is_replayed_and_kept_on_the_executors(
    spark, tmp_path, monkeypatch, checkpoints
):
    def too_large(*_):
        raise FailedException("more than the driver takes")

    real, tried = batch_bolts.BatchBoltEngine._collected, []

    def once_too_large(self, *args):
        tried.append(args)
        with monkeypatch.context() as patched:
            if len(tried) == 1:
                patched.setattr(self, "_run", too_large)
            return real(self, *args)

    monkeypatch.setattr(batch_bolts.BatchBoltEngine, "_collected", once_too_large)
    config = Config(max_spout_pending=1, retry_backoff_millis=10)

    run = finish(submit(global_count(tmp_path / "total.db"), spark, config))

    assert history(tmp_path / "total.db") == [(1, 9), (2, 16), (3, 19)]
    assert [entry["attempt"] for entry in run.recent_progress] == [0, 1, 0]
    assert (len(checkpoints), len(tried)) == (2, 2)  # batches 1 and 2; batches 2, in vain, and 3


def test_a_restart_goes_on_at_the_next_txid(spark, tmp_path):
    path = tmp_path / "total.db"
    head = {p: rows[:3] for p, rows in DATA.items()}

    finish(submit(global_count(path, data=head), spark))
    finish(submit(global_count(path), spark))

    assert history(path) == [(1, 9), (2, 16), (3, 19)]


def test_a_limit_that_is_said_of_the_spout_counts_for_the_batches(spark, tmp_path):
    spout = MemoryTransactionalSpout(DATA, "word", 1)
    builder = TransactionalTopologyBuilder("limited", "words", spout)
    builder.spout_declarer.set_max_spout_pending(3)
    builder.set_bolt("partial", PartialCount()).none_grouping("words")
    builder.set_bolt("sum", GlobalSum(tmp_path / "total.db")).global_grouping("partial")

    run = finish(submit(builder.build_topology(), spark, Config(max_spout_pending=1)))

    assert history(tmp_path / "total.db")[-1] == (9, 19)
    open_batches, most = set(), 0
    for entry in run.timeline:
        if entry["event"] == "processing starts":
            open_batches.add(entry["txid"])
        elif entry["event"] == "commit ends":
            open_batches.discard(entry["txid"])
        most = max(most, len(open_batches))
    assert most == 3


@pytest.mark.parametrize("commits", [True, False])
def test_what_tasks_have_done_comes_with_the_commit(spark, commits, tmp_path):
    topology = counted_topology(commits=commits)
    stats: list[RunStats] = []
    config = Config(home=str(tmp_path), retry_backoff_millis=1)
    run = start(topology, spark, config, lambda run: stats.append(stats_of(run, topology)))
    run.process_all_available(timeout=90)
    run.stop()

    tables = stats[0].components()
    rows = {row["id"]: row for row in [*tables["spouts"], *tables["bolts"]]}
    assert rows["words"]["emitted"] == 5
    assert [rows["twice"][k] for k in ("executed", "acked", "emitted")] == [5, 5, 10]
    if commits:
        assert [rows["keep"][k] for k in ("executed", "emitted", "transferred")] == [10, 2, 0]
