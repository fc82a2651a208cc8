"""Witnesses: keys in the head by which a state that has lost records is found out. No I/O.

A table may be emptied, or restored from another copy, while its head stays: counting would go on
from what is left. So a head names a few keys that the last batches have written, each with its
batch. When a state is opened their records are read: each must be there, and not be of an earlier
batch. A key that a later batch removes must not be asked for, so a batch that removes keys, or of
which nothing is known, ends all witnesses before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from waterspout._serde import decode_key, decode_value, encode_key, encode_value

__all__ = ["Witness", "Written", "find_lost", "witnessed"]

Witness = tuple[int, str]
"""A batch, and the text of a key that it has written."""

MOST = 8
_RECEIPTS = "receipts:"
_LONGEST = 200  # characters of a key: the head is written twice a batch


@dataclass(slots=True)
class Written:
    """What an attempt has written to a state: a key that has a value now; if others have none.

    `receipts` are of a state whose rows are seen only when they are published (`state/_rows.py`).
    """

    key: str | None = None
    removes: bool = False
    receipts: list[str] = field(default_factory=list)

    def note(self, keys: Sequence[Sequence[Any]], txid: int, *, removes: bool = False) -> None:
        """Take one of some keys that were given a value, another one in each batch."""
        self.removes |= removes
        if keys and self.key is None:
            text = encode_key(keys[txid % len(keys)])
            self.key = text if len(text) <= _LONGEST else None

    def add(self, other: Written) -> None:
        """Take what another partition has written."""
        self.key = self.key or other.key
        self.removes |= other.removes
        self.receipts += other.receipts

    def to_text(self) -> str | None:
        """Return this as text; of many texts, the greatest has a key if any has one.

        The least tells whether anyone has removed a key. None: nothing was written. Receipts are
        all needed: whoever has some is told by every partition.
        """
        text = f"{'-' * self.removes}{self.key or ''}"
        if self.receipts:
            return _RECEIPTS + encode_value([text, self.receipts])
        return text or None

    @classmethod
    def from_texts(cls, texts: Iterable[str | None]) -> Written:
        """Return what all these texts say."""
        receipts: list[str] = []
        known = []
        for text in texts:
            if text and text.startswith(_RECEIPTS):
                text, some = decode_value(text.removeprefix(_RECEIPTS))
                receipts += some
            if text:
                known.append(text)
        known.sort()
        if not known:
            return cls(receipts=receipts)
        return cls(known[-1].lstrip("-") or None, known[0].startswith("-"), receipts)


def witnessed(
    before: tuple[Witness, ...], txid: int, written: Written | None
) -> tuple[Witness, ...]:
    """Return the witnesses after a batch was marked; None: nobody knows what it has written."""
    if written is None:
        return ()
    kept = () if written.removes else tuple(one for one in before if one[0] < txid)
    return ((txid, written.key), *kept)[:MOST] if written.key is not None else kept


def find_lost(witnesses: Sequence[Witness], records: Sequence[Any]) -> str | None:
    """Say which record is lost, or older than its witness; None if all are there.

    A record of batch 0 is one that was put back after an attempt was lost: nobody knows its batch.
    """
    for (txid, key), record in zip(witnesses, records, strict=True):
        shown = f"key {decode_key(key)!r}, which batch {txid} has written"
        if record is None:
            return f"no record of {shown}"
        found = getattr(record, "txid", txid)
        if 0 < found < txid:
            return f"only the record of batch {found} of {shown}"
    return None
