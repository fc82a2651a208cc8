"""`UpsertRows` over the maps of all stores: one row for each key, and which one that is."""

from __future__ import annotations

import datetime as dt
import math
import sqlite3
import uuid
from contextlib import closing

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rows.stores import PinnedState
from waterspout import Config, faults
from waterspout.errors import ResultError, RunFailedError, TopologyError
from waterspout.faults import Fault, FaultPlan
from waterspout.state import MemoryMapState, StateFactory, StateKind
from waterspout.state.files import FileState
from waterspout.state.memcached import MemcachedState
from waterspout.state.postgres import PostgresState
from waterspout.state.redis import RedisState
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import FixedBatchSpout, run_in_process
from waterspout.trident import AppendRows, MapGet, TridentTopology, UpsertRows
from waterspout.trident.plan.explain import guarantees

FIELDS = "id bigint, word string, at bigint"
# Batches of four.
ROWS = [
    (1, "a", 1), (2, "b", 5), (1, "c", 3), (3, None, None),
    (1, "d", 2), (2, "e", 5), (4, "f", 1), (5, None, None),
    (2, "g", None), (3, "h", 0), (1, "i", 9), (5, None, None),
]  # fmt: skip
BY_TIME = {1: ("i", 9), 2: ("e", 5), 3: ("h", 0), 4: ("f", 1), 5: (None, None)}
BY_BATCH = {1: ("i", 9), 2: ("g", None), 3: ("h", 0), 4: ("f", 1), 5: (None, None)}


def upserted(state, *, order_by="at", rows=ROWS, fields=FIELDS, keys=("id",), size=4):
    topology = TridentTopology("upserts")
    stream = topology.new_stream("rows", FixedBatchSpout(fields, size, rows))
    return topology, stream.partition_persist(state, UpsertRows(list(keys), order_by=order_by))


@pytest.fixture
def sqlite(tmp_path):
    return SQLiteState.opaque(tmp_path / "rows.db", table="orders")


@pytest.fixture
def files(tmp_path):
    return FileState.opaque(tmp_path / "folder")


@pytest.fixture
def postgres(postgres_server):
    return PostgresState.opaque(postgres_server.fresh_database(), table="orders")


@pytest.fixture
def redis(redis_server):
    return RedisState.opaque(redis_server.url, uuid.uuid4().hex)


@pytest.fixture
def memcached(memcached_server):
    return MemcachedState.opaque([memcached_server.address], uuid.uuid4().hex)


@pytest.fixture
def memory():
    return MemoryMapState.opaque()


@pytest.mark.parametrize("store", ["memory", "sqlite", "files", "postgres", "redis", "memcached"])
@pytest.mark.parametrize("order_by", ["at", None])
def test_the_last_row_of_each_key_stays_in_every_store(request, store, order_by):
    topology, state = upserted(request.getfixturevalue(store), order_by=order_by)
    faults.install(FaultPlan([Fault("write.after", "fail", where={"txid": 2})]))

    run_in_process(topology, Config(state_partitions=2))

    found = dict(zip(range(1, 6), state.multi_get(range(1, 6)), strict=True))
    assert found == (BY_BATCH if order_by is None else BY_TIME)
    assert state.get(6) is None


def test_columns_are_typed_and_readable_in_sql(sqlite, postgres):
    run_in_process(upserted(sqlite)[0])
    with closing(sqlite3.connect(sqlite.path)) as db:
        found = db.execute("SELECT id, word, at, typeof(at) FROM orders ORDER BY id").fetchall()
    assert found[:2] == [(1, "i", 9, "integer"), (2, "e", 5, "integer")]
    assert found[4] == (5, None, None, "null")


@pytest.mark.parametrize("kind", [StateKind.OPAQUE, StateKind.TRANSACTIONAL])
def test_a_row_of_nulls_alone_is_a_row(tmp_path, kind):
    state = SQLiteState(tmp_path / "rows.db", table="orders", kind=kind)
    rows = [(1, None), (2, None), (3, None), (1, None)]
    topology, table = upserted(state, order_by=None, rows=rows, fields="id bigint, word string")

    run_in_process(topology)

    with closing(sqlite3.connect(state.path)) as db:
        found = db.execute("SELECT id, word FROM orders ORDER BY id").fetchall()
    assert found == [(1, None), (2, None), (3, None)]
    assert table.get(1) is None


def test_rows_of_keys_alone_are_a_set(sqlite):
    topology, table = upserted(
        sqlite, order_by=None, rows=[(1,), (2,), (1,)], fields="id bigint", size=2
    )

    run_in_process(topology)

    assert table.multi_get([1, 2, 3]) == [(), (), None]


ORDERED = st.none() | st.integers(-3, 3)
AMOUNTS = st.none() | st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf])
some_rows = st.lists(st.tuples(st.integers(0, 2), AMOUNTS, ORDERED), min_size=1, max_size=8)


@given(some_rows, st.booleans(), st.randoms(use_true_random=False))
def test_which_row_of_a_batch_stays_does_not_depend_on_their_order(rows, ordered, rng):
    updater = UpsertRows("id", "at" if ordered else None)
    shuffled = list(rows)
    rng.shuffle(shuffled)

    def winners(some):
        columns = list(zip(*some, strict=True))
        kinds = [pa.int64(), pa.float64(), pa.int64()]
        table = pa.table(
            [pa.array(c, k) for c, k in zip(columns, kinds, strict=True)],
            names=["id", "amount", "at"],
        )
        return sorted(repr(some[number]) for number in updater._winners(table))

    assert winners(rows) == winners(shuffled)
    if ordered:
        for key in {row[0] for row in rows}:
            moments = [row[2] for row in rows if row[0] == key]
            best = max((m for m in moments if m is not None), default=None)
            (kept,) = [one for one in winners(rows) if one.startswith(f"({key},")]
            assert kept.endswith(f", {best})")


