"""Drivers of rows, and readers that know nothing of waterspout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import dataset

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.state._head import Head, Stamp, Writer
from waterspout.state._rows import RowsState, RowsStore
from waterspout.state.delta import DeltaState
from waterspout.state.parquet import ParquetState

FIELDS = Schema.parse("id bigint, word string")
STATES = {"delta": DeltaState, "parquet": ParquetState}


def rows_of(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "word": [f"w{n}" for n in ids]})


def recipe(kind: str, path: Path, keys: tuple[str, ...] = (), order_by: str | None = None) -> Any:
    return STATES[kind](path).bind_rows(FIELDS, keys, order_by)


def store_of(kind: str, path: Path) -> RowsStore:
    return recipe(kind, path).store()


def open_rows(kind: str, path: Path, partition: int = 0) -> RowsState:
    return recipe(kind, path).make_state(Config(), partition, 2)


def seen(kind: str, path: Path) -> list[int]:
    """Return the ids that a reader of the format finds, who knows nothing of waterspout."""
    if kind == "delta":
        from deltalake import DeltaTable

        return sorted(DeltaTable(path).to_pyarrow_table().column("id").to_pylist())
    if not path.exists():
        return []
    found = dataset.dataset(path, schema=pa.schema([("id", pa.int64())])).to_table()
    return sorted(found.column("id").to_pylist())


def head(txid: int, attempt: int = 0, *, epoch: int = 1, committed: bool = False) -> Head:
    writer = Writer("orders", epoch, "home", f"lease {epoch}")
    return Head(Stamp(writer, txid, attempt), committed)


def put_down(store: RowsStore, at: Head, *ids: int, partition: int = 0) -> str:
    receipt = store.write_rows(at.stamp, partition, rows_of(*ids))
    assert receipt is not None
    return receipt


def committed(store: RowsStore, before: Head | None, at: Head, *ids: int) -> Head:
    """Take one batch through all steps; return the head that it leaves."""
    store.move_head(before, at)
    store.publish(at.stamp, [put_down(store, at, *ids)])
    done = Head(at.stamp, committed=True)
    store.move_head(at, done)
    return done
