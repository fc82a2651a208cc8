"""Which tuples a window holds, and when: against windows that are recomputed from everything."""

from __future__ import annotations

import pickle
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waterspout.topology.windowing.buffer import TupleWindow, WindowBuffer
from waterspout.topology.windowing.settings import Seconds, Tuples
from waterspout.topology.windowing.task import Watermark


class Played:
    """Plays timestamps and watermarks into a buffer, as a bolt would; items are (ts, number)."""

    def __init__(self, length, slide):
        self.buffer = WindowBuffer(length, slide)
        self.accepted = []
        self.late = []
        self.windows: list[TupleWindow] = []
        self.expired = []
        self.expired_before_window = []
        self.reached = None
        self._numbers = count(1)

    def add(self, *timestamps):
        for ts in timestamps:
            item = (ts, next(self._numbers))
            if (self.reached is not None and ts < self.reached) or self.buffer.is_late(ts):
                self.late.append(item)
            else:
                self.accepted.append(item)
                self.buffer.add(item, ts)
        return self

    def advance(self, upto):
        """Let time come to `upto`; return the windows that were due."""
        self.reached = upto if self.reached is None else max(upto, self.reached)
        due = []
        while (window := self.buffer.next_window(self.reached)) is not None:
            due.append(window)
            self.expired_before_window.append(len(self.expired))
            self.expired += self.buffer.expire(window.end_timestamp)
        self.expired += self.buffer.expire(self.reached)
        self.windows += due
        return due


def contents(windows):
    return [[ts for ts, _ in window.get()] for window in windows]


def ends(windows):
    return [window.end_timestamp for window in windows]


