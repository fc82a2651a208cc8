"""The stores of the benchmark: each with our state on it, and with its bare client.

A bare client writes the same words and counts without looking at what is there, in the best way
that is known; where several could be the best, all are tried first and the fastest is the peer.
"""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import psycopg

from benchmarks.state_batches import Driver, Keys, bound, word
from tests.services.cassandra import CassandraServer
from tests.services.servers import MemcachedServer, PostgresServer, RedisServer, Server
from waterspout.state import StateKind, StoreState
from waterspout.state.cassandra import CassandraState
from waterspout.state.files import FileState
from waterspout.state.memcached import MemcachedState
from waterspout.state.postgres import PostgresState
from waterspout.state.redis import RedisState
from waterspout.state.sqlite import SQLiteState

__all__ = ["STORES", "Store", "Write"]

Write = Callable[[Keys, list[int]], None]
FILLED = "[1,0,1,null]"  # batch 1, attempt 0, counted 1 where nothing had been
FILL_CHUNK = 10_000


class Store(ABC):
    """A store with a server or a folder of its own, from `with` to its end."""

    name: ClassVar[str]
    scale: ClassVar[float] = 1.0
    """How much of the usual number of keys it is measured with."""
    is_slow: ClassVar[bool] = False
    """Whether it is measured only when it is asked for."""
    is_filled: ClassVar[bool] = True
    """Whether it is measured as it grows; not where to fill it takes longer than all the rest."""
    holds_large: ClassVar[bool] = False
    """Whether it is also measured with ten million keys."""
    target: ClassVar[float | None] = None
    """What share of its bare client's rate a state must reach."""
    reply_delay_s: ClassVar[float] = 0.1
    """How long a proxy holds back replies while it counts round trips; 0 if there are many."""
    batches_a_round: ClassVar[int] = 1
    """How many batches tell what one costs, where some do the work of others."""

    def __init__(self) -> None:
        self.server: Server | None = None

    def __enter__(self) -> Self:
        if self.server is not None:
            self.server.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self.server is not None:
            self.server.close()

    @property
    def address(self) -> tuple[str, int] | None:
        """Where a proxy could stand in between; None if there is no server."""
        return None if self.server is None else (self.server.host, self.server.port)

    def recipe(
        self, kind: StateKind, name: str, address: tuple[str, int] | None = None
    ) -> StoreState:
        """Return the recipe of a state of this name, on the server or behind a proxy."""
        return bound(self.unbound(kind, name, address or self.address or ("", 0)))

    @abstractmethod
    def unbound(self, kind: StateKind, name: str, address: tuple[str, int]) -> StoreState:
        """Return the recipe before it knows its columns."""

    @abstractmethod
    def bare(self) -> Mapping[str, Write]:
        """Return the ways in which the bare client may write, into a place of its own."""

    @abstractmethod
    def bare_over(self, name: str) -> Write:
        """Return how the bare client writes into the records of an opaque state."""

    def fill(self, driver: Driver, name: str, size: int) -> None:
        """Put words into an opaque state that is at batch 1, around it if that is possible."""
        driver.batch([(word(i),) for i in range(size)], [1] * size)


class Redis(Store):
    """One key per word; what is acknowledged is on disk (`appendfsync always`)."""

    name = "redis"
    layout = "string"
    holds_large = True
    target = 0.5

    def __init__(self) -> None:
        super().__init__()
        # A rewrite of the log would fall into some batches and not into others.
        self.server: RedisServer = RedisServer(auto_aof_rewrite_percentage="0")

    def unbound(self, kind: StateKind, name: str, address: tuple[str, int]) -> RedisState:
        host, port = address
        return RedisState(f"redis://{host}:{port}/0", name, kind=kind, layout=self.layout)

    def bare(self) -> Mapping[str, Write]:
        return {
            f"{self.command} of {size:,}, pipelined": self.writer("bare", "bare:{}", size)
            for size in (1_000, 5_000, 25_000)
        }

    command = "MSET"

    def writer(self, place: str, names: str, size: int, record: str = "{}") -> Write:
        client = self.client()

        def write(keys: Keys, values: list[int]) -> None:
            pipeline = client.pipeline(transaction=False)
            for start in range(0, len(keys), size):
                some = zip(keys[start : start + size], values[start : start + size], strict=True)
                self.put(pipeline, place, {names.format(k): record.format(v) for (k,), v in some})
            pipeline.execute()

        return write

    def put(self, pipeline: Any, place: str, pairs: Mapping[str, str]) -> None:
        pipeline.mset(pairs)

    def bare_over(self, name: str) -> Write:
        return self.writer(f"{{{name}:0}}:h", self.lead(name) + '["{}"]', 5_000, "[1,0,{},null]")

    def lead(self, name: str) -> str:
        return f"{{{{{name}:0}}}}:k:"

    def fill(self, driver: Driver, name: str, size: int) -> None:
        write = self.bare_over(name)
        for some in chunks(size, 10 * FILL_CHUNK):
            write([(word(i),) for i in some], [1] * len(some))

    def client(self) -> Any:
        import redis

        return redis.Redis(self.server.host, self.server.port, protocol=2)


