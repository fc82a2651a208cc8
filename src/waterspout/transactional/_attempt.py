"""The name of one try at one batch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TransactionAttempt"]


@dataclass(frozen=True, slots=True, order=True)
class TransactionAttempt:
    """A batch (`transaction_id`: 1, 2, 3...) and which try at it this is (0, 1, 2...).

    A replay keeps the transaction id and takes a higher attempt id, which no other try at
    this batch ever had, restarts included.

    >>> str(TransactionAttempt(7, 1))
    '7:1'
    """

    transaction_id: int
    attempt_id: int

    @property
    def txid(self) -> int:
        """The transaction id, by its short name."""
        return self.transaction_id

    def __str__(self) -> str:
        return f"{self.transaction_id}:{self.attempt_id}"
