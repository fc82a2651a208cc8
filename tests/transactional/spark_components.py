"""Bolts that fail and databases that remember, for transactional topologies in many processes.

Each failure is planned for a component, a moment and a txid, and happens once over all processes:
the first to make its file. Committers keep lists of unique ids by key, in SQLite.
"""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path

from waterspout import BasicBolt, FailedException
from waterspout.state import OpaqueMap, OpaqueValue
from waterspout.state._base import BackingMap, ValueUpdater
from waterspout.transactional import (
    BatchBolt,
    Committer,
    MemoryTransactionalSpout,
    OpaqueMemoryTransactionalSpout,
    TransactionalTopologyBuilder,
)

SPOUT = "rows"


class Trouble:
    """Which bolts fail when; some of it never comes to pass, where no tuple comes by."""

    def __init__(self, folder, planned):
        self.folder = str(folder)
        self.planned = frozenset(planned)

    def strike(self, component, when, txid):
        if (component, when, txid) not in self.planned:
            return
        try:
            Path(self.folder, f"{component}-{when}-{txid}").touch(exist_ok=False)
        except FileExistsError:
            return
        raise FailedException(f"{component} in {when} of {txid}")


class Tag(BasicBolt):
    output_fields = ("tx", "key", "id")

    def __init__(self, trouble):
        self.trouble = trouble

    def prepare(self, conf, context):
        self.name = context.this_component_id

    def execute(self, tuple, collector):
        self.trouble.strike(self.name, "execute", tuple[0].txid)
        collector.emit(list(tuple))


class Gather(BatchBolt):
    output_fields = ("tx", "key", "id")

    def __init__(self, trouble):
        self.trouble = trouble

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.context = context
        self.rows = []

    def strike(self, when):
        self.trouble.strike(self.context.this_component_id, when, self.id.txid)

    def execute(self, tuple):
        self.strike("execute")
        self.rows.append(tuple)

    def finish_batch(self):
        self.strike("finish")
        for tuple in self.rows:
            self.collector.emit([self.id, tuple["key"], tuple["id"]])


class GatherColumns(Gather):
    """The same by column."""

    def execute_batch(self, batch):
        self.strike("execute")
        self.rows.append(batch)

    def finish_batch(self):
        self.strike("finish")
        for batch in self.rows:
            self.collector.emit_batch(batch)


class Keep(Gather, Committer):
    """Writes the ids of each key into a table, for their txid once."""

    def __init__(self, trouble, path, table, opaque):
        super().__init__(trouble)
        self.path, self.table, self.opaque = str(path), table, opaque

    def finish_batch(self):
        ids = {}
        for tuple in self.rows:
            ids.setdefault(tuple["key"], []).append(tuple["id"])
        if ids:
            with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as db:
                db.execute("BEGIN IMMEDIATE")
                self._write(db, ids)
                db.execute("COMMIT")
        self.strike("write")
        super().finish_batch()

    def _write(self, db, ids):
        below = Table(db, self.table)
        if self.opaque:
            state = OpaqueMap(below)
            txid, attempt = self.id.txid, self.id.attempt_id
            state.begin_commit(txid, attempt=attempt, resolved=self.context.resolved)
            state.multi_update([(key,) for key in ids], [_Append(new) for new in ids.values()])
            state.commit(txid)
            return
        keys = [(key,) for key in ids]
        for key, record in zip(keys, below.multi_get(keys), strict=True):
            stored = [] if record is None else record.value
            if record is None or record.txid < self.id.txid:
                value = sorted([*stored, *ids[key[0]]])
                below.multi_put([key], [OpaqueValue(self.id.txid, self.id.attempt_id, value)])


class _Append(ValueUpdater):
    def __init__(self, ids):
        self.ids = ids

    def update(self, stored):
        return sorted([*(stored or []), *self.ids])


