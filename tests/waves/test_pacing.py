"""The size of waves, and the marks at which spouts wait and go on."""

from __future__ import annotations

import pytest

from waterspout import Config
from waterspout.waves.pacing import Pacing


def pacing(**options) -> Pacing:
    return Pacing(Config(**options))


def test_it_begins_with_a_thousand_or_the_most_there_may_be():
    assert pacing().size == 1000
    assert pacing(wave_max_tuples=50).size == 50


def test_it_grows_while_waves_are_fast_but_not_at_once():
    pace = pacing(wave_secs=1.0)
    sizes = []
    for _ in range(5):
        pace.finished(pace.size, 0.01, undone=0)
        sizes.append(pace.size)

    assert sizes == [4000, 16_000, 64_000, 100_000, 100_000]


def test_it_settles_at_what_can_be_done_in_the_time():
    pace = pacing(wave_secs=2.0)
    for _ in range(20):
        pace.finished(pace.size, 0.1 + pace.size / 5000, undone=0)

    assert 9000 <= pace.size <= 10_000


def test_it_shrinks_when_a_wave_takes_too_long():
    pace = pacing(wave_secs=1.0)
    pace.finished(1000, 10.0, undone=0)

    assert pace.size == 100


def test_it_shrinks_to_what_was_reached():
    pace = pacing(wave_secs=1.0)
    pace.finished(1000, 1.0, undone=700)

    assert pace.size == 300


def test_it_never_shrinks_to_nothing():
    pace = pacing()
    for _ in range(5):
        pace.finished(1000, 1e6, undone=999)

    assert pace.size == 10


def test_a_small_wave_says_nothing_about_large_ones():
    pace = pacing()
    pace.finished(3, 0.5, undone=0)

    assert pace.size == 1000


def test_a_wave_without_tuples_says_nothing():
    pace = pacing()
    pace.finished(0, 5.0, undone=0)

    assert pace.size == 1000


@pytest.mark.parametrize("largest", [1, 5, 9, 10, 11])
def test_no_wave_is_larger_than_allowed(largest):
    pace = pacing(wave_max_tuples=largest)
    for seconds in (0.001, 0.001, 100.0, 0.001):
        pace.finished(largest, seconds, undone=0)
        assert pace.size <= largest


def test_spouts_wait_from_the_high_mark_to_the_low_one():
    pace = pacing(backpressure_high=0.9, backpressure_low=0.4)

    looks = [pace.look(waiting) for waiting in (0, 899, 900, 899, 401, 400, 899, 5000, 0)]

    assert looks == [False, False, True, True, True, False, False, True, False]


def test_with_a_low_mark_of_zero_spouts_wait_until_nothing_waits():
    pace = pacing(backpressure_high=0.5, backpressure_low=0)

    assert [pace.look(waiting) for waiting in (500, 1, 0)] == [True, True, False]
