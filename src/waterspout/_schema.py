"""The fields of a stream and their types, written as in Spark's DDL.

    Schema.parse("word string, n bigint")

needs no JVM: names and types are told apart here, and a type is kept as text. A bare name
has no type yet; the operation that makes the field fills it in.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from waterspout.errors import TopologyError

__all__ = [
    "TYPE_OF_CLASS",
    "WHOLE",
    "FieldNames",
    "Schema",
    "check_topology_id",
    "field_names",
    "split_top",
]

FieldNames = str | Sequence[str]

TYPE_OF_CLASS: dict[object, str] = {
    bool: "boolean",
    int: "bigint",
    float: "double",
    str: "string",
    bytes: "binary",
    dt.date: "date",
    dt.datetime: "timestamp",
    Decimal: "decimal(38,18)",
}
"""The types that Python's own classes become."""

WHOLE = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""The types of integers, with their bits."""

_TOPOLOGY_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CANONICAL = {
    "long": "bigint",
    "integer": "int",
    "str": "string",
    "text": "string",
    "bool": "boolean",
    "real": "float",
    "short": "smallint",
    "byte": "tinyint",
    "bytes": "binary",
    "numeric": "decimal",
    "dec": "decimal",
}
_SIMPLE = {
    "string", "bigint", "int", "smallint", "tinyint", "double", "float", "boolean", "binary",
    "date", "timestamp", "timestamp_ntz", "decimal", "variant", "interval", "void",
}  # fmt: skip
_PARAMETRIC = ("decimal", "array", "map", "struct", "varchar", "char", "interval", "time", "string")


def field_names(fields: FieldNames, *more: str) -> tuple[str, ...]:
    """Return names given as one string, as a list of strings, or one by one.

    >>> field_names("word"), field_names(["a", "b"]), field_names("a", "b"), field_names("a, b")
    (('word',), ('a', 'b'), ('a', 'b'), ('a', 'b'))
    """
    if not isinstance(fields, (str, Sequence)) or (more and not isinstance(fields, str)):
        given = fields if not more else (fields, *more)
        raise TopologyError(f"fields are names, 'a' or ['a', 'b'], not {given!r}")
    one_by_one = (fields, *more) if isinstance(fields, str) else tuple(fields)
    names = tuple(
        piece.strip() if isinstance(piece, str) else piece
        for name in one_by_one
        for piece in (name.split(",") if isinstance(name, str) else (name,))
    )
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise TopologyError(
                f"{name!r} is not a field name; a name is letters, digits and _, and does not "
                "start with a digit (several fields are a list: ['a', 'b'])"
            )
    _refuse_duplicates(names)
    return names


def check_topology_id(topology: str) -> str:
    """Refuse an id that could not be a folder name (or would be `.` or `..`)."""
    fits = isinstance(topology, str) and _TOPOLOGY_ID.fullmatch(topology)
    if not fits or set(topology) <= {"."}:
        raise TopologyError(
            f"{topology!r} cannot be an id; use 1 to 128 letters, digits, '.', '_' and '-'"
        )
    return topology


@dataclass(frozen=True, slots=True)
class Schema:
    """Ordered fields with their types; a type is None while nobody knows it."""

    fields: tuple[tuple[str, str | None], ...] = ()

    def __post_init__(self) -> None:
        _refuse_duplicates(self.names)

    @classmethod
    def parse(cls, text: FieldNames | Schema) -> Schema:
        """Read `"word string, n bigint"`, or a list of such pieces; types may be left out.

        >>> Schema.parse("word string, tags array<string>, n").names
        ('word', 'tags', 'n')
        """
        if isinstance(text, Schema):
            return text
        pieces = split_top(text) if isinstance(text, str) else _pieces(text)
        return cls(tuple(_parse_field(piece) for piece in pieces))

    @property
    def names(self) -> tuple[str, ...]:
        """The field names, in order."""
        return tuple(name for name, _ in self.fields)

    @property
    def types(self) -> tuple[str | None, ...]:
        """The types, in the order of the names."""
        return tuple(kind for _, kind in self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __iter__(self) -> Iterator[tuple[str, str | None]]:
        return iter(self.fields)

    def type_of(self, name: str) -> str | None:
        """Return the type of a field that is there."""
        return dict(self.fields)[name]

    def select(self, names: Iterable[str], *, where: str) -> Schema:
        """Return some fields in the order asked for; `where` is named if one is missing."""
        known = dict(self.fields)
        chosen = tuple(names)
        for name in chosen:
            if name not in known:
                raise TopologyError(
                    f"{where} asks for field {name!r}, but the stream has {self._listed()}"
                )
        return Schema(tuple((name, known[name]) for name in chosen))

    def append(self, other: Schema, *, where: str) -> Schema:
        """Return these fields and then the others, which must have new names."""
        for name in other.names:
            if name in self.names:
                raise TopologyError(
                    f"{where} adds field {name!r}, but the stream already has it "
                    f"({self._listed()}); give the new field another name"
                )
        return Schema(self.fields + other.fields)

    def without(self, names: Iterable[str]) -> Schema:
        """Return the other fields."""
        left_out = set(names)
        return Schema(tuple(field for field in self.fields if field[0] not in left_out))

    def fill_types(self, types: Sequence[str | None]) -> Schema:
        """Return the same names, with types put in where none was written."""
        return Schema(tuple((n, t or new) for (n, t), new in zip(self.fields, types, strict=True)))

    def require_types(self, *, where: str) -> Schema:
        """Refuse a field without a type, and say how to write one."""
        for name, kind in self.fields:
            if kind is None:
                raise TopologyError(
                    f"{where} does not know the type of its output field {name!r}; "
                    f'write it as Spark DDL, for example out="{name} string"'
                )
        return self

    def require_keys(self, *, where: str) -> Schema:
        """Refuse a field by which tuples cannot be brought together."""
        for name, kind in self.fields:
            if kind is not None and re.search(r"\b(map|variant)\b", kind, re.I):
                raise TopologyError(
                    f"{where} goes by field {name!r}, a {kind}; equal ones may be written in "
                    "different ways. Go by a field of another type, made of it before."
                )
        return self

    def ddl(self) -> str:
        """Return the schema as Spark DDL; every type must be known."""
        return ", ".join(f"`{name}` {kind}" for name, kind in self.fields)

    def __str__(self) -> str:
        return ", ".join(f"{name} {kind}" if kind else name for name, kind in self.fields)

    def _listed(self) -> str:
        return ", ".join(self.names) if self.fields else "no fields"


def _pieces(given: object) -> list[str]:
    """Return the fields of a list, of a dict of types, or of a StructType of Spark's."""
    if hasattr(given, "simpleString") and hasattr(given, "fields"):  # pyspark is not imported here
        return [f"{field.name} {field.dataType.simpleString()}" for field in given.fields]
    if isinstance(given, Mapping):
        return [f"{name} {TYPE_OF_CLASS.get(kind, kind)}" for name, kind in given.items()]
    if not isinstance(given, Sequence) or not all(isinstance(each, str) for each in given):
        raise TopologyError(
            f'cannot read the fields {given!r}; write "a string, b bigint", or ["a", "b"]'
        )
    return [piece for text in given for piece in split_top(text)]


