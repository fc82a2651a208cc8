"""What a store of rows must do: each row once, whoever dies, sleeps, or comes back.

What counts is what `read` finds: the hook reads the store as somebody does who has never heard of
waterspout.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterspout import faults
from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.coordination.commit_protocol import CommitProtocol, LedgerKeeper
from waterspout.errors import FencedError, ForeignStoreError, StateMismatchError, StoreError
from waterspout.faults import Fault, FaultPlan, InjectedError
from waterspout.state._base import StateFactory
from waterspout.state._head import Claim, Head, Stamp, Writer
from waterspout.state._rows import RowsState, RowsStore
from waterspout.testing._batches import OWNER, RowBatches
from waterspout.testing.conformance.heads import NOW, OTHERS
from waterspout.testing.conformance.hooks import at, examples
from waterspout.testing.conformance.zombies import WAKES
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Ledger

__all__ = ["RowsConformance"]

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


class RowsConformance:
    """Everything that a store of rows must do, and must refuse.

    `make_recipe` returns the recipe of a new, empty state each time it is called, bound to the
    fields; `read` returns its rows as any reader sees them. The rest may be left as it is.
    """

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

    def batches(self, recipe: StateFactory, **options: Any) -> RowBatches:
        """Return a driver of batches over a store."""
        made = RowBatches.over(recipe, **options)
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

    # The head

    def test_a_new_store_has_no_head_and_looking_gives_it_none(self) -> None:
        store = self.store(self.make_recipe(FIELDS))

        assert [store.read_head(), store.read_head()] == [None, None]

    def test_the_head_moves_from_what_is_expected_with_all_its_fields(self) -> None:
        recipe = self.make_recipe(FIELDS)
        store = self.store(recipe)
        steps = [
            None,
            at(1),
            at(1, committed=True),
            at(2, 3, epoch=2, resolved={1: 0, 7: 9}),
            at(2, 4, epoch=2, history="a home", lease="é\n'", owner="ø", name="wörter 1"),
            at(2**40, 2**31, epoch=2**31, resolved={n: n % 3 for n in range(1, 50)}),
        ]

        for expected, new in pairwise(steps):
            assert new is not None
            store.move_head(expected, new)
            assert store.read_head() == new
        assert self.store(recipe).read_head() == steps[-1]

    @pytest.mark.parametrize("expected", OTHERS.values(), ids=OTHERS)
    def test_the_head_does_not_move_from_anything_else(self, expected: Head | None) -> None:
        store = self.store(self.make_recipe(FIELDS))
        store.move_head(None, NOW)

        with pytest.raises(FencedError):
            store.move_head(expected, at(3))

        assert store.read_head() == NOW

    # Rows

    def test_the_rows_of_all_partitions_and_batches_are_there_once(self) -> None:
        recipe = self.make_recipe(FIELDS)
        batches = self.batches(recipe)

        for rows in (FIRST, SECOND, THIRD):
            batches.commit(rows)

        assert self.seen(recipe) == flat(FIRST, SECOND, THIRD)

    def test_equal_rows_are_as_many_as_they_were(self) -> None:
        recipe = self.make_recipe(FIELDS)
        batches = self.batches(recipe)
        twice: dict[int, Rows] = {0: [(1, "a", 0.5)] * 2, 1: [(1, "a", 0.5)]}

        batches.commit(twice)
        batches.commit(twice)

        assert self.seen(recipe) == {(1, "a", 0.5): 6}

    def test_a_batch_without_rows_commits(self) -> None:
        recipe = self.make_recipe(FIELDS)
        batches = self.batches(recipe)
        batches.commit(FIRST)

        batches.commit({})
        batches.commit(SECOND)

        assert self.seen(recipe) == flat(FIRST, SECOND)

    def test_values_of_all_types_come_back_as_they_were(self) -> None:
        batches = self.batches(self.make_recipe(TYPED))

        batches.commit({0: ODD[:2], 1: ODD[2:]})

        assert sorted(self.listed(batches)) == ODD

    def test_to_dataframe_gives_committed_rows_only(self) -> None:
        batches = self.batches(self.make_recipe(FIELDS))
        assert batches.rows() == []
        batches.commit(FIRST)
        batches.lose(SECOND)

        assert Counter(self.listed(batches)) == flat(FIRST)
        batches.finish()
        assert Counter(batches.rows()) == flat(FIRST, SECOND)

    # Attempts

    def test_a_task_that_is_tried_again_leaves_its_rows_once(self) -> None:
        recipe = self.make_recipe(FIELDS)
        batches = self.batches(recipe)
        batches.claim()
        # The first try wrote, and its answer was lost.
        lost = batches.task(0, FIRST[0])
        lost.commit(1)
        lost.close()

        batches.write(FIRST)
        batches.finish()

        assert self.seen(recipe) == flat(FIRST)

    def test_publishing_again_changes_nothing(self) -> None:
        recipe = self.make_recipe(FIELDS)
        batches = self.batches(recipe)
        batches.commit(FIRST)
        batches.lose(SECOND)

        batches.publish()
        batches.finish()

        assert self.seen(recipe) == flat(FIRST, SECOND)

    def test_what_was_not_published_nobody_sees(self) -> None:
        recipe = self.make_recipe(FIELDS)
        batches = self.batches(recipe)
        batches.commit(FIRST)
        batches.claim()
        with_receipt = batches.task(0, SECOND[0])
        with_receipt.commit(2)
        if not with_receipt.written.receipts:
            pytest.skip("this store shows rows as they are written")

        assert self.seen(recipe) == flat(FIRST)

    def test_a_lost_attempt_leaves_no_row(self) -> None:
        recipe = self.make_recipe(FIELDS)
        batches = self.batches(recipe)
        batches.commit(FIRST)
        batches.lose(self.lost(recipe))
        batches.claim()
        if not recipe.pins_batches:
            assert self.seen(recipe) == flat(FIRST)

        batches.write(SECOND)
        batches.finish()

        assert self.seen(recipe) == flat(FIRST, SECOND)

    def test_an_attempt_that_wrote_some_partitions_only_leaves_no_row(self) -> None:
        recipe = self.make_recipe(FIELDS)
        batches = self.batches(recipe)
        batches.commit(FIRST)
        batches.claim()
        batches.put({1: self.lost(recipe).get(1, SECOND[1])})

        batches.commit(SECOND)

        assert self.seen(recipe) == flat(FIRST, SECOND)

    def test_claiming_again_with_the_same_stamp_undoes_nothing(self) -> None:
        recipe = self.make_recipe(FIELDS)
        batches = self.batches(recipe)
        batches.lose(FIRST)

        batches.state.claim(Claim(TransactionAttempt(1, 0)))
        batches.finish()

        assert self.seen(recipe) == flat(FIRST)

    def test_a_batch_that_is_taken_back_is_gone_with_the_next_claim(self) -> None:
        recipe = self.make_recipe(FIELDS)
        if recipe.pins_batches:
            pytest.skip("this store cannot take a batch back")
        batches = self.batches(recipe)
        batches.commit(FIRST)
        batches.commit(OTHER)

        batches.take_back()
        batches.claim()
        assert self.seen(recipe) == flat(FIRST)
        batches.commit(SECOND)

        assert self.seen(recipe) == flat(FIRST, SECOND)

    @pytest.mark.parametrize("point", POINTS)
    def test_a_driver_that_dies_at_any_step_is_followed_by_one_that_makes_it_exact(
        self, point: str
    ) -> None:
        recipe = self.make_recipe(FIELDS)
        batches = self.batches(recipe)
        batches.commit(FIRST)
        faults.install(FaultPlan([Fault(point, "raise", where={"txid": 2})]))
        try:
            with suppress(InjectedError):
                batches.commit(self.lost(recipe))
        finally:
            faults.install(None)
        assert not self.seen(recipe) - flat(FIRST, self.lost(recipe), SECOND), "no row twice"
        batches.ledger = batches._keeper.ledger

        following = self.restarted(batches)
        following.verify()
        following.recover()
        second = self.lost(recipe)  # if it was marked before the driver died
        if following.txid == 2:
            second = SECOND
            following.attempt = following.ledger.emitted[2].attempt
            following.commit(second)
        following.commit(THIRD)

        assert self.seen(recipe) == flat(FIRST, second, THIRD)

    # Zombies

    @pytest.mark.parametrize("wakes", WAKES.values(), ids=WAKES)
    def test_a_task_of_an_old_attempt_that_wakes_up_changes_nothing(
        self, wakes: tuple[str, ...]
    ) -> None:
        recipe = self.make_recipe(FIELDS)
        batches = self.batches(recipe)
        batches.commit(FIRST)
        batches.claim()
        zombie = batches.task(0, self.lost(recipe)[0])
        self._opened.append(zombie)
        for step in wakes:
            getattr(batches, step)(*[SECOND if batches.txid == 2 else THIRD] * (step == "write"))
        before = self.seen(recipe)

        try:
            zombie.commit(2)
        except FencedError:
            pass
        else:
            assert zombie.written.receipts, "a store that shows rows at once refuses late ones"

        assert self.seen(recipe) == before

    @pytest.mark.parametrize("wakes", WAKES.values(), ids=WAKES)
    def test_a_driver_of_an_old_attempt_publishes_nothing(self, wakes: tuple[str, ...]) -> None:
        recipe = self.make_recipe(FIELDS)
        old = self.batches(recipe)
        old.commit(FIRST)
        old.claim()
        old.put(self.lost(recipe))
        if not (old._claim and old._claim.writing("").receipts):
            pytest.skip("this store shows rows as they are written")
        new = self.restarted(old)
        for step in wakes:
            getattr(new, step)(*[SECOND if new.txid == 2 else THIRD] * (step == "write"))
        before = self.seen(recipe)

        with pytest.raises(FencedError):
            old.publish()

        assert self.seen(recipe) == before

    def test_a_new_driver_goes_on_and_the_old_one_is_fenced(self) -> None:
        recipe = self.make_recipe(FIELDS)
        old = self.batches(recipe)
        old.commit(FIRST)
        old.lose(self.lost(recipe))
        new = self.restarted(old)

        new.claim()
        with suppress(FencedError):
            old.put(self.lost(recipe))
        with pytest.raises(FencedError):
            old.claim()
        new.write(SECOND)
        new.mark()
        with pytest.raises(FencedError):
            old.state.settle(2, 0)
        new.settle()

        assert self.seen(recipe) == flat(FIRST, SECOND)

    @pytest.mark.parametrize(
        "stamp",
        [
            *(at(2, 1).stamp, at(2, 3).stamp, at(1, 2).stamp, at(3, 2).stamp),
            *(at(2, 2, epoch=2).stamp, at(2, 2, owner="another topology").stamp),
            *(at(2, 2, lease="another").stamp, at(2, 2, history="another").stamp),
        ],
        ids=repr,
    )
    def test_rows_with_any_other_stamp_are_refused_or_never_seen(self, stamp: Stamp) -> None:
        recipe = self.make_recipe(FIELDS)
        store = self.store(recipe)
        store.move_head(None, at(2, 2))
        task = RowBatches.over(recipe).task(0, FIRST[0])
        self._opened.append(task)
        rows = task._pending[0]

        def write() -> None:
            receipt = store.write_rows(stamp, 0, rows)
            assert receipt is not None
            store.publish(stamp, [receipt])

        with pytest.raises(FencedError):
            write()

        assert self.seen(recipe) == {}

    # Whose it is

    def test_another_topology_is_told_whose_store_it_is(self) -> None:
        recipe = self.make_recipe(FIELDS)
        self.batches(recipe).commit(FIRST)

        with pytest.raises(ForeignStoreError, match="belongs to topology 'word-count'"):
            self.batches(recipe, owner="another").claim()

        assert self.seen(recipe) == flat(FIRST)

    def test_two_states_of_a_topology_are_not_kept_in_one_place(self) -> None:
        recipe = self.make_recipe(FIELDS)
        states: dict[str, Any] = {
            name: recipe.make_state(Config(), 0, 1) for name in ("orders", "lines")
        }
        self._opened += states.values()
        keeper = LedgerKeeper(Ledger(OWNER), lambda ledger: None)
        commits = CommitProtocol(states, keeper)
        commits.enroll(Writer(OWNER, 1, lease="mine"))
        first, written = TransactionAttempt(1, 0), list[Claim]()
        keeper.emit(first, {})

        with pytest.raises(ForeignStoreError, match=r"where 'orders' of .* so 'lines' may not"):
            commits.commit(first, written.append)

        assert written == []

    def test_a_twin_and_a_driver_of_another_home_are_refused(self) -> None:
        recipe = self.make_recipe(FIELDS)
        batches = self.batches(recipe, lease="mine", home="here")
        batches.commit(FIRST)
        twin = self.batches(recipe, lease="a copy", home="here", ledger=batches.ledger)

        with pytest.raises(FencedError, match="from another home"):
            twin.claim()
        with pytest.raises(StateMismatchError):
            self.batches(recipe, home="there", epoch=2).claim()

        assert self.seen(recipe) == flat(FIRST)

    def test_an_emptied_store_and_a_lost_ledger_are_noticed(self) -> None:
        recipe = self.make_recipe(FIELDS)
        batches = self.batches(recipe)
        batches.commit(FIRST)
        elsewhere = self.make_recipe(FIELDS).make_state(Config(), 0, 1)
        self._opened.append(elsewhere)  # type: ignore[arg-type]

        with pytest.raises(StateMismatchError, match="is empty, but 1 batches were committed"):
            batches.restarted(elsewhere).claim()
        with pytest.raises(StateMismatchError, match="holds batch 1"):
            self.batches(recipe, epoch=2).commit(FIRST)

    def test_rows_that_are_gone_while_the_head_is_there_are_noticed(self) -> None:
        recipe = self.make_recipe(FIELDS)
        batches = self.batches(recipe)
        batches.commit(FIRST)
        batches.commit({})
        self.restarted(batches).verify()
        if not self.lose_rows(recipe):
            pytest.skip("nobody has said how rows are lost and the head is not")

        with pytest.raises(StateMismatchError, match="no row of batch 1"):
            self.restarted(batches).verify()

    def test_what_is_not_ours_is_left_alone(self) -> None:
        recipe = self.make_recipe(FIELDS)
        if not self.occupy(recipe):
            pytest.skip("nobody has said what else could be in the state's place")

        with pytest.raises(ForeignStoreError):
            recipe.check()
        with pytest.raises(ForeignStoreError):
            self.batches(recipe).claim()

    def test_a_state_of_other_fields_is_refused_and_one_of_more_goes_on(self) -> None:
        recipe = self.make_recipe(Schema(FIELDS.fields[:2]))
        batches = self.batches(recipe)
        batches.commit({0: [(1, "a")]})
        grown = self.grown(recipe, FIELDS)
        if grown is None:
            pytest.skip("nobody has said how its fields grow")
        bigger = self.batches(grown, ledger=batches.ledger)
        assert bigger.rows() == [(1, "a", None)]

        bigger.commit({0: [(2, "b", 0.5)]})

        assert self.seen(grown) == {(1, "a", None): 1, (2, "b", 0.5): 1}
        other = self.grown(recipe, Schema.parse("id string, word string"))
        assert other is not None
        with pytest.raises(ForeignStoreError):
            self.batches(other, ledger=bigger.ledger).claim()

    # All of it at once

    @examples(25)
    @given(st.data())
    def test_rows_are_exact_whatever_happens_and_in_whatever_order(self, data: Any) -> None:
        recipe = self.make_recipe(FIELDS)
        batches = self.batches(recipe)
        truth: Counter[tuple[Any, ...]] = Counter()
        asleep: list[tuple[RowsState, int]] = []
        number = 0
        for _ in range(data.draw(st.integers(1, 4), label="batches")):
            drawn = data.draw(_batch, label="rows")
            rows: dict[int, Rows] = {}
            for partition, many in drawn.items():
                rows[partition] = [(number + i, "w", 0.5) for i in range(many)]
                number += many
            for step in data.draw(st.lists(_mishap, max_size=3), label="mishaps"):
                batches = self._mishap(step, batches, recipe, rows, asleep)
            _let_wake(asleep, data.draw(st.booleans(), label="zombies wake"))
            batches.commit(rows)
            truth += flat(rows)
            _let_wake(asleep, data.draw(st.booleans(), label="zombies wake later"))
            assert self.seen(recipe) == truth

    def _mishap(
        self,
        step: str,
        batches: RowBatches,
        recipe: StateFactory,
        rows: dict[int, Rows],
        asleep: list[tuple[RowsState, int]],
    ) -> RowBatches:
        mine = rows if recipe.pins_batches else {9: [(-1, "lost", 0.5)], **rows}
        if step == "restart":
            attempt = batches.attempt
            batches = self.restarted(batches)
            batches.attempt = attempt
            return batches
        batches.claim()
        if step == "sleep" and mine:
            partition = min(mine)
            task = batches.task(partition, mine[partition])
            self._opened.append(task)
            asleep.append((task, batches.txid))
        elif step == "some":
            batches.put(dict(list(mine.items())[:1]))
        elif step == "unpublished":
            batches.put(mine)
        elif step == "lost":
            batches.write(mine)
        return batches


_batch = st.dictionaries(st.integers(0, 2), st.integers(1, 3), max_size=3)
_mishap = st.sampled_from(["restart", "claim", "sleep", "some", "unpublished", "lost"])


def _let_wake(asleep: list[tuple[RowsState, int]], wakes: bool) -> None:
    while wakes and asleep:
        task, txid = asleep.pop()
        with suppress(FencedError):
            task.commit(txid)
