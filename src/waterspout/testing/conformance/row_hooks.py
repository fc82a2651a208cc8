"""What the author of a store of rows overrides, and what its suite shares."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.errors import StoreError
from waterspout.state._base import StateFactory
from waterspout.state._rows import RowsState, RowsStore
from waterspout.testing._batches import OWNER, RowBatches
from waterspout.transactional._ledger import Ledger

__all__ = [
    "FIELDS",
    "FIRST",
    "ODD",
    "OTHER",
    "POINTS",
    "SECOND",
    "THIRD",
    "TYPED",
    "Rows",
    "RowsHooks",
    "flat",
]

Rows = Sequence[tuple[Any, ...]]
FIELDS = Schema.parse("id bigint, word string, amount double")
TYPED = Schema.parse(
    "id bigint, small smallint, text string, number double, flag boolean, raw binary, day date, "
    "moment timestamp, clock timestamp_ntz, price decimal(12,2), tags array<string>"
)


def _clock(*parts: int) -> datetime:
    """Return what a clock on some wall shows."""
    return datetime(*parts)  # type: ignore[arg-type]  # noqa: DTZ001


ODD: list[tuple[Any, ...]] = [
    (1, 1, "", 0.5, True, b"", date(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC),
     _clock(1970, 1, 1), Decimal("0.10"), []),
    (2, -32768, "naïve ☃ 𝄞\t\n\r\\N \\. \"'", math.inf, False, b"\x00\xff\\",
     date(2100, 12, 31), datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC),
     _clock(2024, 2, 29, 23, 59, 59, 999999), Decimal("-9999999999.99"), ["a", "", "b,c"]),
    (3, None, None, None, None, None, None, None, None, None, None),
]  # fmt: skip
POINTS = (
    *("commit.before_record", "commit.after_record", "head.before", "head.after", "write.before"),
    *("write.after", "publish.before", "publish.after", "mark.before", "mark.after"),
    *("settle.before", "settle.after"),
)
FIRST: dict[int, Rows] = {0: [(1, "a", 0.5), (2, "b", None)], 1: [(3, None, 1.5)]}
SECOND: dict[int, Rows] = {0: [(4, "a", 0.5)], 1: [(5, "b", 2.5), (6, "c", 3.5)]}
THIRD: dict[int, Rows] = {1: [(7, "x", 0.0)]}
OTHER: dict[int, Rows] = {0: [(4, "a", 0.5), (40, "lost", 9.0)], 2: [(50, "lost", 9.0)]}
"""What a lost attempt at the second batch had, where replays may differ."""


def flat(*batches: dict[int, Rows]) -> Counter[tuple[Any, ...]]:
    """Return the rows of some batches, and how often each is there."""
    return Counter(row for batch in batches for rows in batch.values() for row in rows)


class RowsHooks:
    """What a store author overrides; all but `make_recipe` and `read` may be left as it is."""

    def make_recipe(self, rows: Schema) -> StateFactory:
        """Return the recipe of a new, empty state: `MyState(...).bind_rows(rows)`."""
        raise NotImplementedError(f"{type(self).__name__} must say how a state is made")

    def read(self, recipe: StateFactory, fields: Sequence[str]) -> Rows:
        """Return some fields of all rows, read past waterspout."""
        raise NotImplementedError(f"{type(self).__name__} must say how its rows are read")

    def grown(self, recipe: StateFactory, rows: Schema) -> StateFactory | None:
        """Return the recipe of the same state with more fields, if that is possible."""
        return None

    def lose_rows(self, recipe: StateFactory) -> bool:
        """Remove all rows but not the head, past our back; False if that cannot be."""
        return False

    def occupy(self, recipe: StateFactory) -> bool:
        """Put something that is not ours in the state's place; False if that cannot be."""
        return False

    @pytest.fixture(autouse=True)
    def _close_states(self) -> Iterator[None]:
        self._opened: list[RowsState] = []
        yield
        while self._opened:
            self._opened.pop().close()

    def store(self, recipe: StateFactory) -> RowsStore:
        """Return a new client of a store."""
        state = recipe.make_state(Config(), 0, 1)
        assert isinstance(state, RowsState), "a recipe of rows makes a RowsState"
        self._opened.append(state)
        found = state._heads
        assert isinstance(found, RowsStore)
        return found

    def batches(
        self,
        recipe: StateFactory,
        *,
        ledger: Ledger | None = None,
        owner: str = OWNER,
        epoch: int = 1,
        home: str = "",
        lease: str = "",
    ) -> RowBatches:
        """Return a driver of batches over a store."""
        known = ledger or Ledger(OWNER)
        made = RowBatches.over(
            recipe, ledger=known, owner=owner, epoch=epoch, home=home, lease=lease
        )
        self._opened.append(made.state)  # type: ignore[arg-type]
        return made

    def restarted(self, batches: RowBatches) -> RowBatches:
        """Return the next driver of the topology."""
        made = batches.restarted()
        self._opened.append(made.state)  # type: ignore[arg-type]
        return made

    def seen(self, recipe: StateFactory) -> Counter[tuple[Any, ...]]:
        """Return the rows that a reader sees, and how often."""
        return Counter(tuple(row) for row in self.read(recipe, FIELDS.names))

    @staticmethod
    def listed(batches: RowBatches) -> list[tuple[Any, ...]]:
        """Return the committed rows as the store lists them, or skip the test."""
        try:
            return batches.rows()
        except StoreError as error:
            if "cannot list" not in str(error):
                raise
            pytest.skip("this store cannot list its rows: to_dataframe is not possible")

    def lost(self, recipe: StateFactory) -> dict[int, Rows]:
        """Return the rows of an attempt at the second batch that does not commit."""
        return SECOND if recipe.pins_batches else OTHER
