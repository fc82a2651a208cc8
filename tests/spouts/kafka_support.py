"""What the tests of Kafka spouts share: a topology that counts every message, and its counts."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing

from waterspout import Config
from waterspout.spouts._kafka_plan import ranges_of
from waterspout.spouts.kafka import OpaqueKafkaSpout, TransactionalKafkaSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import LocalRun
from waterspout.trident import Count, Filter, TridentTopology

AT_ONCE = Config(retry_backoff_millis=0, cancel_wait_secs=0.0)
KINDS = {"transactional": TransactionalKafkaSpout, "opaque": OpaqueKafkaSpout}


class Failing(Filter):
    """Fails as often as it was told to, by calling the function that it was given."""

    def __init__(self, meddle) -> None:
        self.meddle = meddle

    def is_keep(self, tuple):
        self.meddle(tuple)
        return True


def counting(spout, path, *, kind="opaque", meddle=None, name="counting") -> TridentTopology:
    """Count how often each value occurs, in SQLite."""
    topology = TridentTopology(name)
    state = getattr(SQLiteState, kind)(path, table="counts")
    stream = topology.new_stream("messages", spout)
    if meddle is not None:
        stream = stream.filter(Failing(meddle))
    stream.group_by("value").persistent_aggregate(state, Count(), "n")
    return topology


def counts(path) -> dict[str, int]:
    """Return what anyone reads who opens the file."""
    with closing(sqlite3.connect(path)) as db:
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'counts'").fetchall():
            return {}  # nothing was ever committed
        return {bytes(value).decode(): n for value, n in db.execute("SELECT value, n FROM counts")}


def once(*ranges) -> dict[str, int]:
    """Return the counts of messages that came once each."""
    return dict(Counter(str(n) for each in ranges for n in each))


def values(*ranges) -> list[str]:
    return [str(n) for each in ranges for n in each]


def finish(topology, config=AT_ONCE, **options) -> LocalRun:
    """Run in process until there is nothing more."""
    run = LocalRun(topology, config, **options)
    try:
        run.finish(max_steps=5_000)
    finally:
        run.close()
    return run


def last_ranges(run):
    """Return the ranges of the last committed batch."""
    return ranges_of(run.loop.ledger.committed_metadata["messages"])
