"""The time of a batch: pinned, never going back; and the batches that only close windows."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from waterspout.coordination.batch_clock import CLOCK, BatchClock


class Wall:
    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def clock(*windows, now=100.0):
    wall = Wall(now)
    return BatchClock(windows, wall), wall


def test_a_batch_has_the_time_at_which_it_was_planned():
    it, _ = clock((10_000, 5_000), now=123.4567)

    assert BatchClock.read({CLOCK: it.pin(None, None, has_data=True)}) == 123.456


def test_a_batch_without_a_clock_has_no_time():
    assert BatchClock.read({"spout": {}}) is None


def test_a_replay_has_the_time_of_the_first_attempt():
    it, wall = clock((10_000, 5_000))
    first = it.pin(None, None, has_data=True)
    wall.now = 500.0

    assert it.pin(None, first, has_data=False) == first


def test_time_stands_still_while_the_wall_clock_is_behind():
    it, wall = clock((10_000, 5_000))
    first = it.pin(None, None, has_data=True)

    wall.now = 40.0
    second = it.pin(first, None, has_data=True)
    wall.now = 101.0
    third = it.pin(second, None, has_data=True)

    assert [entry["time"] for entry in (first, second, third)] == [100_000, 100_000, 101_000]


def test_an_entry_survives_the_store_it_is_kept_in():
    it, _ = clock((10_000, 5_000))
    entry = it.pin(None, None, has_data=True)

    assert json.loads(json.dumps(entry)) == entry


def test_nothing_is_due_before_the_first_batch_or_without_data():
    it, wall = clock((1_000, 1_000))
    empty = it.pin(None, None, has_data=False)
    wall.now = 1e6

    assert not it.is_due(None)
    assert not it.is_due(empty)


def test_a_tumbling_window_needs_one_batch_to_close_it():
    it, wall = clock((10_000, 10_000), now=103.0)
    entry = it.pin(None, None, has_data=True)

    due = []
    for wall.now in range(103, 200):
        if it.is_due(entry):
            due.append(wall.now)
            entry = it.pin(entry, None, has_data=False)

    assert due == [110]


def test_many_ends_that_have_passed_need_one_batch():
    it, wall = clock((10_000, 1_000), now=103.0)
    entry = it.pin(None, None, has_data=True)
    wall.now = 1e6

    assert it.is_due(entry)
    assert not it.is_due(it.pin(entry, None, has_data=False))


def test_a_replay_that_got_data_keeps_its_windows_open():
    it, wall = clock((10_000, 10_000), now=103.0)
    first = it.pin(None, None, has_data=True)
    wall.now = 110.0
    closing = it.pin(first, None, has_data=False)

    again = it.pin(first, closing, has_data=True)
    wall.now = 120.0

    assert (closing["data"], again["data"]) == (103_000, 110_000)
    assert (it.is_due(closing), it.is_due(again)) == (False, True)


def test_a_replay_follows_from_what_the_batch_before_it_turned_out_to_be():
    it, wall = clock((10_000, 10_000), now=103.0)
    first = it.pin(None, None, has_data=False)
    wall.now = 105.0
    second = it.pin(first, None, has_data=False)

    assert it.pin({**first, "data": 103_000}, second, has_data=False)["data"] == 103_000


windows = st.lists(
    st.tuples(st.integers(1, 8), st.integers(1, 8)).map(lambda p: (max(p), min(p))),
    min_size=1,
    max_size=3,
)


@given(windows=windows, data=st.sets(st.integers(100, 160), max_size=8))
def test_every_window_closes_at_its_end_with_as_few_batches_as_there_are_ends(windows, data):
    it, wall = clock(*windows)
    entry, batches = None, []
    for now in range(100, 200):
        wall.now = (now + 0.5) / 1000  # not on the edge of a float
        if now in data or it.is_due(entry):
            entry = it.pin(entry, None, has_data=now in data)
            batches.append(now)

    ends = {
        end
        for length, slide in windows
        for end in range(100, 200)
        if end % slide == 0 and any(end - length <= time < end for time in data)
    }
    assert set(batches) == data | ends