class RedisHash(Redis):
    """One field per word, in one hash."""

    name = "redis-hash"
    layout = "hash"
    holds_large = False
    command = "HSET"

    def put(self, pipeline: Any, place: str, pairs: Mapping[str, str]) -> None:
        pipeline.hset(place, mapping=pairs)

    def lead(self, name: str) -> str:
        return ""


class BenchmarkedPostgres(PostgresServer):
    """With room for its pages, as a server that someone cares for has."""

    def command(self) -> list[str]:
        settings = {"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "30min"}
        return [*super().command(), *(w for k, v in settings.items() for w in ("-c", f"{k}={v}"))]


class Postgres(Store):
    """A table of the same options; COPY or arrays, sorted or not, whichever is the fastest."""

    name = "postgres"
    holds_large = True
    target = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.server: BenchmarkedPostgres = BenchmarkedPostgres()

    def unbound(self, kind: StateKind, name: str, address: tuple[str, int]) -> PostgresState:
        host, port = address
        dsn = f"postgresql://{self.server.superuser}@{host}:{port}/postgres"
        return PostgresState(dsn, name, kind=kind)

    def bare(self) -> Mapping[str, Write]:
        db = psycopg.connect(self.server.dsn)
        db.execute(
            'CREATE TABLE bare (word text COLLATE "C" PRIMARY KEY, n bigint) WITH (fillfactor = 70)'
        )
        db.commit()
        upsert = (
            "INSERT INTO bare SELECT word, n FROM {} "
            "ON CONFLICT (word) DO UPDATE SET n = excluded.n"
        )
        return {
            "COPY, upsert": self.copied(db, upsert.format("wanted")),
            "COPY, sorted upsert": self.copied(db, upsert.format("wanted ORDER BY word")),
            "arrays, upsert": self.unnested(
                db, upsert.format("unnest(%s::text[], %s::bigint[]) u(word, n)")
            ),
            "arrays, sorted upsert": self.unnested(
                db, upsert.format("unnest(%s::text[], %s::bigint[]) u(word, n) ORDER BY word")
            ),
        }

    def bare_over(self, name: str) -> Write:
        db = psycopg.connect(self.server.dsn)
        statement = (
            f"INSERT INTO \"{name}\" (word, n, _nulls, _txid, _attempt) SELECT word, n, '', 1, 0 "
            "FROM wanted ORDER BY word ON CONFLICT (word, _nulls) DO UPDATE SET n = excluded.n"
        )
        return self.copied(db, statement)

    def copied(self, db: psycopg.Connection[Any], statement: str) -> Write:
        db.execute(
            "CREATE TEMP TABLE IF NOT EXISTS wanted (word text, n bigint) ON COMMIT DELETE ROWS"
        )
        db.commit()

        def write(keys: Keys, values: list[int]) -> None:
            with db.cursor() as cursor:
                with cursor.copy("COPY wanted FROM STDIN") as copy:
                    rows = zip(keys, values, strict=True)
                    copy.write("".join([f"{key}\t{value}\n" for (key,), value in rows]))
                cursor.execute(statement)
            db.commit()

        return write

    def unnested(self, db: psycopg.Connection[Any], statement: str) -> Write:
        def write(keys: Keys, values: list[int]) -> None:
            # As texts: the client takes longer to make arrays of lists.
            texts = [",".join([key for (key,) in keys]), ",".join(map(str, values))]
            db.execute(statement, [f"{{{text}}}" for text in texts])
            db.commit()

        return write

    def fill(self, driver: Driver, name: str, size: int) -> None:
        with psycopg.connect(self.server.dsn, autocommit=True) as db:
            db.execute(
                f'INSERT INTO "{name}" (word, n, _nulls, _txid, _attempt) '
                "SELECT 'word-' || lpad(i::text, 8, '0'), 1, '', 1, 0 "
                f"FROM generate_series(0, {size - 1}) i ON CONFLICT DO NOTHING"
            )
            db.execute(f'VACUUM (ANALYZE, FREEZE) "{name}"')
            db.execute("CHECKPOINT")


class Memcached(Store):
    """`set_many`, with answers: without them a client does not know what was stored."""

    name = "memcached"
    reply_delay_s = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.server: MemcachedServer = MemcachedServer(memory_mb=2_048)

    def unbound(self, kind: StateKind, name: str, address: tuple[str, int]) -> MemcachedState:
        return MemcachedState(address, name, kind=kind)

    def bare(self) -> Mapping[str, Write]:
        return {
            f"set_many of {size:,}": self.writer("bare:{}", "{}", size) for size in (500, 2_000)
        }

    def bare_over(self, name: str) -> Write:
        return self.writer(name + ':["{}"]', "[1,0,{},null]", 2_000)

    def writer(self, names: str, record: str, size: int) -> Write:
        from pymemcache.client.base import Client

        client = Client(self.server.address, no_delay=True)

        def write(keys: Keys, values: list[int]) -> None:
            for start in range(0, len(keys), size):
                some = zip(keys[start : start + size], values[start : start + size], strict=True)
                pairs = {names.format(k): record.format(v) for (k,), v in some}
                client.set_many(pairs, noreply=False)

        return write

    def fill(self, driver: Driver, name: str, size: int) -> None:
        with socket.create_connection(self.server.address) as connection:
            for some in chunks(size, FILL_CHUNK):
                items = [f'{name}:["{word(i)}"] 0 0 {len(FILLED)}' for i in some]
                text = "".join([f"set {item} noreply\r\n{FILLED}\r\n" for item in items])
                connection.sendall(text.encode())
            connection.sendall(b"version\r\n")
            connection.recv(100)


class SQLite(Store):
    """`executemany` of an upsert in one transaction; the same pragmas, the same kind of table."""

    name = "sqlite"
    holds_large = True
    # One of several copies the pages in the log to the table.
    batches_a_round = 8

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="waterspout-bench-"))

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        shutil.rmtree(self.folder, ignore_errors=True)

    def unbound(self, kind: StateKind, name: str, address: tuple[str, int]) -> SQLiteState:
        return SQLiteState(self.folder / f"{name}.db", name, kind=kind)

    def bare(self) -> Mapping[str, Write]:
        db = self.opened("bare")
        db.execute("CREATE TABLE bare (word TEXT PRIMARY KEY, n INTEGER) STRICT, WITHOUT ROWID")
        statement = "INSERT INTO bare VALUES (?, ?) ON CONFLICT (word) DO UPDATE SET n = excluded.n"
        return {
            "executemany": self.writer(db, statement, is_sorted=False),
            "executemany, sorted": self.writer(db, statement, is_sorted=True),
        }

    def bare_over(self, name: str) -> Write:
        statement = (
            f"INSERT INTO {name} (word, n, _nulls, _txid, _attempt) VALUES (?, ?, '', 1, 0) "
            "ON CONFLICT (word, _nulls) DO UPDATE SET n = excluded.n"
        )
        # In a copy of the file: who commits when the log is full does the work of all.
        shutil.copy(self.folder / f"{name}.db", self.folder / f"{name}-bare.db")
        return self.writer(self.opened(f"{name}-bare"), statement, is_sorted=False)

    def writer(self, db: sqlite3.Connection, statement: str, *, is_sorted: bool) -> Write:
        def write(keys: Keys, values: list[int]) -> None:
            rows = zip((key for (key,) in keys), values, strict=True)
            db.execute("BEGIN IMMEDIATE")
            db.executemany(statement, sorted(rows) if is_sorted else rows)
            db.execute("COMMIT")

        return write

    def fill(self, driver: Driver, name: str, size: int) -> None:
        db = self.opened(name)
        db.execute(
            f"INSERT OR IGNORE INTO {name} (word, n, _nulls, _txid, _attempt) WITH RECURSIVE "
            f"c(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM c WHERE i < {size - 1}) "
            "SELECT printf('word-%08d', i), 1, '', 1, 0 FROM c"
        )
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()

    def opened(self, name: str) -> sqlite3.Connection:
        db = sqlite3.connect(self.folder / f"{name}.db", isolation_level=None, timeout=60)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("PRAGMA cache_size=-65536")
        db.execute("PRAGMA wal_autocheckpoint=16384")
        db.execute("PRAGMA temp_store=MEMORY")
        return db


