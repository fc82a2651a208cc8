"""Sessions with a Cassandra cluster: shared by all states of a process, replaced when they die."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from waterspout._addresses import Secrets, resolved
from waterspout._connections import Connections
from waterspout._tls import TLS
from waterspout.errors import OutageError, StoreError, WaterspoutError

__all__ = ["Answer", "CassandraAddress", "CassandraClient", "Statement", "close_all"]

_CONCURRENCY = 100
_TRIES = 4
_PAGE_ROWS = 2_000
_PROTOCOL = 4  # of every server since 2.2; else the driver finds it out by trying, each time


@dataclass(frozen=True)
class CassandraAddress:
    """Where a cluster is and how to be let in; `${NAME}` is resolved when connecting."""

    contact_points: tuple[tuple[str, int], ...]
    keyspace: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    local_dc: str | None = None
    timeout_secs: float = 10.0
    connect_timeout_secs: float = 5.0
    tls: TLS | None = None

    @property
    def shown(self) -> str:
        """The contact points, without secrets."""
        return ", ".join(f"{host}:{port}" for host, port in self.contact_points)

    @property
    def secrets(self) -> Secrets:
        """What is not to be seen of it."""
        return Secrets.of(words=(self.password,))


class Answer(NamedTuple):
    """The rows of a statement and their columns.

    `repeated` if it was run more than once, because an answer did not come: an earlier run of
    it may have been carried out.
    """

    rows: list[tuple[Any, ...]]
    columns: Sequence[str]
    repeated: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """A text to prepare, and how sure its answer must be."""

    cql: str
    consistency: str = "QUORUM"
    serial_consistency: str = "SERIAL"


class _Live:
    """A session and what was prepared in it."""

    def __init__(self, address: CassandraAddress) -> None:
        try:
            # Imported here: where the driver finds no event loop, the import itself fails.
            from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        except Exception as error:
            raise StoreError(f"cassandra-driver cannot be used here: {error}") from error
        from cassandra.policies import (
            DCAwareRoundRobinPolicy,
            FallthroughRetryPolicy,
            TokenAwarePolicy,
        )
        from cassandra.query import tuple_factory

        datacentre = {"local_dc": resolved(address.local_dc)} if address.local_dc else {}
        profile = ExecutionProfile(
            TokenAwarePolicy(DCAwareRoundRobinPolicy(**datacentre)),
            # The driver must not repeat anything: only this module knows what is harmless.
            retry_policy=FallthroughRetryPolicy(),
            request_timeout=address.timeout_secs,
            row_factory=tuple_factory,
        )
        self.cluster = Cluster(
            [(resolved(host), port) for host, port in address.contact_points],
            auth_provider=_credentials(address),
            ssl_context=None if address.tls is None else address.tls.context(),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            connect_timeout=address.connect_timeout_secs,
            control_connection_timeout=address.timeout_secs,
            schema_metadata_enabled=False,
            protocol_version=_PROTOCOL,
        )
        self.known_tables: set[tuple[str, str]] = set()
        self._prepared: dict[Statement, Any] = {}
        try:
            self.session = self.cluster.connect()
        except BaseException:
            self.close()
            raise

    def prepare(self, statement: Statement) -> Any:
        from cassandra import ConsistencyLevel

        prepared = self._prepared.get(statement)
        if prepared is None:
            prepared = self.session.prepare(statement.cql)
            levels = ConsistencyLevel.name_to_value
            prepared.consistency_level = levels[statement.consistency]
            prepared.serial_consistency_level = levels[statement.serial_consistency]
            prepared.fetch_size = _PAGE_ROWS
            self._prepared[statement] = prepared
        return prepared

    def close(self) -> None:
        with suppress(Exception):  # it may be half open, or half dead
            self.cluster.shutdown()


_sessions: Connections[CassandraAddress, _Live] = Connections(_Live.close)


def close_all() -> None:
    """Close the sessions of this process, whose threads would else look for lost servers for ever.

    The next use of a state opens a new one.
    """
    _sessions.close()


class CassandraClient:
    """Runs prepared statements, many at once; makes a new session where the old one is dead."""

    def __init__(self, address: CassandraAddress, title: str) -> None:
        self._address = address
        self._title = title

    def run(self, statement: Statement, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement that may be run again, and return its rows."""
        return self.run_many(statement, [values])[0].rows

    def run_many(self, statement: Statement, values: Sequence[Sequence[Any]]) -> list[Answer]:
        """Run one statement with many values; each may be run again if its answer is lost."""
        answers: list[Any] = [None] * len(values)
        todo = list(range(len(values)))

        def run(live: _Live, attempt: int) -> None:
            nonlocal todo
            results = self._execute(live, statement, [values[i] for i in todo])
            failed, error = [], None
            for i, (done, result) in zip(todo, results, strict=True):
                if done:
                    answers[i] = Answer(list(result), result.column_names, attempt > 0)
                else:
                    failed.append(i)
                    self._refuse_lasting(result)
                    error = result
            todo = failed
            if error is not None:
                raise error

        if values:
            self._repeated(run)
        return answers

    def _repeated(self, work: Callable[[_Live, int], None]) -> None:
        """Do some work until it succeeds, a few times, each time with a session that is alive."""
        error: Exception | None = None
        for attempt in range(_TRIES):
            try:
                with self._lent() as live:
                    return work(live, attempt)
            except WaterspoutError:
                raise
            except Exception as failure:
                self._refuse_lasting(failure)
                error = failure
        raise self._failure(error) from self._address.secrets.cause(error)

    @contextmanager
    def _lent(self) -> Iterator[_Live]:
        """Lend the session; if it turns out to be dead, nobody is lent it again."""
        live = self._session()
        try:
            yield live
        except Exception as error:
            if _is_connection_lost(error):
                _sessions.discard(live)
            raise

    @staticmethod
    def _execute(live: _Live, statement: Statement, values: Sequence[Sequence[Any]]) -> Any:
        from cassandra.concurrent import execute_concurrent_with_args

        return execute_concurrent_with_args(
            live.session,
            live.prepare(statement),
            values,
            concurrency=_CONCURRENCY,
            raise_on_first_error=False,
        )

    def pages(self, statement: Statement, values: Sequence[Any]) -> Iterator[list[Any]]:
        """Run one statement and yield its rows page by page."""
        try:
            with self._lent() as live:
                result = live.session.execute(live.prepare(statement), values)
                while True:
                    yield list(result.current_rows)
                    if not result.has_more_pages:
                        return
                    result.fetch_next_page()
        except WaterspoutError:
            raise
        except Exception as error:
            raise self._failure(error) from self._address.secrets.cause(error)

    def define(self, cql: str) -> None:
        """Run a statement that changes the schema, and that may be run again."""
        timeout_secs = max(30.0, self._address.timeout_secs)
        self._repeated(lambda live, _: live.session.execute(cql, timeout=timeout_secs))

    def has_table(self, table: str) -> bool:
        """Whether the keyspace has this table; asked until it has."""
        keyspace = self._address.keyspace
        if (keyspace, table) in self._session().known_tables:
            return True
        statement = Statement(
            "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ? AND "
            "table_name = ?",
            "ONE",
        )
        found = bool(self.run(statement, (keyspace, table)))
        if found:
            self._session().known_tables.add((keyspace, table))
        return found

    def has_keyspace(self) -> bool:
        """Whether the keyspace is there."""
        statement = Statement(
            "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?", "ONE"
        )
        return bool(self.run(statement, (self._address.keyspace,)))

    def _session(self) -> _Live:
        try:
            return _sessions.shared(self._address, lambda: _Live(self._address))
        except WaterspoutError:
            raise
        except Exception as error:
            raise self._failure(error) from self._address.secrets.cause(error)

    def _refuse_lasting(self, error: Exception) -> None:
        from cassandra import AuthenticationFailed, InvalidRequest, Unauthorized
        from cassandra.protocol import SyntaxException

        if isinstance(
            error, AuthenticationFailed | InvalidRequest | Unauthorized | SyntaxException
        ):
            raise self._failure(error) from self._address.secrets.cause(error)

    def _failure(self, error: Exception | None) -> StoreError:
        # Cut last: a piece of a secret would not be known for one.
        said = self._address.secrets.hidden(f"{type(error).__name__}: {error}")[:1000]
        text = f"{self._title} cannot be used: {said}"
        return OutageError("cassandra", text) if _is_outage(error) else StoreError(text)


def _credentials(address: CassandraAddress) -> Any:
    from cassandra.auth import PlainTextAuthProvider

    if address.username is None:
        return None
    return PlainTextAuthProvider(resolved(address.username), resolved(address.password or ""))


def _is_outage(error: Exception | None) -> bool:
    """Tell whether too few nodes can be reached, or none; not that we are not let in."""
    from cassandra import AuthenticationFailed, Timeout, Unavailable
    from cassandra.cluster import NoHostAvailable
    from cassandra.protocol import IsBootstrappingErrorMessage, OverloadedErrorMessage

    if isinstance(error, NoHostAvailable):
        said = error.errors.values() if isinstance(error.errors, dict) else ()
        return not any(isinstance(each, AuthenticationFailed) for each in said)
    busy = Unavailable | Timeout | OverloadedErrorMessage | IsBootstrappingErrorMessage
    return _is_connection_lost(error) or isinstance(error, busy)


def _is_connection_lost(error: Exception | None) -> bool:
    from cassandra import OperationTimedOut
    from cassandra.cluster import NoHostAvailable
    from cassandra.connection import ConnectionException

    return isinstance(error, OSError | NoHostAvailable | ConnectionException | OperationTimedOut)
