"""A TCP proxy that injects faults of the network in front of a real server."""

from __future__ import annotations

import errno
import math
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from typing import Literal, TypeVar

__all__ = ["FaultProxy"]

T = TypeVar("T")

READ_BYTES = 64 * 1024
# What one direction holds back before it stops reading, as a socket with full buffers does.
HELD_BYTES_MAX = 8 * 1024 * 1024
SLICES_PER_SECOND = 20
ANSWER_TIMEOUT_S = 30.0


class FaultProxy(AbstractContextManager["FaultProxy"]):
    """Stand in front of a server on the loopback, and lose what a network may lose.

    The proxy serves from its construction until `close`. It knows no protocol: a request is what
    a client sends after it was sent a reply, whether one command or a pipeline. Faults are armed
    one by one, each strikes once, and the first armed strikes first.

    All that happens is done by one thread. Methods and counters return when it has taken notice
    of everything that clients had sent before, so that a client that has its reply finds it
    counted.

    Args:
        host: Where the real server listens.
        port: Where the real server listens.
        quiet_s: A reply that must not pass is over when the server has said something and then
            nothing for so long. Only a pipeline, answered in parts, needs more than a moment.
    """

    def __init__(self, host: str, port: int, *, quiet_s: float = 0.05) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._family, self._target = found[0], found[4]
        self._quiet_s = quiet_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        address = self._listener.getsockname()
        self.address: tuple[str, int] = (str(address[0]), int(address[1]))
        self._links: list[_Link] = []
        self._armed: list[_Fault] = []
        self._counts: Counter[str] = Counter()
        self._refusing = self._hanging = self._closed = False
        self._delay_s = 0.0
        self._bytes_per_second: float | None = None
        self._asked: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._bell, self._ear = socket.socketpair()
        self._ear.setblocking(False)
        self._selector = DefaultSelector()
        self._selector.register(self._listener, EVENT_READ)
        self._selector.register(self._ear, EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="fault-proxy", daemon=True)
        self._thread.start()

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        """Where clients find the proxy, on 127.0.0.1."""
        return self.address[1]

    @property
    def connections(self) -> int:
        """How many connections were accepted and not refused."""
        return self._ask(lambda: self._counts["connections"])

    @property
    def requests(self) -> int:
        """How many times a client spoke after a reply: the round trips.

        A client that still sends one pipeline while the first replies to it arrive may be
        counted more than once; requests without a reply are counted with the one after them.
        """
        return self._ask(lambda: self._counts["requests"])

    @property
    def bytes_up(self) -> int:
        """How many bytes were passed to the server."""
        return self._ask(lambda: self._counts["bytes_up"])

    @property
    def bytes_down(self) -> int:
        """How many bytes were passed to clients."""
        return self._ask(lambda: self._counts["bytes_down"])

    @property
    def dropped(self) -> int:
        """How many requests and replies were lost by a fault that was armed for them."""
        return self._ask(lambda: self._counts["dropped"])

    def cut(self) -> None:
        """End all connections there are; new ones are served."""
        self._ask(self._sever_all)

    def refuse(self, refusing: bool = True) -> None:
        """Close new connections at once, until told otherwise; old ones go on."""
        self._ask(lambda: setattr(self, "_refusing", refusing))

    def hang(self, hanging: bool = True) -> None:
        """Pass nothing and end nothing, until told otherwise; then what was held back passes."""
        self._ask(lambda: setattr(self, "_hanging", hanging))

    def delay(self, seconds: float) -> None:
        """Let each byte of a reply arrive so much later, from now on; 0 ends it."""
        self._ask(lambda: setattr(self, "_delay_s", seconds))

    def throttle(self, bytes_per_second: float | None) -> None:
        """Limit each direction of each connection, from now on; None ends it."""
        if bytes_per_second is not None and bytes_per_second <= 0:
            raise ValueError(f"no speed: {bytes_per_second} bytes per second; `hang` stops all")
        self._ask(lambda: setattr(self, "_bytes_per_second", bytes_per_second))

    def drop_next_request(self, matching: bytes | None = None) -> None:
        """Cut a connection when the next request comes, before the server has it.

        Args:
            matching: Strike where a request contains these bytes; None: at the next, whatever
                it is. What came before them may reach the server, in which case it has the
                beginning of a request and never the rest.
        """
        self._ask(lambda: self._armed.append(_Fault("request", matching, 0)))

    def drop_next_reply(self, matching: bytes | None = None) -> None:
        """Let the next request be carried out, and cut its connection instead of replying.

        The acknowledgement is lost: the cut comes after the server did answer, and not a byte of
        the answer passes. With `matching`, the next request that contains these bytes.
        """
        self._ask(lambda: self._armed.append(_Fault("reply", matching, 0)))

    def cut_reply_after(self, n: int, matching: bytes | None = None) -> None:
        """Pass `n` bytes of the reply to the next request, then cut its connection.

        A reply that is shorter passes whole, and the fault is spent.
        """
        if n < 1:
            raise ValueError(f"{n} bytes are no part of a reply; `drop_next_reply` loses it all")
        self._ask(lambda: self._armed.append(_Fault("reply", matching, n)))

    def close(self) -> None:
        """End all connections and stop listening. May be called again."""
        if not self._closed:
            self._ask(lambda: setattr(self, "_closed", True))
            self._thread.join(ANSWER_TIMEOUT_S)

    def _ask(self, act: Callable[[], T]) -> T:
        """Let the thread of the proxy do something, and wait for it."""
        if self._closed:
            return act()
        answer: Future[T] = Future()
        self._asked.put(lambda: answer.set_result(act()))
        try:
            self._bell.send(b"!")
        except OSError:  # closed meanwhile: nobody is there to do it but us
            return act()
        return answer.result(ANSWER_TIMEOUT_S)

    def _serve(self) -> None:
        try:
            while not self._closed:
                self._selector.select(self._patience())
                with suppress(BlockingIOError):
                    self._ear.recv(READ_BYTES)
                # Taken first, carried out last: what clients did before a question comes before.
                asked = self._questions()
                self._accept()
                self._pump()
                for act in asked:
                    act()
                if asked:
                    self._pump()
                self._listen_to_links()
        finally:
            self._closed = True
            self._sever_all()
            self._selector.close()
            for end in (self._listener, self._bell, self._ear):
                end.close()
            for act in self._questions():
                act()

    def _questions(self) -> list[Callable[[], None]]:
        return [self._asked.get() for _ in range(self._asked.qsize())]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # gone before it was accepted
                continue
            if self._refusing:
                _end(client)
                continue
            server = socket.socket(self._family, socket.SOCK_STREAM)
            for end in (client, server):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = _Link(_Pipe(client, server), _Pipe(server, client))
            self._links.append(link)
            self._counts["connections"] += 1
            if server.connect_ex(self._target) not in (0, errno.EINPROGRESS):
                self._sever(link)

    def _pump(self) -> None:
        if self._hanging:
            return
        now = time.monotonic()
        for link in list(self._links):
            try:
                self._move(link, now)
            except OSError:
                self._sever(link)

    def _move(self, link: _Link, now: float) -> None:
        """Do all that can be done for a connection without waiting."""
        self._read_requests(link, now)
        self._read_replies(link, now)
        if not link.severed:
            self._counts["bytes_up"] += self._write(link.up, now)
        if link.down.due_at() <= now:
            # What a client sent before it can see this reply does not follow the reply.
            self._read_requests(link, now)
            if not link.severed and (passed := self._write(link.down, now)):
                self._counts["bytes_down"] += passed
                link.speaking = False
        if not link.severed:
            self._finish(link, now)

    def _read_requests(self, link: _Link, now: float) -> None:
        while not link.severed and (data := link.up.read()):
            if not link.speaking:
                link.speaking = True
                link.fault = None  # a reply too short for it
                self._counts["requests"] += 1
            fault = link.fault or self._struck(link, data)
            if fault is not None and fault.kind == "request":
                self._counts["dropped"] += 1
                self._sever(link)
                return
            if link.fault is None and fault is not None:
                link.fault, link.passing, link.answered_at = fault, fault.passing, None
            elif link.answered_at is not None:
                link.answered_at = now
            link.up.hold(data, now)

    def _struck(self, link: _Link, data: bytes) -> _Fault | None:
        """Return the first armed fault that this piece of a request sets off; disarm it."""
        for fault in self._armed:
            if fault.is_set_off(link, data):
                self._armed.remove(fault)
                return fault
        return None

    def _read_replies(self, link: _Link, now: float) -> None:
        while not link.severed and (data := link.down.read()):
            if link.fault is not None:
                link.answered_at = now
                data, link.passing = data[: link.passing], max(0, link.passing - len(data))
            if data:
                link.down.hold(data, now + self._delay_s)

    def _write(self, pipe: _Pipe, now: float) -> int:
        passed = 0
        while pipe.due_at() <= now:
            rate = self._bytes_per_second
            sent = pipe.write(None if rate is None else math.ceil(rate / SLICES_PER_SECOND))
            if not sent:
                break
            passed += sent
            if rate is not None:
                pipe.free_at = now + sent / rate
        return passed

    def _finish(self, link: _Link, now: float) -> None:
        """Let a fault take its course, and pass on that a side has nothing more to say."""
        if link.fault is not None:
            passed = link.fault.passing > 0 and link.passing == 0 and not link.down.held
            if passed or link.down.ended or link.quiet_at(self._quiet_s) <= now:
                self._counts["dropped"] += link.fault.passing > 0
                self._sever(link)
            return
        for pipe in (link.up, link.down):
            if pipe.ended and not pipe.held and not pipe.shut:
                pipe.shut = True
                pipe.sink.shutdown(socket.SHUT_WR)
        if link.up.shut and link.down.shut:
            self._sever(link)

    def _sever_all(self) -> None:
        for link in list(self._links):
            self._sever(link)

    def _sever(self, link: _Link) -> None:
        if link.severed:
            return
        link.severed = True
        self._links.remove(link)
        if link.fault is not None and not link.fault.passing:
            # However the connection came to its end, this reply will never arrive.
            self._counts["dropped"] += 1
        for end in (link.up.source, link.down.source):
            self._listen(end, 0)
            _end(end)

    def _listen_to_links(self) -> None:
        for link in self._links:
            for source, sink in ((link.up, link.down), (link.down, link.up)):
                reads = EVENT_READ if source.reads and not self._hanging else 0
                writes = EVENT_WRITE if sink.blocked and not self._hanging else 0
                self._listen(source.source, reads | writes)

    def _listen(self, end: socket.socket, events: int) -> None:
        key = self._selector.get_map().get(end)
        if key is None:
            if events:
                self._selector.register(end, events)
        elif not events:
            self._selector.unregister(end)
        elif key.events != events:
            self._selector.modify(end, events)

    def _patience(self) -> float | None:
        """How long nothing will be due, if nobody says anything."""
        if self._hanging:
            return None
        due = math.inf
        for link in self._links:
            due = min(due, link.up.wakes_at(), link.down.wakes_at(), link.quiet_at(self._quiet_s))
        return None if due == math.inf else max(0.0, due - time.monotonic())


