"""The SQL of one PostgreSQL state: what differs there, and statements over whole columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from waterspout.state._base import StateKind
from waterspout.state._columns import Layout
from waterspout.state._header import ROW
from waterspout.state._sql import HEAD_COLUMNS, HEADS
from waterspout.state._sql_statements import INTEGERS, TableStatements, quoted

__all__ = ["HeadStatements", "PostgresStatements"]

# Half of the sum of two doubles, from which on the sum itself is beyond all doubles.
_HALF_OF_TOO_MUCH = "8.98846567431158e307"
_TOO_LITTLE_TO_MATTER = "1e290"


class HeadStatements:
    """Statements over the heads of a schema; `table` is the table of one of its states."""

    def __init__(self, schema: str, table: str) -> None:
        self.name = schema
        self.schema = quoted(schema)
        self.table = f"{self.schema}.{quoted(table)}"
        self.heads = f"{self.schema}.{quoted(HEADS)}"
        self.create_heads = (
            f"CREATE TABLE IF NOT EXISTS {self.heads} (name text PRIMARY KEY, "
            "format integer NOT NULL, kind text NOT NULL, layout text NOT NULL, "
            "head text NOT NULL, checksum text NOT NULL)"
        )
        marks = ", ".join(["%s"] * 6)
        self.insert_head = f"INSERT INTO {self.heads} VALUES ({marks}) ON CONFLICT DO NOTHING"
        changes = ", ".join(f"{name} = %s" for name in ROW)
        self.update_head = f"UPDATE {self.heads} SET {changes} WHERE name = %s"

    def select_head(self, lock: str = "") -> str:
        """The head row, locked or not."""
        return f"SELECT {HEAD_COLUMNS} FROM {self.heads} WHERE name = %s {lock}"


class PostgresStatements(TableStatements):
    """Statements over one table of a PostgreSQL database; each key column is bound as an array."""

    integer = "bigint"
    text = "text"
    parameter = "%s"
    # Room in each page, so that an update of unindexed columns stays in its page and leaves
    # the index alone: of 8 batches of 50,000 in 100,000 keys, 25 % went to another page
    # without it, and the batches took a fifth longer.
    table_options = "WITH (fillfactor = 70)"
    # Compared byte by byte: quicker, and no change of a library's collation can break the index.
    key_options: ClassVar[Mapping[str, str]] = {"text": ' COLLATE "C"'}
    mergeable: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sum": ("bigint", "double"),
        "min": (*INTEGERS, "date"),
        "max": (*INTEGERS, "date"),
    }

    def __init__(self, schema: str, table: str, kind: StateKind, layout: Layout) -> None:
        self.head = HeadStatements(schema, table)
        super().__init__(self.head.table, kind, layout)

    def _rows(self, types: Sequence[str], *constants: str) -> str:
        arrays = ", ".join(f"%s::{kind}[]" for kind in types)
        names = [f"c{i}" for i in range(len(types))]
        return (
            f"SELECT {', '.join([*names, *constants])} FROM unnest({arrays}) u({', '.join(names)})"
        )

    def _both(self, merge: str, kind: str, start: str, new: str) -> str:
        if merge != "sum":
            return f"{'least' if merge == 'min' else 'greatest'}({start}, {new})"
        if kind != "double":
            return f"({start}) + {new}"
        # To Python 1e308 + 1e308 is infinite, to PostgreSQL an error.
        half = f"(({start}) * 0.5 + {new} * 0.5)"
        # In this order, as half of a tiny number would be an error too.
        return (
            f"CASE WHEN abs({start}) < {_TOO_LITTLE_TO_MATTER} THEN ({start}) + {new} "
            f"WHEN abs({new}) < {_TOO_LITTLE_TO_MATTER} THEN ({start}) + {new} "
            f"WHEN abs({half}) < {_HALF_OF_TOO_MUCH} THEN ({start}) + {new} "
            f"ELSE sign({half}) * 'Infinity'::float8 END"
        )

    def select_wanted(self, lock: str = "", *, plain: bool = False, brief: bool = False) -> str:
        """The records of the keys that are looked for, with their positions from 0.

        A subquery for each key, so that the cost does not grow with the table: for a plain join
        of many keys the planner reads all of the table. `plain`: only the keys themselves are
        bound, as for `plain_rows`. `brief`: values and batches alone.
        """
        names = [f"c{i}" for i in range(len(self._keys) - plain)]
        match = " AND ".join(f"{k} = w.{c}" for k, c in zip(self._keys, names, strict=not plain))
        if plain:
            match += f" AND {self._keys[-1]} = ''"
        found = self._brief_columns if brief else self._record_columns
        columns = [f"t.{column}" for column in found]
        return (
            f"SELECT {', '.join(['w.i - 1', *columns])} FROM {self._wanted(names)} "
            f"CROSS JOIN LATERAL (SELECT {', '.join(found)} FROM {self._table} "
            f"WHERE {match} {lock or 'OFFSET 0'}) t"
        )

    @property
    def select_dense(self) -> str:
        """The same of plain keys, briefly, for a batch that may have much of a small table.

        Bound: the keys, and how many bytes a small table has at most: to read all of that takes
        less than to look for one key after the other. Which way is taken is found out when it
        runs, so that the cost does not grow with the table; the other one is not begun.
        """
        key, marks = self._keys
        columns = ", ".join(["w.i - 1", *(f"t.{column}" for column in self._brief_columns)])
        found = ", ".join(self._brief_columns)
        name = self._table.replace("'", "''").replace("%", "%%")
        is_small = f"(SELECT pg_relation_size('{name}') <= %(small)s)"
        wanted = f"unnest(%(keys)s::{self._key_types[0]}[]) WITH ORDINALITY w(c0, i)"
        return (
            f"SELECT {columns} FROM {wanted} JOIN {self._table} t "
            f"ON t.{key} = w.c0 AND t.{marks} = '' WHERE {is_small} UNION ALL "
            f"SELECT {columns} FROM {wanted} CROSS JOIN LATERAL "
            f"(SELECT {found} FROM {self._table} WHERE {key} = w.c0 AND {marks} = '' OFFSET 0) t "
            f"WHERE NOT {is_small}"
        )

    def plain_rows(self, types: Sequence[str], *constants: str) -> str:
        """Rows of keys of which nothing more is to be said: what stands beside them is not bound.

        To send an empty string for each of 50,000 keys, and take it apart again, took 10 ms.
        """
        width, beside = len(self._layout.key_names), len(self._key_types)
        bound = [*types[:width], *types[beside:]]
        names = [f"c{i}" for i in range(len(bound))]
        arrays = ", ".join(f"%s::{kind}[]" for kind in bound)
        nothing = ["''", *["NULL"] * (beside - width - 1)]
        columns = [*names[:width], *nothing, *names[width:], *constants]
        return f"SELECT {', '.join(columns)} FROM unnest({arrays}) u({', '.join(names)})"

    @property
    def insert_new(self) -> str:
        """Store records of keys that have none."""
        columns = self._key_columns + self._record_columns
        rows = self._rows(self._key_types + self.record_types)
        return f"{self._insert(columns)} {rows} {self._conflict} DO NOTHING"

    def select_shard(self, shards: int) -> str:
        """All keys and records, or those of one shard: by the key, which never changes."""
        if shards == 1:
            return self.select_all
        key = ", ".join(f"{name}::text" for name in self._keys)
        shard = f"(hashtext(concat_ws(chr(1), {key})) & 2147483647) %% {shards:d}"
        return f"{self.select_all} WHERE {shard} = %s"

    def _wanted(self, names: Sequence[str]) -> str:
        types = self._key_types[: len(names)]
        arrays = ", ".join(f"%s::{kind}[]" for kind in types)
        return f"unnest({arrays}) WITH ORDINALITY w({', '.join([*names, 'i'])})"
