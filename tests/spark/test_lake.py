"""Delta tables and Parquet files on Spark: by tasks and by the driver, and both of them killed."""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from deltalake import DeltaTable
from pyarrow import dataset

from tests.soaking import soaked
from tests.spark.killing import run_child, said
from tests.spark.lake_child import KEYS, LIMIT, lake_topology
from waterspout import Config, faults, submit
from waterspout.faults import Fault, FaultPlan
from waterspout.state.parquet import committed_dataset

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

CHILD = "tests.spark.lake_child"
QUICK = Config(max_spout_pending=2, retry_backoff_millis=5, idle_poll_millis=20, state_partitions=2)
ALL = {(n, n % KEYS): 1 for n in range(LIMIT)}
LAST = {(max(range(k, LIMIT, KEYS)), k): 1 for k in range(KEYS)}


def counted(table):
    """Return each row and how often it is there."""
    return Counter((row["value"], row["k"]) for row in table.select(["value", "k"]).to_pylist())


def found(folder):
    """Return what readers see who know nothing of waterspout, and one of the manifest."""
    return (
        counted(DeltaTable(folder / "appended").to_pyarrow_table()),
        counted(DeltaTable(folder / "merged").to_pyarrow_table()),
        counted(dataset.dataset(folder / "files").to_table()),
        counted(committed_dataset(folder / "files").to_table()),
    )


@pytest.mark.parametrize("where", [soaked("tasks"), "driver"])
def test_each_row_is_there_once_whoever_writes_and_dies(spark, tmp_path, where):
    failed = [tmp_path / f"failed{n}" for n in range(3)]
    plan = [
        Fault("write.after", "fail", where={"txid": 2, "partition": 1}, token=str(token))
        for token in failed
    ]
    if where == "tasks":
        plan.append(Fault("write.after", "kill", where={"txid": 1}, token=str(tmp_path / "killed")))
    faults.install(FaultPlan(plan))
    topology = lake_topology(tmp_path)
    run = submit(topology, spark, QUICK.replace(commit_in=where, home=str(tmp_path / "home")))
    try:
        run.process_all_available(timeout=120)
    finally:
        run.stop()
        faults.install(None)

    assert all(token.exists() for token in failed)
    assert (tmp_path / "killed").exists() == (where == "tasks")
    assert found(tmp_path) == (ALL, LAST, ALL, ALL)
    frames = [handle.to_dataframe(spark) for handle in topology.handles]
    assert [Counter(map(tuple, frame.collect())) for frame in frames] == [ALL, ALL, LAST]
    by_spark = spark.read.parquet(str(tmp_path / "files"))
    assert set(by_spark.columns) == {"value", "k", "txid"}
    assert by_spark.select("value").distinct().count() == by_spark.count() == LIMIT


@pytest.mark.soak  # two drivers for each; in process each point is tried each time
@pytest.mark.parametrize("point", ["head.after", "write.after", "publish.before", "publish.after"])
def test_a_driver_that_is_killed_leaves_no_row_twice(tmp_path, connect_server, point):
    remote = connect_server.url
    kill = {"point": point, "action": "kill", "where": {"txid": 2}}

    assert run_child(CHILD, tmp_path, [kill], remote) == -signal.SIGKILL, said(tmp_path)
    assert all(many == 1 for rows in found(tmp_path) for many in rows.values())
    assert run_child(CHILD, tmp_path, remote=remote) == 0, said(tmp_path)
    assert found(tmp_path) == (ALL, LAST, ALL, ALL)
