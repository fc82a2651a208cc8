"""What the states of a drawn topology must hold: plain Python over the batches that committed.

Knows nothing of the library: a batch is its rows by source, in their order, and the content that
static states had for the attempt that counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.semantics.drawn_cases import (
    KEYS,
    LABELS,
    OPAQUE,
    STATEFUL,
    Ask,
    Case,
    NewValues,
    Row,
    Source,
    Static,
    Step,
    Update,
    follows,
)

Content = dict[tuple[str, ...], Any]

FUNCTIONS: dict[str, Callable[[Row, int], list[Row]]] = {
    "filter": lambda row, by: [row] if row[2] % by else [],
    "map": lambda row, by: [(KEYS[(ord(row[0]) + by) % len(KEYS)], row[1], row[2])],
    "flat_map": lambda row, by: [(row[0], f"{row[1]}{n}", row[2]) for n in range(row[2] % by)],
}
"""Operations on rows, also used by the topology: they are the user's own."""


def labelled(row: Row, answer: str | int | None) -> Row:
    """Return a row whose key and label say what a state answered."""
    if isinstance(answer, str):
        return KEYS[LABELS.index(answer)], answer, row[2]
    rest = (answer or 0) % 3
    return KEYS[rest], f"n{rest}", row[2]


def within_ms(step: Step) -> int:
    """Return for how long a key that has passed does not pass again."""
    return 40 * step.by


def grouped(rows: Sequence[Row]) -> dict[str, list[int]]:
    """Return the numbers of each key."""
    found: dict[str, list[int]] = {}
    for k, _, number in rows:
        found.setdefault(k, []).append(number)
    return found


def is_forgotten(numbers: Sequence[int]) -> bool:
    """Whether a key with these numbers in a batch is removed from a state that forgets."""
    return any(number % 3 == 0 for number in numbers)


