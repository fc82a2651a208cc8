"""Many commands to a memcached server in one round trip, and what to do when its answer is lost.

pymemcache opens the connections. It sends one `cas` at a time, so the pipeline is ours.
"""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple, TypeVar

from waterspout._addresses import Secrets, resolved
from waterspout._connections import Connections
from waterspout._tls import TLS
from waterspout.errors import OutageError, StoreError

__all__ = ["Command", "Item", "Server"]

T = TypeVar("T")

_GET_KEYS = 1_000
_STORE_COMMANDS = 1_000
_STORE_BYTES = 1 << 20
_IDLE_MAX = 64
_BUFFER_BYTES = 1 << 16
_SMALL_ITEM_BYTES = 900  # no server has a lower limit than 1024, of which the key is a part
_ITEM_OVERHEAD_BYTES = 100  # what memcached adds to an item, and a little more
_CONFLICTS = frozenset({b"NOT_STORED", b"EXISTS", b"NOT_FOUND"})


class Item(NamedTuple):
    """What a server holds under a name; the token changes with every write."""

    data: bytes
    flags: int
    token: bytes


class Command(NamedTuple):
    """One write: `set`, `add` (if there is nothing) or `cas` (if the token is still this)."""

    verb: str
    name: bytes
    data: bytes
    token: bytes = b""
    expire: int = 0

    def to_wire(self, flags: int) -> bytes:
        """Return the command as the server reads it."""
        token = b" " + self.token if self.token else b""
        verb = self.verb.encode()
        head = b"%b %b %d %d %d%b" % (verb, self.name, flags, self.expire, len(self.data), token)
        return b"%b\r\n%b\r\n" % (head, self.data)


class _LostError(Exception):
    """The connection ended before all answers came."""

    def __init__(self, cause: Exception, answers: list[bytes]) -> None:
        super().__init__(str(cause) or type(cause).__name__)
        self.answers = answers


class _MemcachedLink:
    """One connection; after any error it is closed, never used again."""

    def __init__(self, client: Any, credentials: tuple[str, str] | None) -> None:
        if credentials is not None:
            _log_in(client, *credentials)
        client.version()  # opens the connection, and sees who is there
        self._client = client
        self._sock: socket.socket = client.sock
        self._answers: BinaryIO = self._sock.makefile("rb", buffering=_BUFFER_BYTES)

    def fileno(self) -> int:
        return self._sock.fileno()

    def ask(self, request: bytes, read: Callable[[BinaryIO], T]) -> T:
        self._sock.sendall(request)
        return read(self._answers)

    def close(self) -> None:
        with suppress(OSError):
            self._answers.close()
        self._client.close()


