"""States of rows by themselves: what they take, and two tries of one task at once."""

from __future__ import annotations

import threading
from collections import Counter

import psycopg
import pyarrow as pa
import pytest

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.errors import StateUseError
from waterspout.state import MemoryMapState
from waterspout.state.postgres import PostgresState
from waterspout.testing import FixedBatchSpout, run_in_process
from waterspout.testing._batches import RowBatches
from waterspout.trident import AppendRows, TridentTopology

FIELDS = Schema.parse("id bigint, at timestamp, tags array<string>, pairs map<string,int>")


def opened(recipe):
    return recipe.bind_rows(FIELDS).make_state(Config(), 0, 1)


def test_rows_are_taken_with_the_types_of_the_fields():
    recipe = MemoryMapState.opaque().bind_rows(FIELDS)
    batches = RowBatches.over(recipe)
    batches.claim()
    state = batches.task(0, [])
    spark = {
        "extra": pa.array([1]),
        "pairs": pa.array([[("a", 1)]], pa.map_(pa.large_string(), pa.int32())),
        "at": pa.array([0], pa.timestamp("us", tz="America/New_York")),
        "tags": pa.array([["x"]], pa.large_list(pa.large_string())),
        "id": pa.array([7], pa.int64()),
    }
    state.append(pa.table(spark))

    state.commit(1)
    batches.finish()

    (table,) = [t for t in batches.state.scan() if t.num_rows]
    assert str(table.schema.field("at").type) == "timestamp[us, tz=UTC]"
    assert table.schema.names == ["id", "at", "tags", "pairs"]
    assert table.column("tags").to_pylist() == [["x"]]


def test_rows_are_taken_in_a_batch_only_and_as_the_state_was_bound():
    state = opened(MemoryMapState.opaque())
    nothing = pa.table({name: [] for name in FIELDS.names})

    with pytest.raises(StateUseError, match="takes rows in a batch only"):
        state.append(nothing)
    state.begin_commit(1)
    with pytest.raises(StateUseError, match="has no keys; its rows are appended"):
        state.upsert(nothing)


@pytest.mark.parametrize("times", [5])
def test_two_tries_of_a_task_at_once_leave_its_rows_once(postgres_server, times):
    dsn = postgres_server.fresh_database()
    schema = Schema.parse("id bigint")
    recipe = PostgresState.opaque(dsn, table="rows").bind_rows(schema)
    batches = RowBatches.over(recipe)
    rows = [(n,) for n in range(2_000)]
    for _ in range(times):
        batches.claim()
        tries = [batches.task(0, rows) for _ in range(3)]
        errors = []

        def write(task, errors=errors):
            try:
                task.commit(batches.txid)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=(task,)) for task in tries]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        batches.finish()
        assert errors == []

    with psycopg.connect(dsn) as connection:
        found = Counter(connection.execute("SELECT id FROM rows").fetchall())
    assert found == dict.fromkeys(rows, times)


def test_rows_that_are_put_aside_are_not_appended():
    topology = TridentTopology("aside")
    stream = topology.new_stream("rows", FixedBatchSpout("id bigint", 3, [(n,) for n in range(9)]))
    good = stream.each("id", lambda n: 12 // n, "share bigint", on_error="dead_letter")
    state = good.partition_persist(MemoryMapState.opaque(), AppendRows())

    run_in_process(topology)

    kept = topology.state_spec(state.name).factory.make_state(Config(), 0, 1)
    found = [tuple(row.values()) for table in kept.scan() for row in table.to_pylist()]
    assert sorted(found) == [(n, 12 // n) for n in range(1, 9)]
