"""A call on its way: the request, its answer, and who gives it. Plain data, without I/O.

The queue takes requests together as they wait and gives them to the function; the function
answers each of them. Which thread calls `answer` is the queue's business; a function may be
called by several at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

__all__ = ["DrpcAnswer", "DrpcError", "DrpcErrorKind", "DrpcFunction", "DrpcRequest"]


class DrpcErrorKind(StrEnum):
    """Why a request has no result."""

    FAILED = "failed"
    """An operation raised for this request, or gave what does not fit: no use in asking again."""

    TIMED_OUT = "timed_out"
    """The deadline came before the result, or before `min_txid` was committed."""

    UNAVAILABLE = "unavailable"
    """A store or Spark cannot be reached, or gave up: the same request may succeed later."""

    SHUTDOWN = "shutdown"
    """The run has ended, or ends."""


@dataclass(frozen=True, slots=True)
class DrpcRequest:
    """One call of a function. Its id is unique among those that are given together."""

    id: str
    args: str
    min_txid: int | None = None
    """Answer with what batch `min_txid` has committed, or later: read your writes."""

    deadline: float | None = None
    """When nobody waits any more, by `time.monotonic()`; None: never."""


@dataclass(frozen=True, slots=True)
class DrpcError:
    """Why a request has no result, and in which operation that was, as `explain()` calls it."""

    kind: DrpcErrorKind
    message: str
    operation: str | None = None


@dataclass(frozen=True, slots=True)
class DrpcAnswer:
    """What came of a request: its tuples or an error.

    The tuples are lists of what JSON has words for. `txid` is the last committed batch when the
    states were asked: the answer holds that batch and all before it. It is None where no stream
    of the topology commits batches.
    """

    id: str
    tuples: Sequence[Sequence[Any]] | None = None
    error: DrpcError | None = None
    txid: int | None = None

    def __post_init__(self) -> None:
        assert (self.tuples is None) != (self.error is None), self


class DrpcFunction(Protocol):
    """A function of a running topology, as the queue sees it."""

    @property
    def name(self) -> str:
        """What clients call it."""

    def answer(self, requests: Sequence[DrpcRequest]) -> list[DrpcAnswer]:
        """Return one answer for each request, in their order. Does not raise.

        Requests that are given together may be run together, none sees rows of another, and an
        error in one is no error of the others. It blocks, at most until the last deadline.
        """
