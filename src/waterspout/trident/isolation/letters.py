"""A dead letter of Trident: a row that an operation could not take, and all that is known of it.

Letters, counts and requests travel beside the rows of a batch as text in one hidden column,
`ASIDE`; in the rows themselves it is null.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from waterspout.errors import SerdeError
from waterspout.safe_repr import described, shown
from waterspout.schema import Schema
from waterspout.secrets import masked
from waterspout.serde import decode_value, encode_value

__all__ = [
    "ASIDE",
    "LETTER_MARK",
    "Aside",
    "LetterKey",
    "Request",
    "RowLetter",
    "Seen",
    "letter_of",
    "read_aside",
    "to_aside",
]

ASIDE = "_waterspout_aside"
"""The hidden column that is null in every row of the stream."""

LETTER_MARK = '{"letter"'
"""What the text of a letter in that column begins with."""

_ERROR_MAX = 1_000
_TRACE_MAX = 4_000
_SHOWN_MAX = 2_000


class LetterKey(NamedTuple):
    """The batch and attempt that a letter comes from, and its number among its letters."""

    txid: int
    attempt: int
    n: int

    def __str__(self) -> str:
        return f"{self.txid}:{self.attempt}:{self.n}"

    @classmethod
    def parse(cls, text: str) -> LetterKey:
        """Read what `str` has made; raise ValueError for anything else.

        >>> LetterKey.parse("7:0:3")
        LetterKey(txid=7, attempt=0, n=3)
        """
        parts = text.split(":")
        if len(parts) != 3 or not all(part.isascii() and part.isdecimal() for part in parts):
            raise ValueError(f"{text!r} is not the id of a letter; one looks like 7:0:3")
        return cls(*map(int, parts))


@dataclass(frozen=True, slots=True)
class RowLetter:
    """A row as it came to an operation that failed on it.

    `row` is the text of its values, exact, or None where they have no safe encoding; then
    `looks` is all there is of it.
    """

    node: str
    fields: str
    row: str | None
    looks: str | None
    position: str | None
    error: str
    trace: str
    failures: int
    first_failed: float
    last_failed: float
    key: LetterKey | None = None

    @property
    def schema(self) -> Schema:
        """The fields that the row has, with their types."""
        return Schema.parse(self.fields)

    @property
    def values(self) -> dict[str, Any] | None:
        """The row by field; None if only its looks were kept."""
        if self.row is None:
            return None
        return dict(zip(self.schema.names, decode_value(self.row), strict=True))


@dataclass(frozen=True, slots=True)
class Seen:
    """How many rows of the batch came to each operation, in one partition."""

    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody wants done with a letter: `replay` it (maybe repaired), or `drop` it."""

    id: int
    action: str
    letter: LetterKey
    node: str
    fields: str
    row: str | None
    position: str | None
    failures: int
    first_failed: float

    def to_aside(self) -> str:
        """Return the text that travels to the operation and to the letters."""
        return json.dumps({"request": asdict(self)})


Aside = RowLetter | Seen | Request


def letter_of(
    error: BaseException,
    *,
    node: str,
    schema: Schema,
    values: Sequence[Any],
    position: str | None,
    now: float,
    origin: Request | None = None,
) -> RowLetter:
    """Return the letter of a row; one that was replayed remembers its earlier failures."""
    try:
        row: str | None = encode_value(list(values))
    except SerdeError:
        row = None
    return RowLetter(
        node=node,
        fields=str(schema),
        row=row,
        looks=None if row is not None else shown(list(values), _SHOWN_MAX),
        position=position if origin is None else origin.position,
        error=masked(described(error, _ERROR_MAX)),
        trace=_trace_of(error),
        failures=1 if origin is None else origin.failures + 1,
        first_failed=now if origin is None else origin.first_failed,
        last_failed=now,
    )


def to_aside(what: RowLetter | Seen) -> str:
    """Return a letter, or counts, as text."""
    if isinstance(what, Seen):
        return json.dumps({"seen": dict(what.rows)})
    return json.dumps({"letter": asdict(replace(what, key=None))})


def read_aside(text: str) -> Aside:
    """Read a text of the hidden column."""
    ((kind, content),) = json.loads(text).items()
    if kind == "letter":
        return RowLetter(**content)
    if kind == "seen":
        return Seen(content)
    assert kind == "request", kind
    return Request(**{**content, "letter": LetterKey(*content["letter"])})


def _trace_of(error: BaseException) -> str:
    """Return the traceback without secrets, from the user's code on, its middle cut if long."""
    try:
        own = traceback.TracebackException.from_exception(error, limit=-8, compact=True)
        text = "".join(own.format())
    except Exception as inner:  # the text of a user's exception is the user's code
        text = f"<no traceback: {type(inner).__name__}>"
    plain = masked(text.encode("utf-8", "backslashreplace").decode("utf-8")).rstrip()
    if len(plain) <= _TRACE_MAX:
        return plain
    half = _TRACE_MAX // 2
    return f"{plain[:half]}\n...\n{plain[-half:]}"
