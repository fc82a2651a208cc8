"""What tests of memcached states share: a flushed server, and a look at it from outside."""

from __future__ import annotations

from tests.state_support import OWNER
from waterspout.state._head import Head, Stamp, Writer
from waterspout.state._kinds import OpaqueValue
from waterspout.state.memcached import MemcachedState
from waterspout.state.memcached import _wire as memcached_wire
from waterspout.state.memcached._wire import Server

A, B = ("a",), ("b",)
WRITER = Writer(OWNER, 1)


def at(txid, attempt=0, *, committed=False, resolved=None):
    return Head(Stamp(WRITER, txid, attempt), committed, resolved or {})


def record(value, txid=1, attempt=0, prev=None):
    return OpaqueValue(txid, attempt, value, prev)


def factory(*servers, **options):
    return MemcachedState.opaque([s.address for s in servers], prefix="counts", **options)


def wire(server):
    return Server(*server.address, 5, 5)


def items(server, *names):
    found = wire(server).gets([name.encode() for name in names])
    return {name.decode(): item.data.decode() for name, item in found.items()}


def delete(server, name):
    return wire(server)._read(b"delete %b\r\n" % name.encode(), memcached_wire._read_line)


def flush(server):
    """Start a server, if it does not run, and let it forget everything."""
    server.start()
    wire(server)._read(b"flush_all\r\n", memcached_wire._read_line)
    return server
