"""A column that is added to a state: it begins empty, and the others go on."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.errors import ForeignStoreError, StoreError
from waterspout.state._base import StateKind
from waterspout.state._batched import BatchedMap
from waterspout.testing._batches import Batches, keys_of
from waterspout.testing.conformance.hooks import StoreHooks, each_exact_kind, each_kind
from waterspout.trident.operations.aggregators import Columns, Count, Sum

__all__ = ["GrowingSuite"]

_NARROW, _WIDE = "n bigint", "n bigint, total bigint"
_COLUMNS = Columns(n=Count(), total=("amount", Sum()))


class GrowingSuite(StoreHooks):
    """What a state holds that was written with fewer columns than it has now."""

    def _bound(self, recipe: Any, values: str) -> BatchedMap[Any, Any]:
        bound = recipe.bind(Schema.parse("word string"), Schema.parse(values))
        bound.check()
        state: BatchedMap[Any, Any] = bound.make_state(Config(), 0, 1)
        return state

    def _growing_recipe(self, kind: StateKind) -> Any:
        recipe = self.make_recipe(kind)
        if recipe is None:
            pytest.skip("there is no recipe to bind to other columns")
        return recipe

    @each_kind
    def test_an_added_column_begins_empty_and_the_others_go_on(self, kind: StateKind) -> None:
        recipe = self._growing_recipe(kind)
        narrow = self._bound(recipe, _NARROW)
        before = Batches(narrow)
        before.commit({"a": 3, "b": 1})
        narrow.close()
        wide = self._bound(recipe, _WIDE)

        assert _rows(wide.multi_get(keys_of("ab"))) == [(3, None), (1, None)]
        after = before.restarted(wide)
        after.combine = _COLUMNS
        after.verify()
        after.recover()
        after.commit({"a": (1, 70), "c": (1, 5)})

        assert _rows(after.values("a", "b", "c")) == [(4, 70), (1, None), (1, 5)]
        with suppress(StoreError):  # one that cannot list what it holds
            scanned = {tuple(k): v for chunk in wide.scan() for k, v in chunk}
            found = _rows(scanned[key] for key in (("a",), ("b",), ("c",)))
            assert found == [(4, 70), (1, None), (1, 5)]
        wide.close()

    @each_exact_kind
    def test_an_attempt_that_was_lost_before_the_column_came_leaves_no_trace(
        self, kind: StateKind
    ) -> None:
        recipe = self._growing_recipe(kind)
        narrow = self._bound(recipe, _NARROW)
        before = Batches(narrow)
        before.commit({"a": 3})
        before.claim()  # a transactional state must be given the same rows again: it has none yet
        if kind is StateKind.OPAQUE:
            before.write({"a": 100, "z": 1})
        narrow.close()
        after = before.restarted(self._bound(recipe, _WIDE))
        after.combine = _COLUMNS
        after.verify()

        after.lose({"a": (9, 9)} if kind is StateKind.OPAQUE else {"a": (1, 70)})
        again = after.restarted(self._bound(recipe, _WIDE))
        again.verify()
        again.commit({"a": (1, 70)})

        assert _rows(again.values("a", "z")) == [(4, 70), None]
        after.state.close()
        again.state.close()

    @each_exact_kind
    def test_a_writer_of_fewer_columns_is_shut_out(self, kind: StateKind) -> None:
        recipe = self._growing_recipe(kind)
        narrow = self._bound(recipe, _NARROW)
        before = Batches(narrow)
        before.commit({"a": 3})
        after = before.restarted(self._bound(recipe, _WIDE))
        after.combine = _COLUMNS
        after.commit({"a": (1, 70)})

        if narrow.is_fenced and type(recipe).__name__ != "MemoryMapState":
            with pytest.raises(ForeignStoreError, match="total bigint; this topology wants"):
                self._bound(recipe, _NARROW).read_head()
        assert _rows(after.values("a")) == [(4, 70)]
        narrow.close()
        after.state.close()


def _rows(values: Any) -> list[Any]:
    return [None if value is None else tuple(value) for value in values]