def _parse_field(piece: str) -> tuple[str, str | None]:
    match = re.fullmatch(r"\s*`?([A-Za-z_][A-Za-z0-9_]*)`?(?:\s+|\s*:\s*)?(.*?)\s*", piece, re.S)
    if not match:
        raise TopologyError(f'cannot read field {piece!r}; write it as "name type"')
    name, kind = match.groups()
    return name, _canonical_type(name, kind) if kind else None


def _canonical_type(name: str, text: str) -> str:
    kind = re.sub(r"\s+", " ", text.strip()).lower()
    kind = _CANONICAL.get(kind, kind)
    if kind == "decimal":
        return "decimal(10,0)"
    if kind in _SIMPLE:
        return kind
    if kind.startswith(_PARAMETRIC) and re.search(r"[<( ]", kind):
        return _spelled_as_spark_does(text)
    raise TopologyError(f"field {name!r} has unknown type {text!r}; types are Spark's, as in DDL")


def _spelled_as_spark_does(text: str) -> str:
    """Return a type with parameters in one spelling, so that equal types are equal texts."""
    kind = re.sub(r"\s+", " ", text.strip())
    if re.search("[`'\"]", kind):
        return kind
    kind = re.sub(r"\s*([<>(),:])\s*", r"\1", kind)
    # The field names of a struct keep their case.
    return kind if "struct" in kind.lower() else kind.lower()


def split_top(text: str) -> list[str]:
    """Split at commas that are not inside <> or ()."""
    pieces, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            pieces.append(text[start:i])
            start = i + 1
    pieces.append(text[start:])
    if len(pieces) == 1 and not pieces[0].strip():
        return []
    return pieces


def _refuse_duplicates(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:  # Spark does not tell names by case
            raise TopologyError(f"duplicate field {name!r} in {', '.join(names)}")
        seen.add(name.lower())
