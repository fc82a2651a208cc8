"""Cassandra states: one row per key, compared and set on its own.

    SELECT key, value FROM word_counts        ["the"] | [7]

`key` is the key as JSON, `value` and `prev` are JSON lists of one. `txid` and `attempt` say who
wrote the row, `mark` which write it was. A key that is too long for a primary key stands under a
hash, and whole in `long_key`. The heads of all states of a keyspace are in `waterspout_heads`.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from waterspout._addresses import addresses
from waterspout._serde import decode_value, encode_key, encode_value
from waterspout._tls import TLS
from waterspout.errors import (
    ConfigError,
    DamagedStoreError,
    SerdeError,
    StateMismatchError,
    StoreError,
)
from waterspout.state._base import Key, Keys, Records, Risk, StateKind
from waterspout.state._comparing import ComparingMap
from waterspout.state._head import Head, Stamp, check_stamp
from waterspout.state._header import ROW, StoreHeader
from waterspout.state._kinds import OpaqueValue, TransactionalValue
from waterspout.state._records import RecordTexts, hashed_name
from waterspout.state._store import StoreState, require_package
from waterspout.state.cassandra._session import Answer, CassandraAddress, CassandraClient, Statement

__all__ = ["CassandraMap", "CassandraState"]

_PORT = 9042
_HEADS = "waterspout_heads"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")
_KEY_MAX_BYTES = 8_000  # of 65,535; what is longer is not good to look for
_TIMES_MAX = 200_000
_SERIAL = {"QUORUM": "SERIAL", "LOCAL_QUORUM": "LOCAL_SERIAL", "ALL": "SERIAL"}
_LWT, _SINGLE_WRITER = "lwt", "single_writer"
_MODES = (
    f"mode={_LWT!r} compares each row with what was read, in a lightweight transaction: a write "
    "of a lost attempt cannot replace a later one; four round trips between the replicas a row. "
    f"mode={_SINGLE_WRITER!r} writes without looking: several times faster, but only the lease "
    "of the driver keeps the late write of an old attempt from replacing a newer row"
)

_LWT_LEAVES = (
    "Cassandra compares row by row: the write of a lost attempt can reach a row that nobody has "
    "written since. Readers of waterspout tell it apart, unless it arrives after 500 later batches "
    "that each lost an attempt; other clients do not"
)
_SINGLE_LEAVES = (
    "mode='single_writer' writes without comparing: only the lease of the driver keeps zombies "
    "out. The late write of an old attempt can replace a newer row; it does not if the clocks of "
    "all machines agree and it had read before. Use mode='lwt' to rule it out"
)
# Seen on a real node: killed at once after an answer, it came back without the row.
_UNSYNCED = (
    "As it is installed (commitlog_sync: periodic), a node answers before a write is safe from its "
    "own crash, and the end of a batch that was committed may be lost without notice; set "
    "commitlog_sync to batch or group"
)


class _Statements:
    """The texts of one state's statements."""

    def __init__(self, keyspace: str, table: str, consistency: str) -> None:
        rows, heads = f'"{keyspace}"."{table}"', f'"{keyspace}".{_HEADS}'
        serial = _SERIAL[consistency]
        columns = "txid = ?, attempt = ?, value = ?, prev = ?, mark = ?, long_key = ?"
        # The row has the mark of this write only if this very write was carried out before.
        same = "txid = ? AND attempt = ? AND value = ? AND prev = ? AND mark != ?"

        def of(cql: str, level: str = consistency) -> Statement:
            return Statement(cql, level, serial)

        self.create_rows = (
            f"CREATE TABLE IF NOT EXISTS {rows} (key text PRIMARY KEY, txid bigint, "
            "attempt bigint, value text, prev text, mark uuid, long_key text)"
        )
        self.create_heads = (
            f"CREATE TABLE IF NOT EXISTS {heads} (name text PRIMARY KEY, format int, kind text, "
            "layout text, head text, checksum text, mark uuid)"
        )
        read = f"txid, attempt, value, prev, long_key, WRITETIME(mark) FROM {rows}"
        self.select = of(f"SELECT {read} WHERE key = ?")
        self.scan = of(f"SELECT key, {read} WHERE token(key) > ? AND token(key) <= ?")
        self.put = of(f"UPDATE {rows} USING TIMESTAMP ? SET {columns} WHERE key = ?")
        self.put_serially = of(f"UPDATE {rows} SET {columns} WHERE key = ? IF mark != ?")
        self.replace = of(f"UPDATE {rows} SET {columns} WHERE key = ? IF {same}")
        self.insert = of(
            f"INSERT INTO {rows} (txid, attempt, value, prev, mark, long_key, key) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS"
        )
        self.select_head = of(f"SELECT {', '.join(ROW)} FROM {heads} WHERE name = ?", serial)
        self.insert_head = of(
            f"INSERT INTO {heads} ({', '.join(ROW)}, mark, name) "
            "VALUES (?, ?, ?, ?, ?, ?, ?) IF NOT EXISTS"
        )
        self.move_head = of(
            f"UPDATE {heads} SET format = ?, kind = ?, layout = ?, head = ?, checksum = ?, "
            "mark = ? WHERE name = ? IF head = ? AND checksum = ? AND mark != ?"
        )


