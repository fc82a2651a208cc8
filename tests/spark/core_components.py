"""Spouts and bolts that the tests of core topologies on Spark share."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc

from waterspout import BasicBolt, Bolt, FailedException
from waterspout.topology._component import LogSpout


class Split(Bolt):
    output_fields = ("word",)

    def execute(self, tuple):
        for word in tuple["sentence"].split():
            self.collector.emit([word], anchors=tuple)
        self.collector.ack(tuple)


class Count(Bolt):
    """Counts in memory; leaves its counts in a file when the run ends."""

    output_fields = ("word", "count")

    def __init__(self, folder):
        self._folder = str(folder)

    def prepare(self, conf, context, collector):
        self.counts = {}
        self.collector = collector
        self._task = context.this_task_id

    def execute(self, tuple):
        word = tuple["word"]
        self.counts[word] = self.counts.get(word, 0) + 1
        self.collector.emit([word, self.counts[word]], anchors=tuple)
        self.collector.ack(tuple)

    def cleanup(self):
        Path(self._folder, f"{self._task}.json").write_text(json.dumps(self.counts))


class CountMany(Count):
    """Begins with one of each of many words."""

    words = 20_000

    def prepare(self, conf, context, collector):
        super().prepare(conf, context, collector)
        self.counts = dict.fromkeys((f"word number {n}" for n in range(self.words)), 1)


def counted(folder):
    """Return the counts of all tasks; a word at two tasks is a mistake."""
    found = {}
    for path in Path(folder).glob("*.json"):
        for word, count in json.loads(path.read_text()).items():
            assert word not in found, f"{word} was counted by two tasks"
            found[word] = count
    return found


class Numbers(LogSpout):
    """Numbers from 0, dealt to partitions; read on executors."""

    output_fields = ("n",)

    def __init__(self, total, partitions=2):
        self._total = total
        self._partitions = partitions

    def partitions(self):
        return list(range(self._partitions))

    def end(self, partition):
        return len(range(partition, self._total, self._partitions))

    def read(self, partition, start, end):
        for offset in range(start, end):
            yield offset, [partition + offset * self._partitions]


class Log(BasicBolt):
    """Appends a line for each tuple to a file of its process."""

    def __init__(self, folder, *, fails_on=(), raises_on=(), dies_on=(), fails_once_in=None):
        self._folder = str(folder)
        self._fails_on = frozenset(fails_on)
        self._raises_on = frozenset(raises_on)
        self._dies_on = frozenset(dies_on)
        self._fails_once_in = fails_once_in

    def execute(self, tuple, collector):
        value = tuple[0]
        if value in self._dies_on:
            os._exit(9)
        if value in self._raises_on:
            raise ValueError(f"cannot do {value}")
        if value in self._fails_on:
            raise FailedException(f"not now: {value}")
        if self._fails_once_in is not None and self._fails_for_now(value):
            raise FailedException(f"not yet: {value}")
        append(Path(self._folder, f"{os.getpid()}.log"), value)

    def _fails_for_now(self, value):
        if int(value) * 7919 % 10_007 % self._fails_once_in:
            return False
        mark = Path(self._folder, f"failed-{value}")
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def append(path, value):
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(handle, f"{value}\n".encode())
    finally:
        os.close(handle)


def logged(folder):
    """Return how often each value was logged."""
    found = Counter()
    for path in Path(folder).glob("*.log"):
        found.update(path.read_text().split("\n")[:-1])
    return found


class Join(Bolt):
    """Holds a tuple until one with its id has come from the other side."""

    output_fields = ("id", "left", "right")

    def prepare(self, conf, context, collector):
        self.collector = collector
        self.waiting = {}

    def execute(self, tuple):
        other = self.waiting.pop(tuple["id"], None)
        if other is None:
            self.waiting[tuple["id"]] = tuple
            return
        left, right = sorted([tuple, other], key=lambda t: t.source_component)
        self.collector.emit([tuple["id"], left[1], right[1]], anchors=[left, right])
        self.collector.ack(left)
        self.collector.ack(right)


class SlowAtFirst(BasicBolt):
    """Takes its time for the first tuples."""

    def __init__(self, tuples, seconds):
        self._left = tuples
        self._seconds = seconds

    def execute(self, tuple, collector):
        if self._left > 0:
            self._left -= 1
            time.sleep(self._seconds)


class SplitColumns(Bolt):
    """Splits by column."""

    output_fields = ("word",)

    def execute_batch(self, batch, collector):
        words = pc.split_pattern(batch.column("sentence"), " ")
        collector.emit_batch([words.flatten()], parents=pc.list_parent_indices(words))


class CountColumns(Count):
    """Counts by column; a word that begins with a dash is refused."""

    def execute_batch(self, batch, collector):
        words = batch.column("word")
        bad = pc.starts_with(words, "-")
        collector.fail_rows(pc.indices_nonzero(bad), ValueError("it begins with a dash"))
        good = words.filter(pc.invert(bad))
        for each in good.value_counts().to_pylist():
            self.counts[each["values"]] = self.counts.get(each["values"], 0) + each["counts"]
        so_far = [self.counts[word] for word in good.to_pylist()]
        parents = pc.indices_nonzero(pc.invert(bad))
        collector.emit_batch({"word": good, "count": so_far}, parents=parents)


class Sentences(LogSpout):
    """Sentences by number, read by column on the executors."""

    output_fields = ("sentence",)

    def __init__(self, sentences, partitions=2):
        self._sentences, self._partitions = sentences, partitions

    def partitions(self):
        return list(range(self._partitions))

    def end(self, partition):
        return len(self._sentences[partition :: self._partitions])

    def read(self, partition, start, end):
        mine = self._sentences[partition :: self._partitions]
        yield from ((offset, [mine[offset]]) for offset in range(start, end))

    def read_batch(self, partition, start, end):
        mine = self._sentences[partition :: self._partitions]
        yield range(start, end), {"sentence": mine[start:end]}
