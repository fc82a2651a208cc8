"""Rows that go from task to task, or all into one: by what, and over how many partitions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waterspout.trident.plan.nodes import Node

__all__ = ["Deal", "Exchange"]


class Deal(Enum):
    """By what a row's new partition is chosen."""

    BY_FIELDS = "by {fields}"
    EVENLY = "evenly"
    EVERY_ROW = "every row"
    TO_ONE = "all rows to one"
    ALL = "all rows"
    BY_GROUPING = "by the grouping"
    BY_STATE = "by partition of {state}"
    """The partition of the state that the row will be written to."""

    IN_ONE_TASK = "all rows in one task"
    """No shuffle: one task does what comes before, too."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """Rows change partitions on their way into a node, or behind it."""

    node: Node
    deal: Deal
    partitions: int | None
    """None: as many as Spark is set to (`spark.sql.shuffle.partitions`)."""

    fields: tuple[str, ...] = ()
    state: str = ""
    side: Node | None = None
    """The parent whose rows move, if the others' do not move with them."""

    behind: bool = False

    @property
    def is_shuffle(self) -> bool:
        """Whether rows are sent from task to task."""
        return self.deal is not Deal.IN_ONE_TASK

    def text(self) -> str:
        """Return why and over how many partitions."""
        why = self.deal.value.format(fields=", ".join(self.fields), state=self.state)
        why = why if self.side is None else f"of {self.side.number} {why}"
        if self.partitions is None or not self.is_shuffle:
            return why
        if self.partitions == 1:
            return f"{why} to 1 partition"
        return f"{why} over {self.partitions} partitions"
