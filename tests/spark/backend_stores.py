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
from waterspout.state.store import StoreState
from waterspout.testing.proxy import FaultProxy


@dataclass(frozen=True)
class Store:
    """Where states are kept for a test.

    `write` and `head` are what the requests that write records and heads have in them;
    `server` is there if what it has acknowledged survives its kill.
    """

    state: Callable[[str], StoreState]
    raw: Callable[[str], dict[int, Any]]
    by_tasks: bool = True
    proxy: FaultProxy | None = None
    write: bytes = b""
    head: bytes = b""
    server: Server | None = None


@contextmanager
def redis_store(server: RedisServer) -> Iterator[Store]:
    import redis

    from waterspout.state.redis import RedisState

    prefix = uuid4().hex

    def raw(name: str) -> dict[int, Any]:
        tag = f"{{{prefix}:{name}:0}}"
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
            lambda name: RedisState.opaque(url, prefix=f"{prefix}:{name}"),
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
    from waterspout.state.postgres_connections import close_idle

    direct = server.fresh_database()

    def raw(name: str) -> dict[int, Any]:
        with psycopg.connect(direct) as connection:
            return rows_of(connection.execute(SELECTS[name]).fetchall())

    with FaultProxy(server.host, server.port) as proxy:
        dsn = make_conninfo(direct, host=proxy.address[0], port=proxy.port)
        yield Store(
            lambda name: PostgresState.opaque(dsn, table=name),
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

    def raw(name: str) -> dict[int, Any]:
        # It cannot list what it holds.
        with closing(Client(server.address)) as client:
            header = json.loads(client.get(f"{prefix}:{name}:head"))
            found: dict[int, Any] = {}
            for start in range(0, 200_000, 1_000):
                names = {f"{prefix}:{name}:[{k}]": k for k in range(start, start + 1_000)}
                answer = client.get_many(list(names))
                if not answer:
                    break
                found |= {names[n]: json.loads(text) for n, text in answer.items()}
        return committed(found, header["head"])

    with FaultProxy(*server.address) as proxy:
        yield Store(
            lambda name: MemcachedState.opaque([proxy.address], prefix=f"{prefix}:{name}"),
            raw,
            proxy=proxy,
            write=b"cas ",
            head=b":head ",
        )


@contextmanager
def cassandra_store(server: Any) -> Iterator[Store]:
    from waterspout.state.cassandra import CassandraState

    keyspace = server.fresh_keyspace()

    def raw(name: str) -> dict[int, Any]:
        heads, rows = server.run(
            f"SELECT head FROM {keyspace}.waterspout_heads WHERE name = '{name}'",
            f"SELECT key, txid, attempt, value, prev FROM {keyspace}.{name}",
        )
        records = {
            json.loads(key)[0]: [txid, attempt, *map(_unlisted, (value, prev))]
            for key, txid, attempt, value, prev in rows
        }
        return committed(records, heads[0][0])

    with FaultProxy(*server.address) as proxy:
        yield Store(
            lambda name: CassandraState.opaque(
                proxy.address, keyspace=keyspace, table=name, mode="lwt"
            ),
            raw,
            proxy=proxy,
            write=b'"tuple"',
            head=b'"owner"',
        )


@contextmanager
def sqlite_store(folder: Path) -> Iterator[Store]:
    from waterspout.state.sqlite import SQLiteState

    path = folder / "tally.db"

    def raw(name: str) -> dict[int, Any]:
        with closing(sqlite3.connect(path)) as db:
            return rows_of(db.execute(SELECTS[name]).fetchall())

    yield Store(lambda name: SQLiteState.opaque(path, table=name, driver_only=False), raw)


@contextmanager
def file_store(folder: Path) -> Iterator[Store]:
    from waterspout.state.files import FileState

    def raw(name: str) -> dict[int, Any]:
        newest = max((folder / name).glob("head-*.json"))
        manifest = json.loads(newest.read_text().splitlines()[0])
        records: dict[int, Any] = {}
        for part, _, _ in manifest["snapshot"] + manifest["deltas"]:
            for line in (folder / name / part).read_text().splitlines()[1:-1]:
                key, text = line.split("\t")
                records[json.loads(key)[0]] = json.loads(text) if text else None
        there = {k: record for k, record in records.items() if record is not None}
        return committed(there, manifest["head"])

    yield Store(lambda name: FileState.opaque(folder / name), raw, by_tasks=False)


SELECTS = {"counts": "SELECT k, n FROM counts", "sums": "SELECT k, n, total FROM sums"}


def rows_of(rows: list[tuple[Any, ...]]) -> dict[int, Any]:
    return {k: rest[0] if len(rest) == 1 else tuple(rest) for k, *rest in rows}


def committed(records: Mapping[int, Any], head: str | bytes) -> dict[int, Any]:
    """Return the values of `[txid, attempt, value, prev]`, by what the head says of attempts."""
    told = json.loads(head)
    assert told["committed"]
    attempts = dict(told["resolved"]) | {told["txid"]: told["attempt"]}
    values = {
        k: _plain(value if attempts.get(txid, attempt) == attempt else prev)
        for k, (txid, attempt, value, prev) in records.items()
    }
    return {k: value for k, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    return tuple(value["$"][1]) if isinstance(value, dict) else value


def _unlisted(text: str | None) -> Any:
    return None if text is None else json.loads(text)[0]
