"""Rolling windows: what they forget, and when; the same as counting everything again."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from waterspout.metrics._windows import BUCKETS, SPANS, RollingCounts

STEPS = st.lists(
    st.tuples(
        # On the edges of buckets and off them, many at once, a day without any, a clock put back.
        st.sampled_from([0.0, 0.0, 0.5, 1.0, 19.0, 20.0, 21.0, 360.0, 2880.0, 90_000.0, -30.0]),
        st.dictionaries(st.sampled_from("abc"), st.integers(1, 9), max_size=3),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from([0.0, 1.0, 600.0, 10_000.0]), st.sampled_from([0.0, 7.3, 1e6]))
def test_a_window_has_what_was_counted_in_its_buckets(steps, later, start):
    counts, naive, now = RollingCounts(), [], start
    for step, more in steps:
        now += step
        seen = max([now, *(time for time, _ in naive)])
        counts.add(now, more)
        naive.append((seen, more))
    now = max([now + later, *(time for time, _ in naive)])

    for span in SPANS:
        width = span / BUCKETS
        expected = Counter()
        for time, more in naive:
            if time // width > now // width - BUCKETS:
                expected.update(more)
        assert counts.totals(now, span) == dict(expected)
        assert span - width <= counts.covers_s(now, span) <= span
    assert counts.totals(now, None) == dict(sum((Counter(m) for _, m in naive), Counter()))


def test_a_year_takes_no_more_than_a_day():
    counts = RollingCounts()
    for hour in range(365 * 24):
        counts.add(hour * 3600.0, {"a": 1})

    assert sum(map(len, counts._kept.values())) <= BUCKETS * len(SPANS)
    assert counts.totals(365 * 86_400.0, None) == {"a": 365 * 24}
    assert counts.totals(365 * 86_400.0 - 1, 86_400) == {"a": 24}
