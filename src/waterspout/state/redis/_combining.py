"""Combining whole numbers into the records of many keys at once, column by column.

This is the rule of each kind of state once more, for records that hold nothing but whole numbers
of 64 bits. Whatever else is there (a larger number, another type, damage) is not judged here: the
answer is None, and the rule itself goes over these records one by one (`state/_kinds.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from waterspout.errors import StaleBatchError
from waterspout.state._base import Keys, StateKind
from waterspout.state._head import Stamp

__all__ = ["combined", "number_columns"]

_NAMES = {
    StateKind.OPAQUE: ("txid", "attempt", "value", "prev"),
    StateKind.TRANSACTIONAL: ("txid", "attempt", "value"),
    StateKind.NON_TRANSACTIONAL: ("value",),
}
# What a key starts from that has no record.
_NOTHING = {
    StateKind.OPAQUE: b"[0,0,null,null]",
    StateKind.TRANSACTIONAL: b"[0,0,null]",
    StateKind.NON_TRANSACTIONAL: b"[null]",
}
_INTEGER = pa.int64()
_TEXT = pa.string()


def combined(
    kind: StateKind,
    found: Sequence[bytes | None],
    values: Sequence[Any],
    merge: str,
    *,
    stamp: Stamp,
    resolved: Mapping[int, int],
    keys: Keys,
) -> pa.Array | None:
    """Return the texts of new records; None where they have to be made one by one.

    `found` are the texts that are there, `resolved` says which attempt counts of earlier batches
    with several. Raises StaleBatchError if a record is of a later batch.
    """
    if set(map(type, values)) != {int}:
        return None
    try:
        amounts = pa.array(values, _INTEGER)
        records = number_columns(kind, found)
        if records is None:
            return None
        if kind is StateKind.NON_TRANSACTIONAL:
            (start,) = records
            return _joined("[", _merged(start, amounts, merge), "]")
        txid, attempt, value, *prev = records
        start = _start(kind, txid, attempt, value, prev, stamp, resolved, keys)
        if start is None:
            return None
        new = _merged(start, amounts, merge)
    except (pa.ArrowInvalid, OverflowError):  # beyond 64 bits, or no number at all
        return None
    first = f"[{stamp.txid},{stamp.attempt},"
    if kind is StateKind.TRANSACTIONAL:
        return _joined(first, new, "]")
    before = pc.fill_null(pc.cast(start, _TEXT), "null")
    return pc.binary_join_element_wise(first, pc.cast(new, _TEXT), ",", before, "]", "")


def number_columns(kind: StateKind, found: Sequence[bytes | None]) -> list[pa.Array] | None:
    """Return the columns of all records; None if one is not a list of bare numbers.

    A number beyond 64 bits, or a text that is no number, is a pa.ArrowInvalid.
    """
    names, nothing = _NAMES[kind], _NOTHING[kind]
    texts = [nothing if text is None else text for text in found]
    joined = b"\n".join(texts)
    parted, lists = len(texts) - 1, len(texts)
    whole = (
        joined.count(b"\n") == parted
        and joined.count(b"]\n[") == parted
        and joined.startswith(b"[")
        and joined.endswith(b"]")
        and joined.count(b"[") == joined.count(b"]") == lists
        and not joined.translate(None, b"0123456789-nul,[]\n")
    )
    if not whole:
        return None
    table = csv.read_csv(
        pa.py_buffer(joined.translate(None, b"[]")),
        csv.ReadOptions(use_threads=False, block_size=len(joined) + 1, column_names=names),
        csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
        csv.ConvertOptions(
            check_utf8=False,
            column_types=dict.fromkeys(names, _INTEGER),
            null_values=["null"],
        ),
    )
    columns = [column.combine_chunks() for column in table.columns]
    stamps = columns[:2] if len(columns) > 1 else []
    if table.num_rows != lists or any(column.null_count for column in stamps):
        return None
    return columns


def _start(
    kind: StateKind,
    txid: pa.Array,
    attempt: pa.Array,
    value: pa.Array,
    prev: Sequence[pa.Array],
    stamp: Stamp,
    resolved: Mapping[int, int],
    keys: Keys,
) -> pa.Array | None:
    """Return the values that the batch starts from, by the rule of `OpaqueValue.before`."""
    batches = txid.to_numpy()
    newest = int(batches.argmax())
    if batches[newest] > stamp.txid:
        raise StaleBatchError(stamp.txid, int(batches[newest]), tuple(keys[newest]))
    own = batches == stamp.txid
    if kind is StateKind.TRANSACTIONAL:
        return None if own.any() else value  # those that have the batch are skipped, one by one
    lost = own
    if resolved:
        known = np.fromiter(resolved, np.int64, len(resolved))
        for i in np.flatnonzero(np.isin(batches, known)):
            lost[i] |= resolved[int(batches[i])] != attempt[i].as_py()
    return pc.if_else(pa.array(lost), prev[0], value) if lost.any() else value


def _merged(start: pa.Array, amounts: pa.Array, merge: str) -> pa.Array:
    """Return the merge of what is there and what is new; without the former, the latter."""
    if merge == "sum":
        return pc.coalesce(pc.add_checked(start, amounts), amounts)
    least = merge == "min"
    return (pc.min_element_wise if least else pc.max_element_wise)(start, amounts)


def _joined(before: str, numbers: pa.Array, after: str) -> pa.Array:
    return pc.binary_join_element_wise(before, pc.cast(numbers, _TEXT), after, "")
