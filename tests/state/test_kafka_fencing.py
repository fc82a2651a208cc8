"""The argument of decision 43, tried on a model: names with one producer in command, and notes.

A broker is modelled by what it promises: under a name only the producer that has begun last may
commit, and who begins sees all that was committed under the name before. Tasks and drivers take
their steps (begin, read, commit) in any order, asleep in between for as long as it pleases.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waterspout.errors import FencedError, StateMismatchError
from waterspout.state._head import Head, Stamp, Writer
from waterspout.state._header import StoreHeader
from waterspout.state.kafka._notes import Note, ToDo, next_move, next_write, stored_head

HEADER = StoreHeader("the topic", "topic", "transactional rows", "(rows) -> id bigint")


def stamp(txid, attempt=0, epoch=1):
    return Stamp(Writer("orders", epoch, lease=str(epoch)), txid, attempt)


@dataclass
class Broker:
    """What Kafka promises, and nothing else."""

    commanding: dict = field(default_factory=dict)
    records: dict = field(default_factory=dict)
    rows: list = field(default_factory=list)

    def begin(self, name):
        self.commanding[name] = self.commanding.get(name, 0) + 1
        return self.commanding[name]

    def commit(self, name, number, key, value, rows=()):
        if self.commanding[name] != number:
            return False
        self.records[key] = value
        self.rows += rows
        return True


@dataclass
class Task:
    """One partition's task in one attempt: asleep before each of its steps."""

    broker: Broker
    stamp: Stamp
    partition: int
    cached: int | None = None
    step: str = "begin"
    over: bool = False

    def go_on(self):
        name = self.partition
        if self.step == "begin":
            self.number = self.cached or self.broker.begin(name)
            self.step = "read"
        elif self.step == "read":
            head, note = self.broker.records.get("head"), self.broker.records.get(name)
            try:
                todo = next_write(head, note, self.stamp, state="the topic")
            except FencedError:
                self.over = True
                return
            self.over = todo is ToDo.NOTHING
            self.step = "commit"
        else:
            self._commit(name)

    def _commit(self, name):
        txid = self.stamp.txid
        note = Note(txid, self.stamp.attempt, 1, (0, 0))
        done = self.broker.commit(name, self.number, name, note, [(txid, name)])
        self.over, self.step, self.cached = done, "begin", None

    def finish(self):
        while not self.over:
            self.go_on()


def idle(broker, tasks, partition):
    """Return the producer in command, if no task has it: it is lent to one at a time."""
    of_it = [one for one in tasks if one.partition == partition and not one.over]
    lent = {one.cached if one.step == "begin" else one.number for one in of_it}
    number = broker.commanding.get(partition)
    return None if number in lent else number


@given(st.data())
def test_each_row_is_there_once_whoever_sleeps_and_wakes(data):
    broker, asleep, head = Broker(), [], None
    txid, attempt, epoch = 1, 0, 1
    for _ in range(data.draw(st.integers(1, 8), label="attempts")):
        new = Head(stamp(txid, attempt, epoch))
        number = broker.begin("driver")
        assert next_move(broker.records.get("head"), head, new, tried=False, header=HEADER)
        assert broker.commit("driver", number, "head", new)
        head = new
        tasks = [Task(broker, new.stamp, partition) for partition in (0, 1)]
        # The same task may run twice, and one may use a producer that was in command before.
        twins = [Task(broker, new.stamp, p, cached=idle(broker, asleep, p)) for p in (0, 1)]
        asleep += twins
        loses = data.draw(st.booleans(), label="the attempt is lost")
        for _ in range(data.draw(st.integers(0, 12), label="steps")):
            one = data.draw(st.sampled_from([*asleep, *tasks]), label="who")
            if not one.over:
                one.go_on()
        if loses:
            asleep += tasks
            attempt += 1
            epoch += data.draw(st.booleans(), label="another driver")
            continue
        for task in tasks:
            task.finish()
        settled = Head(new.stamp, committed=True)
        number = broker.begin("driver")
        assert broker.commit("driver", number, "head", settled)
        head, txid, attempt = settled, txid + 1, 0
        for one in data.draw(st.permutations(asleep), label="wake"):
            one.over or one.go_on()
    for one in asleep:
        one.finish()

    assert len(broker.rows) == len(set(broker.rows)), "no row twice"
    assert {(t, p) for t in range(1, txid) for p in (0, 1)} <= set(broker.rows), "none missing"


def test_a_driver_moves_only_the_head_that_it_expects():
    before, new = Head(stamp(1)), Head(stamp(2))

    assert next_move(before, before, new, tried=False, header=HEADER) is ToDo.WRITE
    assert next_move(before, before, new, tried=True, header=HEADER) is ToDo.WRITE
    assert next_move(new, before, new, tried=True, header=HEADER) is ToDo.NOTHING
    for found, tried in [(new, False), (Head(stamp(2, 1)), True), (None, True)]:
        with pytest.raises(FencedError):
            next_move(found, before, new, tried=tried, header=HEADER)


def test_a_task_writes_what_its_partition_has_not_and_only_at_the_head():
    at = stamp(3)
    head = Head(at)
    had = [None, Note(2, 0, 1, (0, 0)), Note(3, 7, 1, (0, 0))]

    found = [next_write(head, note, at, state="s") for note in had]

    assert found == [ToDo.WRITE, ToDo.WRITE, ToDo.NOTHING]
    for other in (None, Head(stamp(3, 1)), Head(stamp(4)), Head(at, committed=True)):
        with pytest.raises(FencedError):
            next_write(other, None, at, state="s")
    with pytest.raises(StateMismatchError, match="holds batch 4 already"):
        next_write(head, Note(4, 0, 1, (0, 0)), at, state="s")


def test_notes_and_heads_are_read_back_and_others_refused():
    from waterspout.errors import DamagedStoreError, ForeignStoreError

    note = Note(3, 1, 20, (4, 99), "me")
    assert Note.from_text(note.to_text(), "s") == note
    assert Note.from_text(None, "s") is None
    for text in ("", "{}", note.to_text().replace("99", "98")):
        with pytest.raises(DamagedStoreError):
            Note.from_text(text, "s")
    for text in ("", "{}", "[]"):
        with pytest.raises(ForeignStoreError, match="Use another topic"):
            stored_head(HEADER, text)
