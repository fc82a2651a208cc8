"""Bolts that the tests of transactional topologies share."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

from waterspout import BasicBolt, FailedException
from waterspout.transactional import BatchBolt, Committer


class PartialCount(BatchBolt):
    output_fields = ("tx", "count")

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.count = 0

    def execute(self, tuple):
        self.count += 1

    def finish_batch(self):
        self.collector.emit([self.id, self.count])


class Once:
    """Raises a FailedException the first time it is asked, over all processes."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __call__(self, where):
        try:
            Path(self.mark).touch(exist_ok=False)
        except FileExistsError:
            return
        raise FailedException(where)


class GlobalSum(BatchBolt, Committer):
    """Storm's example of a global count: a value and the txid that it is of, in one row."""

    output_fields = ("tx", "sum")

    def __init__(self, path, fail=None):
        self.path = str(path)
        self.fail = fail

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.sum = 0

    def execute(self, tuple):
        self.sum += tuple["count"]

    def finish_batch(self):
        with sqlite3.connect(self.path, timeout=30) as db:
            db.execute("CREATE TABLE IF NOT EXISTS total (txid INTEGER, value INTEGER)")
            db.execute("CREATE TABLE IF NOT EXISTS history (txid INTEGER, value INTEGER)")
            row = db.execute("SELECT txid, value FROM total").fetchone()
            txid, value = row or (0, 0)
            if txid != self.id.transaction_id:
                value += self.sum
                db.execute("DELETE FROM total")
                db.execute("INSERT INTO total VALUES (?, ?)", (self.id.transaction_id, value))
                db.execute("INSERT INTO history VALUES (?, ?)", (self.id.transaction_id, value))
        if self.fail is not None:
            self.fail("after the write")
        self.collector.emit([self.id, value])


def total(path):
    with sqlite3.connect(path) as db:
        return db.execute("SELECT txid, value FROM total").fetchone()


def history(path):
    with sqlite3.connect(path) as db:
        return db.execute("SELECT txid, value FROM history ORDER BY txid").fetchall()


class Record(BatchBolt):
    """Notes in a file what is called when, and passes tuples on."""

    output_fields = ("tx", "path")

    def __init__(self, log):
        self.log = str(log)

    def prepare(self, conf, context, collector, id):
        super().prepare(conf, context, collector, id)
        self.name = context.this_component_id
        self.paths = []

    def execute(self, tuple):
        self.paths.append(tuple["path"])
        note(self.log, "execute", self.name, self.id, tuple["path"])

    def finish_batch(self):
        note(self.log, "finish", self.name, self.id, sorted(self.paths))
        for path in sorted(self.paths):
            self.collector.emit([self.id, f"{path}>{self.name}"])


class RecordingCommitter(Record, Committer):
    pass


def note(path, *what):
    line = json.dumps([*map(str, what[:3]), *what[3:]])
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, f"{line}\n".encode())
    finally:
        os.close(handle)


def notes(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


class Upper(BasicBolt):
    output_fields = ("tx", "word")

    def execute(self, tuple, collector):
        collector.emit([tuple[0], tuple["word"].upper()])
