"""What the tests of Redis states share."""

from __future__ import annotations

from uuid import uuid4

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.state._base import StateKind
from waterspout.state._head import Head, Stamp, Writer
from waterspout.state.redis import RedisState
from waterspout.testing._batches import OWNER, Batches

WORDS, NUMBERS = Schema.parse("word string"), Schema.parse("n bigint")
OTHERS = Schema.parse("m bigint")


def counting(url, *, kind=StateKind.OPAQUE, prefix=None, **options):
    """A state of numbers under words, with a prefix of its own."""
    state = RedisState(url, prefix or uuid4().hex, kind=kind, **options)
    return state.bind(WORDS, NUMBERS)


def driver(state, **options):
    return Batches(state.make_state(Config(), 0, 1), **options)


def read(state, *words):
    """Read as another process would."""
    return state.make_state(Config(), 0, 1).multi_get([(word,) for word in words])


def at(txid, attempt=0, *, committed=False, epoch=1):
    return Head(Stamp(Writer(OWNER, epoch), txid, attempt), committed)
