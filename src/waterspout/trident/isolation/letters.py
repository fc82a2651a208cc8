"""What travels beside the rows of a batch: letters, counts of rows, and requests for letters.

Each is a text in one hidden column, `ASIDE`, which is null in the rows themselves.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from waterspout._addresses import masked
from waterspout._letters import DeadLetter, stored_form
from waterspout._safe_repr import described
from waterspout._schema import Schema

__all__ = [
    "ASIDE",
    "LETTER_MARK",
    "Aside",
    "LetterKey",
    "LetterRequest",
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


class LetterKey(NamedTuple):
    """The id of a row's letter: its batch and attempt, and its number among their letters."""

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
class Seen:
    """How many rows of the batch came to each operation, in one partition."""

    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LetterRequest:
    """Somebody wants a letter replayed, with the content that it has here, or dropped."""

    id: int
    action: Literal["replay", "drop"]
    letter: DeadLetter


Aside = DeadLetter | Seen | LetterRequest


def letter_of(
    error: BaseException,
    *,
    node: str,
    schema: Schema,
    values: Sequence[Any],
    position: str | None,
    now: float,
    origin: DeadLetter | None = None,
) -> DeadLetter:
    """Return the letter of a row; one that was replayed remembers its earlier failures."""
    content, looks = stored_form(values)
    return DeadLetter(
        failed_in=node,
        fields=str(schema),
        content=content,
        looks=looks,
        position=position if origin is None else origin.position,
        error=masked(described(error, _ERROR_MAX)),
        trace=_trace_of(error),
        failures=1 if origin is None else origin.failures + 1,
        first_failed=now if origin is None else origin.first_failed,
        last_failed=now,
    )


def to_aside(what: Aside) -> str:
    """Return what travels as text."""
    kind = {DeadLetter: "letter", Seen: "seen", LetterRequest: "request"}[type(what)]
    return json.dumps({kind: asdict(what)})


def read_aside(text: str) -> Aside:
    """Read a text of the hidden column."""
    ((kind, content),) = json.loads(text).items()
    if kind == "letter":
        return DeadLetter(**content)
    if kind == "seen":
        return Seen(**content)
    assert kind == "request", kind
    return LetterRequest(**{**content, "letter": DeadLetter(**content["letter"])})


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