class CassandraMap(ComparingMap[Any]):
    """The records of one state in one table."""

    def __init__(self, recipe: CassandraState) -> None:
        self.title = recipe.title
        self._client = CassandraClient(recipe.address, self.title)
        self._keyspace = recipe.keyspace
        self._table = recipe.table
        self._kind = recipe.kind
        self._texts = RecordTexts(self._kind, self.title)
        layout = recipe.columns.describe()
        self._header = StoreHeader(self.title, "table", self._kind.value, layout)
        self._is_serial = recipe.mode == _LWT
        self._cql = _Statements(recipe.keyspace, recipe.table, recipe.consistency)
        self._is_ready = False
        # By key: a time later than that of the row which `multi_get` saw. With the time of a clock
        # that is behind, Cassandra would take the new row for the older one.
        self._write_times: dict[str, int] = {}

    def multi_get(self, keys: Keys) -> list[Any | None]:
        names = [_name(key) for key in keys]
        wanted = dict(names)
        if not wanted or not self._has_own_table():
            return [None] * len(keys)
        answers = self._client.run_many(self._cql.select, [(name,) for name in wanted])
        if len(self._write_times) > _TIMES_MAX:
            self._write_times.clear()
        now, found = _now(), {}
        for (name, long), answer in zip(wanted.items(), answers, strict=True):
            if answer.rows:
                *columns, long_key, written = answer.rows[0]
                if long_key != long:
                    raise DamagedStoreError(
                        f"{self.title}: under the hash {name!r} stands another key. Two keys "
                        "share a hash, or someone else writes there; use another table."
                    )
                found[name] = self._record(name, columns)
                self._write_times[name] = max(now, (written or 0) + 1)
        return [found.get(name) for name, _ in names]

    def multi_put(self, keys: Keys, values: Records) -> None:
        rows = {name: (*columns, name) for name, columns in self._rows(keys, values)}
        if not rows:
            return
        self._create_tables()
        if self._is_serial:
            # A plain write has the time of this machine's clock, a serial one that of the
            # replicas': mixed, the later one might count as the earlier.
            marked = [(*row, row[4]) for row in rows.values()]
            self._client.run_many(self._cql.put_serially, marked)
        else:
            self._put(rows)

    def fenced_put(
        self, stamp: Stamp, keys: Keys, values: Records, read: Records | None = None
    ) -> None:
        if self._is_serial:
            super().fenced_put(stamp, keys, values, read)
            return
        rows = {name: (*columns, name) for name, columns in self._rows(keys, values)}
        check_stamp(self.read_head(), stamp, state=self.title)
        self._put(rows)

    def multi_compare_and_put(self, keys: Keys, read: Records, values: Records) -> list[bool]:
        rows = self._rows(keys, values)
        expected = [None if record is None else self._columns(record) for record in read]
        if not rows:
            return []
        self._create_tables()
        stored = [False] * len(rows)
        new = [i for i, before in enumerate(expected) if before is None]
        old = [i for i, before in enumerate(expected) if before is not None]
        inserts = [(*rows[i][1], rows[i][0]) for i in new]
        replacements = [(*rows[i][1], rows[i][0], *(expected[i] or ()), rows[i][1][4]) for i in old]
        for chosen, statement, todo in (
            (new, self._cql.insert, inserts),
            (old, self._cql.replace, replacements),
        ):
            for i, answer in zip(chosen, self._client.run_many(statement, todo), strict=True):
                stored[i] = self._was_stored(answer, rows[i][1][4], f"row {rows[i][0][:200]!r}")
        return stored

    def read_head(self) -> Head | None:
        head = self._header.from_row(self._head_row())
        if head is not None and not self._has_own_table():
            raise StateMismatchError(
                f"{self.title} was dropped: there is a head at {head.stamp}, and no rows. Restore "
                "it, or start over with another table and another waterspout home."
            )
        return head

    def move_head(self, expected: Head | None, new: Head) -> None:
        if expected is None:
            self._create_tables()
        row = self._head_row()
        if row is None or self._header.from_row(row) != expected:
            raise self._header.moved(new)
        mark = uuid.uuid4()
        values = (*self._header.row(new), mark, self._table, row[3], row[4], mark)
        (answer,) = self._client.run_many(self._cql.move_head, [values])
        self._write_times.clear()
        if not self._was_stored(answer, mark, "the head"):
            raise self._header.moved(new)

    def scan(self, shard: int = 0, shards: int = 1) -> Iterator[list[tuple[Key, Any]]]:
        """Yield the rows of one of `shards` equal ranges of tokens, page by page."""
        if not self._has_own_table():
            return
        # No key has the lowest token, so that a range may exclude its lower bound.
        low, high = ((n << 64) // shards - (1 << 63) for n in (shard, shard + 1))
        bounds = (low, min(high, (1 << 63) - 1))
        for page in self._client.pages(self._cql.scan, bounds):
            yield [
                (self._texts.key(long_key or name), self._record(name, columns))
                for name, *columns, long_key, _ in page
            ]

    def check(self) -> None:
        if not self._has_own_table():
            self._require_keyspace()
            self.read_head()

    def close(self) -> None:
        """Forget what was read; the session stays for other states of this process."""
        self._write_times.clear()

    def _rows(self, keys: Keys, values: Records) -> list[tuple[str, tuple[Any, ...]]]:
        # All are encoded before any is written; one mark for all that is written together.
        mark = uuid.uuid4()
        rows = []
        for key, record in zip(keys, values, strict=True):
            name, long = _name(key)
            rows.append((name, (*self._columns(record), mark, long)))
        return rows

    def _columns(self, record: Any) -> tuple[Any, ...]:
        if self._kind is StateKind.OPAQUE:
            value, prev = _text(record.value), _text(record.prev)
            return (record.txid, record.attempt, value, prev)
        if self._kind is StateKind.TRANSACTIONAL:
            return (record.txid, record.attempt, _text(record.value), None)
        return (None, None, _text(record), None)

    def _record(self, name: str, columns: Sequence[Any]) -> Any:
        txid, attempt, value, prev = columns
        try:
            if self._kind is StateKind.NON_TRANSACTIONAL:
                return _value(value)
            if txid is None or attempt is None:
                raise SerdeError("it has no batch or no attempt")
            if self._kind is StateKind.TRANSACTIONAL:
                return TransactionalValue(txid, attempt, _value(value))
            return OpaqueValue(txid, attempt, _value(value), _value(prev))
        except ValueError as error:
            raise DamagedStoreError(
                f"{self.title} holds what cannot be read, under key {name[:200]!r}: {error}"
            ) from error

    def _put(self, rows: Mapping[str, tuple[Any, ...]]) -> None:
        now = _now()
        timed = [(self._write_times.pop(name, now), *row) for name, row in rows.items()]
        self._client.run_many(self._cql.put, timed)

    def _was_stored(self, answer: Answer, mark: uuid.UUID, what: str) -> bool:
        row = dict(zip(answer.columns, answer.rows[0], strict=True))
        if row["[applied]"] or row.get("mark") == mark:
            return True
        if answer.repeated:
            raise StoreError(
                f"{self.title}: a write of {what} was not answered, and someone else has written "
                "there too; it cannot be known whether it was carried out before that"
            )
        return False

    def _has_own_table(self) -> bool:
        """Tell whether the table is there; raise if it is not this state's."""
        if self._is_ready:
            return True
        if not self._client.has_table(self._table):
            return False
        row = self._head_row()
        if row is None:
            raise self._header.foreign()
        self._header.from_row(row)
        self._is_ready = True
        return True

    def _create_tables(self) -> None:
        if self._has_own_table():
            return
        self._require_keyspace()
        if not self._client.has_table(_HEADS):
            self._client.define(self._cql.create_heads)
        # Before the table: one without a head would look like somebody else's.
        values = (*self._header.row(None), uuid.uuid4(), self._table)
        self._client.run_many(self._cql.insert_head, [values])
        self._client.define(self._cql.create_rows)
        if not self._has_own_table():
            raise StoreError(f"{self.title} was created and is not there")

    def _require_keyspace(self) -> None:
        if not self._client.has_keyspace():
            raise StoreError(
                f"{self.title}: there is no such keyspace. Create it, with as many replicas as "
                f'it shall have: CREATE KEYSPACE "{self._keyspace}" WITH replication = '
                "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}"
            )

    def _head_row(self) -> tuple[Any, ...] | None:
        if not self._client.has_table(_HEADS):
            return None
        rows = self._client.run(self._cql.select_head, (self._table,))
        return rows[0] if rows else None


@dataclass(frozen=True)
class CassandraState(StoreState):
    """Recipe of a state in a table of a Cassandra keyspace, which must be there.

    Args:
        contact_points: `"host"`, `"host:port"`, a `(host, port)`, or a list of them.
        keyspace: The keyspace; how many replicas it has is for you to say.
        table: The table; it is created.
        mode: `"lwt"` or `"single_writer"`. There is no default: the first is safe and slow.
        username: Who logs in, if anyone must; `${NAME}` is taken from the environment.
        password: Likewise. It is never shown.
        consistency: `QUORUM`, `LOCAL_QUORUM` (one data centre writes) or `ALL`.
        local_dc: The data centre to talk to; by default that of the contact points.
        timeout_secs: How long to wait for an answer.
        connect_timeout_secs: How long to wait for a connection.
        tls: Encrypt, and check the servers' certificates; None: neither.
    """

    contact_points: str | tuple[str, int] | Sequence[str | tuple[str, int]]
    keyspace: str
    table: str
    mode: str = ""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    consistency: str = "QUORUM"
    local_dc: str | None = None
    timeout_secs: float = 10.0
    connect_timeout_secs: float = 5.0
    tls: TLS | None = None

    backend = "cassandra"
    fenced = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_package("cassandra", "cassandra-driver", "cassandra")
        if self.mode not in (_LWT, _SINGLE_WRITER):
            given = f"mode is {self.mode!r}" if self.mode else "mode is missing"
            raise ConfigError(f"CassandraState: {given}; choose one knowingly. {_MODES}.")
        for what, name in (("keyspace", self.keyspace), ("table", self.table)):
            if not isinstance(name, str) or not _NAME.fullmatch(name) or name == _HEADS:
                raise ConfigError(
                    f"{name!r} cannot be a {what} name; use letters, digits and _ (at most 48)"
                )
        if self.consistency not in _SERIAL:
            raise ConfigError(
                f"consistency is one of {', '.join(_SERIAL)}, not {self.consistency!r}: with less "
                "a batch might not read what the one before it wrote"
            )
        self._require_seconds("timeout_secs", "connect_timeout_secs")
        object.__setattr__(
            self, "contact_points", addresses(self.contact_points, port=_PORT, what="contact point")
        )

    @property
    def weakness(self) -> str:  # type: ignore[override]
        return f"{_LWT_LEAVES if self.mode == _LWT else _SINGLE_LEAVES}. {_UNSYNCED}"

    @property
    def risk(self) -> Risk | None:
        if self.mode == _LWT:
            return super().risk
        return Risk(
            "mode='single_writer' writes without comparing: the late write of an old attempt can "
            "replace a newer row",
            f"Use mode={_LWT!r}",
        )

    @property
    def title(self) -> str:
        return f"table {self.keyspace}.{self.table} in Cassandra at {self.address.shown}"

    def backing(self) -> CassandraMap:
        return CassandraMap(self)

    def within(self) -> Mapping[str, Any]:
        return {"keyspace": self.keyspace, "table": self.table}

    def location(self) -> str:
        points = ",".join(self.address.shown.split(", "))
        return f"cassandra:{points}#{self.keyspace}.{self.table}"

    @property
    def address(self) -> CassandraAddress:
        """Where the cluster is, and how to be let in."""
        return CassandraAddress(
            addresses(self.contact_points, port=_PORT, what="contact point"),
            self.keyspace,
            self.username,
            self.password,
            self.local_dc,
            self.timeout_secs,
            self.connect_timeout_secs,
            self.tls,
        )


_clock_lock = threading.Lock()
_last_time = 0


def _now() -> int:
    """Return the time in microseconds, later with every call."""
    global _last_time
    with _clock_lock:
        _last_time = max(_last_time + 1, time.time_ns() // 1_000)
        return _last_time


def _name(key: Key) -> tuple[str, str | None]:
    """Return the primary key of a row, and the key itself if that is only its hash."""
    text = encode_key(key)
    if len(text) <= _KEY_MAX_BYTES:
        return text, None
    return hashed_name(text), text


def _text(value: Any) -> str | None:
    # Within a list, where a bare number needs no wrapping.
    return None if value is None else encode_value([value])


def _value(text: str | None) -> Any:
    if text is None:
        return None
    parts = decode_value(text)
    if type(parts) is not list or len(parts) != 1:
        raise SerdeError("a value is not a list of one")
    return parts[0]
