"""The tuple as user code sees it: values with field names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["TridentTuple", "field_index"]


def field_index(fields: Sequence[str]) -> Mapping[str, int]:
    """Return the position of each field; made once and shared by all tuples of a stream."""
    return {name: position for position, name in enumerate(fields)}


class TridentTuple(Sequence[Any]):
    """A row of a batch, read by position or by field name; equal if its values are equal.

    >>> row = TridentTuple(("to be", 2), field_index(["sentence", "n"]))
    >>> row["sentence"], row[1], list(row)
    ('to be', 2, ['to be', 2])
    """

    __slots__ = ("_index", "values")

    values: tuple[Any, ...]

    def __init__(self, values: tuple[Any, ...], index: Mapping[str, int]) -> None:
        self.values = values
        self._index = index

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the values, in order."""
        return tuple(self._index)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            try:
                return self.values[self._index[key]]
            except KeyError:
                raise KeyError(f"no field {key!r}; there are {', '.join(self._index)}") from None
        return self.values[key]

    def get(self, field: str, default: Any = None) -> Any:
        """Return a field's value, or the default where there is no such field."""
        position = self._index.get(field)
        return default if position is None else self.values[position]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TridentTuple):
            return self.values == other.values
        if isinstance(other, (tuple, list)):
            return self.values == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.values)

    def __repr__(self) -> str:
        inside = ", ".join(f"{n}={v!r}" for n, v in zip(self._index, self.values, strict=False))
        return f"TridentTuple({inside})"
