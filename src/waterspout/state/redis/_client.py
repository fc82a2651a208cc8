"""How a Redis state talks to its servers: shared connections, pipelines, scripts, errors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from waterspout._addresses import Secrets, check_url, resolved
from waterspout._connections import Connections
from waterspout.errors import (
    ConfigError,
    ForeignStoreError,
    MissingDependencyError,
    OutageError,
    StoreError,
)
from waterspout.state.redis._scripts import Script

__all__ = ["Call", "LentConnection", "RedisClient", "require_library"]

log = logging.getLogger(__name__)

T = TypeVar("T")

# How often calls are sent that a server did not carry out: it did not know the script yet, or the
# slot had moved.
_ROUNDS = 5


def require_library() -> Any:
    """Return the client library, or say how to get it."""
    try:
        import redis  # the library: this module is `waterspout.state.redis._client`
        import redis.cluster
    except ImportError as error:
        raise MissingDependencyError("redis", "redis") from error
    return redis


@dataclass(frozen=True, slots=True)
class Call:
    """A command, or a script with its arguments, for the node that has `key`.

    Arguments may be made when they are sent: the server works on one call meanwhile.
    """

    key: str
    args: Sequence[Any] | Callable[[], Sequence[Any]]
    script: Script | None = None
    keys: tuple[str, ...] = ()
    packed: Callable[[], Sequence[bytes]] | None = None
    """Makes the bytes to send, where that is quicker than word by word, of any `args`."""

    def command(self, *, known: bool) -> list[Any]:
        """Return the words to send; a script by its name if the server should know it."""
        args = self.args() if callable(self.args) else self.args
        if self.script is None:
            return list(args)
        name = ["EVALSHA", self.script.sha] if known else ["EVAL", self.script.text]
        return [*name, len(self.keys), *self.keys, *args]


@dataclass(frozen=True, slots=True)
class LentConnection:
    """One connection, lent to one user: what was sent is answered in order."""

    connection: Any

    def send(self, commands: Sequence[bytes]) -> None:
        """Send commands that are packed already, in one piece: one packet, if they are small."""
        self.connection.send_packed_command([b"".join(commands)])

    def read(self) -> Any:
        """Return the next answer; raise it if it is an error."""
        return self.connection.read_response()

    def was_done(self, commands: int) -> bool:
        """Read the answers to a transaction of so many commands, and tell whether it was done.

        It was not if a key that was watched has changed. An error in it is raised.
        """
        for _ in range(1 + commands):
            self.read()
        done = self.read()
        for reply in done or ():
            if isinstance(reply, Exception):
                raise reply
        return done is not None


_clients: Connections[tuple[str, float, bool], Any] = Connections(lambda client: client.close())


@dataclass(frozen=True)
class RedisClient:
    """A server, or a cluster of them, by its URL. Connections belong to the process.

    They are pooled by the library, which looks at each before it hands it out: one whose server
    has gone is opened anew. Nothing is retried behind our back.
    """

    url: str = field(repr=False)
    title: str
    timeout_secs: float
    cluster: bool = False

    def run(self, calls: Sequence[Call], *, again: bool) -> list[Any]:
        """Carry out all calls, each node's in one pipeline, and return the answers in order.

        `again`: whether a call may be carried out twice, because its answer was lost.
        """
        replies: list[Any] = [None] * len(calls)
        todo, known = list(range(len(calls))), True
        with self.errors():
            redis = require_library()
            moved = (redis.exceptions.MovedError, redis.exceptions.ClusterDownError)
            for _ in range(_ROUNDS):
                for node, numbers in self._by_node(calls, todo):
                    found = self._insist(node, [calls[i] for i in numbers], known, again)
                    for i, reply in zip(numbers, found, strict=True):
                        replies[i] = reply
                unknown = (redis.exceptions.NoScriptError, *moved)
                todo = [i for i in todo if isinstance(replies[i], unknown)]
                if not todo:
                    break
                known = False
                if any(isinstance(replies[i], moved) for i in todo):
                    self.look_around()
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
        return replies

    @contextmanager
    def session(self, key: str) -> Iterator[LentConnection]:
        """Lend one connection to the node that has `key`, for calls that depend on each other."""
        node = self.connection
        if self.cluster:
            node = node.get_redis_connection(node.get_node_from_key(key))
        connection = node.connection_pool.get_connection()
        try:
            yield LentConnection(connection)
        except BaseException:
            # With it goes what was not answered yet, and what the server watches for us.
            connection.disconnect()
            raise
        finally:
            node.connection_pool.release(connection)

    def look_around(self) -> None:
        """Ask a cluster anew which of its nodes has what."""
        if self.cluster:
            self.connection.nodes_manager.initialize()

    def scan(self, pattern: str, count: int) -> Iterator[bytes]:
        """Yield the keys that match, of all nodes; one that moves meanwhile may come twice."""
        with self.errors():
            yield from self.connection.scan_iter(match=pattern, count=count)

    def scan_hash(self, key: str, count: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the fields and texts of a hash; one may come twice."""
        with self.errors():
            yield from self.connection.hscan_iter(key, count=count)

    def settings(self, *names: str) -> dict[str, str]:
        """Return some of a server's settings, as far as it tells them."""
        redis = require_library()
        found: dict[str, str] = {}
        with self.errors():
            # The nodes of a cluster are set up alike, so any of them can be asked.
            node = self.connection
            if self.cluster:
                node = node.get_redis_connection(node.get_default_node())
            try:
                for name in names:
                    found |= {_text(k): _text(v) for k, v in node.config_get(name).items()}
            except redis.exceptions.ResponseError:
                # Hosted servers forbid the question.
                log.warning(
                    "%s: the server does not tell its settings (CONFIG is forbidden), so nobody "
                    "checked what a restart would lose. See that it has appendonly yes and "
                    "appendfsync always",
                    self.title,
                )
        return found

    def eviction_policies(self) -> set[str]:
        """Return what all servers do when their memory is full, as far as they tell."""
        redis = require_library()
        found: set[str] = set()
        with self.errors():
            nodes = [self.connection]
            if self.cluster:
                whole = self.connection
                nodes = [whole.get_redis_connection(node) for node in whole.get_primaries()]
            for node in nodes:
                try:
                    found.add(_text(node.info("memory").get("maxmemory_policy", "")))
                except redis.exceptions.ResponseError:
                    log.warning(
                        "%s: the server does not say whether it evicts keys (INFO is forbidden); "
                        "they would start anew. See that its maxmemory-policy is noeviction",
                        self.title,
                    )
        return found - {""}

    @property
    def connection(self) -> Any:
        """The client of this process, which has a pool of connections."""
        url = resolved(self.url)
        key = (url, self.timeout_secs, self.cluster)
        return _clients.shared(key, lambda: self._connect(url))

    def _connect(self, url: str) -> Any:
        redis = require_library()
        check_url(url, f"URL of {self.title}")
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        make = redis.cluster.RedisCluster if self.cluster else redis.Redis
        try:
            client = make.from_url(
                url,
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=self.timeout_secs,
                socket_connect_timeout=self.timeout_secs,
            )
            if not self.cluster:
                # An option that it does not know, the library finds out when it first connects.
                pool = client.connection_pool
                pool.connection_class(**pool.connection_kwargs)
            return client
        except (ValueError, TypeError) as error:
            # The text of the error is left out: it may quote the password in the URL.
            raise ConfigError(
                f"{self.title}: its URL cannot be read ({type(error).__name__}). Write "
                "redis://user:password@host:port/0, with % signs for odd characters."
            ) from None

    def _by_node(
        self, calls: Sequence[Call], numbers: Iterable[int]
    ) -> list[tuple[Callable[[], Any], list[int]]]:
        if not self.cluster:
            return [(lambda: self.connection, list(numbers))]
        cluster = self.connection
        by_node: dict[str, list[int]] = {}
        for i in numbers:
            by_node.setdefault(cluster.get_node_from_key(calls[i].key).name, []).append(i)

        def owner(number: int) -> Callable[[], Any]:
            # Looked up for each try: another node may have taken over.
            key = calls[number].key
            return lambda: cluster.get_redis_connection(cluster.get_node_from_key(key))

        return [(owner(mine[0]), mine) for mine in by_node.values()]

    def _insist(
        self, node: Callable[[], Any], calls: Sequence[Call], known: bool, again: bool
    ) -> list[Any]:
        redis = require_library()
        try:
            return _pipeline(node(), calls, known)
        except redis.exceptions.ConnectionError:
            self.look_around()
            if not again:
                raise
        return _pipeline(node(), calls, known)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn the library's errors into ours, without secrets."""
        redis = require_library()
        try:
            yield
        except (redis.exceptions.RedisError, redis.exceptions.RedisClusterException) as error:
            secrets = Secrets.of(self.url)
            said = secrets.hidden(str(error)) or type(error).__name__
            if said.startswith("WRONGTYPE"):
                raise ForeignStoreError(
                    f"{self.title}: a key is there that waterspout did not make ({said}). Use "
                    "another prefix."
                ) from secrets.cause(error)
            text = (
                f"{self.title} cannot be used: {said}. See that the server is there and takes "
                "writes, and that the URL has the right user, password and database."
            )
            found = OutageError("redis", text) if _is_outage(error) else StoreError(text)
            raise found from secrets.cause(error)