def test_the_example_of_storms_documentation_gives_its_windows():
    second = 1000
    played = Played(Seconds(20), Seconds(10))

    played.add(*(s * second for s in (3, 5, 7, 18, 26, 36)))
    first = played.advance(31 * second)
    played.add(*(7200 * second + s * second for s in (25, 26, 27, 39)))
    second_look = played.advance((7200 + 34) * second)

    assert [(w.start_timestamp // second, w.end_timestamp // second) for w in first] == [
        (-10, 10),
        (0, 20),
        (10, 30),
    ]
    assert contents(first) == [[3000, 5000, 7000], [3000, 5000, 7000, 18000], [18000, 26000]]
    assert [w.end_timestamp // second for w in second_look] == [40, 50, 7230]
    assert contents(second_look) == [[26000, 36000], [36000], [7225000, 7226000, 7227000]]


def test_a_tuple_at_the_end_of_a_window_is_in_it_and_one_at_its_start_is_not():
    played = Played(Seconds(1), Seconds(1)).add(1000, 2000)

    assert contents(played.advance(5000)) == [[1000], [2000]]


def test_a_time_in_which_nothing_came_makes_no_window():
    played = Played(Seconds(1), Seconds(1)).add(500, 90_500)

    assert ends(played.advance(100_000)) == [1000, 91_000]


def test_new_and_expired_are_what_has_changed_since_the_window_before():
    played = Played(Tuples(3), Tuples(2)).add(1, 2, 3, 4)

    first, second = played.advance(4)

    assert (first.get(), first.new, first.expired) == ([(1, 1), (2, 2)], [(1, 1), (2, 2)], [])
    assert second.get() == [(2, 2), (3, 3), (4, 4)]
    assert second.new == [(3, 3), (4, 4)]
    assert second.expired == [(1, 1)]


def test_a_tuple_is_out_as_soon_as_no_later_window_can_hold_it():
    played = Played(Tuples(3), Tuples(3)).add(1, 2, 3, 4)
    played.advance(4)

    assert played.expired == [(1, 1), (2, 2), (3, 3)]


def test_with_a_slide_beyond_the_length_the_tuples_between_are_in_no_window():
    played = Played(Tuples(1), Tuples(3)).add(1, 2, 3, 4, 5, 6)

    windows = played.advance(6)

    assert contents(windows) == [[3], [6]]
    assert played.expired == [(n, n) for n in range(1, 7)]


def test_a_count_that_slides_by_time_is_given_again_while_nothing_comes():
    played = Played(Tuples(2), Seconds(1)).add(100, 200, 300)

    looks = [contents(played.advance(upto)) for upto in (1000, 2000, 3000)]

    assert looks == [[[200, 300]]] * 3


def test_a_long_idle_time_is_one_window_of_a_count_not_one_for_each_slide():
    played = Played(Tuples(2), Seconds(1)).add(100, 1_000_000_100)

    assert ends(played.advance(2_000_000_000)) == [
        1000,
        1_000_000_000,
        1_000_001_000,
        2_000_000_000,
    ]


def test_a_count_that_slides_by_time_keeps_no_more_than_it_needs():
    played = Played(Tuples(3), Seconds(3600))

    for ts in range(10_000):
        played.add(ts).advance(ts)

    assert len(played.buffer) < 3 + 64
    assert len(played.expired) == 10_000 - len(played.buffer)


def test_a_discarded_window_is_gone_and_the_next_one_begins_without_it():
    played = Played(Tuples(3), Tuples(2)).add(1, 2, 3, 4)
    played.buffer.next_window(4)

    failed = played.buffer.discard()
    (window,) = played.advance(4)

    assert failed == [(1, 1), (2, 2)]
    assert window.get() == window.new == [(3, 3), (4, 4)]
    assert window.expired == [(1, 1), (2, 2)]


@pytest.mark.parametrize(
    ("length", "slide"),
    [
        (Seconds(0.02), Seconds(0.01)),
        (Tuples(3), Tuples(2)),
        (Seconds(0.02), Tuples(2)),
        (Tuples(3), Seconds(0.01)),
    ],
)
def test_a_reopened_window_is_given_again_when_its_tuples_are_back(length, slide):
    played = Played(length, slide).add(3, 14, 17, 19)
    first = played.buffer.next_window(15) or played.buffer.next_window(20)
    played.buffer.expire(first.end_timestamp)
    failed = played.buffer.next_window(20)

    items = played.buffer.discard(reopen=True)
    for item in items:
        played.buffer.add(item, item[0])
    again = played.buffer.next_window(20)

    assert items == failed.get()
    assert (again.get(), again.end_timestamp) == (failed.get(), failed.end_timestamp)
    assert again.start_timestamp == failed.start_timestamp
    assert played.buffer.next_window(20) is None


small = st.integers(1, 7)
measures = st.one_of(small.map(Tuples), small.map(lambda n: Seconds(n / 1000)))
steps = st.lists(st.tuples(st.booleans(), st.integers(-20, 60)), max_size=60)


def expected_windows(length, slide, seen, last_end, before, upto):
    """Return (end, items) of the windows that fall due at a look, from all that was accepted.

    `last_end` is the end of the last window, `before` how many items had been counted.
    """
    ready = sorted(item for item in seen if item[0] <= upto)

    def held(end, candidates):
        if isinstance(length, Tuples):
            return candidates[-length.count :]
        return [item for item in candidates if end - length.millis < item[0]]

    if isinstance(slide, Tuples):
        marks = [n for n in range(before + 1, len(ready) + 1) if n % slide.count == 0]
        return [(ready[n - 1][0], held(ready[n - 1][0], ready[:n])) for n in marks]
    if not ready:
        return []
    step = slide.millis
    first = ready[0][0] // step * step if last_end is None else last_end + step
    found = []
    for end in range(first, upto + 1, step):
        inside = held(end, [item for item in ready if item[0] <= end])
        if not inside:
            continue
        is_idle = not any(end - step < ts <= end for ts, _ in ready)
        if isinstance(length, Tuples) and is_idle and found and found[-1][2]:
            found.pop()
        found.append((end, inside, is_idle))
    return [(end, inside) for end, inside, _ in found]


@settings(deadline=None)
@given(measures, measures, steps)
def test_windows_are_those_recomputed_from_the_whole_history(length, slide, script):
    played = Played(length, slide)
    expected = []
    last_end, counted = None, 0
    for is_look, ts in script:
        if not is_look:
            late = (played.reached is not None and ts < played.reached) or (
                isinstance(slide, Seconds) and last_end is not None and ts <= last_end
            )
            before = len(played.late)
            played.add(ts)
            assert (len(played.late) > before) == late
            continue
        upto = ts if played.reached is None else max(ts, played.reached)
        due = expected_windows(length, slide, played.accepted, last_end, counted, upto)
        expected += due
        last_end = due[-1][0] if due else last_end
        counted = sum(item[0] <= upto for item in played.accepted)
        played.advance(ts)

    assert [(w.end_timestamp, w.get()) for w in played.windows] == expected


@settings(deadline=None)
@given(measures, measures, steps)
def test_new_and_expired_lead_from_each_window_to_the_next(length, slide, script):
    played = play(length, slide, script)

    held: list = []
    for window in played.windows:
        assert window.expired == [item for item in held if item not in window.get()]
        assert window.new == [item for item in window.get() if item not in held]
        held = window.get()


@settings(deadline=None)
@given(measures, measures, steps)
def test_every_tuple_expires_once_and_is_in_no_window_after_that(length, slide, script):
    played = play(length, slide, script)
    played.add(10_000)  # far behind everything: what was before is out of every window by time
    played.advance(20_000)

    assert len(played.expired) == len(set(played.expired))
    for window, number in zip(played.windows, played.expired_before_window, strict=True):
        assert not set(window.get()) & set(played.expired[:number])
    kept = set(played.accepted) - set(played.expired)
    if isinstance(length, Seconds):
        assert kept <= {item for item in played.accepted if item[0] >= 10_000}
    else:
        assert len(kept) <= length.count + 64
    assert len(kept) == len(played.buffer)


@settings(deadline=None)
@given(measures, measures, steps)
def test_a_buffer_that_is_pickled_at_every_step_gives_the_same_windows(length, slide, script):
    plain = play(length, slide, script)

    travelling = play(length, slide, script, pickled=True)

    assert travelling.windows == plain.windows
    assert travelling.expired == plain.expired


@settings(deadline=None)
@given(small, small, st.integers(0, 60))
def test_counted_windows_hold_the_last_tuples_at_every_slide(length, slide, number):
    played = Played(Tuples(length), Tuples(slide))

    for n in range(1, number + 1):
        played.add(n).advance(n)

    assert contents(played.windows) == [
        list(range(max(1, n - length + 1), n + 1)) for n in range(slide, number + 1, slide)
    ]


@settings(deadline=None)
@given(small, steps)
def test_a_tumbling_window_by_time_holds_every_tuple_exactly_once_or_it_was_late(length, script):
    played = play(Seconds(length / 1000), Seconds(length / 1000), script)
    played.advance(1000)

    seen = [item for window in played.windows for item in window.get()]

    assert sorted(seen) == sorted(played.accepted)
    assert len(seen) + len(played.late) == sum(not is_look for is_look, _ in script)


def play(length, slide, script, pickled=False):
    played = Played(length, slide)
    for is_look, ts in script:
        if is_look:
            played.advance(ts)
        else:
            played.add(ts)
        if pickled:
            played.buffer = pickle.loads(pickle.dumps(played.buffer))
    return played


def test_the_watermark_is_the_least_of_the_latest_of_each_stream_less_the_lag():
    mark = Watermark(["a", "b"], lag=5)
    for stream, ts in [("a", 100), ("b", 40), ("b", 60), ("b", 50)]:
        mark.note(stream, ts)

    assert mark.value == 55


def test_there_is_no_watermark_before_every_stream_was_heard():
    mark = Watermark(["a", "b"], lag=0)
    mark.note("a", 100)

    assert mark.value is None