@dataclass(eq=False)
class _Pipe:
    """One direction of a connection, and what of it is held back."""

    source: socket.socket
    sink: socket.socket
    held: deque[tuple[float, bytes]] = field(default_factory=deque)
    size: int = 0
    free_at: float = 0.0
    blocked: bool = False
    ended: bool = False
    shut: bool = False

    @property
    def reads(self) -> bool:
        return not self.ended and self.size < HELD_BYTES_MAX

    def read(self) -> bytes:
        """Return what has come; nothing if nothing has, or no more will, or too much is held."""
        if not self.reads:
            return b""
        try:
            data = self.source.recv(READ_BYTES)
        except BlockingIOError:
            return b""
        self.ended = not data
        return data

    def hold(self, data: bytes, due_at: float) -> None:
        self.held.append((due_at, data))
        self.size += len(data)

    def write(self, limit: int | None) -> int:
        """Pass on some of what is held; return how many bytes went, 0 if none can go now."""
        due_at, data = self.held.popleft()
        try:
            sent = self.sink.send(data[:limit])
            self.blocked = False
        except BlockingIOError:
            sent, self.blocked = 0, True
        if sent < len(data):
            self.held.appendleft((due_at, data[sent:]))
        self.size -= sent
        return sent

    def due_at(self) -> float:
        """When the next byte may go; never, if there is none."""
        return max(self.held[0][0], self.free_at) if self.held else math.inf

    def wakes_at(self) -> float:
        """When to look again, other than when a socket has something to say."""
        return math.inf if self.blocked else self.due_at()


