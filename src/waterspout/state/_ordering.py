"""The order of many texts, byte by byte, as the indexes of the stores have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["order_of"]

_FEW = 1_000
_BYTES = 8


def order_of(texts: pa.StringArray) -> pa.Array:
    """Return the row numbers of texts, none of which is null, in the order of their bytes.

    By what follows after the beginning that all share: eight bytes as one number, which sorts in a
    third of the time of a text. Where that leaves two alike, the texts themselves are sorted.

    >>> order_of(pa.array(["b", "a", "ab"])).to_pylist()
    [1, 2, 0]
    """
    if len(texts) >= _FEW:
        numbers = _as_numbers(texts)
        order = np.argsort(numbers)
        in_order = numbers[order]
        if (in_order[1:] > in_order[:-1]).all():
            return pa.array(order)
    return pc.sort_indices(texts)


def _as_numbers(texts: pa.StringArray) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the next eight bytes of each text as a number; a shorter one is filled with zeros."""
    ends = pc.min_max(texts)
    least, most = (ends[end].as_py().encode() for end in ("min", "max"))
    lead = next(
        (i for i, (a, b) in enumerate(zip(least, most, strict=False)) if a != b), len(least)
    )
    _, offsets, data = texts.buffers()
    at = np.frombuffer(offsets, np.int32, len(texts) + 1, 4 * texts.offset)
    stored = np.concatenate([np.frombuffer(data, np.uint8, at[-1]), np.zeros(_BYTES, np.uint8)])
    start = at[:-1] + lead
    eight = np.lib.stride_tricks.sliding_window_view(stored, _BYTES)[start]
    numbers = np.ascontiguousarray(eight).view(">u8").ravel().astype(np.uint64)
    # What belongs to the next text is taken off in two steps: no shift goes over all 64 bits.
    over = 4 * (_BYTES - np.minimum(at[1:] - start, _BYTES)).astype(np.uint64)
    found: np.ndarray[Any, np.dtype[np.uint64]] = numbers >> over >> over << over << over
    return found
