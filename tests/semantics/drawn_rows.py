"""Stores of rows in a drawn world: they fail before a write, after it, or cannot be reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tests.rows.stores import PinnedRows, Place, PublishedRows
from tests.semantics.simulation import Dice, Service
from waterspout.state import RowsStore, RowsStoreState, StateKind


class _Unreliable:
    def __init__(self, place: Place, rows: Any, name: str, dice: Dice, service: Service) -> None:
        super().__init__(place, rows, name)  # type: ignore[call-arg]
        self._dice = dice
        self._service = service

    def read_head(self) -> Any:
        self._service.reach()
        return super().read_head()  # type: ignore[misc]

    def move_head(self, expected: Any, new: Any) -> None:
        self._service.reach(8.0)
        super().move_head(expected, new)  # type: ignore[misc]

    def write_rows(self, stamp: Any, partition: int, rows: Any) -> Any:
        return self._tried(lambda: super(_Unreliable, self).write_rows(stamp, partition, rows))  # type: ignore[misc]

    def publish(self, stamp: Any, receipts: Any) -> None:
        self._tried(lambda: super(_Unreliable, self).publish(stamp, receipts))  # type: ignore[misc]

    def _tried(self, write: Any) -> Any:
        self._service.reach()
        if self._dice.hits(self._dice.lost_write):
            raise ConnectionError("not applied")
        answer = write()
        if self._dice.hits(self._dice.lost_answer):
            raise ConnectionError("applied, but the answer was lost")
        return answer


class UnreliablePublished(_Unreliable, PublishedRows):
    """Rows behind a manifest, over a bad network."""


class UnreliablePinned(_Unreliable, PinnedRows):
    """Rows in a log, over a bad network."""


@dataclass(frozen=True, kw_only=True)
class DrawnRows(RowsStoreState):
    """Recipe of one of them."""

    place: Place
    dice: Dice
    service: Service
    address: str
    pins_batches: bool = False

    backend: ClassVar[str] = "drawn"
    driver_only = True
    volatile = True

    @classmethod
    def of(cls, store: str, place: Place, dice: Dice, service: Service, address: str) -> DrawnRows:
        pinned = store == "pinned"
        kind = StateKind.TRANSACTIONAL if pinned else StateKind.OPAQUE
        return cls(
            place=place,
            dice=dice,
            service=service,
            address=address,
            kind=kind,
            pins_batches=pinned,
        )

    @property
    def title(self) -> str:
        return f"rows at {self.address}"

    def location(self) -> str:
        return f"drawn:{self.address}"

    def within(self) -> dict[str, Any]:
        return {"table": self.address}

    def store(self) -> RowsStore:
        made = UnreliablePinned if self.pins_batches else UnreliablePublished
        return made(self.place, self.rows, self.title, self.dice, self.service)

    def seen(self) -> list[Any]:
        """Return what a reader sees who knows nothing of waterspout."""
        if self.pins_batches:
            return [row for _, row in self.place.lines]
        return [row for _, name in self.place.shown for row in self.place.files[name]]