def _is_outage(error: Exception) -> bool:
    """Tell whether a server is away, loads its data, or is a replica that is not promoted yet."""
    raised = require_library().exceptions
    if isinstance(error, raised.AuthenticationError | raised.AuthorizationError):
        return False  # the library takes them for failed connections
    away = raised.ConnectionError | raised.TimeoutError | raised.ReadOnlyError
    cluster = raised.ClusterDownError | raised.TryAgainError | raised.RedisClusterException
    return isinstance(error, away | cluster) or str(error).startswith("MASTERDOWN")


def _pipeline(node: Any, calls: Sequence[Call], known: bool) -> list[Any]:
    """Send all calls, each as soon as it is made, and then read the answers."""
    redis = require_library()
    connection = node.connection_pool.get_connection()
    try:
        names = []
        for call in calls:
            if call.packed is not None:
                names.append("")  # which has no way of its own to be answered
                connection.send_packed_command(call.packed())
                continue
            command = call.command(known=known)
            names.append(command[0])
            connection.send_command(*command)
        replies: list[Any] = []
        for name in names:
            try:
                replies.append(node.parse_response(connection, name))
            except redis.exceptions.ResponseError as error:
                replies.append(error)
    except BaseException:
        # Else answers that are still to come would be taken for those to the next calls.
        connection.disconnect()
        raise
    finally:
        node.connection_pool.release(connection)
    return replies


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
