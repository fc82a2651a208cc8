"""Stores that are away while a run on Spark goes on: tasks meet it, the driver waits."""

from __future__ import annotations

import sqlite3
import time

import pytest

from waterspout import Config, faults, submit
from waterspout.errors import OutageError
from waterspout.events import BatchFailed, ServiceAway, ServiceBack
from waterspout.sinks import exactly_once
from waterspout.spark.carried import carried_outage, carrying_outages
from waterspout.state.redis import RedisState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout
from waterspout.trident import Count, TridentTopology

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _no_faults():
    yield
    faults.install(None)


def test_a_store_that_tasks_cannot_reach_is_waited_for(spark, redis_server, monkeypatch, tmp_path):
    """One attempt finds its store gone in the middle of its commit, in Spark's tasks."""
    monkeypatch.chdir(tmp_path)
    topology = TridentTopology("outage-in-tasks")
    words = [[f"w{n % 7}"] for n in range(60)]
    spout = FixedBatchSpout("word string", 20, words)
    state = RedisState.opaque(redis_server.url, "outage-in-tasks", timeout_secs=2.0)
    counts = topology.new_stream("words", spout).group_by("word")
    counts = counts.persistent_aggregate(state, Count(), "n")
    heard, stopped = [], []

    def strike(name, context):
        if name == "head.after" and context["txid"] == 2 and not stopped:
            stopped.append(True)
            redis_server.stop()

    faults.install(strike)
    config = Config(commit_in="tasks", max_retries=0, retry_backoff_max_millis=200)
    run = submit(topology, spark, config)
    run.subscribe(heard.append)
    until = time.monotonic() + 120
    while not run.status.startswith("waiting for redis, "):
        assert time.monotonic() < until
        assert run.exception() is None
        time.sleep(0.01)
    (outage,) = run.snapshot().waiting_for
    redis_server.start()
    run.process_all_available(timeout=120)
    run.stop()

    assert {w: counts.get(w) for w in {w for (w,) in words}} == {
        f"w{n}": 9 if n < 4 else 8 for n in range(7)
    }
    assert outage.service == "redis"
    failed = [event.error for event in heard if isinstance(event, BatchFailed)]
    assert [type(error) for error in failed] == [OutageError]
    assert "cannot be used" in str(failed[0])
    assert {event.service for event in heard if isinstance(event, ServiceAway)} == {"redis"}
    assert [event.service for event in heard if isinstance(event, ServiceBack)] == ["redis"]


def test_an_outage_travels_in_the_text_that_spark_passes_on():
    with pytest.raises(OutageError) as raised, carrying_outages():
        raise OutageError("postgres", 'connection to "db"\nrefused')
    text = f"PythonException: Traceback ...\nwaterspout.errors.OutageError: {raised.value}\n\nJVM"

    found = carried_outage(text)
    cut = carried_outage(text[: text.index("refused")])

    assert (found.service, str(found)) == ("postgres", 'connection to "db"\nrefused')
    assert (cut.service, str(cut)[:12]) == ("a store", '["postgres",')
    assert carried_outage("ValueError: something else") is None


@pytest.mark.soak
def test_a_query_waits_within_its_batch_for_a_store_that_is_away(spark, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a\nb\na\n")
    path = tmp_path / "counts.db"
    sink = exactly_once(SQLiteState.opaque(path, table="counts"), keys=["value"], count=Count())
    left = [["head.before", "write.after", "settle.before"], ["head.before"]]

    def strike(name, context):
        for points in left:
            if points and points[0] == name:
                points.pop(0)
                raise OutageError("sqlite", "somebody else has the file")

    faults.install(strike)
    lines = spark.readStream.text(str(tmp_path / "in"))
    query = (
        lines.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()

    assert left == [[], []]
    with sqlite3.connect(path) as db:
        assert dict(db.execute("SELECT value, count FROM counts")) == {"a": 2, "b": 1}
