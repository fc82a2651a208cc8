"""What a process has open: kept for whoever needs it next, and never shared with a fork.

**Threads.** Every method here may be called by any thread. A connection that was taken belongs
to its taker until it is given back. A shared one is used by all threads at once, so its library
must allow that.

**Processes.** A forked child starts with nothing. It neither uses what its parent has open nor
says goodbye on it: its own copies of those sockets are closed, and the parent's stay as they are.

**The end.** What is idle or shared is closed when the process exits.
"""

from __future__ import annotations

import atexit
import os
import select
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

__all__ = ["Connections", "PerProcess"]

T = TypeVar("T")
A = TypeVar("A", bound=Hashable)
C = TypeVar("C")


class PerProcess(Generic[T]):
    """One value for each process: a forked child makes its own when it first asks.

    `leave` is called in the child with the value of its parent. Without a lock: some thread of
    the parent might hold it while the child is forked, and then nobody would ever release it.
    """

    def __init__(self, make: Callable[[], T], leave: Callable[[T], None] | None = None) -> None:
        self._make = make
        self._leave = leave
        self._values: dict[int, T] = {}

    def get(self) -> T:
        """Return the value of this process."""
        pid = os.getpid()
        value = self._values.get(pid)
        if value is None:
            mine = self._make()
            value = self._values.setdefault(pid, mine)
            if value is mine and self._leave is not None:
                for inherited in [v for key, v in list(self._values.items()) if key != pid]:
                    self._leave(inherited)
        return value


class _Kept(Generic[A, C]):
    """The connections of one process with their addresses, the last used last."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.items: list[tuple[A, C]] = []


class Connections(Generic[A, C]):
    """The connections of this process by address; an address includes the options.

    A store uses either `take` and `give` (one user at a time) or `shared` (all at once).

    Args:
        close: Closes a connection. What it raises is ignored: the connection may be half dead.
        idle_max: How many idle connections are kept; the one used longest ago goes first.
        socket_of: Returns the socket's file descriptor, so that a forked child can close its copy,
            and one that the server has closed is not handed out. Without it the child keeps the
            copy open, untouched: a destructor might say goodbye.
    """

    def __init__(
        self,
        close: Callable[[C], object],
        *,
        idle_max: int | None = None,
        socket_of: Callable[[C], int] | None = None,
    ) -> None:
        self._close = close
        self._idle_max = idle_max
        self._socket_of = socket_of
        self._kept: PerProcess[_Kept[A, C]] = PerProcess(_Kept, self._leave)
        atexit.register(self.close)

    def take(self, address: A) -> C | None:
        """Hand out the idle connection that was used last, if one is still alive."""
        kept = self._kept.get()
        while True:
            with kept.lock:
                found = [i for i, (at, _) in enumerate(kept.items) if at == address]
                if not found:
                    return None
                _, connection = kept.items.pop(found[-1])
            if self._is_alive(connection):
                return connection
            self._end(connection)

    def give(self, address: A, connection: C) -> None:
        """Take back a connection that may be handed out again."""
        kept = self._kept.get()
        spare: list[tuple[A, C]] = []
        with kept.lock:
            kept.items.append((address, connection))
            if self._idle_max is not None and len(kept.items) > self._idle_max:
                spare = [kept.items.pop(0)]
        for _, oldest in spare:
            self._end(oldest)

    def shared(self, address: A, connect: Callable[[], C]) -> C:
        """Return the one connection to an address, opening it if there is none."""
        kept = self._kept.get()
        with kept.lock:
            for at, connection in kept.items:
                if at == address:
                    return connection
            connection = connect()
            kept.items.append((address, connection))
            return connection

    def discard(self, connection: C) -> None:
        """Close a shared connection that is of no use any more; nobody is given it again."""
        kept = self._kept.get()
        with kept.lock:
            kept.items = [item for item in kept.items if item[1] is not connection]
        self._end(connection)

    def close(self, address: A | None = None) -> None:
        """Close what is idle or shared, of one address or of all."""
        kept = self._kept.get()
        with kept.lock:
            ended = [c for at, c in kept.items if address is None or at == address]
            kept.items = [(at, c) for at, c in kept.items if address not in (None, at)]
        for connection in ended:
            self._end(connection)

    def _is_alive(self, connection: C) -> bool:
        """Tell whether an idle connection is still open, without asking the server.

        It has nothing to say to an idle client but goodbye.
        """
        if self._socket_of is None:
            return True
        poll = select.poll()
        try:
            poll.register(self._socket_of(connection), select.POLLIN)
        except Exception:  # of whichever library: it is closed
            return False
        return not poll.poll(0)

    def _end(self, connection: C) -> None:
        with suppress(Exception):
            self._close(connection)

    def _leave(self, inherited: _Kept[A, C]) -> None:
        if self._socket_of is None:
            return  # they stay where they are, so that nothing collects them
        items, inherited.items = inherited.items, []
        for _, connection in items:
            with suppress(Exception), open(os.devnull, "r+b") as nowhere:
                # In place of the socket: what `close` sends now reaches nobody.
                os.dup2(nowhere.fileno(), self._socket_of(connection))
            self._end(connection)
