"""Connections to PostgreSQL: kept by each process, replaced when dead, bounded in time.

States are made anew for each task, connections are not: those that are idle wait for the next
state of this process. This is no `psycopg_pool`, because that opens connections in threads of its
own: it reports a refused connection only as a time-out, and what its threads do is lost in a
forked process.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import sleep
from typing import Any, TypeVar

import psycopg
from psycopg import conninfo, errors, pq
from psycopg.abc import PQGen

from waterspout._addresses import Secrets, check_url, resolved, shown
from waterspout._backoff import Backoff
from waterspout._connections import Connections
from waterspout.errors import ConfigError, StoreError

__all__ = [
    "Connection",
    "PostgresAddress",
    "PostgresClient",
    "close_idle",
    "is_outage",
    "pipelined",
]

T = TypeVar("T")

_IDLE_MAX = 8
_CONFLICTS_MAX = 8
_CONFLICT_BACKOFF = Backoff(0.02)
_PATIENCE_S = 5.0
_WHOLE = re.compile(r"\$\{\w+\}")
_CONFLICTS = (errors.DeadlockDetected, errors.SerializationFailure, errors.LockNotAvailable)
# What is looked up by its key is one row: to make a bitmap of it takes half as long again.
_SETTINGS = """
SELECT set_config('statement_timeout', %(statement)s, false),
       set_config('lock_timeout', %(lock)s, false),
       set_config('idle_in_transaction_session_timeout', %(idle)s, false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('TimeZone', 'UTC', false),
       set_config('DateStyle', 'ISO', false),
       set_config('extra_float_digits', '1', false),
       set_config('jit', 'off', false),
       set_config('enable_bitmapscan', 'off', false),
       set_config('synchronous_commit',
                  replace(current_setting('synchronous_commit'), 'off', 'on'), false)
"""


@dataclass(frozen=True)
class PostgresAddress:
    """Where a database is and how long to wait for it; `dsn` may hold a password."""

    dsn: str = field(repr=False)
    connect_timeout_secs: float
    statement_timeout_secs: float
    lock_timeout_secs: float

    def parameters(self) -> dict[str, Any]:
        """Return the DSN by its parts, `${NAME}` replaced from the environment."""
        return _parsed(resolved(self.dsn))

    def check(self) -> None:
        """Refuse what cannot be read, as far as it can be told before `${NAME}` is known."""
        if not _WHOLE.fullmatch(self.dsn):
            _parsed(self.dsn)

    def shown(self) -> str:
        """Name server and database, for people and to tell two databases apart; no secrets."""
        try:
            parts = self.parameters()
        except ConfigError:
            if _WHOLE.fullmatch(self.dsn):
                return self.dsn
            parts = _parsed(self.dsn)  # a variable is not set here: it is shown by its name
        if service := parts.get("service"):
            return f"service {service}"
        host = parts.get("host") or parts.get("hostaddr") or os.environ.get("PGHOST") or "localhost"
        port = parts.get("port") or os.environ.get("PGPORT") or "5432"
        user = parts.get("user") or os.environ.get("PGUSER") or ""
        name = parts.get("dbname") or os.environ.get("PGDATABASE") or user
        # libpq takes a whole DSN for the name of a database too.
        return f"{host}:{port}/{shown(name) if '://' in name or '=' in name else name}"

    @property
    def secrets(self) -> Secrets:
        """What is not to be seen of it."""
        words: tuple[str | None, ...] = ()
        with suppress(ConfigError):
            parts = self.parameters()
            words = tuple(parts.get(name) for name in ("password", "sslpassword", "passfile"))
        return Secrets.of(self.dsn, words=words)


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that gives up on a server that has stopped answering."""

    patience_s = 60.0

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait for the server, as long as its own time-outs would let it take, and some more."""
        # psycopg 3.2 has no such argument, and does not pass it.
        options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        return super().wait(self._limited(gen), interval, **options)

    def _limited(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        deadline = time.monotonic() + self.patience_s
        try:
            wants = next(gen)
            while True:
                ready = yield wants
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(
                        f"the server has not answered for {self.patience_s:g} s"
                    )
                wants = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result


@contextmanager
def pipelined(connection: Connection) -> Iterator[None]:
    """Send what is executed within at once, where the client library can."""
    if not psycopg.Pipeline.is_supported():
        yield
        return
    first: psycopg.Error | None = None
    try:
        with connection.pipeline():
            # Not raised from within: psycopg would log what follows from it as a warning.
            try:
                yield
            except psycopg.Error as error:
                first = error
    except psycopg.Error as error:
        raise first or error from None
    if first is not None:
        raise first


@dataclass(frozen=True)
class PostgresClient:
    """Runs work on a connection: again where that is right, and never where it is not."""

    address: PostgresAddress

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        """Lend a connection that was alive a moment ago; it is kept unless it broke."""
        connection = _idle.take(self.address) or self._connect()
        try:
            yield connection
        finally:
            self._return(connection)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run work that changes nothing; once more on a fresh connection if one was lost."""
        for tries_left in (1, 0):
            with self.lent() as connection:
                try:
                    return work(connection)
                except psycopg.Error as error:
                    if not _is_lost(connection, error) or not tries_left:
                        raise
            close_idle(self.address)
        raise AssertionError("unreachable")

    def write(self, work: Callable[[Connection, bool], T], *, repeatable: bool) -> T:
        """Run work in a transaction and commit it.

        Deadlocks, conflicts and locks that are held too long take nothing with them: the work
        runs again, a bounded number of times. A connection that is lost before the COMMIT was
        sent takes the transaction with it: the work runs again, once. If the answer to the
        COMMIT is lost, nobody knows; only `repeatable` work runs again then, and is told so.
        """
        conflicts = losses = 0
        unsure = False
        while True:
            with self.lent() as connection:
                committing = False
                try:
                    result = work(connection, unsure)
                    committing = True
                    connection.execute("COMMIT")
                    return result
                except _CONFLICTS:
                    conflicts += 1
                    if conflicts > _CONFLICTS_MAX:
                        raise
                except psycopg.Error as error:
                    if not _is_lost(connection, error):
                        raise
                    losses += 1
                    if committing and not repeatable:
                        secrets = self.address.secrets
                        said = secrets.hidden(str(error))
                        raise _unknown_outcome(said) from secrets.cause(error)
                    if losses > 1:
                        raise
                    unsure = unsure or committing
            if losses:
                # Other idle connections lead to the same server, which may have been restarted.
                close_idle(self.address)
            sleep(_CONFLICT_BACKOFF.random_pause_s(conflicts) if conflicts else 0)

    def _connect(self) -> Connection:
        address = self.address
        parameters = {
            "client_encoding": "utf8",
            "fallback_application_name": "waterspout",
            # A peer that is gone without a word is found out in about the time of a statement.
            "tcp_user_timeout": int(address.statement_timeout_secs * 1000),
            **address.parameters(),
            "connect_timeout": max(2, round(address.connect_timeout_secs)),
        }
        connection = Connection.connect(autocommit=True, prepare_threshold=None, **parameters)
        connection.patience_s = address.statement_timeout_secs + _PATIENCE_S
        try:
            connection.execute(
                _SETTINGS,
                {
                    "statement": _millis(address.statement_timeout_secs),
                    "lock": _millis(address.lock_timeout_secs),
                    # One that stops in the middle of a write has the head locked: let it be for no
                    # longer than others wait for that lock.
                    "idle": _millis(address.lock_timeout_secs),
                },
            )
        except BaseException:
            connection.close()
            raise
        return connection

    def _return(self, connection: Connection) -> None:
        try:
            if not connection.closed and _status(connection) in (_INTRANS, _INERROR):
                connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()
        if not connection.closed and _status(connection) == pq.TransactionStatus.IDLE:
            _idle.give(self.address, connection)
        else:
            connection.close()


# Said by a server before it hangs up; the client may not have noticed that it did.
_FAREWELLS = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.DatabaseDropped,
    errors.IdleInTransactionSessionTimeout,
    errors.ConnectionException,
)
_INTRANS, _INERROR = pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR


