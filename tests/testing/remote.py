"""A tiny server of maps, and a store that is its client: what the kit's network suite tries."""

from __future__ import annotations

import pickle
import socket
import socketserver
import struct
import threading
from itertools import count

from waterspout.errors import FencedError, StoreError, WaterspoutError
from waterspout.state._base import FencedMap
from waterspout.state._memory import MemoryMap


class MapServer:
    """Serve memory maps by name on the loopback; for tests, so pickles will do."""

    def __init__(self):
        self._maps, self._lock, server = {}, threading.Lock(), self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                while (request := receive(self.request)) is not None:
                    name, method, args = request
                    send(self.request, server.answer(name, method, args))

        socketserver.ThreadingTCPServer.daemon_threads = True
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.address = self._server.server_address
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()

    def answer(self, name, method, args):
        with self._lock:
            backing = self._maps.setdefault(name, MemoryMap())
            try:
                found = getattr(backing, method)(*args)
                return True, list(found) if method == "scan" else found
            except WaterspoutError as error:
                return False, error

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class RemoteMap(FencedMap):
    """A map on the server; one connection, opened when it is needed and dropped when it fails."""

    names = count()

    def __init__(self, port, name=None):
        self._port, self.name, self._socket = port, name or next(self.names), None

    def ask(self, method, *args):
        try:
            if self._socket is None:
                self._socket = socket.create_connection(("127.0.0.1", self._port), timeout=10)
            send(self._socket, (self.name, method, args))
            answer = receive(self._socket)
            if answer is None:
                raise ConnectionResetError("the server has gone")
        except OSError as error:
            self.drop()
            raise StoreError(f"the server cannot be reached: {error}") from error
        done, found = answer
        if not done:
            raise found
        return found

    def multi_get(self, keys):
        return self.ask("multi_get", keys)

    def multi_put(self, keys, values):
        self.ask("multi_put", keys, values)

    def read_head(self):
        return self.ask("read_head")

    def move_head(self, expected, new):
        self.ask("move_head", expected, new)

    def fenced_put(self, stamp, keys, values, read=None):
        self.ask("fenced_put", stamp, keys, values)

    def multi_compare_and_put(self, keys, read, values):
        return self.ask("multi_compare_and_put", keys, read, values)

    def scan(self, shard=0, shards=1):
        yield from self.ask("scan", shard, shards)

    def drop(self):
        """Give up a connection that is of no use any more."""
        self.close()

    def close(self):
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Deaf(RemoteMap):
    """Takes a write whose answer does not come for done."""

    def fenced_put(self, stamp, keys, values, read=None):
        try:
            super().fenced_put(stamp, keys, values)
        except StoreError:
            return


class Stubborn(RemoteMap):
    """Moves the head again when the answer does not come, and takes the refusal for an answer."""

    def move_head(self, expected, new):
        try:
            super().move_head(expected, new)
        except StoreError:
            super().move_head(expected, new)


class Clinging(RemoteMap):
    """Keeps a connection that is dead."""

    def drop(self):
        pass


class Blunt(RemoteMap):
    """Lets the errors of its client library through."""

    def ask(self, method, *args):
        try:
            return super().ask(method, *args)
        except FencedError:
            raise
        except StoreError as error:
            raise error.__cause__ or error from None


def send(end, value):
    data = pickle.dumps(value)
    end.sendall(struct.pack(">I", len(data)) + data)


def receive(end):
    """Return what was sent, None if the other side has gone."""
    header = read(end, 4)
    body = read(end, struct.unpack(">I", header)[0]) if header else None
    return None if body is None else pickle.loads(body)


def read(end, size):
    data = b""
    while len(data) < size:
        try:
            piece = end.recv(size - len(data))
        except ConnectionResetError:
            return None
        if not piece:
            return None
        data += piece
    return data