@dataclass(eq=False)
class _Fault:
    """A fault that waits for its request."""

    kind: Literal["request", "reply"]
    matching: bytes | None
    passing: int
    tails: dict[_Link, bytes] = field(default_factory=dict)

    def is_set_off(self, link: _Link, data: bytes) -> bool:
        """Tell whether a piece of a request completes the bytes that are looked for."""
        if not self.matching:
            return True
        seen = self.tails.get(link, b"") + data
        self.tails[link] = seen[max(0, len(seen) - len(self.matching) + 1) :]
        return self.matching in seen


@dataclass(eq=False)
class _Link:
    """A client's connection, and the one to the server that belongs to it."""

    up: _Pipe
    down: _Pipe
    speaking: bool = False
    severed: bool = False
    # The fault that its present reply will suffer, and how much of the reply may still pass.
    fault: _Fault | None = None
    passing: int = 0
    answered_at: float | None = None

    def quiet_at(self, quiet_s: float) -> float:
        """When a reply that is lost whole may be taken to be over; never, if there is none."""
        if self.fault is None or self.fault.passing or self.answered_at is None or self.up.held:
            return math.inf
        return self.answered_at + quiet_s


def _end(end: socket.socket) -> None:
    # A plain close says nothing to the peer while another thread or process holds the socket.
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