class Table(BackingMap):
    """Records as JSON; one of an older attempt than the stored one is refused."""

    def __init__(self, db, table):
        self.db, self.table = db, table
        db.execute(f"CREATE TABLE IF NOT EXISTS {table} (key TEXT PRIMARY KEY, record TEXT)")

    def multi_get(self, keys):
        return [self._get(key[0]) for key in keys]

    def multi_put(self, keys, values):
        for key, new in zip(keys, values, strict=True):
            old = self._get(key[0])
            if old is not None and (old.txid, old.attempt) > (new.txid, new.attempt):
                raise FailedException(f"{old} is newer than {new}")
            text = json.dumps([new.txid, new.attempt, new.value, new.prev])
            self.db.execute(f"REPLACE INTO {self.table} VALUES (?, ?)", (key[0], text))

    def _get(self, key):
        row = self.db.execute(f"SELECT record FROM {self.table} WHERE key = ?", (key,)).fetchone()
        return None if row is None else OpaqueValue(*json.loads(row[0]))


def contents(path, table, ledger=None):
    """What a table holds; of an opaque topology, as its next batch would find it."""
    with closing(sqlite3.connect(path)) as db:
        below = Table(db, table)
        keys = [key for (key,) in db.execute(f"SELECT key FROM {table}")]
        records = {key: below._get(key) for key in keys}
    found = {
        key: record.value if ledger is None else record.before(ledger.current, ledger.resolved)
        for key, record in records.items()
    }
    return {key: ids for key, ids in found.items() if ids}


class Fickle(OpaqueMemoryTransactionalSpout):
    """Partitions that are down now and then, and give another number of rows each time.

    Only for so many questions; they are asked in the driver alone.
    """

    def __init__(self, rows, take, seed):
        super().__init__(rows, ("key", "id"), take)
        self.random = random.Random(seed)
        self.left = 15
        self.outages = 0

    def after(self, partition, last):
        self.left -= 1
        if self.left > 0:
            if self.random.random() < 0.3:
                self.outages += 1
                return None
            self.take = self.random.randrange(1, 5)
        return super().after(partition, last)


def global_list(builder, trouble, keep):
    builder.set_bolt("tag", Tag(trouble), 2).shuffle_grouping(SPOUT)
    builder.set_bolt("one", keep("one")).global_grouping("tag")
    return {"one": 1}


def keyed(builder, trouble, keep):
    builder.set_bolt("gather", GatherColumns(trouble), 3).none_grouping(SPOUT)
    for name in ("one", "two"):
        builder.set_bolt(name, keep(name), 2).fields_grouping("gather", "key")
    return {"one": 1, "two": 1}


def a_b_c_d(builder, trouble, keep):
    builder.set_bolt("a", Gather(trouble), 2).shuffle_grouping(SPOUT)
    builder.set_bolt("one", keep("one"), 2).fields_grouping("a", "key")
    builder.set_bolt("c", GatherColumns(trouble), 2).shuffle_grouping("a").shuffle_grouping("one")
    builder.set_bolt("two", keep("two"), 2).fields_grouping("c", "key")
    return {"one": 1, "two": 2}


def two_stores(builder, trouble, keep):
    builder.set_bolt("one", keep("one"), 2).fields_grouping(SPOUT, "key")
    builder.set_bolt("tag", Tag(trouble), 2).shuffle_grouping("one")
    builder.set_bolt("two", keep("two"), 2).fields_grouping("tag", "key")
    return {"one": 1, "two": 1}


SHAPES = (global_list, keyed, a_b_c_d, two_stores)


def build(name, folder, shape, rows, take, *, trouble=(), opaque_seed=None):
    """Return a topology and how often each table holds each id."""
    opaque = opaque_seed is not None
    if opaque:
        spout = Fickle(rows, take, opaque_seed)
    else:
        spout = MemoryTransactionalSpout(rows, ("key", "id"), take)
    builder = TransactionalTopologyBuilder(name, SPOUT, spout, 2)
    planned = Trouble(folder, trouble)

    def keep(table):
        return Keep(planned, Path(folder, f"{table}.db"), table, opaque)

    copies = shape(builder, planned, keep)
    return builder.build_topology(), copies


def recount(rows, copies):
    """Count again, from the source."""
    found = {}
    for partition in rows:
        for key, number in partition:
            found.setdefault(key, []).extend([number] * copies)
    return {key: sorted(ids) for key, ids in found.items()}
