"""Files that wait for a batch: their order, their number, and those that are too young."""

from __future__ import annotations

from waterspout.spouts._places import FileStat
from waterspout.spouts._waiting import WaitingFiles


def add(waiting, *times, beyond=(0, 0), anew=False, wall_s=1000.0, now=0.0):
    found = sorted((time * 10**9, f"f{time}", 10) for time in times)
    waiting.add(found, beyond, anew=anew, wall_s=wall_s, now=now)


def ready(waiting):
    return [found[1] for found in waiting.ready]


def test_a_late_file_that_is_older_comes_first():
    waiting = WaitingFiles(10)
    add(waiting, 5, 7)

    add(waiting, 3, 9)

    assert ready(waiting) == ["f3", "f5", "f7", "f9"]
    assert (waiting.files, waiting.bytes) == (4, 40)


def test_a_file_that_is_found_twice_waits_once():
    waiting = WaitingFiles(10)
    add(waiting, 1)

    add(waiting, 1, 2)

    assert ready(waiting) == ["f1", "f2"]


def test_more_than_are_kept_are_counted_and_found_again():
    waiting = WaitingFiles(2)
    add(waiting, 1, 2, beyond=(3, 30))
    assert (ready(waiting), waiting.files, waiting.bytes) == (["f1", "f2"], 5, 50)

    add(waiting, 9)  # came later, and older ones are not kept
    assert (ready(waiting), waiting.files) == (["f1", "f2"], 6)
    assert not waiting.is_short
    waiting.taken(2)
    assert waiting.is_short

    add(waiting, 3, 4, beyond=(2, 20), anew=True)
    assert (ready(waiting), waiting.files, waiting.bytes) == (["f3", "f4"], 4, 40)


def test_a_file_waits_until_it_is_old_enough():
    waiting = WaitingFiles(10, min_age_s=5.0)

    add(waiting, 994, 996, wall_s=1000.0)

    assert ready(waiting) == ["f994"]
    assert (waiting.files, waiting.young) == (2, 1)
    assert waiting.due(1000.9, 0.9) == []
    assert waiting.due(1001.0, 1.0) == ["f996"]
    waiting.looked({"f996": FileStat(10, 996 * 10**9)}, 1.0)
    assert (ready(waiting), waiting.young) == (["f994", "f996"], 0)


def test_a_file_that_grows_waits_on():
    waiting = WaitingFiles(10, min_age_s=5.0)
    add(waiting, 996)

    waiting.looked({"f996": FileStat(11, 1001 * 10**9)}, 1.0)

    assert (ready(waiting), waiting.young) == ([], 1)
    assert waiting.due(1005.0, 5.0) == []
    assert waiting.due(1006.0, 6.0) == ["f996"]


def test_a_file_of_the_future_is_old_when_it_has_stayed_as_it_is():
    waiting = WaitingFiles(10, min_age_s=5.0)
    add(waiting, 99_999)

    assert waiting.due(1004.9, 4.9) == []
    assert waiting.due(1005.0, 5.0) == ["f99999"]
    waiting.looked({"f99999": FileStat(10, 99_999 * 10**9)}, 5.0)
    (found,) = waiting.ready
    assert waiting.is_settled(found, FileStat(10, 99_999 * 10**9), 1005.0)


def test_a_file_that_goes_away_does_not_wait():
    waiting = WaitingFiles(10, min_age_s=5.0)
    add(waiting, 996)

    waiting.looked({"f996": None}, 5.0)

    assert (waiting.files, waiting.young) == (0, 0)


def test_a_ready_file_that_grows_must_wait_again():
    waiting = WaitingFiles(10, min_age_s=5.0)
    add(waiting, 994)
    (found,) = waiting.ready

    assert waiting.is_settled(found, FileStat(10, 994 * 10**9), 1000.0)
    assert not waiting.is_settled(found, FileStat(11, 999 * 10**9), 1000.0)


def test_young_files_beyond_the_bound_are_counted_too():
    waiting = WaitingFiles(2, min_age_s=5.0)

    add(waiting, 997, 998, 999)

    assert (waiting.files, waiting.young, waiting.is_short) == (3, 2, False)
