"""What stands in the demo's database, read without touching it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from waterspout.cli.demo_layout import DATABASE, TABLE
from waterspout.state.head import Head

__all__ = ["HalfWritten", "read_counts", "read_half_written", "read_head"]


@dataclass(frozen=True, slots=True)
class HalfWritten:
    """What a dead attempt has left in the state."""

    txid: int
    attempt: int
    rows: int
    words: int
    """How much it added to the counts of these rows."""


def read_head(folder: Path) -> Head | None:
    """Return the head of the state; None if there is none."""
    with _reader(folder) as db:
        row = db.execute("SELECT head FROM _waterspout_heads WHERE name = ?", (TABLE,)).fetchone()
    return Head.from_text(row[0]) if row is not None and row[0] else None


def read_half_written(folder: Path) -> HalfWritten | None:
    """Return what the attempt at the head has written, if it did not commit."""
    head = read_head(folder)
    if head is None or head.committed:
        return None
    txid, attempt = head.stamp.txid, head.stamp.attempt
    with _reader(folder) as db:
        rows, words = db.execute(
            "SELECT count(*), coalesce(sum(count - coalesce(_prev_count, 0)), 0)"
            f" FROM {TABLE} WHERE _txid = ? AND _attempt = ?",
            (txid, attempt),
        ).fetchone()
    return HalfWritten(txid, attempt, rows, words)


def read_counts(folder: Path) -> dict[str, int]:
    """Return every word with its count, as anyone with an SQLite shell would see it."""
    with _reader(folder) as db:
        return dict(db.execute(f"SELECT word, count FROM {TABLE}").fetchall())


@contextmanager
def _reader(folder: Path) -> Iterator[sqlite3.Connection]:
    uri = f"{(folder / DATABASE).absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, timeout=10.0)) as db:
        yield db
