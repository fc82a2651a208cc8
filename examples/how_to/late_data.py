"""Clicks by the minute; those that come too late have a table of their own."""

import datetime as dt

from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, Sum, TridentTopology

NOON = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)


def after(seconds):
    """A moment after noon."""
    return NOON + dt.timedelta(seconds=seconds)


CLICKS = [
    ("home", after(5)),
    ("shop", after(50)),
    ("home", after(130)),  # the watermark is now 12:01:40: the first minute closes
    ("home", after(20)),  # too late for it
    ("home", dt.datetime(2099, 1, 1, tzinfo=dt.UTC)),  # a clock that is wrong
    ("shop", after(250)),
]

topology = TridentTopology("clicks")
clicks = topology.new_stream("clicks", FixedBatchSpout("page string, at timestamp", 1, CLICKS))

# One time far in the future would close every window: what cannot be is left out before.
sane = clicks.filter("at", lambda at: at < NOON + dt.timedelta(days=1))


def keep(late):
    """Count late clicks by page: they are in no minute."""
    state = SQLiteState.opaque("clicks.db", table="late")
    late.group_by("page").persistent_aggregate(state, Count(), "clicks")


minutes = sane.group_by("page").tumbling_window(
    dt.timedelta(minutes=1),
    Count(),
    "clicks",
    event_time="at",
    lag=dt.timedelta(seconds=30),
    late=keep,
)
minutes.group_by(["page", "window_start"]).persistent_aggregate(
    SQLiteState.opaque("clicks.db", table="minutes"), "clicks", Sum(), "clicks"
)
