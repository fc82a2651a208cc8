"""Every store on its real server, behind a proxy, with a way to read it that is not ours."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.services.servers import MemcachedServer, PostgresServer, RedisServer, Server
from waterspout.state._store import StoreState
from waterspout.testing._proxy import FaultProxy

SELECT = "SELECT k, total FROM tally"
ZEROS = b"00000"  # in every value that is written, and in no key


@dataclass(frozen=True)
class Store:
    """Where states are kept for a test.

    `write` and `head` are what the requests that write records and heads have in them;
    `server` is there if what it has acknowledged survives its kill. `readers` says how many tasks
    share the reading of the whole; 0 where it cannot be listed.
    """

    state: StoreState
    raw: Callable[[], dict[int, int]]
    by_tasks: bool = True
    proxy: FaultProxy | None = None
    write: bytes = b""
    head: bytes = b""
    server: Server | None = None
    readers: int = 4


@contextmanager
def redis_store(server: RedisServer) -> Iterator[Store]:
    import redis

    from waterspout.state.redis import RedisState

    prefix = uuid4().hex

    def raw() -> dict[int, int]:
        tag = f"{{{prefix}:0}}"
        with redis.Redis.from_url(server.url) as client:
            head = client.hget(f"{tag}:head", "head")
            keys = list(client.scan_iter(match=f"{tag}:k:*", count=10_000))
            texts = [client.mget(keys[i : i + 10_000]) for i in range(0, len(keys), 10_000)]
        numbers = [json.loads(key.removeprefix(f"{tag}:k:".encode()))[0] for key in keys]
        records = [json.loads(text) for some in texts for text in some]
        return committed(dict(zip(numbers, records, strict=True)), head)

    with FaultProxy(server.host, server.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        yield Store(
            RedisState.opaque(url, prefix=prefix),
            raw,
            proxy=proxy,
            write=b"EVALSHA",
            head=b"EVALSHA",
            server=server,
        )


@contextmanager
def postgres_store(server: PostgresServer) -> Iterator[Store]:
    import psycopg
    from psycopg.conninfo import make_conninfo

    from waterspout.state.postgres import PostgresState
    from waterspout.state.postgres._connections import close_idle

    direct = server.fresh_database()

    def raw() -> dict[int, int]:
        with psycopg.connect(direct) as connection:
            return dict(connection.execute(SELECT).fetchall())

    with FaultProxy(server.host, server.port) as proxy:
        dsn = make_conninfo(direct, host=proxy.address[0], port=proxy.port)
        yield Store(
            PostgresState.opaque(dsn, table="tally"),
            raw,
            proxy=proxy,
            write=b"COMMIT",
            head=b"COMMIT",
            server=server,
        )
        close_idle()


@contextmanager
def memcached_store(server: MemcachedServer) -> Iterator[Store]:
    from pymemcache.client.base import Client

    from waterspout.state.memcached import MemcachedState

    prefix = uuid4().hex

    def raw() -> dict[int, int]:
        # It cannot list what it holds.
        with closing(Client(server.address)) as client:
            header = json.loads(client.get(f"{prefix}:head"))
            found: dict[int, Any] = {}
            for start in range(0, 200_000, 1_000):
                names = {f"{prefix}:[{k}]": k for k in range(start, start + 1_000)}
                answer = client.get_many(list(names))
                if not answer:
                    break
                found |= {names[n]: json.loads(text) for n, text in answer.items()}
        return committed(found, header["head"])

    with FaultProxy(*server.address) as proxy:
        yield Store(
            MemcachedState.opaque([proxy.address], prefix=prefix),
            raw,
            proxy=proxy,
            write=b"cas ",
            head=b":head ",
            readers=0,
        )


@contextmanager
def cassandra_store(server: Any) -> Iterator[Store]:
    from waterspout.state.cassandra import CassandraState

    keyspace = server.fresh_keyspace()

    def raw() -> dict[int, int]:
        heads, rows = server.run(
            f"SELECT head FROM {keyspace}.waterspout_heads",
            f"SELECT key, txid, attempt, value, prev FROM {keyspace}.tally",
        )
        records = {
            json.loads(key)[0]: [txid, attempt, *map(_unlisted, (value, prev))]
            for key, txid, attempt, value, prev in rows
        }
        return committed(records, heads[0][0])

    with FaultProxy(*server.address) as proxy:
        yield Store(
            CassandraState.opaque(proxy.address, keyspace=keyspace, table="tally", mode="lwt"),
            raw,
            proxy=proxy,
            write=ZEROS,
            head=b'"owner"',
        )


@contextmanager
def sqlite_store(folder: Path) -> Iterator[Store]:
    from waterspout.state.sqlite import SQLiteState

    path = folder / "tally.db"

    def raw() -> dict[int, int]:
        with closing(sqlite3.connect(path)) as db:
            return dict(db.execute(SELECT).fetchall())

    yield Store(SQLiteState.opaque(path, table="tally", driver_only=False), raw, readers=1)


@contextmanager
def file_store(folder: Path) -> Iterator[Store]:
    from waterspout.state.files import FileState

    files = folder / "tally"

    def raw() -> dict[int, int]:
        newest = max(files.glob("head-*.json"))
        manifest = json.loads(newest.read_text().splitlines()[0])
        records: dict[int, Any] = {}
        for part, _, _ in manifest["snapshot"] + manifest["deltas"]:
            for line in (files / part).read_text().splitlines()[1:-1]:
                key, text = line.split("\t")
                records[json.loads(key)[0]] = json.loads(text) if text else None
        there = {k: record for k, record in records.items() if record is not None}
        return committed(there, manifest["head"])

    yield Store(FileState.opaque(files), raw, by_tasks=False, readers=1)


def committed(records: Mapping[int, Any], head: str | bytes) -> dict[int, int]:
    """Return the values of `[txid, attempt, value, prev]`, by what the head says of attempts."""
    told = json.loads(head)
    assert told["committed"]
    attempts = dict(told["resolved"]) | {told["txid"]: told["attempt"]}
    values = {
        k: value if attempts.get(txid, attempt) == attempt else prev
        for k, (txid, attempt, value, prev) in records.items()
    }
    return {k: value for k, value in values.items() if value is not None}


def _unlisted(text: str | None) -> Any:
    return None if text is None else json.loads(text)[0]
