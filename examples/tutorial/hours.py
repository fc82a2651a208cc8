"""The ferry, and how many tickets each hour sold, by the time on the ticket."""

from datetime import timedelta

from ferry import tickets, topology

from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, Sum

__all__ = ["tickets", "topology"]


def count_late(rows):
    """Count what comes after its hour was closed."""
    late = SQLiteState.opaque("ferry.db", table="late")
    rows.group_by("route").persistent_aggregate(late, Count(), "tickets")


sold = tickets.group_by("route").tumbling_window(
    timedelta(hours=1),
    Count(),
    "tickets",
    event_time="sold",
    lag=timedelta(minutes=30),
    late=count_late,
)

hours = sold.group_by(["route", "window_start"]).persistent_aggregate(
    SQLiteState.opaque("ferry.db", table="hours"), "tickets", Sum(), "tickets"
)