def _status(connection: Connection) -> pq.TransactionStatus:
    return pq.TransactionStatus(connection.pgconn.transaction_status)


def _is_lost(connection: Connection, error: psycopg.Error) -> bool:
    """Tell whether a connection ended, and with it a transaction that was not committed."""
    if isinstance(error, _FAREWELLS):
        connection.close()
    return connection.closed


# Conditions that pass: shutdown, crash and start, too few resources, a standby before it is
# promoted, and locks or statements that took too long.
_AWAY_STATES = ("08", "53", "57P", "57014", "25006", "55P03")
# A server that refuses a connection says why, and gives the client no code for it.
_AWAY_TEXT = re.compile(
    r"starting up|shutting down|recovery mode|not (yet )?accepting connections|too many clients"
    r"|connection slots|terminating connection"
)


def is_outage(error: psycopg.Error) -> bool:
    """Tell whether a server is away, or cannot be used for now, from what the client raised."""
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_AWAY_STATES)
    if not isinstance(error, psycopg.OperationalError):
        return False
    # What has not come from the server is a connection that failed.
    return "FATAL" not in str(error) or _AWAY_TEXT.search(str(error)) is not None


_idle: Connections[PostgresAddress, Connection] = Connections(
    lambda connection: connection.close(),
    idle_max=_IDLE_MAX,
    socket_of=lambda connection: connection.pgconn.socket,
)


def close_idle(address: PostgresAddress | None = None) -> None:
    """Close the idle connections of this process, to one address or to all."""
    _idle.close(address)


def _parsed(dsn: str) -> dict[str, Any]:
    check_url(dsn, "PostgreSQL DSN", libpq=True)
    try:
        return conninfo.conninfo_to_dict(dsn)
    except (psycopg.Error, UnicodeDecodeError):
        # What they say may quote a piece of the password.
        raise ConfigError(
            "the PostgreSQL DSN cannot be read; write postgresql://user@host:port/database "
            "or key=value pairs, and quote or percent-encode what is special. It is not "
            "shown here because it may hold a password."
        ) from None


def _millis(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))


def _unknown_outcome(said: str) -> StoreError:
    return StoreError(
        "the connection to PostgreSQL was lost while a write was being committed, so it is not "
        "known whether it was, and to write it again could count it twice. Replay the batch only "
        f"if that does not matter. The client said: {said}"
    )
