"""What combiners keep in a state: every store gives it back, batch after batch, replays too."""

from __future__ import annotations

from decimal import Decimal
from uuid import uuid4

import pyarrow as pa
import pytest

from waterspout._arrow import arrow_type
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout._tuples import field_index
from waterspout.state import MemoryMapState
from waterspout.state.files import FileState
from waterspout.state.memcached import MemcachedState
from waterspout.state.postgres import PostgresState
from waterspout.state.postgres._connections import close_idle
from waterspout.state.redis import RedisState
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import (
    Average,
    CollectSet,
    Columns,
    Count,
    CountDistinct,
    TopN,
    TridentTuple,
)

FIELDS = ("user", "amount")
TYPES = ("string", "decimal(10,2)")
INDEX = field_index(FIELDS)
BATCHES = [
    [("ann", "1.50"), ("bob", "2.00"), ("ann", None)],
    [("cat", "9.99"), ("", "0.01")],
    [("ann", "7.00"), (None, "3.00")],
]
KEYS = Schema.parse("k string")

COMBINERS = {
    "Average": (Average(), ("amount",), 23.5 / 6),
    "CollectSet": (CollectSet(), ("user",), ["", "ann", "bob", "cat"]),
    "CountDistinct": (CountDistinct(), ("user",), 4),
    "TopN": (TopN(2, ["user", "amount"], by="amount"), FIELDS, [("cat", "9.99"), ("ann", "7.00")]),
    "Columns": (
        Columns(n=Count(), mean=("amount", Average()), users=("user", CountDistinct())),
        ("amount", "user"),
        (7, 23.5 / 6, 4),
    ),
}


def partial(aggregator, fields, rows):
    """Return the value of a batch as it comes out of Arrow, where a commit takes it from."""
    index = field_index(fields)
    value = aggregator.zero()
    for user, amount in rows:
        row = {"user": user, "amount": amount and Decimal(amount)}
        one = TridentTuple(tuple(row[f] for f in fields), index)
        value = aggregator.combine(value, aggregator.init(one))
    types = aggregator.value_types([dict(zip(FIELDS, TYPES, strict=True))[f] for f in fields])
    wide = getattr(aggregator, "is_wide", False)
    columns = [
        pa.array([column], arrow_type(kind)).to_pylist()[0]
        for column, kind in zip(value if wide else (value,), types, strict=True)
    ]
    return (tuple(columns) if wide else columns[0]), types


every_combiner = pytest.mark.parametrize("name", COMBINERS)


def check(name, recipe):
    """Combine every batch into a state, each twice, and compare what a reader sees at the end."""
    aggregator, fields, expected = COMBINERS[name]
    values = [partial(aggregator, fields, rows) for rows in BATCHES]
    names = getattr(aggregator, "output_names", ("value",))
    recipe = recipe.bind(KEYS, Schema(tuple(zip(names, values[0][1], strict=True))))
    for txid, (value, _) in enumerate(values, 1):
        for attempt in (0, 1):  # the second is the replay of a batch whose commit got lost
            state = recipe.make_state(Config(), 0, 1)
            state.begin_commit(txid, attempt=attempt)
            state.multi_combine([("all",)], [value], aggregator, want_new=False)
            state.commit(txid)
            state.close()
    (kept,) = recipe.make_state(Config(), 0, 1).multi_get([("all",)])
    found = aggregator.finish(kept)
    if name == "TopN":
        found = [(row["user"], str(row["amount"])) for row in found]
    assert found == expected


@every_combiner
def test_memory_keeps_what_a_combiner_combines(name):
    check(name, MemoryMapState())


@every_combiner
def test_sqlite_keeps_what_a_combiner_combines(name, tmp_path):
    check(name, SQLiteState.opaque(tmp_path / "state.db", table="kept"))


@every_combiner
def test_files_keep_what_a_combiner_combines(name, tmp_path):
    check(name, FileState.opaque(str(tmp_path / "files")))


@every_combiner
def test_postgres_keeps_what_a_combiner_combines(name, postgres_server):
    check(name, PostgresState.opaque(postgres_server.fresh_database(), table="kept"))
    close_idle()


@every_combiner
def test_redis_keeps_what_a_combiner_combines(name, redis_server):
    check(name, RedisState.opaque(redis_server.url, prefix=uuid4().hex))


@every_combiner
def test_memcached_keeps_what_a_combiner_combines(name, memcached_server):
    check(name, MemcachedState.opaque([memcached_server.address], prefix=uuid4().hex))
