"""Fixtures of real servers, each started when the first test asks for it.

A test that uses one is marked `services`. Where a server cannot be had, its tests are skipped,
unless WATERSPOUT_REQUIRED_SERVERS names it, as in `redis,postgres,memcached`: then they fail.
Nothing is shared between processes, so that workers of xdist do not meet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import pytest

from tests.services.servers import (
    MemcachedServer,
    MissingServer,
    PostgresServer,
    RedisCluster,
    RedisServer,
)
from tests.services.spark import ConnectServer

S = TypeVar("S", bound=AbstractContextManager)

REQUIRED = "WATERSPOUT_REQUIRED_SERVERS"
FIXTURES = {"memcached_server", "postgres_server", "redis_cluster", "redis_server"}


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis for all tests; each takes keys of its own, or flushes."""
    with provided("redis", RedisServer) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """Three Redis masters that share the slots."""
    with provided("redis", RedisCluster) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL for all tests; `fresh_database` gives each its own."""
    with provided("postgres", PostgresServer) as server:
        yield server


@pytest.fixture(scope="session")
def memcached_server() -> Iterator[MemcachedServer]:
    """A memcached for all tests; each takes keys of its own, or flushes."""
    with provided("memcached", MemcachedServer) as server:
        yield server


@pytest.fixture(scope="session")
def connect_server() -> Iterator[ConnectServer]:
    """A Spark Connect server for drivers that are killed."""
    with provided("connect", lambda: ConnectServer("local[4]")) as server:
        yield server


@contextmanager
def provided(name: str, make: Callable[[], S]) -> Iterator[S]:
    """Start a server for a test; skip or fail the test where there is none."""
    try:
        server = make()
    except MissingServer as missing:
        if name in required_servers():
            pytest.fail(f"{REQUIRED} names {name!r}, but: {missing.reason}", pytrace=False)
        pytest.skip(missing.reason)
    with server:
        yield server


def required_servers() -> set[str]:
    return {name.strip() for name in os.environ.get(REQUIRED, "").split(",") if name.strip()}


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.services)
