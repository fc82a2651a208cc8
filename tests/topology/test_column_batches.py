"""Where the rows of a batch go: to the tasks that single tuples would go to, each row once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterspout._tuples import Fields
from waterspout.topology._column_batches import make_batch_route, rows_of
from waterspout.topology._grouping import Grouping, GroupingKind, make_route, turn_of

FIELDS = Fields("a", "b", "c")
KEYS = st.one_of(
    st.lists(st.sampled_from([None, "", "x", "y", "z"]), min_size=1, max_size=12),
    st.lists(st.sampled_from([None, 0, 1, 2, -5]), min_size=1, max_size=12),
    st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=1, max_size=12),
)


def routes(kind: GroupingKind, tasks: list[int], names: Any = (), turn: int = 0) -> Any:
    grouping = Grouping(kind, Fields(*names))
    given = {"context": None, "stream": "default", "turn": turn_of(turn)}
    alone = make_route(grouping, FIELDS, tasks, **given)
    return alone, make_batch_route(grouping, FIELDS, tasks, alone, turn_of(turn))


def dealt(batch_route: Any, batch: pa.RecordBatch) -> list[list[int]]:
    """The tasks of each row; the rows of a task stand in their order."""
    tasks: list[list[int]] = [[] for _ in range(batch.num_rows)]
    for task, rows in batch_route(batch):
        chosen = list(range(batch.num_rows)) if rows is None else rows.tolist()
        assert chosen == sorted(chosen)
        for row in chosen:
            tasks[row].append(task)
    return tasks


@given(
    a=KEYS,
    b=KEYS,
    names=st.sampled_from([("a",), ("b", "a"), ("a", "b", "c")]),
    tasks=st.integers(1, 7),
)
def test_rows_with_equal_keys_go_where_single_tuples_go(a, b, names, tasks):
    size = min(len(a), len(b))
    batch = pa.record_batch([a[:size], b[:size], [1] * size], names=list(FIELDS))
    alone, together = routes(GroupingKind.FIELDS, list(range(3, 3 + tasks)), names)

    assert dealt(together, batch) == [list(alone(row)) for row in rows_of(batch)]


@pytest.mark.parametrize("kind", [GroupingKind.SHUFFLE, GroupingKind.NONE])
def test_a_shuffle_deals_evenly_and_batches_of_one_row_in_turn(kind):
    _, together = routes(kind, [4, 5, 6])
    many = pa.record_batch([range(10)] * 3, names=list(FIELDS))
    one = pa.record_batch([[1]] * 3, names=list(FIELDS))

    counts = np.bincount([task for (task,) in dealt(together, many)])[4:]
    single = [dealt(together, one)[0][0] for _ in range(6)]

    assert sorted(counts.tolist()) == [3, 3, 4]
    assert sorted(single) == [4, 4, 5, 5, 6, 6]


def test_all_and_global_and_partial_key():
    batch = pa.record_batch([["x", "y"] * 4, range(8), range(8)], names=list(FIELDS))

    assert dealt(routes(GroupingKind.ALL, [4, 5])[1], batch) == [[4, 5]] * 8
    assert dealt(routes(GroupingKind.GLOBAL, [5, 4])[1], batch) == [[4]] * 8
    alone, _ = routes(GroupingKind.PARTIAL_KEY, [4, 5, 6, 7], ["a"])
    _, together = routes(GroupingKind.PARTIAL_KEY, [4, 5, 6, 7], ["a"])
    assert dealt(together, batch) == [list(alone(row)) for row in rows_of(batch)]
