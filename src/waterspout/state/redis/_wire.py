"""Commands of many words as bytes, made column by column.

The client library packs a command word by word, which takes longer than the server needs to carry
it out. All words here are ASCII: the texts of keys and records are JSON that escapes the rest.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["as_column", "command", "commands", "framed"]

_END = "\r\n"


def as_column(texts: Sequence[str]) -> pa.Array:
    """Return texts as a column."""
    return pa.array(texts, pa.string())


def framed(texts: pa.Array, lead: str = "") -> pa.Array:
    """Return texts, each behind the same beginning, as words of commands, which say how long."""
    length = pc.binary_length(texts)
    if lead:
        length = pc.add(length, len(lead))
    return pc.binary_join_element_wise("$", pc.cast(length, pa.string()), _END + lead, texts, "")


def command(words: Sequence[str], *columns: pa.Array) -> list[bytes]:
    """Return one command: some words, and then row by row those in the columns."""
    rows = len(columns[0]) if columns else 0
    count = len(words) + len(columns) * rows
    start = f"*{count}{_END}{_packed(words)}".encode("ascii")
    return [start, _joined([*columns, ""])] if rows else [start]


def commands(words: Sequence[str], columns: Sequence[pa.Array], last: Sequence[str]) -> list[bytes]:
    """Return a command for each row: some words, those in the columns, some more."""
    count = len(words) + len(columns) + len(last)
    start = f"*{count}{_END}{_packed(words)}".removesuffix(_END)
    return [_joined([start, *columns, _packed(last)])]


def _packed(words: Sequence[str]) -> str:
    return "".join([f"${len(word)}{_END}{word}{_END}" for word in words])


def _joined(parts: Sequence[pa.Array | str]) -> bytes:
    """Return what stands in all rows, one after the other."""
    rows = pc.binary_join_element_wise(*parts, _END)
    assert rows.offset == 0
    _, offsets, data = rows.buffers()
    end = int.from_bytes(offsets.slice(4 * len(rows), 4).to_pybytes(), sys.byteorder)
    return bytes(data.slice(0, end))