def test_a_join_sees_the_fields_that_are_not_the_key(memory):
    topology, state = upserted(memory)
    asked = topology.new_stream("asked", FixedBatchSpout("id bigint", 1, [(1,), (2,), (7,)]))
    answers = MemoryMapState.opaque()
    found = asked.join_static(state, on="id", how="left")
    kept = found.partition_persist(answers, UpsertRows("id"))

    run_in_process(topology)

    # Each batch is asked about the batches before it; the answers come with batches 1, 2 and 3.
    assert kept.multi_get([1, 2, 7]) == [(None, None), ("b", 5), (None, None)]


def test_a_key_without_a_value_is_refused(memory):
    topology, _ = upserted(memory, rows=[(1, "a", 1), (None, "b", 2)])

    with pytest.raises(
        (ResultError, RunFailedError), match="without a value in its key field 'id'"
    ):
        run_in_process(topology)


def test_explain_says_what_nobody_has_said():
    with_order = guarantees(upserted(MemoryMapState.opaque())[0].plan())
    without = guarantees(upserted(MemoryMapState.opaque(), order_by=None)[0].plan())

    assert len(with_order) == 1
    assert without[1] == (
        "  but: of several rows of a key in one batch the greatest stays, whichever came last; "
        "give order_by to say which one that is"
    )


def stream(fields=FIELDS):
    topology = TridentTopology("upserts")
    return topology.new_stream("rows", FixedBatchSpout(fields, 4, []))


class Plain(StateFactory):
    def make_state(self, conf, partition_index, num_partitions):
        raise AssertionError


BAD = {
    "no key": (lambda: UpsertRows([]), "needs the fields that are the key"),
    "order is key": (lambda: UpsertRows("id", order_by="id"), "part of the key"),
    "two orders": (lambda: UpsertRows("id", order_by="at, word"), "the name of one field"),
    "order is no name": (lambda: UpsertRows("id", order_by=3), "the name of one field"),
    "unknown key": (
        lambda: stream().partition_persist(MemoryMapState(), UpsertRows("nr")),
        "asks for field 'nr'",
    ),
    "unknown order": (
        lambda: stream().partition_persist(MemoryMapState(), UpsertRows("id", order_by="ts")),
        "order_by of .* asks for field 'ts'",
    ),
    "order left out": (
        lambda: stream().partition_persist(
            MemoryMapState(), ["id", "word"], UpsertRows("id", order_by="at")
        ),
        "asks for field 'at'",
    ),
    "key is a map": (
        lambda: stream("id map<string,int>, n bigint").partition_persist(
            MemoryMapState(), UpsertRows("id")
        ),
        "equal ones may be written in different ways",
    ),
    "output": (
        lambda: stream().partition_persist(MemoryMapState(), UpsertRows("id"), out="n bigint"),
        "emits none",
    ),
    "name is taken": (
        lambda: stream("id bigint, _present int").partition_persist(
            MemoryMapState(), UpsertRows("id")
        ),
        "'_present' cannot be a column",
    ),
    "append to a map": (
        lambda: stream().partition_persist(RedisState.opaque("redis://h", "p"), AppendRows()),
        "rows without a key cannot be appended",
    ),
    "append to one's own": (
        lambda: stream().partition_persist(Plain(), AppendRows()),
        "Plain keeps values under keys; it cannot take rows",
    ),
    "append transactionally": (
        lambda: stream().partition_persist(
            SQLiteState.transactional("x.db", table="t"), AppendRows()
        ),
        r"make it .opaque\(...\), not transactional",
    ),
    "append a stamp": (
        lambda: stream("id bigint, _Partition int").partition_persist(
            SQLiteState.opaque("x.db", table="t"), AppendRows()
        ),
        "the name is reserved",
    ),
    "append what has no type": (
        lambda: stream("id bigint, v variant").partition_persist(
            SQLiteState.opaque("x.db", table="t"), AppendRows()
        ),
        "variant",
    ),
    "count in rows": (
        lambda: PinnedState().bind(None, None),
        "keeps rows, not values under keys",
    ),
    "new values": (
        lambda: upserted(MemoryMapState())[1].new_values_stream(),
        "is given rows and emits none",
    ),
    "query of rows": (
        lambda: stream().state_query(
            stream().partition_persist(MemoryMapState(), AppendRows()), "id", MapGet(), "n bigint"
        ),
        "another topology|keeps rows",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_refused_when_it_is_built(name):
    build, words = BAD[name]

    with pytest.raises(TopologyError, match=words):
        build()


def test_moments_and_decimals_are_in_order():
    rows = [
        (1, dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "old"),
        (1, dt.datetime(2024, 1, 1, 0, 0, 1, tzinfo=dt.UTC), "new"),
        (1, None, "none"),
    ]
    topology, state = upserted(
        MemoryMapState(), rows=rows, fields="id bigint, at timestamp, word string", size=1
    )

    run_in_process(topology)

    assert state.get(1) == (rows[1][1], "new")
