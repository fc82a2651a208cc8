"""`AppendRows` in process: each row once, whatever is done again, and by an ordinary SELECT."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from waterspout import Config, faults
from waterspout.coordination.store import MemoryCoordinationStore
from waterspout.errors import TopologyError
from waterspout.faults import Fault, FaultPlan
from waterspout.state import MemoryMapState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout, LocalRun, run_in_process
from waterspout.trident import AppendRows, TridentTopology
from waterspout.trident.plan.explain import guarantees

ROWS = [(n, f"w{n % 3}", n / 2 if n % 4 else None) for n in range(1, 21)]
FIELDS = "id bigint, word string, amount double"


def appended(state, rows=ROWS, name="appends", size=6):
    topology = TridentTopology(name)
    stream = topology.new_stream("rows", FixedBatchSpout(FIELDS, size, rows))
    return topology, stream.partition_persist(state, AppendRows())


def select(path, columns="id, word, amount", table="rows"):
    with closing(sqlite3.connect(path)) as db:
        return sorted(db.execute(f"SELECT {columns} FROM {table}"), key=repr)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.db"


@pytest.mark.parametrize("partitions", [1, 3])
def test_each_row_is_there_once(path, partitions):
    topology, _ = appended(SQLiteState.opaque(path, table="rows"))

    run_in_process(topology, Config(state_partitions=partitions))

    assert select(path) == sorted(ROWS, key=repr)
    batches = select(path, "DISTINCT _txid, _attempt")
    assert batches == [(txid, 0) for txid in (1, 2, 3, 4)]


@pytest.mark.parametrize("point", ["write.before", "write.after"])
def test_what_a_lost_attempt_has_written_is_gone(path, point):
    topology, _ = appended(SQLiteState.opaque(path, table="rows"))
    faults.install(FaultPlan([Fault(point, "fail", where={"txid": 2})]))

    run_in_process(topology, Config(state_partitions=2))

    assert select(path) == sorted(ROWS, key=repr)
    assert (2, 1) in select(path, "DISTINCT _txid, _attempt")
    assert (2, 0) not in select(path, "DISTINCT _txid, _attempt")


def test_a_later_run_goes_on(path):
    store = MemoryCoordinationStore("appends")
    first, _ = appended(SQLiteState.opaque(path, table="rows"), ROWS[:8], size=4)
    LocalRun(first, store=store).finish()
    second, _ = appended(SQLiteState.opaque(path, table="rows"), ROWS, size=4)

    LocalRun(second, store=store).finish()

    assert select(path) == sorted(ROWS, key=repr)


def test_rows_in_memory_are_for_trying_out():
    topology, state = appended(MemoryMapState.opaque())

    run_in_process(topology)

    (line,) = guarantees(topology.plan())
    assert "exactly-once: " in line
    with pytest.raises(TopologyError, match="keeps rows"):
        state.get("1")
