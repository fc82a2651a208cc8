"""The tuple as user code sees it: values with field names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from waterspout._habits import saying_instead
from waterspout.errors import TopologyError

__all__ = ["Fields", "Origin", "TridentTuple", "Tuple", "field_index"]


# Storm's getters: getString(0), getStringByField("word"), getValues().
BY_FIELD = {
    f"get_{kind}{end}": 'write tuple["field"] or tuple[0]; tuple.values are all'
    for kind in ("string", "integer", "long", "boolean", "double", "float", "binary", "value")
    for end in ("", "_by_field")
}


class Fields(tuple[str, ...]):
    """The names of a stream's values, in order, each once.

    >>> Fields("word", "n").position("n")
    1
    """

    __slots__ = ()

    def __new__(cls, *names: str) -> Fields:
        """Take the names one by one, or as one list."""
        one_list = len(names) == 1 and isinstance(names[0], list | tuple)
        given: Sequence[Any] = names[0] if one_list else names
        for name in given:
            if not isinstance(name, str) or not name:
                raise TopologyError(f"a field's name is a non-empty string, not {name!r}")
        twice = sorted({name for name in given if given.count(name) > 1})
        if twice:
            raise TopologyError(f"duplicate field {twice[0]!r} in {', '.join(given)}")
        return super().__new__(cls, given)

    def __getnewargs__(self) -> tuple[str, ...]:
        return tuple(self)

    def position(self, name: str) -> int:
        """Return where a field stands; KeyError names those that there are."""
        try:
            return self.index(name)
        except ValueError:
            raise KeyError(f"no field {name!r}; there are {', '.join(self)}") from None

    def select(self, names: Sequence[str], values: Sequence[Any]) -> list[Any]:
        """Return the values of some fields, in the order of their names."""
        return [values[self.position(name)] for name in names]


class Origin:
    """What tuples that came together have in common: from where, and the ids of their trees.

    `done` is shared by all tuples that one task got in one wave; a tuple's index is its position in
    it. See `waterspout.waves.intake`, which reads it when the wave is over.
    """

    __slots__ = ("component", "done", "fields", "index", "intake", "stream", "task")

    def __init__(
        self, component: str, stream: str, task: int, fields: Fields, intake: Any, done: Any
    ) -> None:
        self.component = component
        self.stream = stream
        self.task = task
        self.fields = fields
        self.index = field_index(fields)
        self.intake = intake
        self.done = done


# Storm's other methods of a tuple; each of them is told what is nearest here.
_OF_STORM = (
    *(
        "contains",
        "fieldIndex",
        "getFields",
        "getMessageId",
        "getSourceComponent",
        "getSourceStream",
    ),
    *("getSourceGlobalStreamId", "getSourceStreamId", "getSourceTask", "getValues", "size"),
)


@saying_instead(BY_FIELD, _OF_STORM)
class Tuple:
    """What a bolt gets: values by position or field name, and where they come from.

    Two tuples are equal only if they are the same one, as in Storm: their values may be alike and
    their trees not. A bolt may keep a tuple over waves and ack it later.
    """

    __slots__ = ("_index", "_origin", "values")

    values: tuple[Any, ...]

    def __init__(self, values: tuple[Any, ...], origin: Origin, index: int) -> None:
        self.values = values
        self._origin = origin
        self._index = index

    @property
    def fields(self) -> Fields:
        """The names of the values, in order."""
        return self._origin.fields

    @property
    def source_component(self) -> str:
        """The id of the spout or bolt that emitted it."""
        return self._origin.component

    @property
    def source_stream(self) -> str:
        """The stream on which it was emitted."""
        return self._origin.stream

    @property
    def source_task(self) -> int:
        """The id of the task that emitted it."""
        return self._origin.task

    @property
    def is_tick(self) -> bool:
        """Whether this is a tick tuple: no data, only the time that has passed."""
        return self._origin.stream == "__tick"

    def __getitem__(self, key: Any) -> Any:
        if key.__class__ is str:
            try:
                return self.values[self._origin.index[key]]
            except KeyError:
                names = ", ".join(self._origin.fields)
                raise KeyError(f"no field {key!r}; there are {names}") from None
        return self.values[key]

    def get(self, field: str, default: Any = None) -> Any:
        """Return a field's value, or the default where there is no such field."""
        position = self._origin.index.get(field)
        return default if position is None else self.values[position]

    def select(self, *names: str) -> list[Any]:
        """Return the values of some fields."""
        return [self[name] for name in names]

    def __reduce__(self) -> tuple[Any, ...]:
        return (Tuple, (self.values, self._origin, self._index))

    def __contains__(self, field: object) -> bool:
        return field in self._origin.index

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __repr__(self) -> str:
        inside = ", ".join(f"{n}={v!r}" for n, v in zip(self.fields, self.values, strict=False))
        return f"Tuple({inside} from {self.source_component}:{self.source_stream})"


def field_index(fields: Sequence[str]) -> Mapping[str, int]:
    """Return the position of each field; made once and shared by all tuples of a stream."""
    return {name: position for position, name in enumerate(fields)}


@saying_instead(BY_FIELD, _OF_STORM)
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