@dataclass(frozen=True, slots=True)
class Server:
    """One memcached server, and how long to wait for a connection and for each answer.

    Its connections are shared by all states of this process.
    """

    host: str
    port: int
    connect_secs: float
    answer_secs: float
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TLS | None = None

    @property
    def name(self) -> str:
        """What errors call the server."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def gets(self, names: Sequence[bytes]) -> dict[bytes, Item]:
        """Return the items there are under these names."""
        found: dict[bytes, Item] = {}
        for start in range(0, len(names), _GET_KEYS):
            request = b"gets %b\r\n" % b" ".join(names[start : start + _GET_KEYS])
            found |= self._read(request, _read_items)
        return found

    def touch(self, name: bytes) -> bool:
        """Move an item to the end of the queue for eviction; tell whether it is there."""
        answer = self._read(b"touch %b 0\r\n" % name, _read_line)
        if answer not in (b"TOUCHED", b"NOT_FOUND"):
            raise self._refusal(answer, name)
        return answer == b"TOUCHED"

    def item_limit(self) -> int:
        """Return how many bytes name and data of one item may have."""
        limit = _item_limits.get((self.host, self.port))
        if limit is None:
            size = self._read(b"stats settings\r\n", _read_stats).get(b"item_size_max", b"1048576")
            limit = int(size) - _ITEM_OVERHEAD_BYTES
            _item_limits[self.host, self.port] = limit
        return limit

    def evicts(self) -> bool:
        """Whether the server throws items away when its memory is full, instead of refusing."""
        return self._read(b"stats settings\r\n", _read_stats).get(b"evictions") != b"off"

    def refuse_large(self, commands: Sequence[Command]) -> Command | None:
        """Return a command whose item the server would not take, if there is one."""
        if all(len(c.data) + len(c.name) <= _SMALL_ITEM_BYTES for c in commands):
            return None
        limit = self.item_limit()
        return next((c for c in commands if len(c.data) + len(c.name) > limit), None)

    def store(self, commands: Sequence[Command]) -> list[bool]:
        """Carry out all commands and tell which have stored their item.

        Where the connection ends before the answer comes, the command is sent once more. That
        is harmless: the token of a `cas` is spent when it was carried out, and an `add` finds
        its own item. Whose item it is can be told by the flags, which no other writer has.
        """
        # Only the upper bits: some clients read the type of an item in the lower ones.
        mark = random.getrandbits(16) << 16
        done: list[bool] = []
        for chunk in _chunks(commands):
            done += self._store_chunk(chunk, mark)
        return done

    def _store_chunk(self, chunk: Sequence[Command], mark: int) -> list[bool]:
        request = [command.to_wire(mark) for command in chunk]
        try:
            answers = self._send(request)
        except _LostError as lost:
            answers = lost.answers
            rest = chunk[len(answers) :]
            try:
                again = self._send(request[len(answers) :])
            except _LostError as error:
                raise self._unreachable(error) from error
            answers = answers + self._judged(rest, again, mark)
        for command, answer in zip(chunk, answers, strict=True):
            if answer != b"STORED" and answer not in _CONFLICTS:
                raise self._refusal(answer, command.name)
        return [answer == b"STORED" for answer in answers]

    def _judged(
        self, commands: Sequence[Command], answers: Sequence[bytes], mark: int
    ) -> list[bytes]:
        """Return the true answers to commands that were sent twice."""
        judged = list(answers)
        doubtful = [i for i, answer in enumerate(answers) if answer in _CONFLICTS]
        found = self.gets([commands[i].name for i in doubtful])
        for i in doubtful:
            command, item = commands[i], found.get(commands[i].name)
            if item is None or (item.data, item.flags) != (command.data, mark):
                raise StoreError(
                    f"memcached server {self.name}: the connection ended during a write of "
                    f"{_shown(command.name)}, which someone else has written too; it cannot be "
                    "known whether this write was carried out before that"
                )
            judged[i] = b"STORED"
        return judged

    def _read(self, request: bytes, read: Callable[[BinaryIO], T]) -> T:
        try:
            return self._ask(request, read)
        except _LostError:
            try:
                return self._ask(request, read)
            except _LostError as error:
                raise self._unreachable(error) from error

    def _send(self, request: Sequence[bytes]) -> list[bytes]:
        answers: list[bytes] = []

        def read(stream: BinaryIO) -> list[bytes]:
            for _ in request:
                line = _read_line(stream)
                answers.append(line)
            return answers

        return self._ask(b"".join(request), read, answers)

    def _ask(
        self, request: bytes, read: Callable[[BinaryIO], T], so_far: list[bytes] | None = None
    ) -> T:
        link = _idle.take(self) or self._connect()
        try:
            answer = link.ask(request, read)
        except (OSError, ValueError) as error:
            link.close()
            raise _LostError(error, so_far or []) from error
        except BaseException:
            link.close()
            raise
        _idle.give(self, link)
        return answer

    def _connect(self) -> _MemcachedLink:
        from pymemcache.client.base import Client
        from pymemcache.exceptions import MemcacheError

        credentials = None
        if self.username is not None:
            credentials = resolved(self.username), resolved(self.password or "")
        failure: Exception | None = None
        try:
            # pymemcache would try only the first of the addresses of a name.
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            for address in dict.fromkeys(str(entry[4][0]) for entry in found):
                client = Client(
                    (address, self.port),
                    connect_timeout=self.connect_secs,
                    timeout=self.answer_secs,
                    no_delay=True,
                    tls_context=None if self.tls is None else _NamedContext(self.tls, self.host),
                )
                try:
                    return _MemcachedLink(client, credentials)
                except (OSError, MemcacheError) as error:
                    client.close()
                    failure = error
        except OSError as error:
            failure = error
        raise self._unreachable(failure) from failure

    def _unreachable(self, error: Exception | None) -> StoreError:
        said = Secrets.of(words=(self.password,)).hidden(str(error)) or type(error).__name__
        text = (
            f"memcached server {self.name} cannot be used: {said}. Is it running, and are the "
            "address, the password and tls right? No other server stands in for it."
        )
        return StoreError(text) if _is_refusal(error) else OutageError("memcached", text)

    def _refusal(self, answer: bytes, name: bytes) -> StoreError:
        said = answer.decode("ascii", "replace")
        return StoreError(f"memcached server {self.name} refused {_shown(name)}: {said}")


class _NamedContext:
    """A TLS context for a server whose address was looked up: its certificate has its name."""

    def __init__(self, tls: TLS, host: str) -> None:
        self._context = tls.context()
        self._host = host

    def wrap_socket(self, sock: socket.socket, server_hostname: str) -> socket.socket:
        return self._context.wrap_socket(sock, server_hostname=self._host)


def _log_in(client: Any, username: str, password: str) -> None:
    """Say who we are, as a text server (`-Y`) wants it: as the value of the first key that is set.

    What such a server does not like it answers as it does any other command.
    """
    from pymemcache.exceptions import MemcacheError

    said = f"{username} {password}"
    if not said.isascii() or not said.isprintable() or " " in username:
        raise StoreError("a user name and a password for memcached are printable ASCII")
    try:
        client.set("auth", said, noreply=False)
    except MemcacheError:
        # Not chained: it may quote what was sent.
        raise PermissionError("it does not let us in with this user name and password") from None


_idle: Connections[Server, _MemcachedLink] = Connections(
    _MemcachedLink.close, idle_max=_IDLE_MAX, socket_of=_MemcachedLink.fileno
)
_item_limits: dict[tuple[str, int], int] = {}


def _is_refusal(error: Exception | None) -> bool:
    """Whether a server is there and does not want us, or is another than the one we want."""
    return isinstance(error, PermissionError | ssl.SSLError)


def _chunks(commands: Sequence[Command]) -> Iterator[Sequence[Command]]:
    # Many answers that nobody reads yet would in the end stop a server from reading requests.
    start = size = 0
    for i, command in enumerate(commands):
        if i > start and (i - start >= _STORE_COMMANDS or size > _STORE_BYTES):
            yield commands[start:i]
            start, size = i, 0
        size += len(command.data)
    if start < len(commands):
        yield commands[start:]


def _read_line(stream: BinaryIO) -> bytes:
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("the server closed the connection")
    return line[:-2]


def _read_items(stream: BinaryIO) -> dict[bytes, Item]:
    items: dict[bytes, Item] = {}
    while (line := _read_line(stream)) != b"END":
        _, name, flags, size, token = _value_parts(line)
        length = int(size)
        data = stream.read(length + 2)
        if len(data) != length + 2:
            raise ConnectionError("the server closed the connection")
        items[name] = Item(data[:-2], int(flags), token)
    return items


def _value_parts(line: bytes) -> list[bytes]:
    parts = line.split(b" ")
    if len(parts) != 5 or parts[0] != b"VALUE":
        raise _nonsense(line)
    return parts


def _read_stats(stream: BinaryIO) -> dict[bytes, bytes]:
    stats: dict[bytes, bytes] = {}
    while (line := _read_line(stream)) != b"END":
        _, _, stat = line.partition(b" ")
        name, _, value = stat.partition(b" ")
        if not line.startswith(b"STAT "):
            raise _nonsense(line)
        stats[name] = value
    return stats


def _nonsense(line: bytes) -> StoreError:
    return StoreError(f"a memcached server answers {line[:200].decode('ascii', 'replace')!r}")


def _shown(name: bytes) -> str:
    return repr(name.decode("ascii", "replace"))
