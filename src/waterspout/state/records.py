"""Records as JSON text, for stores that keep one text under a key.

An opaque record is `[txid, attempt, value, prev]`, a transactional one `[txid, attempt, value]`,
a non-transactional one `[value]`: readable with any client. Nothing is ever unpickled.
"""

from __future__ import annotations

from typing import Any

from waterspout.errors import SerdeError
from waterspout.serde import decode_bare_list, decode_value, encode_value
from waterspout.state.base import StateKind
from waterspout.state.opaque import OpaqueValue
from waterspout.state.transactional import TransactionalValue

__all__ = ["decode_record", "encode_record"]

# Looked up once: to reach a member through its enum costs more than all the rest.
_OPAQUE, _TRANSACTIONAL = StateKind.OPAQUE, StateKind.TRANSACTIONAL


def encode_record(kind: StateKind, record: Any) -> str:
    """Return the text of a record.

    >>> encode_record(StateKind.OPAQUE, OpaqueValue(3, 0, 7, prev=5))
    '[3,0,7,5]'
    """
    if kind is _OPAQUE:
        value, prev = record.value, record.prev
        if type(value) is int and (type(prev) is int or prev is None):
            # Most records by far; the same text as the long way gives.
            before = "null" if prev is None else prev
            return f"[{record.txid},{record.attempt},{value},{before}]"
        return encode_value([record.txid, record.attempt, value, prev])
    if kind is _TRANSACTIONAL:
        return encode_value([record.txid, record.attempt, record.value])
    return encode_value([record])


def decode_record(kind: StateKind, text: str) -> Any:
    """Return the record that `encode_record` made `text` of."""
    parts = decode_bare_list(text)
    if parts is None:
        parts = decode_value(text)
    if type(parts) is not list or len(parts) != _length(kind):
        raise SerdeError(f"this is not the text of a record of a {kind.value} state")
    if len(parts) == 1:
        return parts[0]
    if type(parts[0]) is not int or type(parts[1]) is not int:
        raise SerdeError("a record does not begin with its batch and attempt")
    return OpaqueValue(*parts) if kind is _OPAQUE else TransactionalValue(*parts)


def _length(kind: StateKind) -> int:
    return 4 if kind is _OPAQUE else 3 if kind is _TRANSACTIONAL else 1
