"""A connection to ZooKeeper that waits out short losses and says what became of a write."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from waterspout._addresses import resolved, shown_server
from waterspout._tls import TLS
from waterspout.errors import ConfigError, MissingDependencyError, OutageError, StoreError

__all__ = ["Address", "Session", "StoredNode", "Unanswered", "check_root", "require_library"]

log = logging.getLogger(__name__)

_PAUSE_S = 0.02

_GREETINGS = 4
"""How many connections at the least can wait in vain for a greeting before a session is over."""

_RESERVED = "/zookeeper"


def require_library() -> Any:
    """Return the client library, or say how to get it."""
    try:
        import kazoo.client
        import kazoo.exceptions
        import kazoo.handlers.threading
        import kazoo.retry
        import kazoo.security
    except ImportError as error:
        raise MissingDependencyError("kazoo", "zookeeper") from error
    return kazoo


class Unanswered(Exception):
    """Raised when a write was sent and it is not known whether it was carried out."""


class StoredNode(NamedTuple):
    """What a node held when it was read."""

    data: bytes
    version: int
    session_id: int


@dataclass(frozen=True, slots=True)
class Address:
    """Where the servers are, and how long they are waited for.

    `auth` is `user:password`, best as `${NAME}` from the environment; it is never shown.
    """

    servers: Sequence[str]
    port: int = 2181
    session_s: float = 10.0
    connect_s: float = 10.0
    operation_s: float = 30.0
    auth: str | None = field(default=None, repr=False)
    tls: TLS | None = None
    acl: Sequence[str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.servers, str) or not self.servers:
            raise ConfigError("the ZooKeeper servers are a list of host names, with one at least")
        for server in self.servers:
            host, _, port = self._with_port(server).rpartition(":")
            odd = not host or set(server) & set(",/@?# \t\r\n")
            if odd or not (port.isdecimal() and 1 <= int(port) <= 65535):
                raise ConfigError(
                    f"{shown_server(server)[:80]!r} is not the host name of a ZooKeeper server "
                    "(host, or host:port); a path is given as the root"
                )
        whole = [entry for entry in self.acl if set(entry.rpartition(":")[2]) == set("cdrwa")]
        if self.acl and not whole and self.auth is None:
            raise ConfigError(
                "zookeeper_acl lets nobody do everything (cdrwa), so that not even this driver "
                "could use what it creates. Add an entry for it, or give it a user with "
                "WATERSPOUT_ZOOKEEPER_AUTH."
            )
        for name in ("session_s", "connect_s", "operation_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a number > 0")

    @property
    def hosts(self) -> str:
        """The servers as one text, each with its port."""
        return ",".join(self._with_port(server) for server in self.servers)

    def _with_port(self, server: str) -> str:
        if server.count(":") > 1 and not server.startswith("["):
            server = f"[{server}]"  # an IPv6 address, which has no port of its own
        has_port = ":" in server.rpartition("]")[2]
        return server if has_port else f"{server}:{self.port}"

    def credentials(self) -> tuple[str, str] | None:
        """Return user and password as they are in the environment now."""
        if self.auth is None:
            return None
        try:
            user, colon, password = resolved(self.auth).partition(":")
        except ConfigError:
            # Not as it is: it would quote the rest, which may be the password.
            raise ConfigError(
                "the credentials for ZooKeeper name an environment variable that is not set here"
            ) from None
        if not (user and colon and password):
            raise ConfigError("the credentials for ZooKeeper are not of the form user:password")
        return user, password


class Session:
    """One client of ZooKeeper.

    Reads are repeated until they are answered. A write is sent once: if its answer is lost,
    `Unanswered` says so, and the caller has to look. Both give up after `operation_s`.
    """

    def __init__(self, address: Address) -> None:
        self._kazoo = kazoo = require_library()
        self._address = address
        credentials = address.credentials()
        security = kazoo.security
        mine = [] if credentials is None else [security.make_digest_acl(*credentials, all=True)]
        given = [_permissions(security, entry) for entry in address.acl]
        self._acl = self._root_acl = [*mine, *given] or security.OPEN_ACL_UNSAFE
        if mine and not given:
            # The root is for topologies of others too: they may add to it, and no more.
            others = security.make_acl("world", "anyone", read=True, create=True)
            self._root_acl = [*mine, others]
        forever = {"max_tries": -1, "delay": 0.05, "max_delay": 1.0}
        self._client = kazoo.client.KazooClient(
            hosts=_tried_in_time(address.hosts),
            timeout=address.session_s,
            auth_data=None if credentials is None else [("digest", ":".join(credentials))],
            default_acl=self._acl,
            connection_retry=kazoo.retry.KazooRetry(**forever),
            logger=_quiet(),
            **_tls_options(address.tls),
        )
        self._lost = (
            kazoo.exceptions.ConnectionLoss,
            kazoo.exceptions.OperationTimeoutError,
            kazoo.exceptions.SessionExpiredError,
            # Sent over a connection that the session has left since.
            kazoo.exceptions.SessionMovedError,
        )
        # What a transaction answers of which a condition was not met, step by step.
        self._unmet = (
            kazoo.exceptions.BadVersionError,
            kazoo.exceptions.NoNodeError,
            kazoo.exceptions.NodeExistsError,
            kazoo.exceptions.RolledBackError,
            kazoo.exceptions.RuntimeInconsistency,
        )
        self._timeout: type[Exception] = kazoo.handlers.threading.KazooTimeoutError
        try:
            self._client.start(timeout=address.connect_s)
        except (self._timeout, kazoo.exceptions.KazooException) as error:
            tls = " with these certificates" if address.tls is not None else ""
            raise OutageError(
                "zookeeper",
                f"no ZooKeeper answers at {address.hosts}{tls} within {address.connect_s:g} s. "
                "Start it, or set transactional.zookeeper.servers to where it is.",
            ) from error

    @property
    def session_id(self) -> int | None:
        """The id of the session; None while there is no connection."""
        found = self._client.client_id
        return None if found is None else int(found[0])

    def close(self) -> None:
        """End the session, and with it its ephemeral nodes, at once if a server can be reached."""
        # An error means that the connection is gone already: then the session runs out.
        with suppress(Exception):
            self._client.stop()
        with suppress(Exception):
            self._client.close()

    def get(self, path: str) -> StoredNode | None:
        """Read a node; None if there is none."""
        try:
            data, stat = self._repeated(lambda: self._client.get_async(path), path)
        except self._kazoo.exceptions.NoNodeError:
            return None
        return StoredNode(data or b"", stat.version, stat.ephemeralOwner)

    def children(self, path: str) -> list[str]:
        """Return the names of the nodes below one; none if it is not there."""
        try:
            found = self._repeated(lambda: self._client.get_children_async(path), path)
        except self._kazoo.exceptions.NoNodeError:
            return []
        return sorted(found)

    def catch_up(self, path: str) -> None:
        """Let the server that we read from catch up with the ensemble."""
        self._repeated(lambda: self._client.sync_async(path), path)

    def make_path(self, path: str) -> None:
        """Create a node and all above it, where they are not there."""
        names = path.strip("/").split("/")
        for depth in range(1, len(names) + 1):
            prefix = "/" + "/".join(names[:depth])
            if prefix != "/" and self.get(prefix) is None:
                with suppress(self._kazoo.exceptions.NodeExistsError):
                    self._repeated(
                        lambda: self._client.create_async(prefix, b"", self._root_acl),  # noqa: B023
                        prefix,
                    )

    def transact(self, path: str, build: Callable[[Any], None]) -> list[Any] | None:
        """Carry out one transaction, all or nothing; None if a condition of it was not met."""
        transaction = self._client.transaction()
        build(transaction)
        try:
            results = transaction.commit_async().get(timeout=self._address.operation_s)
        except (*self._lost, self._timeout) as error:
            log.warning("the answer to a write of %s to ZooKeeper was lost: %r", path, error)
            raise Unanswered from error
        except self._kazoo.exceptions.KazooException as error:
            self._fail(path, error)
        refusals = [result for result in results if isinstance(result, Exception)]
        for refusal in refusals:
            if not isinstance(refusal, self._unmet):
                self._fail(path, refusal)
        return None if refusals else list(results)

    def send(self, path: str, data: bytes) -> None:
        """Set a node, made if it is not there, without waiting; the answer may never come.

        What sets a node that is there is carried out before the session ends, however soon: one
        request, sent in order. To make one takes an answer and a second request.
        """

        def make(answer: Any) -> None:
            if isinstance(answer.exception, self._kazoo.exceptions.NoNodeError):
                self._client.create_async(path, data)

        self._client.set_async(path, data).rawlink(make)

    def put(self, path: str, data: bytes) -> None:
        """Set a node, made if it is not there, and wait until that is done."""
        deadline = time.monotonic() + self._address.operation_s
        steps: tuple[Callable[[Any], None], ...] = (
            lambda t: t.set_data(path, data),
            lambda t: t.create(path, data),
        )
        while True:
            # To set it once more, after an answer was lost, changes nothing.
            with suppress(Unanswered):
                if any(self.transact(path, step) is not None for step in steps):
                    return
            if time.monotonic() >= deadline:
                self.give_up(path)

    def _repeated(self, send: Callable[[], Any], path: str) -> Any:
        """Send a read, again and again over lost connections, and return the answer."""
        deadline = time.monotonic() + self._address.operation_s
        told = False
        while True:
            try:
                # While there is no connection, it waits in the client's queue.
                return send().get(timeout=max(0.0, deadline - time.monotonic()))
            except self._lost as error:
                if not told:
                    log.warning("lost the connection to ZooKeeper (%r); waiting for it", error)
                    told = True
                if time.monotonic() >= deadline:
                    self.give_up(path, error)
                time.sleep(_PAUSE_S)
            except self._timeout as error:
                self.give_up(path, error)
            except (
                self._kazoo.exceptions.NoNodeError,
                self._kazoo.exceptions.NodeExistsError,
            ):
                raise
            except self._kazoo.exceptions.KazooException as error:
                self._fail(path, error)

    def give_up(self, path: str, error: BaseException | None = None) -> NoReturn:
        """Raise that the servers have been silent for too long."""
        raise OutageError(
            "zookeeper",
            f"ZooKeeper at {self._address.hosts} has not answered for "
            f"{self._address.operation_s:g} s, asked about {path}. Nothing that was stored is "
            "lost; once it answers, the same command goes on.",
        ) from error

    def _fail(self, path: str, error: Exception) -> NoReturn:
        if isinstance(error, self._kazoo.exceptions.NoAuthError):
            raise StoreError(
                f"ZooKeeper at {self._address.hosts} does not let us use {path}: it belongs to "
                "another user. Give the user and password that it was created with."
            ) from error
        raise StoreError(
            f"ZooKeeper at {self._address.hosts} refused what was asked about {path}: {error!r}"
        ) from error


def _tried_in_time(hosts: str) -> str:
    """Return servers as the client takes them: a single one several times.

    The client waits for a greeting as long as a session lasts, divided by the number of servers. A
    server that is just starting may take a connection and never greet, and with one server the
    whole session would run out over that.

    >>> _tried_in_time("a:1"), _tried_in_time("a:1,b:1,c:1")
    ('a:1,a:1,a:1,a:1', 'a:1,b:1,c:1,a:1,b:1,c:1')
    """
    servers = hosts.split(",")
    return ",".join(servers * -(-_GREETINGS // len(servers)))


def _permissions(security: Any, entry: str) -> Any:
    """Return an entry as the client takes it, from zkCli's `scheme:id:permissions`."""
    who, _, letters = entry.rpartition(":")
    scheme, _, name = who.partition(":")
    names = {"c": "create", "d": "delete", "r": "read", "w": "write", "a": "admin"}
    return security.make_acl(scheme, name, **{names[letter]: True for letter in letters})