class Files(Store):
    """The lines of the batch in one file, synced; nothing is kept in memory."""

    name = "files"
    batches_a_round = 40  # of some hundred, one writes the whole state

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="waterspout-bench-"))

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        shutil.rmtree(self.folder, ignore_errors=True)

    def unbound(self, kind: StateKind, name: str, address: tuple[str, int]) -> FileState:
        return FileState(self.folder / name, kind=kind)

    def bare(self) -> Mapping[str, Write]:
        return {"write, fsync": self.writer(self.folder / "bare")}

    def bare_over(self, name: str) -> Write:
        return self.writer(self.folder / f"{name}-bare")

    def writer(self, folder: Path) -> Write:
        folder.mkdir()
        turn = 0

        def write(keys: Keys, values: list[int]) -> None:
            nonlocal turn
            turn += 1
            rows = zip(keys, values, strict=True)
            text = "".join([f'["{key}"]\t[{turn},0,{value},{value}]\n' for (key,), value in rows])
            with (folder / f"{turn}").open("xb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            place = os.open(folder, os.O_RDONLY)
            os.fsync(place)
            os.close(place)
            (folder / f"{turn - 1}").unlink(missing_ok=True)

        return write


class Cassandra(Store):
    """`execute_concurrent` of a prepared INSERT, one node, QUORUM; ours in `single_writer`."""

    name = "cassandra"
    mode = "single_writer"
    scale = 0.02
    is_filled = False

    def __init__(self) -> None:
        super().__init__()
        self.server: CassandraServer = CassandraServer()
        self.keyspace = ""
        self.cluster: Any = None

    def __enter__(self) -> Self:
        super().__enter__()
        self.keyspace = self.server.fresh_keyspace()
        return self

    def __exit__(self, *error: object) -> None:
        if self.cluster is not None:
            self.cluster.shutdown()
        super().__exit__(*error)

    @property
    def address(self) -> None:
        """No proxy: many requests are under way at once, so that round trips say nothing."""
        return None

    def unbound(self, kind: StateKind, name: str, address: tuple[str, int]) -> CassandraState:
        return CassandraState(self.server.address, self.keyspace, name, mode=self.mode, kind=kind)

    def bare(self) -> Mapping[str, Write]:
        session = self.session()
        session.execute("CREATE TABLE bare (word text PRIMARY KEY, n bigint)")
        insert = session.prepare("INSERT INTO bare (word, n) VALUES (?, ?)")
        return {f"{n} at once": self.writer(session, insert, n) for n in (100, 400)}

    def bare_over(self, name: str) -> Write:
        raise NotImplementedError("Cassandra is not measured as it grows")

    def writer(self, session: Any, insert: Any, concurrency: int) -> Write:
        from cassandra.concurrent import execute_concurrent_with_args

        def write(keys: Keys, values: list[int]) -> None:
            rows = [(key, value) for (key,), value in zip(keys, values, strict=True)]
            execute_concurrent_with_args(session, insert, rows, concurrency=concurrency)

        return write

    def session(self) -> Any:
        from cassandra import ConsistencyLevel
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import RoundRobinPolicy

        if self.cluster is None:
            profile = ExecutionProfile(
                RoundRobinPolicy(), consistency_level=ConsistencyLevel.QUORUM, request_timeout=60
            )
            profiles = {EXEC_PROFILE_DEFAULT: profile}
            self.cluster = Cluster([self.server.address], execution_profiles=profiles)
        return self.cluster.connect(self.keyspace)


class CassandraLwt(Cassandra):
    """The same; ours compares each row, in a lightweight transaction."""

    name = "cassandra-lwt"
    is_slow = True
    mode = "lwt"


def chunks(size: int, most: int) -> Iterator[range]:
    """Yield the numbers below `size`, some at a time."""
    for start in range(0, size, most):
        yield range(start, min(size, start + most))


STORES: dict[str, type[Store]] = {
    store.name: store
    for store in (*(Redis, RedisHash, Postgres, Memcached, SQLite, Files, Cassandra, CassandraLwt),)
}
