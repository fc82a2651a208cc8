"""Records as JSON text, for stores that keep one text under a key.

An opaque record is `[txid, attempt, value, prev]`, a transactional one `[txid, attempt, value]`,
a non-transactional one `[value]`: readable with any client. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from waterspout._serde import decode_bare_list, decode_key, decode_value, encode_value
from waterspout.errors import DamagedStoreError, SerdeError
from waterspout.state._base import Key, StateKind
from waterspout.state._kinds import OpaqueValue, TransactionalValue

__all__ = ["RecordTexts", "decode_record", "encode_record", "hashed_name"]

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


@dataclass(frozen=True, slots=True)
class RecordTexts:
    """The texts of one state; what cannot be read of them is damage to the store `title`."""

    kind: StateKind
    title: str

    def encode(self, records: Sequence[Any]) -> list[str]:
        """Return the texts of records."""
        kind = self.kind
        return [encode_record(kind, record) for record in records]

    def expected(self, records: Sequence[Any]) -> list[str | None]:
        """Return the texts of records that were read, to be compared: a NaN equals itself there."""
        kind = self.kind
        return [None if record is None else encode_record(kind, record) for record in records]

    def decode(self, key: str | Key, text: str | bytes) -> Any:
        """Return the record of a key, which errors show (or its text)."""
        try:
            return decode_record(self.kind, text if isinstance(text, str) else text.decode("ascii"))
        except ValueError as error:  # of either step
            shown = (key if isinstance(key, str) else repr(tuple(key)))[:200]
            raise DamagedStoreError(
                f"{self.title} holds a record that cannot be read, under key {shown}: {error}"
            ) from error

    def key(self, name: str) -> Key:
        """Return the key of which `name` is the text."""
        try:
            return decode_key(name)
        except ValueError as error:
            raise DamagedStoreError(
                f"{self.title} holds a key that cannot be read, {name[:200]!r}: {error}"
            ) from error


def hashed_name(text: str) -> str:
    """Return a short name for the text of a long key; no text of a key begins like it."""
    return f"#{hashlib.blake2b(text.encode(), digest_size=32).hexdigest()}"