def _tls_options(tls: TLS | None) -> dict[str, Any]:
    if tls is None:
        return {}
    tls.context()  # which says what is wrong with the files; the client would only try again
    files = {"ca": tls.ca, "certfile": tls.cert, "keyfile": tls.key or tls.cert}
    plain = {name: None if file is None else resolved(file) for name, file in files.items()}
    return {"use_ssl": True, "check_hostname": tls.check_hostname, **plain}


def _quiet() -> logging.Logger:
    """Return a logger for the client that passes on errors only, whatever is configured.

    At a lower level it writes every request, the password and the data included.
    """
    logger = logging.Logger("kazoo", logging.ERROR)
    logger.parent = log
    return logger


def check_root(root: str, topology: str) -> str:
    """Return the node of a topology; refuse a root that cannot be one."""
    names = [] if root == "/" else root.removesuffix("/").split("/")[1:]
    bad = any(n in ("", ".", "..") or not n.isprintable() for n in names)
    if not root.startswith("/") or bad:
        raise ConfigError(
            f"{root[:200]!r} cannot be the root in ZooKeeper; expected a path such as "
            "/transactional"
        )
    path = "/" + "/".join([*names, topology])
    if f"{path}/".startswith(f"{_RESERVED}/"):
        raise ConfigError(f"{path} is ZooKeeper's own; choose another root")
    return path
