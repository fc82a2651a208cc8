"""Rows on Spark: by the driver and by tasks, workers and drivers killed in mid-commit, sinks."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing

import psycopg
import pytest

from tests.rows.stores import FolderState, PinnedState
from tests.soaking import soaked
from tests.spark.backend_support import Numbers
from tests.spark.killing import run_child, said
from tests.spark.rows_child import query, rows_topology
from waterspout import Config, faults, submit
from waterspout.faults import Fault, FaultPlan
from waterspout.sinks import exactly_once
from waterspout.state.postgres import PostgresState
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

CHILD = "tests.spark.rows_child"
LIMIT, KEYS = 1_200, 7
QUICK = Config(max_spout_pending=2, retry_backoff_millis=5, idle_poll_millis=20, state_partitions=2)
LAST = {k: max(range(k, LIMIT, KEYS)) for k in range(KEYS)}


def numbers():
    """Opaque: a replay has fewer numbers."""
    return Numbers(LIMIT, (500, 600), (200, 300))


def storm(folder):
    """Kill the worker of a task in mid-commit; then fail a batch when all of it is written."""
    token = folder / "killed"
    killed = Fault("write.after", "kill", where={"txid": 1}, token=str(token))
    faults.install(FaultPlan([killed, Fault("publish.before", "fail", where={"txid": 2})]))
    return token


def finished(topology, spark, config):
    run = submit(topology, spark, config)
    try:
        run.process_all_available(timeout=120)
    finally:
        run.stop()
        faults.install(None)


def selected(dsn, statement):
    with psycopg.connect(dsn) as connection:
        return connection.execute(statement).fetchall()


def test_tasks_write_each_row_once_though_workers_die(spark, tmp_path, postgres_server):
    dsn = postgres_server.fresh_database()
    appended = PostgresState.opaque(dsn, table="appended")
    upserted = PostgresState.opaque(dsn, table="upserted")
    published = FolderState(folder=str(tmp_path / "rows"))
    killed = storm(tmp_path)

    topology = rows_topology(numbers(), appended, upserted, published)

    finished(topology, spark, QUICK.replace(commit_in="tasks"))

    assert killed.exists()
    found = selected(dsn, "SELECT value FROM appended ORDER BY value")
    assert found == [(n,) for n in range(LIMIT)]
    attempts = selected(dsn, "SELECT DISTINCT _attempt FROM appended WHERE _txid = 2")
    assert attempts == [(1,)]
    assert dict(selected(dsn, "SELECT k, value FROM upserted")) == LAST
    assert sorted(published.seen) == [(n, n % KEYS) for n in range(LIMIT)]
    # And so says the state itself, in the order of the stream's fields.
    frames = [handle.to_dataframe(spark) for handle in topology.handles[:2]]
    assert sorted(map(tuple, frames[0].collect())) == [(n, n % KEYS) for n in range(LIMIT)]
    assert sorted(map(tuple, frames[1].collect())) == sorted((n, k) for k, n in LAST.items())


@pytest.mark.parametrize("where", [soaked("tasks"), "driver"])
def test_the_driver_writes_the_same(spark, tmp_path, where):
    path = tmp_path / "rows.db"
    own = where == "driver"
    appended, upserted = (
        SQLiteState.opaque(path, table=name, driver_only=own) for name in ("appended", "upserted")
    )
    pinned = PinnedState() if own else FolderState(folder=str(tmp_path / "rows"))
    once = str(tmp_path / "failed")  # whichever process it is in
    failing = Fault("write.after", "fail", where={"txid": 2, "partition": 1}, token=once)
    faults.install(FaultPlan([failing]))
    topology = rows_topology(numbers(), appended, upserted, pinned)

    finished(topology, spark, QUICK.replace(commit_in=where))

    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT value FROM appended ORDER BY value").fetchall()
        last = dict(db.execute("SELECT k, value FROM upserted"))
    assert found == [(n,) for n in range(LIMIT)]
    assert last == LAST
    assert sorted(pinned.seen) == [(n, n % KEYS) for n in range(LIMIT)]


@pytest.mark.soak  # two drivers; in process each point is tried each time
@pytest.mark.parametrize("point", ["write.after", "publish.after"])
def test_a_driver_that_is_killed_between_partitions_leaves_no_row_twice(
    tmp_path, connect_server, point
):
    remote = connect_server.url
    where = {"txid": 2, "partition": 1} if point == "write.after" else {"txid": 2}

    kill = {"point": point, "action": "kill", "where": where}

    assert run_child(CHILD, tmp_path, [kill], remote) == -signal.SIGKILL, said(tmp_path)
    published = FolderState(folder=str(tmp_path / "rows"))
    for found in (appended_in(tmp_path), sorted(published.seen)):
        assert len(set(found)) == len(found), "no row is seen twice, whatever has happened"
    assert run_child(CHILD, tmp_path, remote=remote) == 0, said(tmp_path)
    assert appended_in(tmp_path) == [(n, n % KEYS) for n in range(LIMIT)]
    assert sorted(published.seen) == [(n, n % KEYS) for n in range(LIMIT)]


def appended_in(folder):
    with closing(sqlite3.connect(folder / "rows.db")) as db:
        return db.execute("SELECT value, k FROM appended ORDER BY value").fetchall()


def test_a_sink_appends_and_upserts_and_a_repeated_batch_changes_nothing(spark, tmp_path):
    path = tmp_path / "rows.db"
    sink = (
        exactly_once(SQLiteState.opaque(path, table="appended"), append=True)
        .also(SQLiteState.opaque(path, table="last"), upsert=["word"], order_by="size")
        .also(SQLiteState.opaque(path, table="counts"), keys="word", count=Count())
        .also(FolderState(folder=str(tmp_path / "rows")), append=True)
    )
    (tmp_path / "in").mkdir()
    lines = ["to be or not to be", "the cow jumped over the moon", "be"]
    for number, line in enumerate(lines[:2]):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{line}\n")

    def run():
        running = query(spark, tmp_path, sink)
        try:
            running.processAllAvailable()
        finally:
            running.stop()

    run()
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda p: int(p.name))
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink()
    (tmp_path / "in" / "2.txt").write_text(f"{lines[2]}\n")
    run()  # Spark repeats a batch that the states have

    words = sorted((word, len(word)) for line in lines for word in line.split())
    with closing(sqlite3.connect(path)) as db:
        assert sorted(db.execute("SELECT word, size FROM appended")) == words
        assert sorted(db.execute("SELECT word, size FROM last")) == sorted(set(words))
        assert db.execute("SELECT sum(count) FROM counts").fetchone() == (len(words),)
    assert sorted(FolderState(folder=str(tmp_path / "rows")).seen) == words
