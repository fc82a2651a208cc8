"""Rows in a real Kafka: killed in mid transaction, zombies, two drivers; each row once.

Judged by a bare consumer of committed messages. Here is a sample; `make soak` takes the whole
suite of rows (`tests/contracts/test_kafka.py`).
"""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from types import SimpleNamespace

import pytest

from waterspout import faults
from waterspout._schema import Schema
from waterspout.errors import (
    FencedError,
    ForeignStoreError,
    OutageError,
    StateMismatchError,
    StoreError,
)
from waterspout.faults import InjectedError
from waterspout.state.kafka import KafkaState
from waterspout.state.kafka._heads import Deadline, HeadsReader
from waterspout.state.kafka._transactions import NamedTransactions
from waterspout.testing._batches import RowBatches

FIELDS = Schema.parse("id bigint, word string")
NUMBERS = count()
HEAD = -1
POINTS = [
    *("commit.after_record", "head.after", "write.before", "write.after", "mark.before"),
    *("mark.after", "settle.after"),
]
COMMITS = [(point, p) for point in ("transaction.before", "transaction.after") for p in (HEAD, 1)]


@pytest.fixture(autouse=True)
def _no_faults():
    yield
    faults.install(None)


def recipe_at(kafka, **options):
    topic = f"out-{next(NUMBERS)}"
    given = {"partitions": 2, "key": "id", **options}
    return KafkaState(kafka.bootstrap, topic=topic, **given).bind_rows(FIELDS)


def seen(kafka, recipe):
    """Return how often anyone reads each row."""
    found = [json.loads(message.value()) for message in kafka.read_all(recipe.topic)]
    return Counter((row["id"], row["word"]) for row in found)


def rows_of(txid):
    return {p: [(100 * txid + 10 * p + i, "w") for i in range(2)] for p in range(2)}


def all_rows(last):
    each = [rows for txid in range(1, last + 1) for rows in rows_of(txid).values()]
    return Counter(row for rows in each for row in rows)


def once_at(point, partition, then):
    """Do something when a point is passed for the first time."""
    left = [True]

    def hook(name, context):
        if name == point and context.get("partition", partition) == partition and left[0]:
            left[0] = False
            then()

    faults.install(hook)


def die():
    raise InjectedError("killed")


@pytest.mark.soak
def test_each_row_is_there_once_wherever_a_driver_or_a_task_dies(kafka):
    recipe = recipe_at(kafka)
    batches = RowBatches.over(recipe)
    batches.commit(rows_of(1))

    for point, partition in [*COMMITS, *((point, 0) for point in POINTS)]:
        txid = batches.txid
        once_at(point, partition, die)
        with suppress(InjectedError):
            batches.commit(rows_of(txid))
        faults.install(None)
        batches.ledger = batches._keeper.ledger
        batches = batches.restarted()
        batches.verify()
        batches.recover()
        if batches.txid == txid:
            batches.attempt = batches.ledger.emitted[txid].attempt
            batches.commit(rows_of(txid))

    assert batches.txid == 2 + len(COMMITS) + len(POINTS)
    assert seen(kafka, recipe) == all_rows(batches.txid - 1)


@pytest.mark.soak
def test_a_task_asleep_in_its_transaction_is_fenced_by_the_next_attempts(kafka):
    recipe = recipe_at(kafka)
    old = RowBatches.over(recipe)
    old.commit(rows_of(1))
    old.claim()
    zombie = old.task(0, rows_of(2)[0])
    new = old.restarted()
    new.attempt += 1
    # The zombie has looked at the head, and has sent its rows; then all of the next attempt.
    once_at("transaction.before", 0, lambda: new.commit(rows_of(2)))

    with pytest.raises(FencedError):
        zombie.commit(2)

    assert seen(kafka, recipe) == all_rows(2)


@pytest.mark.soak
def test_a_task_that_begins_late_reads_what_was_committed_before(kafka, monkeypatch):
    recipe = recipe_at(kafka)
    old = RowBatches.over(recipe)
    old.claim()
    zombie = old.task(0, rows_of(1)[0])
    new = old.restarted()
    new.attempt += 1
    begun, left = NamedTransactions._begun, [True]

    def begin(self, deadline):
        if left.pop():
            monkeypatch.undo()
            new.commit(rows_of(1))
        return begun(self, deadline)

    monkeypatch.setattr(NamedTransactions, "_begun", begin)

    with pytest.raises(FencedError):
        zombie.commit(1)

    assert seen(kafka, recipe) == all_rows(1)


@pytest.mark.soak
def test_a_reader_waits_for_an_open_transaction_before_what_it_looks_for(kafka):
    recipe = recipe_at(kafka)
    RowBatches.over(recipe).claim()
    opened = kafka.producer(transactional_id=f"open-{recipe.topic}")
    opened.init_transactions(30)
    opened.begin_transaction()
    opened.produce(recipe.heads, key="another", value="1", partition=1)
    opened.flush(30)
    behind = kafka.producer(transactional_id=f"behind-{recipe.topic}")
    behind.init_transactions(30)
    behind.begin_transaction()
    behind.produce(recipe.heads, key="mine", value="2", partition=1)
    behind.commit_transaction(30)

    with HeadsReader.borrow(recipe.servers, recipe.heads) as reader:
        with pytest.raises(OutageError, match="cannot be read to its end"):
            reader.read([1], Deadline(0.5))
        opened.abort_transaction(30)
        assert reader.read([1], Deadline(30)) == {"mine": "2"}


