"""Sessions: what a user does without a pause of half an hour.

waterspout run examples/sessions.py --until-idle
sqlite3 sessions.db 'SELECT user, started, ended, pages FROM sessions'

One state knows, for each user, when the last session began and the last page was seen. Its updater
is a plain function: it reads the users of a batch at once, finds the session of each page, and
gives it on. It says that the user is the key, so that all pages of a user come to one task. A
second state adds up the pages of each session. Both are opaque, so a replayed batch finds them as
the batch before it left them.
"""

import datetime as dt

from waterspout import submit
from waterspout.spouts.fixed import FixedBatchSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Columns, Count, Max, TridentTopology, updater

PAUSE = dt.timedelta(minutes=30)


def at(hour, minute):
    """A time of one day."""
    return dt.datetime(2026, 3, 1, hour, minute, tzinfo=dt.UTC)


VIEWS = [
    ("mara", at(9, 0)),
    ("odd", at(9, 5)),
    ("mara", at(9, 20)),
    ("mara", at(9, 50)),  # exactly half an hour is no pause
    ("odd", at(9, 36)),
    ("mara", at(11, 0)),
    ("mara", at(11, 1)),
]
DATABASE = "sessions.db"


@updater(keys="user")
def find_sessions(state, tuples):
    """Yield each page with the beginning of its session; a late one joins the session at hand."""
    users = list(dict.fromkeys((row["user"],) for row in tuples))
    known = dict(zip(users, state.multi_get(users), strict=True))
    for row in sorted(tuples, key=lambda row: row["seen"]):
        user, seen = (row["user"],), row["seen"]
        started, last = known[user] or (seen, seen)
        if seen - last > PAUSE:
            started = seen
        known[user] = (started, max(last, seen))
        yield (*user, started, seen)
    state.multi_put(users, list(known.values()))


topology = TridentTopology("sessions")
views = topology.new_stream("views", FixedBatchSpout("user string, seen timestamp", 3, VIEWS))
last_seen = views.partition_persist(
    SQLiteState.opaque(DATABASE, "last_seen"),
    find_sessions,
    "user string, started timestamp, seen timestamp",
)
sessions = (
    last_seen.new_values_stream()
    .group_by(["user", "started"])
    .persistent_aggregate(
        SQLiteState.opaque(DATABASE, "sessions"),
        Columns(ended=("seen", Max()), pages=Count()),
    )
)

if __name__ == "__main__":
    run = submit(topology)
    run.process_all_available()
    run.stop()
    for user, started in (("mara", at(9, 0)), ("mara", at(11, 0)), ("odd", at(9, 5))):
        print(user, started, *sessions.get([user, started]))
