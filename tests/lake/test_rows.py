"""What Delta tables and Parquet files have in common, beside what the suite for rows asks."""

from __future__ import annotations

import pytest

from tests.lake.support import (
    FIELDS,
    STATES,
    committed,
    head,
    put_down,
    recipe,
    seen,
    store_of,
)
from tests.soaking import sampled
from waterspout import Config, faults
from waterspout.coordination.store import MemoryCoordinationStore
from waterspout.errors import ForeignStoreError, StoreError, TopologyError
from waterspout.faults import BATCH_POINTS, ROWS_POINTS, Fault, FaultPlan
from waterspout.state._head import Head
from waterspout.testing import FixedBatchSpout, LocalRun, run_in_process
from waterspout.trident import AppendRows, TridentTopology
from waterspout.trident.plan.explain import guarantees

ROWS = [(n, f"w{n}") for n in range(1, 21)]


@pytest.fixture(params=sorted(STATES))
def kind(request):
    return request.param


@pytest.fixture
def path(tmp_path):
    return tmp_path / "table"


def appending(state, rows=ROWS, size=6):
    topology = TridentTopology("orders")
    stream = topology.new_stream("rows", FixedBatchSpout("id bigint, word string", size, rows))
    return topology, stream.partition_persist(state, AppendRows())


@pytest.mark.parametrize("partitions", [1, 3])
def test_each_row_is_there_once(kind, path, partitions):
    topology, _ = appending(STATES[kind](path))

    run_in_process(topology, Config(state_partitions=partitions))

    assert seen(kind, path) == [n for n, _ in ROWS]


def test_it_is_exactly_once_and_explain_says_so(kind, path):
    (line,) = guarantees(appending(STATES[kind](path))[0].plan())

    assert "exactly-once: " in line
    assert "not exactly-once" not in line


POINTS = [point for point in BATCH_POINTS if point not in ("processing", "processed", "cleanup")]
POINTS += ROWS_POINTS


@pytest.mark.parametrize("point", sampled(POINTS, [POINTS.index("publish.after")]))
def test_each_row_is_there_once_though_a_step_fails(kind, path, point):
    topology, _ = appending(STATES[kind](path))
    plan = FaultPlan([Fault(point, "raise", where={"txid": 2})])
    store = MemoryCoordinationStore("orders")
    faults.install(plan)
    try:
        LocalRun(topology, Config(state_partitions=2), store=store).finish()
    except Exception:  # of steps that are not tried again by the same driver
        faults.install(None)
        LocalRun(appending(STATES[kind](path))[0], Config(state_partitions=2), store=store).finish()

    assert seen(kind, path) == [n for n, _ in ROWS]


def test_what_was_never_published_is_cleaned_up_with_the_next_batch(kind, path):
    store = store_of(kind, path)
    store.move_head(None, head(1))
    put_down(store, head(1), 7, 8)
    store.move_head(head(1), head(1, 1))
    put_down(store, head(1, 1), 9)  # a task that is tried again
    store.publish(head(1, 1).stamp, [put_down(store, head(1, 1), 1)])
    done = Head(head(1, 1).stamp, committed=True)
    store.move_head(head(1, 1), done)

    store.move_head(done, head(2))

    files = [p.name for p in path.rglob("part-*.parquet")]
    assert len(files) == 1
    assert seen(kind, path) == [1]


def test_shards_hold_each_committed_row_once(kind, path):
    store = store_of(kind, path)
    before = None
    for txid in range(1, 8):
        before = committed(store, before, head(txid), txid * 10, txid * 10 + 1)
    store.move_head(before, head(8))
    store.publish(head(8).stamp, [put_down(store, head(8), 80)])

    shards = [
        [n for table in store.read_rows(7, shard, 3) for n in table.column("id").to_pylist()]
        for shard in range(3)
    ]

    assert sorted(n for shard in shards for n in shard) == [
        n for txid in range(1, 8) for n in (txid * 10, txid * 10 + 1)
    ]


def test_a_folder_of_something_else_is_refused_and_left_alone(kind, path):
    path.mkdir()
    (path / "notes.parquet").write_bytes(b"mine")

    with pytest.raises(ForeignStoreError, match=r"notes\.parquet"):
        recipe(kind, path).check()

    assert [p.name for p in path.iterdir()] == ["notes.parquet"]


def test_other_columns_are_refused(kind, path):
    committed(store_of(kind, path), None, head(1), 1)
    other = STATES[kind](path).bind_rows(FIELDS.select(["word"], where="here"))

    with pytest.raises(ForeignStoreError, match=r"id bigint, word string.*wants.*word string"):
        other.check()


def test_a_check_writes_nothing(kind, path):
    recipe(kind, path).check()

    assert not path.exists()


def test_a_file_that_the_driver_does_not_see_is_not_published(kind, path):
    store, at = store_of(kind, path), head(1)
    store.move_head(None, at)
    receipt = put_down(store, at, 1)
    for file in path.rglob("part-*.parquet"):
        file.unlink()

    with pytest.raises(StoreError, match="must reach the same folder"):
        store.publish(at.stamp, [receipt])

    assert seen(kind, path) == []


def test_a_field_without_a_type_is_refused_when_the_topology_is_built(kind, path):
    with pytest.raises(TopologyError, match="does not know the type"):
        STATES[kind](path).bind_rows(type(FIELDS).parse("id, word string"))


def test_files_are_for_whom_the_umask_says(kind, path):
    committed(store_of(kind, path), None, head(1), 1)

    modes = {p.stat().st_mode & 0o044 for p in path.rglob("*")}

    assert modes == {0o044}