def answering_oddly(monkeypatch, topic):
    """Let every second question for a topic's offsets get none of the partitions of its notes."""
    from confluent_kafka.admin import AdminClient

    asked, real = count(), AdminClient.list_offsets

    def list_offsets(self, wanted, **options):
        answers = real(self, wanted, **options)
        if all(place.topic == topic for place in wanted) and next(asked) % 2 == 0:
            for place in wanted:
                if place.partition != 0:
                    answers[place] = Future()
                    answers[place].set_result(SimpleNamespace(offset=-1001))
        return answers

    monkeypatch.setattr(AdminClient, "list_offsets", list_offsets)
    return asked


def test_a_broker_that_answers_without_an_offset_hides_no_note(kafka, monkeypatch):
    recipe = recipe_at(kafka)
    batches = RowBatches.over(recipe)
    batches.commit(rows_of(1))
    batches.claim()
    batches.write(rows_of(2))  # and here its driver dies: the rows are there, nothing is marked
    again = batches.restarted()
    again.attempt += 1
    again.claim()

    asked = answering_oddly(monkeypatch, recipe.heads)
    again.write(rows_of(2))
    again.finish()

    assert next(asked) > 2
    assert seen(kafka, recipe) == all_rows(2)


@pytest.mark.soak
def test_a_late_commit_of_an_old_attempt_is_found_by_the_next_which_skips_it(kafka):
    recipe = recipe_at(kafka)
    old = RowBatches.over(recipe)
    old.claim()
    zombie = old.task(0, rows_of(1)[0])
    new = old.restarted()
    new.attempt += 1
    once_at("transaction.before", 0, new.claim)

    zombie.commit(1)  # nobody has taken the name of its partition yet, and its rows are the same
    new.write(rows_of(1))
    new.finish()

    assert seen(kafka, recipe) == all_rows(1)


@pytest.mark.soak
def test_two_tasks_of_one_attempt_leave_their_rows_once(kafka):
    recipe = recipe_at(kafka)
    batches = RowBatches.over(recipe)
    batches.claim()
    first, second = (batches.task(0, rows_of(1)[0]) for _ in range(2))
    once_at("transaction.before", 0, lambda: second.commit(1))

    first.commit(1)  # is fenced, looks again, and finds them
    batches.put({1: rows_of(1)[1]})
    batches.finish()

    assert seen(kafka, recipe) == all_rows(1)


@pytest.mark.soak
def test_of_two_drivers_one_moves_the_head(kafka):
    recipe = recipe_at(kafka)
    old = RowBatches.over(recipe)
    old.commit(rows_of(1))
    new = old.restarted()
    new.attempt += 1
    once_at("transaction.before", HEAD, new.claim)

    with pytest.raises(FencedError):
        old.claim()

    assert new.state.read_head().stamp.writer.epoch == new.epoch
    new.write(rows_of(2))
    new.finish()
    assert seen(kafka, recipe) == all_rows(2)


def test_a_broker_that_is_away_is_an_outage_and_a_refused_row_is_not(kafka):
    away = KafkaState("127.0.0.1:1", topic="t", timeout_secs=0.3).bind_rows(FIELDS)
    with pytest.raises(OutageError, match="cannot be reached") as told:
        away.check()
    assert told.value.service == "kafka"
    with pytest.raises(OutageError):
        away.store().read_head()

    fields = Schema.parse("value string, partition int")
    recipe = KafkaState(kafka.bootstrap, topic=f"out-{next(NUMBERS)}", partitions=1)
    batches = RowBatches.over(recipe.bind_rows(fields))
    with pytest.raises(StoreError, match="no such partition"):
        batches.commit({0: [("v", 7)]})


def test_a_topic_that_was_made_anew_is_found_out(kafka):
    recipe = recipe_at(kafka)
    batches = RowBatches.over(recipe)
    batches.commit(rows_of(1))
    batches.restarted().verify()
    kafka.recreate_topic(recipe.topic, 2)

    with pytest.raises(StateMismatchError, match="no row of batch 1"):
        batches.restarted().verify()


def test_topics_are_made_as_they_must_be_or_refused(kafka):
    recipe = recipe_at(kafka, create=False)
    with pytest.raises(StoreError, match=r"no topic 'out-\d+' .* create=False"):
        recipe.check()

    taken = recipe_at(kafka)
    kafka.create_topic(taken.heads, 16)
    with pytest.raises(ForeignStoreError, match="this one 16 and delete"):
        taken.check()
    with pytest.raises(ForeignStoreError, match="this one 16 and delete"):
        RowBatches.over(taken).claim()

    made = recipe_at(kafka, partitions=3)
    RowBatches.over(made).claim()

    made.check()
    assert made.ask_risk() is None
    assert len(kafka.leaders(made.topic)) == 3
    assert len(kafka.leaders(made.heads)) == 16


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("partition", [HEAD, 0])
@pytest.mark.parametrize("point", ["transaction.before", "transaction.after"])
def test_a_broker_killed_in_mid_commit_loses_and_doubles_nothing(own_kafka, point, partition):
    recipe = recipe_at(own_kafka, timeout_secs=90)
    batches = RowBatches.over(recipe)
    batches.commit(rows_of(1))

    def kill_and_start():
        own_kafka.kill(1)
        own_kafka.brokers[0].launch()

    once_at(point, partition, kill_and_start)
    batches.commit(rows_of(2))
    faults.install(None)
    own_kafka.await_live(1)
    batches.commit(rows_of(3))

    assert seen(own_kafka, recipe) == all_rows(3)
