"""Which entries of a Redis stream come next: a decision without a server."""

from __future__ import annotations

import pytest

from waterspout.errors import DataLossError, SourceError
from waterspout.spouts._redis_ranges import NOTHING, Range, StreamSight, next_range

NEW = Range("s", NOTHING, NOTHING, 0, 0)
LAST = Range("s", "1-0", "5-0", 4, 14)


def seen(*, length, added, last="9-0", found=0, until=""):
    return StreamSight(length, added, last, found, until)


def decided(last, sight, begin=NEW, *, stores=False, skips=False):
    return next_range(last, sight, begin, stores=stores, skips=skips)


def test_a_stream_that_is_not_there_yet_has_nothing():
    assert decided(None, None) is None


def test_a_stream_that_was_never_read_begins_with_what_is_left_of_it():
    sight = seen(length=3, added=10, found=3, until="9-0")

    assert decided(None, sight) == Range("s", NOTHING, "9-0", 3, 10)


def test_a_range_goes_on_where_the_last_one_ended():
    sight = seen(length=20, added=20, found=2, until="7-0")

    assert decided(LAST, sight) == Range("s", "5-0", "7-0", 2, 16)


def test_nothing_new_is_no_range():
    assert decided(LAST, seen(length=14, added=14, last="5-0")) is None


def test_what_was_read_may_be_trimmed():
    assert decided(LAST, seen(length=2, added=16, found=2, until="7-0")) is not None


@pytest.mark.parametrize("found", [0, 1])
def test_what_was_not_read_and_is_trimmed_stops_the_run(found):
    with pytest.raises(DataLossError, match="2 entries of the Redis stream 's' behind 5-0 were"):
        decided(LAST, seen(length=1, added=17, found=found, until="9-0"))


def test_or_is_skipped_once():
    sight = seen(length=1, added=17, found=1, until="9-0")

    after = decided(LAST, sight, skips=True)

    assert after == Range("s", "5-0", "9-0", 1, 17)
    assert decided(after, seen(length=0, added=17)) is None


def test_a_stream_that_is_gone_is_a_loss():
    with pytest.raises(DataLossError, match="was read up to 5-0, and now it is gone"):
        decided(LAST, None)


@pytest.mark.parametrize(
    "sight",
    [
        seen(length=3, added=3, last="3-0"),
        seen(length=3, added=3, last="9-0", found=1, until="9-0"),
        seen(length=14, added=14, last="4-9"),
    ],
)
def test_a_stream_that_was_made_anew_or_restored_is_a_loss(sight):
    with pytest.raises(DataLossError, match="made anew, or its server was restored"):
        decided(LAST, sight)


def test_a_beginning_elsewhere_is_stored_before_anything_is_read():
    begin = Range("s", "5-0", "5-0", 0, 14)
    sight = seen(length=16, added=16, found=2, until="7-0")

    assert decided(None, sight, begin, stores=True) == begin
    assert decided(None, None, NEW, stores=True) == NEW
    assert decided(NEW, None, NEW, stores=True) is None
    assert decided(begin, sight, NEW, stores=True) == Range("s", "5-0", "7-0", 2, 16)


def test_ranges_of_another_stream_are_refused():
    with pytest.raises(SourceError, match="the stream 's' was read here before, and now it is 'x'"):
        Range.of(LAST.to_json(), "x")
