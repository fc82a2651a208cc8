"""A dead letter: a message or a row that could not be processed, and all that is known of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from waterspout._safe_repr import shown
from waterspout._schema import Schema
from waterspout._serde import decode_value, encode_value
from waterspout.errors import DeadLettersFullError, SerdeError

__all__ = ["Asked", "DeadLetter", "refuse_when_full", "stored_form"]

_SHOWN_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody has asked to be done with a letter, and how far that is."""

    action: Literal["replay", "drop"]
    state: Literal["open", "refused", "done"] = "open"
    reason: str | None = None
    """Why it was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message of a spout, or a row of a Trident stream, as it was when it failed."""

    failed_in: str
    """The bolt or the operation; empty where no bolt failed, as in a timeout."""

    content: str | None
    """The values as JSON, exactly; None if they cannot be encoded."""

    looks: str | None = None
    """The values as text, if they cannot be encoded."""

    error: str = ""
    """The class of the error and its message."""

    trace: str = ""
    """The traceback of a row's error."""

    failures: int = 1
    first_failed: float
    last_failed: float

    id: str = ""
    """What `waterspout dead-letters` calls it; empty until it is stored."""

    asked: Asked | None = None
    """What somebody wants done with it."""

    spout: str = ""
    """Where a message came from; empty for a row."""

    stream: str = ""
    message_id: str = ""
    """The message id as text."""

    task: int | None = None
    """The task that a message of a direct stream was for."""

    fields: str | None = None
    """The fields of a row with their types; None for a message."""

    position: str | None = None
    """Where in its source a row came from, if that is known."""

    txid: int | None = None
    """The batch that put a row aside."""

    attempt: int | None = None

    @property
    def is_row(self) -> bool:
        """Whether this is a row of Trident, not a message of a spout."""
        return self.fields is not None

    @property
    def can_be_replayed(self) -> bool:
        """Whether the values were kept, and not only what they look like."""
        return self.content is not None

    @property
    def is_asked_for(self) -> bool:
        """Whether somebody wants it replayed or dropped, and this is still to be done."""
        return self.asked is not None and self.asked.state == "open"

    @property
    def schema(self) -> Schema:
        """The fields of a row."""
        return Schema.parse(self.fields or ())

    @property
    def values(self) -> tuple[Any, ...] | None:
        """The values in the order of the fields; None if they could not be kept."""
        return None if self.content is None else tuple(decode_value(self.content))

    @property
    def row(self) -> dict[str, Any] | None:
        """The values of a row by field; None if they could not be kept."""
        values = self.values
        return None if values is None else dict(zip(self.schema.names, values, strict=True))

    @property
    def shown(self) -> str:
        """The values as text, for people."""
        values = self.values
        return self.looks or "" if values is None else shown(list(values), _SHOWN_MAX)


def refuse_when_full(count: int, new: Sequence[DeadLetter], limit: int, then: str) -> None:
    """Raise DeadLettersFullError if there is no room for new letters beside `count` others."""
    if new and count + len(new) > limit:
        where = f" from {new[0].failed_in}" if new[0].failed_in else ""
        raise DeadLettersFullError(
            f"there are {count:,} dead letters, and {limit:,} are kept at most (dead_letters_max); "
            f"{len(new):,} more have come{where}: {new[0].error}. None is dropped: the run stops "
            f"before {then}. Replay or drop some (waterspout dead-letters), or raise the limit, "
            "and run the same command again."
        )


def stored_form(values: Sequence[Any]) -> tuple[str | None, str | None]:
    """Return the `content` and the `looks` of a letter with these values: one of them is None.

    >>> stored_form(["a", 1]), stored_form([Ellipsis])
    (('["a",1]', None), (None, '[Ellipsis]'))
    """
    try:
        return encode_value(list(values)), None
    except SerdeError:
        return None, shown(list(values), _SHOWN_MAX)