class Oracle:
    """Counts along, batch by batch."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.states: dict[int, Content] = {i: {} for i in case.updates}
        self._kept: dict[int, Any] = {}

    def count(
        self, sources: Mapping[int, Sequence[Row]], statics: Mapping[int, str], time_ms: int
    ) -> None:
        """Take in a batch."""
        batch = _Batch(self._case, self.states, self._kept, sources, statics, time_ms)
        self.states = {i: batch.after(i) for i in self.states}
        for i, thing in enumerate(self._case.things):
            if isinstance(thing, Step) and thing.name in STATEFUL:
                batch.rows(i)  # though nobody may read it
        self._kept = batch.kept


class _Batch:
    def __init__(
        self,
        case: Case,
        before: Mapping[int, Content],
        kept: Mapping[int, Any],
        sources: Mapping[int, Sequence[Row]],
        statics: Mapping[int, str],
        time_ms: int,
    ) -> None:
        self._case = case
        self._before = before
        self._kept_before = kept
        self._sources = sources
        self._statics = statics
        self._time_ms = time_ms
        self._rows: dict[int, list[Row]] = {}
        self._after: dict[int, Content] = {}
        self.kept: dict[int, Any] = {}

    def rows(self, i: int) -> list[Row]:
        if i not in self._rows:
            self._rows[i] = self._made(i)
        return self._rows[i]

    def after(self, i: int) -> Content:
        """Return what a state holds after the batch."""
        if i not in self._after:
            update = self._case.things[i]
            assert isinstance(update, Update)
            self._after[i] = _updated(self._before[i], update, self.rows(update.of))
        return self._after[i]

    def _made(self, i: int) -> list[Row]:
        match self._case.things[i]:
            case Source():
                return list(self._sources[i])
            case Step(name="sums", of=(parent,)):
                sums: Counter[str] = Counter()
                for k, _, number in self.rows(parent):
                    sums[k] += number
                return [(k, "sum", total) for k, total in sums.items()]
            case Step(name="merge", of=(one, other)):
                return [*self.rows(one), *self.rows(other)]
            case Step(name="join", of=(one, other)):
                return [
                    (k, f"{g}{g2}", 100 * number + number2)
                    for k, g, number in self.rows(one)
                    for k2, g2, number2 in self.rows(other)
                    if k == k2
                ]
            case Step(name="window", of=(parent,), by=by):
                return self._window(i, parent, by)
            case Step(name="deduplicate" | "within") as step:
                return self._passed(i, step)
            case Step(name=name, of=(parent,), by=by):
                return [new for row in self.rows(parent) for new in FUNCTIONS[name](row, by)]
            case Ask() as ask:
                return self._asked(i, ask)
            case NewValues(of=update):
                return self._new_values(update)
            case other:
                raise AssertionError(f"{other} has no rows")

    def _window(self, i: int, parent: int, by: int) -> list[Row]:
        waiting = [*self._kept_before.get(i, []), *self.rows(parent)]
        full = len(waiting) // by
        self.kept[i] = waiting[full * by :]
        sums = [sum(row[2] for row in waiting[n * by : (n + 1) * by]) for n in range(full)]
        return [("a", "window", total) for total in sums]

    def _passed(self, i: int, step: Step) -> list[Row]:
        """Return the least row of each key of which none has passed, ever or for a while."""
        seen: dict[tuple[str, ...], int] = self._kept_before.get(i, {})
        if step.name == "within":
            oldest = self._time_ms - within_ms(step)
            seen = {key: time for key, time in seen.items() if time > oldest}
        first: dict[tuple[str, ...], Row] = {}
        for row in self.rows(step.of[0]):
            key = _key(row, step.keys)
            first[key] = min(row, first.get(key, row))
        self.kept[i] = {**dict.fromkeys(first, self._time_ms), **seen}
        return [row for key, row in first.items() if key not in seen]

    def _asked(self, i: int, ask: Ask) -> list[Row]:
        if isinstance(self._case.things[ask.state], Static):
            if not self.rows(ask.of):
                return []
            labels = dict(zip(KEYS, self._statics[ask.state], strict=True))
            return [labelled(row, labels[row[0]]) for row in self.rows(ask.of)]
        # A query sees the batches before its own. Behind the update itself only an opaque state
        # can still tell what was there before it.
        update = self._case.things[ask.state]
        assert isinstance(update, Update)
        behind = follows(self._case, i, ask.state) and update.kind != OPAQUE
        content = self.after(ask.state) if behind else self._before[ask.state]
        if ask.keeps_new:
            return [row for row in self.rows(ask.of) if (row[0],) not in content]
        return [labelled(row, content.get((row[0],))) for row in self.rows(ask.of)]

    def _new_values(self, i: int) -> list[Row]:
        update = self._case.things[i]
        assert isinstance(update, Update)
        changed = {row[0] for row in self.rows(update.of)}
        if update.how == "firsts":
            changed = {k for k in changed if (k,) not in self._before[i]}
        return [(k, "new", self.after(i)[(k,)]) for k in changed]


def _key(row: Row, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(row[("k", "g").index(name)] for name in names)


def _updated(before: Content, update: Update, rows: Sequence[Row]) -> Content:
    after = dict(before)
    if update.how == "forgets":
        for k, numbers in grouped(rows).items():
            after[(k,)] = after.get((k,), 0) + len(numbers)
            if is_forgotten(numbers):
                del after[(k,)]
        return after
    if update.how == "append":
        return dict(Counter(before) + Counter(rows))
    if update.how == "upsert":
        # Of a batch the row with the greatest id counts; of a later one, if its is not less.
        last = {row[0]: row for row in sorted(rows, key=lambda row: (row[2], row))}
        new = {(k,): (True, g, number) for k, g, number in last.values()}
        kept = {key: row for key, row in new.items() if row[2] >= after.get(key, row)[2]}
        return {**after, **kept}
    for row in rows:
        key = _key(row, update.keys)
        match update.how:
            case "count" | "firsts":
                after[key] = after.get(key, 0) + 1
            case "sum":
                after[key] = after.get(key, 0) + row[2]
            case _:
                after[key] = sorted([*after.get(key, []), row[2]])
    return after
