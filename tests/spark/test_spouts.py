"""Spouts on real Spark: every format, new files, restarts, and files that have changed."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from tests.trident.support import Meddling, capture, finish, put, wait_for
from waterspout import Config, faults, submit
from waterspout.coordination.decisions import Decision, decide
from waterspout.coordination.preflight import prepare
from waterspout.errors import ForeignStoreError, RunFailedError, SourceError
from waterspout.faults import Fault, FaultPlan
from waterspout.spark.audit import audit
from waterspout.spouts.files import FileSpout
from waterspout.spouts.rate import RateSpout
from waterspout.state import StateKind
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout
from waterspout.testing._tables import read_table
from waterspout.trident import Count, TridentTopology, expr

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

ONCE = Config(max_retries=0)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "in"
    path.mkdir()
    return path


def captured(spout):
    topology = TridentTopology("spouts")
    return topology, capture(topology.new_stream("rows", spout))


def counting(source, tmp_path, *, meddling=None, **options):
    """A count of lines that outlives the run."""
    topology = TridentTopology("lines")
    lines = topology.new_stream("lines", FileSpout(source, **options))
    if meddling is not None:
        lines = lines.each("value", meddling)
    state = SQLiteState.opaque(tmp_path / "lines.db", table="lines")
    lines.group_by("value").persistent_aggregate(state, Count(), out="n")
    return topology


def counted(tmp_path):
    with sqlite3.connect(tmp_path / "lines.db") as db:
        return dict(db.execute("SELECT value, n FROM lines"))


ROWS = [{"word": "日本", "n": 1}, {"word": None, "n": 2}, {"word": "a,b", "n": None}]
TABLE = pa.table({"word": [r["word"] for r in ROWS], "n": [r["n"] for r in ROWS]})


def write(path, form):
    if form == "json":
        put(path, "".join(json.dumps(row) + "\n" for row in ROWS))
    elif form == "csv":
        put(path, 'word,n\n日本,1\n,2\n"a,b",\n')
    elif form == "parquet":
        pq.write_table(TABLE, path)
    else:
        orc.write_table(TABLE, path)


@pytest.mark.parametrize("form", ["json", "csv", "parquet", "orc"])
def test_rows_of_every_format_are_read_with_their_types(spark, source, form):
    write(source / "rows", form)
    options = {"header": "true"} if form == "csv" else None
    schema = None if form == "parquet" else "word string, n bigint"
    topology, kept = captured(FileSpout(source, form, schema, options=options))

    run = finish(topology, spark)

    assert kept.rows == sorted((tuple(row.values()) for row in ROWS), key=repr)
    assert run.last_progress["input_rows"] == len(ROWS)


def test_lines_of_text_are_read_as_sparks_reader_does(spark, source):
    put(source / "a.txt", "one\n\n two 日本 \r\nlast without newline")
    topology, kept = captured(FileSpout(source))

    finish(topology, spark)

    assert kept.rows == [(" two 日本 ",), ("",), ("last without newline",), ("one",)]


def test_file_names_are_names_and_not_patterns(spark, source):
    for name in ("a[1].txt", "a1.txt", "{a,b}.txt", "a*.txt", "sp ace%20?.txt", "ü\\n.txt"):
        put(source / name, f"from {name}\n")
    topology, kept = captured(FileSpout(source, max_files=2))

    finish(topology, spark)

    assert kept.rows == sorted((f"from {path.name}",) for path in source.iterdir())


def test_empty_files_are_no_rows_and_no_error(spark, source):
    put(source / "empty.txt", "")
    topology, kept = captured(FileSpout(source))
    run = submit(topology, spark, ONCE)
    run.process_all_available(timeout=60)

    put(source / "full.txt", "something\n")
    wait_for(lambda: run.exception() or kept.rows)
    run.stop()

    assert kept.rows == [("something",)]


def test_a_file_of_fewer_bytes_than_task_slots_is_read(spark, source):
    put(source / "a.txt", "a\n")
    topology, kept = captured(FileSpout(source))

    finish(topology, spark, ONCE)

    assert kept.rows == [("a",)]


def test_new_files_are_read_while_it_runs_also_those_with_an_old_time(spark, source):
    put(source / "b.txt", "first line\n")
    topology, kept = captured(FileSpout(f"{source}/*.txt"))
    run = submit(topology, spark)
    run.process_all_available(timeout=60)
    assert kept.rows == [("first line",)]

    put(source / "_ignored.txt", "not for us\n")
    put(source / "c.txt", "second line\n")
    wait_for(lambda: run.exception() or len(kept.rows) == 2)
    old = put(source / ".hidden", "third line\n")
    os.utime(old, ns=(0, 0))
    old.rename(source / "a.txt")
    wait_for(lambda: run.exception() or len(kept.rows) == 3)
    run.process_all_available(timeout=60)
    run.stop()

    assert kept.batches == {1: [("first line",)], 2: [("second line",)], 3: [("third line",)]}


def test_a_backlog_is_cut_into_batches_by_rows(spark, source):
    for i in range(6):
        path = put(source / f"{i}.txt", f"{i} a\n{i} b\n")
        os.utime(path, ns=(i, i))
    topology, kept = captured(FileSpout(source, max_rows=5))

    run = finish(topology, spark, Config(max_spout_pending=2))

    assert {txid: len(rows) for txid, rows in kept.batches.items()} == {1: 4, 2: 4, 3: 4}
    assert [progress["input_rows"] for progress in run.recent_progress] == [4, 4, 4]
    # When the first commits, the second may have been planned.
    assert run.recent_progress[0].lag["rows"] in ({"files": n, "bytes": 8 * n} for n in (2, 4))
    assert run.snapshot().lag == {"rows": {"files": 0, "bytes": 0}}


@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_rows_that_are_read_are_counted_before_any_is_filtered(spark, source, adaptive):
    put(source / "a.txt", "a\nb\na\nc\n")
    topology = TridentTopology("filtered")
    lines = topology.new_stream("lines", FileSpout(source)).filter(expr("value <> 'c'"))
    state = SQLiteState.opaque(source.parent / "n.db", table="n", driver_only=False)
    lines.group_by("value").persistent_aggregate(state, Count(), out="n")
    before = spark.conf.get("spark.sql.adaptive.enabled")
    spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    try:
        run = finish(topology, spark, Config(commit_in="tasks"))
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", before)

    assert (run.last_progress["input_rows"], run.last_progress["written_rows"]) == (4, 2)


def leave_unfinished(spark, source, tmp_path):
    """Commit a batch, and let the run die with another one emitted and not committed."""
    for i, name in enumerate(("done.txt", "open.txt")):
        os.utime(put(source / name, f"{name} line\n"), ns=(i * 10**9, i * 10**9))
    faults.install(FaultPlan([Fault("write.before", "raise", where={"txid": 2}, nth=None)]))
    run = submit(counting(source, tmp_path, max_files=1), spark, ONCE)
    with pytest.raises(RunFailedError, match=r"injected at write\.before"):
        run.process_all_available(timeout=60)
    faults.install(None)
    assert counted(tmp_path) == {"done.txt line": 1}


def test_a_restart_reads_what_was_not_committed_and_nothing_else(spark, source, tmp_path):
    leave_unfinished(spark, source, tmp_path)
    put(source / "new.txt", "new.txt line\n")

    run = finish(counting(source, tmp_path, max_files=1), spark)

    assert counted(tmp_path) == {"done.txt line": 1, "open.txt line": 1, "new.txt line": 1}
    assert [(p["txid"], p["attempt"]) for p in run.recent_progress] == [(2, 1), (3, 0)]


@pytest.mark.parametrize("change", ["rewritten", "deleted"])
def test_a_file_of_an_unfinished_batch_must_be_what_it_was(spark, source, tmp_path, change):
    leave_unfinished(spark, source, tmp_path)
    path = source / "open.txt"
    shutil.copy2(path, tmp_path / "saved")
    if change == "rewritten":
        put(path, "another line\n")
        said = r"open\.txt was changed after it was put into a batch \(14 bytes then, 13 now\)"
    else:
        path.unlink()
        said = r"open\.txt belongs to a batch that is not finished, but cannot be read: No such"

    with pytest.raises(RunFailedError, match=said) as failed:
        finish(counting(source, tmp_path, max_files=1), spark, ONCE)
    assert isinstance(failed.value.__cause__, SourceError)
    assert counted(tmp_path) == {"done.txt line": 1}

    shutil.copy2(tmp_path / "saved", path)
    finish(counting(source, tmp_path, max_files=1), spark)
    assert counted(tmp_path) == {"done.txt line": 1, "open.txt line": 1}


def test_a_touched_file_goes_on_and_a_lost_one_is_skipped_on_record(spark, source, tmp_path):
    leave_unfinished(spark, source, tmp_path)
    os.utime(source / "open.txt")
    finish(counting(source, tmp_path, max_files=1), spark, ONCE)
    assert counted(tmp_path) == {"done.txt line": 1, "open.txt line": 1}

    lost = put(source / "lost.txt", "lost.txt line\n")
    faults.install(FaultPlan([Fault("write.before", "raise", where={"txid": 3}, nth=None)]))
    with pytest.raises(RunFailedError):
        finish(counting(source, tmp_path), spark, ONCE)
    faults.install(None)
    lost.unlink()
    topology = counting(source, tmp_path)
    with closing(prepare(topology, ONCE)) as prepared:
        plan, kinds = prepared.plan, {"lines": StateKind.OPAQUE}
        spouts = {"lines": plan.sources["lines"].spout}
        decision = Decision("skip", "the disk died", "me@here", "2026-11-17T14:00:00+00:00")
        decide(plan.name, plan.fingerprint(), prepared.store, spouts, kinds, decision)
    put(source / "new.txt", "new.txt line\n")
    run = finish(topology, spark, ONCE)

    exact = {"done.txt line": 1, "open.txt line": 1, "new.txt line": 1}
    assert counted(tmp_path) == exact
    assert [p["txid"] for p in run.recent_progress] == [3, 4]
    (audited,) = audit(counting(source, tmp_path), spark, ONCE)
    assert (audited.keys, audited.differences) == (3, ())


def test_a_file_that_changes_while_it_is_read_fails_its_batch(spark, source, tmp_path):
    put(source / "1", "done\n")
    finish(counting(source, tmp_path), spark)
    path = put(source / "2", "one\ntwo\n")
    shutil.copy2(path, tmp_path / "saved")

    with pytest.raises(RunFailedError, match=r"in/2 was changed after it was put into a batch"):
        finish(counting(source, tmp_path, meddling=Meddling(path, "grown")), spark, ONCE)
    assert counted(tmp_path) == {"done": 1}

    shutil.copy2(tmp_path / "saved", path)
    finish(counting(source, tmp_path), spark)
    assert counted(tmp_path) == {"done": 1, "one": 1, "two": 1}


def test_a_missing_directory_is_refused_and_nothing_is_written(spark, tmp_path, home):
    with pytest.raises(SourceError, match="nowhere is not there; create the directory first"):
        submit(counting(tmp_path / "nowhere", tmp_path), spark)

    assert not home.exists()
    assert not (tmp_path / "lines.db").exists()


def test_a_directory_that_was_moved_is_refused_since_all_its_files_would_count_again(
    spark, source, tmp_path
):
    put(source / "a.txt", "line of a\n")
    finish(counting(source, tmp_path), spark)
    source.rename(tmp_path / "elsewhere")

    with pytest.raises(
        ForeignStoreError,
        match=r"'lines' has changed since .*had path .*/in and has .*/elsewhere now: the files "
        "that were read are known by their names",
    ):
        submit(counting(tmp_path / "elsewhere", tmp_path), spark)

    assert counted(tmp_path) == {"line of a": 1}


def test_a_rate_spout_gives_each_number_once_and_a_restart_goes_on(spark, tmp_path):
    def numbers(limit):
        topology = TridentTopology("rate")
        stream = topology.new_stream("numbers", RateSpout(1e6, limit=limit, max_batch_size=300))
        state = SQLiteState.opaque(tmp_path / "rate.db", table="numbers")
        stream.group_by("value").persistent_aggregate(state, Count(), out="n")
        return topology

    first = finish(numbers(500), spark, Config(max_spout_pending=2))
    second = finish(numbers(800), spark)

    with sqlite3.connect(tmp_path / "rate.db") as db:
        assert db.execute(
            "SELECT min(value), max(value), count(*), max(n) FROM numbers"
        ).fetchall() == [(0, 799, 800, 1)]
    assert second.recent_progress[0]["txid"] == first.last_progress["txid"] + 1


def test_the_times_of_a_rate_spout_follow_from_its_metadata_alone(spark):
    spout = RateSpout(10)
    metadata = {"start": 17, "end": 20, "epoch": 1_700_000_000.25, "rate": 8.0}

    class Pinned(FixedBatchSpout):
        def __init__(self):
            super().__init__(str(spout.schema), 1, [(0, None)])

        def read(self, _):
            return spout.read(metadata)

    topology, kept = captured(Pinned())
    finish(topology, spark)

    expected = [tuple(row.values()) for row in read_table(spout.read(metadata)).to_pylist()]
    assert kept.rows == expected
    assert [at.timestamp() for _, at in kept.rows] == [
        1_700_000_000.25 + n / 8 for n in (17, 18, 19)
    ]


def test_spouts_of_one_topology_share_its_batches_also_when_one_has_no_more(spark):
    topology = TridentTopology("two")
    short = capture(topology.new_stream("short", FixedBatchSpout("n", 1, [1, 2])))
    long = capture(topology.new_stream("long", FixedBatchSpout("word", 2, list("abcde"))))

    finish(topology, spark, Config(max_spout_pending=2))

    assert short.batches == {1: [(1,)], 2: [(2,)]}
    assert long.batches == {1: [("a",), ("b",)], 2: [("c",), ("d",)], 3: [("e",)]}


def test_a_fixed_spout_that_cycles_goes_round_until_it_is_stopped(spark):
    topology = TridentTopology("cycle")
    kept = capture(topology.new_stream("words", FixedBatchSpout("word", 2, ["a", "b", "c"], True)))
    run = submit(topology, spark, Config(max_spout_pending=2))

    with pytest.raises(TimeoutError, match=r"cycle was not done after 1\.0 s"):
        run.process_all_available(timeout=1.0)
    run.stop()

    batches = list(kept.batches.items())
    assert batches[:3] == [(1, [("a",), ("b",)]), (2, [("a",), ("c",)]), (3, [("b",), ("c",)])]
