"""Which errors of a store's client mean that the store is away for now, and which do not."""

from __future__ import annotations

import errno
import pickle
import sqlite3
import ssl
from contextlib import closing

import psycopg
import pytest
import redis.exceptions as redis_errors
from cassandra import AuthenticationFailed, InvalidRequest, OperationTimedOut, Unavailable
from cassandra.cluster import NoHostAvailable
from psycopg import errors

from tests.state_support import OWNER
from waterspout._config import Config
from waterspout.errors import OutageError, SourceError, StoreError
from waterspout.state._head import Head, Stamp, Writer
from waterspout.state.cassandra import _session as cassandra
from waterspout.state.files._locations import is_outage as is_file_outage
from waterspout.state.memcached import _wire as memcached
from waterspout.state.postgres._connections import is_outage as is_postgres_outage
from waterspout.state.redis import _client as redis
from waterspout.state.sqlite import SQLiteState


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (psycopg.OperationalError("connection to server at ::1 failed: Connection refused"), True),
        (psycopg.OperationalError("the server has not answered for 125 s"), True),
        (psycopg.OperationalError("FATAL:  the database system is starting up"), True),
        (psycopg.OperationalError("FATAL:  sorry, too many clients already"), True),
        (errors.AdminShutdown("terminating connection"), True),
        (errors.CannotConnectNow("the database system is shutting down"), True),
        (errors.ReadOnlySqlTransaction("a standby"), True),
        (errors.DiskFull("no space"), True),
        (errors.LockNotAvailable("held by somebody"), True),
        (psycopg.OperationalError("FATAL:  password authentication failed"), False),
        (psycopg.OperationalError('FATAL:  database "nowhere" does not exist'), False),
        (errors.UndefinedColumn("no such column"), False),
        (errors.InsufficientPrivilege("permission denied"), False),
    ],
    ids=str,
)
def test_postgres(error, away):
    assert is_postgres_outage(error) is away


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (redis_errors.ConnectionError("refused"), True),
        (redis_errors.TimeoutError("late"), True),
        (redis_errors.BusyLoadingError("loading"), True),
        (redis_errors.ReadOnlyError("a replica"), True),
        (redis_errors.ClusterDownError("CLUSTERDOWN"), True),
        (redis_errors.AuthenticationError("wrong password"), False),
        (redis_errors.ResponseError("unknown command"), False),
        (redis_errors.OutOfMemoryError("OOM"), False),
    ],
    ids=str,
)
def test_redis(error, away):
    assert redis._is_outage(error) is away


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (NoHostAvailable("none", {"a": OSError("refused")}), True),
        (OperationTimedOut(), True),
        (Unavailable("too few"), True),
        (NoHostAvailable("none", {"a": AuthenticationFailed("no")}), False),
        (InvalidRequest("no such table"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_cassandra(error, away):
    assert cassandra._is_outage(error) is away


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (ConnectionRefusedError("refused"), True),
        (memcached._LostError(ConnectionError("closed"), []), True),
        (PermissionError("it does not let us in"), False),
        (ssl.SSLError("certificate verify failed"), False),
    ],
    ids=str,
)
def test_memcached(error, away):
    server = memcached.Server("localhost", 1, 1.0, 1.0)

    assert isinstance(server._unreachable(error), OutageError) is away


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (OSError(errno.ESTALE, "stale file handle"), True),
        (OSError("AWS Error NETWORK_CONNECTION during PutObject operation: curlCode: 7"), True),
        (OSError("AWS Error SLOW_DOWN during PutObject operation"), True),
        (OSError("HDFS connection failed: Connection refused"), True),
        (OSError("AWS Error ACCESS_DENIED during PutObject operation"), False),
        (FileNotFoundError("gone"), False),
        (PermissionError("not ours"), False),
        (OSError(errno.ENOSPC, "no space left on device"), False),
    ],
    ids=str,
)
def test_files(error, away):
    assert is_file_outage(error) is away


def test_sqlite_that_somebody_else_has_is_away(tmp_path, monkeypatch):
    monkeypatch.setattr("waterspout.state.sqlite._file._BUSY_S", 0.01)
    path = tmp_path / "counts.db"
    recipe = SQLiteState.opaque(path, "counts")
    with closing(sqlite3.connect(path, isolation_level=None)) as rival:
        rival.execute("BEGIN EXCLUSIVE")
        backing = recipe.backing()
        with pytest.raises(OutageError, match="locked") as told:
            backing.move_head(None, Head(Stamp(Writer(OWNER, 1, "h", "l"), 1, 0)))
    assert told.value.service == "sqlite"


def test_an_outage_survives_pickling_and_is_an_error_of_stores_and_of_sources():
    error = pickle.loads(pickle.dumps(OutageError("postgres", "connection refused")))

    assert (error.service, str(error)) == ("postgres", "connection refused")
    assert isinstance(error, StoreError)
    assert isinstance(error, SourceError)
    assert Config().outage_secs == 600
