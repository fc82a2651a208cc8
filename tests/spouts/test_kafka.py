"""Messages of a real Kafka, through the in-process engine: each counted once, whatever happens."""

from __future__ import annotations

import datetime as dt
import logging
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.soaking import soaked
from tests.spouts.kafka_support import (
    AT_ONCE,
    KINDS,
    counting,
    counts,
    finish,
    last_ranges,
    once,
    values,
)
from tests.trident.support import capture
from waterspout import BasicBolt, Config, TopologyBuilder
from waterspout.cli.loading import load_topology
from waterspout.coordination.events import ServiceAway, ServiceBack
from waterspout.coordination.store import MemoryCoordinationStore
from waterspout.errors import (
    DataLossError,
    FailedException,
    MalformedRowError,
    SourceError,
)
from waterspout.spouts import _kafka_log, _kafka_planner, _kafka_reading
from waterspout.spouts._kafka_plan import ranges_of
from waterspout.spouts.kafka import KafkaSpout, OpaqueKafkaSpout, TransactionalKafkaSpout
from waterspout.testing import LocalRun, LocalWaves, run_in_process
from waterspout.trident import TridentTopology

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = {"refresh_secs": 0, "timeout_secs": 1}
both = pytest.mark.parametrize("kind", list(KINDS))
mostly_transactional = pytest.mark.parametrize("kind", ["transactional", soaked("opaque")])
mostly_opaque = pytest.mark.parametrize("kind", ["opaque", soaked("transactional")])


@pytest.fixture(autouse=True)
def _sure_soon(monkeypatch):
    """With one broker there is none that could be behind."""
    for module in (_kafka_planner, _kafka_reading, _kafka_log):
        monkeypatch.setattr(module, "_SURE_S", 0.2)


def once_only(message, when=lambda tuple: True):
    """Return what fails a batch the first time that something is so."""
    done = []

    def meddle(tuple):
        if not done and when(tuple):
            done.append(tuple)
            message()
            raise FailedException("not this time")

    return meddle


def test_every_column_of_a_message_is_there(kafka):
    topic = kafka.fresh_topic(2)
    kafka.send(
        topic, [b"\xff", None], key=lambda n: b"k" if n else None, partition=lambda n: n,
        headers=[("a", b"1"), ("a", b"2")], timestamp=lambda n: 1_700_000_000_123 + n,
    )  # fmt: skip
    topology = TridentTopology("columns")
    kept = capture(topology.new_stream("messages", TransactionalKafkaSpout(kafka.bootstrap, topic)))

    finish(topology)

    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}]
    at = dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, dt.UTC)
    assert sorted(kept.rows, key=lambda row: row[3]) == [
        (None, b"\xff", topic, 0, 0, at, headers),
        (b"k", None, topic, 1, 0, at + dt.timedelta(milliseconds=1), headers),
    ]


@mostly_transactional
def test_offsets_with_gaps_are_read_to_their_end(kafka, tmp_path, kind):
    topic = kafka.fresh_topic()
    kafka.send(topic, values(range(5)))
    kafka.send_in_transaction(topic, ["aborted"] * 7, commit=False)
    kafka.send_in_transaction(topic, values(range(5, 9)))
    kafka.send_in_transaction(topic, ["aborted"] * 3, commit=False)  # nothing but marks at the end

    spout = KINDS[kind](kafka.bootstrap, topic, max_batch_size=4, **QUICK)
    run = finish(counting(spout, tmp_path / "c.db"))

    assert counts(tmp_path / "c.db") == once(range(9))
    assert last_ranges(run) == {(topic, 0): (20, 22)}


def test_what_is_uncommitted_is_waited_for_unless_it_is_asked_for(kafka, tmp_path):
    topic = kafka.fresh_topic()
    producer = kafka.producer(transactional_id=f"open-{topic}")
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "open", partition=0)
    producer.flush(30)
    kafka.send(topic, ["behind it"])

    finish(counting(TransactionalKafkaSpout(kafka.bootstrap, topic), tmp_path / "a.db"))
    every = TransactionalKafkaSpout(kafka.bootstrap, topic, isolation="read_uncommitted")
    finish(counting(every, tmp_path / "b.db"))
    before = counts(tmp_path / "a.db")
    producer.abort_transaction(30)
    finish(counting(TransactionalKafkaSpout(kafka.bootstrap, topic), tmp_path / "c.db"))

    assert before == {}
    assert counts(tmp_path / "b.db") == {"open": 1, "behind it": 1}
    assert counts(tmp_path / "c.db") == {"behind it": 1}


@pytest.mark.soak
def test_what_compaction_takes_away_leaves_gaps_and_nothing_else(kafka, tmp_path):
    topic = kafka.fresh_topic(
        cleanup_policy="compact", segment_ms=50, min_cleanable_dirty_ratio=0.01,
        delete_retention_ms=0, min_compaction_lag_ms=0,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while len(kafka.read_all(topic)) >= kafka.ends(topic)[0][1]:  # until some are gone
        assert time.monotonic() < deadline
        kafka.send(topic, values(range(20)), key=lambda n: f"k{n % 3}")
    left = [message.value().decode() for message in kafka.read_all(topic)]

    spout = TransactionalKafkaSpout(kafka.bootstrap, topic, max_batch_size=7, start="earliest")
    finish(counting(spout, tmp_path / "c.db"))

    assert sum(counts(tmp_path / "c.db").values()) == len(left)


@mostly_opaque
def test_another_run_goes_on_where_the_first_has_stopped(kafka, tmp_path, kind):
    topic = kafka.fresh_topic(2)
    kafka.send(topic, values(range(30)))
    store = MemoryCoordinationStore("counting")
    spout = KINDS[kind](kafka.bootstrap, topic, max_batch_size=8, **QUICK)
    path = tmp_path / "c.db"

    first = LocalRun(counting(spout, path), AT_ONCE, store=store)
    while first.loop.ledger.current < 3:
        first.step()
    first.close()
    kafka.send(topic, values(range(30, 50)))
    finish(counting(spout, path), store=store)

    assert counts(path) == once(range(50))


@both
def test_a_batch_that_fails_with_later_ones_in_flight_takes_them_with_it(kafka, tmp_path, kind):
    topic = kafka.fresh_topic(2)
    kafka.send(topic, values(range(60)))
    emitted = []

    def more():
        emitted.append(sorted(run.loop.ledger.emitted))
        kafka.send(topic, values(range(60, 70)))  # an opaque replay may have them, or not

    meddle = once_only(more, lambda tuple: tuple["offset"] >= 12)
    spout = KINDS[kind](kafka.bootstrap, topic, max_batch_size=10, **QUICK)
    run = LocalRun(
        counting(spout, tmp_path / "c.db", meddle=meddle), AT_ONCE.replace(max_spout_pending=4)
    )
    run.finish(max_steps=5_000)
    run.close()

    assert len(emitted[0]) == 4  # the others were on their way
    assert counts(tmp_path / "c.db") == once(range(70))


@mostly_opaque
def test_partitions_added_between_attempts_are_read_from_their_beginning(kafka, tmp_path, kind):
    topic = kafka.fresh_topic(1)
    kafka.send(topic, values(range(20)))

    def grow():
        kafka.add_partitions(topic, 3)
        kafka.send(topic, values(range(20, 40)), partition=lambda n: n % 3)

    spout = KINDS[kind](kafka.bootstrap, topic, max_batch_size=15, **QUICK)
    run = finish(counting(spout, tmp_path / "c.db", meddle=once_only(grow)))

    assert counts(tmp_path / "c.db") == once(range(40))
    assert {place: end for place, (_, end) in last_ranges(run).items()} == {
        (topic, number): end for number, (_, end) in kafka.ends(topic).items()
    }


def test_topics_that_a_pattern_matches_are_read_also_those_that_come_later(kafka, tmp_path):
    names = [f"pattern-{kafka.topics}-{n}" for n in range(3)]
    kafka.create_topic(names[0])
    kafka.send(names[0], values(range(5)))
    spout = TransactionalKafkaSpout(
        kafka.bootstrap, f"^pattern-{kafka.topics}-[01]", start="latest", **QUICK
    )
    run = LocalRun(counting(spout, tmp_path / "c.db"), AT_ONCE)
    run.finish()

    for name in names[1:]:
        kafka.create_topic(name)
        kafka.send(name, values(range(5, 10)))
    run.finish()
    run.close()

    # Of the first topic nothing, since it was there before; the third one does not match.
    assert counts(tmp_path / "c.db") == once(range(5, 10))


def test_a_time_to_begin_with(kafka, tmp_path):
    topic = kafka.fresh_topic()
    kafka.send(topic, values(range(10)), timestamp=lambda n: 1_700_000_000_000 + 1000 * n)
    start = dt.datetime.fromtimestamp(1_700_000_006, dt.UTC)

    finish(
        counting(TransactionalKafkaSpout(kafka.bootstrap, topic, start=start), tmp_path / "c.db")
    )

    assert counts(tmp_path / "c.db") == once(range(6, 10))


@mostly_transactional
def test_retention_that_overtakes_us_between_batches_ends_the_run(kafka, tmp_path, kind):
    topic = kafka.fresh_topic()
    kafka.send(topic, values(range(10)))
    spout = KINDS[kind](kafka.bootstrap, topic, **QUICK)
    run = LocalRun(counting(spout, tmp_path / "c.db"), AT_ONCE)
    run.finish()
    kafka.send(topic, values(range(10, 20)))
    kafka.drop_before(topic, {0: 15})

    with pytest.raises(DataLossError, match="offsets 10 to 14 are no longer kept"):
        run.finish()

    run.close()
    assert counts(tmp_path / "c.db") == once(range(10))


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        ("transactional", "fail"),
        ("opaque", "skip"),
        soaked("opaque", "fail"),
        soaked("transactional", "skip"),
    ],
)
def test_retention_that_overtakes_a_planned_batch(kafka, tmp_path, kind, policy, caplog):
    topic = kafka.fresh_topic()
    kafka.send(topic, values(range(20)))
    meddle = once_only(lambda: kafka.drop_before(topic, {0: 5}))
    spout = KINDS[kind](kafka.bootstrap, topic, on_data_loss=policy, max_batch_size=12, **QUICK)
    run = LocalRun(counting(spout, tmp_path / "c.db", meddle=meddle), AT_ONCE)

    if policy == "fail":
        with pytest.raises(DataLossError, match=r"offsets 0 to 4"):
            run.finish()
    else:
        with caplog.at_level(logging.WARNING):
            run.finish()
        assert "5 offsets" in caplog.text

    run.close()
    assert counts(tmp_path / "c.db") == ({} if policy == "fail" else once(range(5, 20)))


@mostly_opaque
def test_a_topic_made_anew_is_a_loss_and_nothing_of_it_is_counted(kafka, tmp_path, kind):
    topic = kafka.fresh_topic()
    kafka.send(topic, values(range(10)))
    spout = KINDS[kind](kafka.bootstrap, topic, **QUICK)
    run = LocalRun(counting(spout, tmp_path / "c.db"), AT_ONCE)
    run.finish()
    kafka.recreate_topic(topic)
    kafka.send(topic, values(range(100, 130)))  # more than were read of the old one

    with pytest.raises(DataLossError, match="made anew"):
        run.finish()

    run.close()
    assert counts(tmp_path / "c.db") == once(range(10))


@pytest.mark.soak
def test_a_topic_made_anew_under_a_batch_that_was_planned_is_not_counted(kafka, tmp_path):
    topic = kafka.fresh_topic()
    kafka.send(topic, values(range(10)))

    def recreate():
        kafka.recreate_topic(topic)
        kafka.send(topic, values(range(100, 130)))

    # The replay reads offsets 0 to 9 again, which are there: of another topic.
    spout = TransactionalKafkaSpout(kafka.bootstrap, topic, **QUICK)
    run = LocalRun(counting(spout, tmp_path / "c.db", meddle=once_only(recreate)), AT_ONCE)

    with pytest.raises(DataLossError, match="made anew"):
        run.finish()

    run.close()
    assert counts(tmp_path / "c.db") == {}


@pytest.mark.soak
def test_a_topic_deleted_under_a_batch_that_was_planned_ends_the_run(kafka, tmp_path):
    topic = kafka.fresh_topic()
    kafka.send(topic, values(range(10)))
    meddle = once_only(lambda: kafka.delete_topic(topic))
    spout = TransactionalKafkaSpout(kafka.bootstrap, topic, **QUICK)
    run = LocalRun(counting(spout, tmp_path / "c.db", meddle=meddle), AT_ONCE)

    with pytest.raises(DataLossError, match=r"nobody knows it|is gone"):
        run.finish()

    run.close()
    assert counts(tmp_path / "c.db") == {}


@pytest.mark.soak
def test_a_topic_made_anew_with_less_in_it_does_not_pass_for_one_that_was_read(kafka, tmp_path):
    topic = kafka.fresh_topic()
    kafka.send(topic, values(range(10)))

    def recreate():
        kafka.recreate_topic(topic)
        kafka.send(topic, values(range(100, 103)))

    spout = TransactionalKafkaSpout(kafka.bootstrap, topic, **QUICK)
    run = LocalRun(counting(spout, tmp_path / "c.db", meddle=once_only(recreate)), AT_ONCE)

    with pytest.raises(DataLossError, match="it ends at offset 3"):
        run.finish()

    run.close()
    assert counts(tmp_path / "c.db") == {}


def test_the_example_counts_the_words_of_a_topic(kafka, tmp_path, monkeypatch):
    topic = kafka.fresh_topic(2)
    kafka.send(topic, ['{"text": "to be or not"}', '{"text": "to be"}'])
    monkeypatch.setenv("KAFKA", kafka.bootstrap)
    monkeypatch.setenv("SENTENCES", topic)
    monkeypatch.chdir(tmp_path)

    run_in_process(load_topology(str(EXAMPLES / "kafka_words.py")))

    with closing(sqlite3.connect("kafka_words.db")) as db:
        found = dict(db.execute("SELECT word, count FROM words"))
    assert found == {"to": 2, "be": 2, "or": 1, "not": 1}


def test_a_topic_that_is_not_there_is_told_before_anything_runs(kafka, tmp_path):
    spout = TransactionalKafkaSpout(kafka.bootstrap, "no-such-topic")

    with pytest.raises(SourceError, match="there is no topic 'no-such-topic'"):
        LocalRun(counting(spout, tmp_path / "c.db"), AT_ONCE)


@mostly_transactional
def test_a_broker_that_hangs_is_waited_for_and_the_same_batch_goes_on(kafka, tmp_path, kind):
    topic = kafka.fresh_topic(2)
    kafka.send(topic, values(range(50)))
    process = kafka.brokers[0].process
    events, fixed = [], {}

    def hang():
        fixed.update(ranges_of(run.loop.ledger.emitted[1].metadata["messages"]))
        process.send_signal(signal.SIGSTOP)

    def hear(event):
        events.append(event)
        if isinstance(event, ServiceAway):
            process.send_signal(signal.SIGCONT)

    spout = KINDS[kind](kafka.bootstrap, topic, max_batch_size=20, **QUICK)
    run = LocalRun(
        counting(spout, tmp_path / "c.db", meddle=once_only(hang)), AT_ONCE, listener=hear
    )
    try:
        while not run.loop.ledger.committed_metadata:
            run.step()
        first = last_ranges(run)
        run.finish()
    finally:
        process.send_signal(signal.SIGCONT)
        run.close()

    assert counts(tmp_path / "c.db") == once(range(50))
    away = [event for event in events if isinstance(event, ServiceAway)]
    assert away[0].service == "kafka"
    assert any(isinstance(event, ServiceBack) for event in events)
    if kind == "transactional":
        assert first == fixed


JSON = "word string, n bigint"


def parsed(kafka, topic, **options):
    topology = TridentTopology("parsed")
    spout = TransactionalKafkaSpout(
        kafka.bootstrap, topic, value_schema=JSON, columns=["key", "offset"], **options
    )
    return topology, capture(topology.new_stream("messages", spout))


def test_values_are_parsed_and_a_malformed_one_fails_the_batch_and_is_found(kafka):
    topic = kafka.fresh_topic()
    kafka.send(topic, ['{"word": "a", "n": 1, "more": 0}', None, '{"n": 2}'], key=lambda n: f"{n}")
    topology, kept = parsed(kafka, topic)
    finish(topology)
    kafka.send(topic, ['{"word": "b", "n": "two"}'])
    broken, nothing = parsed(kafka, topic)

    with pytest.raises(MalformedRowError) as told:
        finish(broken)

    assert kept.rows == [("a", 1, b"0", 0), (None, 2, b"2", 2), (None, None, b"1", 1)]
    assert f"topic {topic}, partition 0, offset 3" in str(told.value)
    assert '{"word": "b", "n": "two"}' in str(told.value)
    assert nothing.rows == []


@pytest.mark.parametrize(
    "bad", ["[]", b"\xff\xfe", *map(soaked, ["", "7", '{"n": 1', '{"n": 1.5}'])]
)
def test_what_is_no_such_object_is_malformed_and_nulls_are_given_by_name_only(kafka, bad):
    topic = kafka.fresh_topic()
    kafka.send(topic, [bad])
    topology, kept = parsed(kafka, topic, on_error="null")
    finish(topology)
    failing, _ = parsed(kafka, topic)

    with pytest.raises(MalformedRowError):
        finish(failing)

    assert kept.rows == [(None, None, None, 0)]


def test_a_malformed_value_is_a_letter_and_comes_back_with_its_message(kafka):
    topic = kafka.fresh_topic()
    kafka.send(topic, ["oops", '{"word": "a", "n": 1}'], key=lambda n: f"k{n}")
    topology, kept = parsed(kafka, topic, on_error="dead_letter")
    run = LocalRun(topology, AT_ONCE)
    run.finish()
    (letter,) = run.letters
    before = kept.rows

    run.replay_letters(letter, record='{"word": "mended", "n": 5}')
    run.finish()
    run.close()

    assert before == [("a", 1, b"k1", 1)]
    assert letter.row == {"record": "oops"}
    assert f'"topic": "{topic}", "partition": 0, "offset": 0' in letter.position
    assert kept.rows == [("a", 1, b"k1", 1), ("mended", 5, b"k0", 0)]
    assert run.letters == []


class Picky(BasicBolt):
    """Acks all but some messages, which fail a number of times."""

    output_fields = ("offset",)
    failures: dict[int, int] = {}  # noqa: RUF012

    def execute(self, tuple, collector):
        offset = tuple["offset"]
        if self.failures.get(offset, 0):
            self.failures[offset] -= 1
            raise FailedException("again")
        collector.emit([offset])


def core(kafka, topic, **options):
    builder = TopologyBuilder()
    fields = ("offset", "value", "partition")
    spout = KafkaSpout(kafka.bootstrap, topic, fields=fields, **{**QUICK, **options})
    builder.set_spout("messages", spout)
    builder.set_bolt("picky", Picky()).shuffle_grouping("messages")
    return builder.create_topology("core")


def test_one_message_is_retried_alone_after_a_pause_and_positions_have_no_gap(kafka):
    topic = kafka.fresh_topic()
    kafka.send(topic, values(range(20)))
    Picky.failures = {7: 2}
    store = MemoryCoordinationStore("core")
    run = LocalWaves(core(kafka, topic, retry_secs=5.0), store=store)
    began = run.now if hasattr(run, "now") else run._now

    while len(run.emitted("picky")) < 19:
        run.step()
    run.loop.spouts.store_progress(store, now=True)
    held = list(store.load().positions["messages"].values())
    run.finish()
    took = run._now - began
    run.close()

    offsets = [row[0] for row in run.emitted("picky")]
    assert sorted(offsets) == list(range(20))
    assert offsets[-1] == 7
    assert held == [7]
    assert took >= 15  # 5 s, and then 10
    (position,) = store.load().positions["messages"].items()
    assert position[0].startswith(f"={topic}/0@")
    assert position[1] == 20


def test_a_core_topology_goes_on_where_it_was_and_a_topic_made_anew_ends_it(kafka):
    topic = kafka.fresh_topic(2)
    kafka.send(topic, values(range(20)), partition=lambda n: n % 2)
    Picky.failures = {}
    store = MemoryCoordinationStore("core")
    first = LocalWaves(core(kafka, topic), store=store)
    first.finish()
    first.close()
    kafka.send(topic, values(range(20, 25)), partition=0)

    second = LocalWaves(core(kafka, topic), store=store)
    second.finish()
    second.close()
    kafka.recreate_topic(topic, 2)
    kafka.send(topic, values(range(50)), partition=0)

    assert len(first.emitted("picky")) == 20
    assert [row[0] for row in second.emitted("picky")] == [10, 11, 12, 13, 14]
    with pytest.raises(DataLossError, match="made anew"):
        LocalWaves(core(kafka, topic), store=store)


def test_a_message_that_always_fails_is_a_dead_letter_with_its_values(kafka):
    topic = kafka.fresh_topic()
    kafka.send(topic, values(range(5)))
    Picky.failures = {3: 100}

    run = LocalWaves(core(kafka, topic, retry_secs=0.01), Config(max_replays=2))
    run.finish()
    run.close()

    (letter,) = run.letters
    assert letter.values == (3, "3", 0)
    assert sorted(row[0] for row in run.emitted("picky")) == [0, 1, 2, 4]


def test_a_core_topology_stops_where_retention_has_overtaken_it(kafka):
    topic = kafka.fresh_topic()
    kafka.send(topic, values(range(10)))
    Picky.failures = {}
    store = MemoryCoordinationStore("core")
    first = LocalWaves(core(kafka, topic), store=store)
    first.finish()
    first.close()
    kafka.send(topic, values(range(10, 20)))
    kafka.drop_before(topic, {0: 15})

    with pytest.raises(DataLossError, match="offsets 10 to 14 are not kept"):
        LocalWaves(core(kafka, topic), store=store)
    skipping = LocalWaves(core(kafka, topic, on_data_loss="skip"), store=store)
    skipping.finish()
    skipping.close()

    assert [row[0] for row in skipping.emitted("picky")] == [15, 16, 17, 18, 19]


def test_an_idle_consumer_is_used_again_in_the_same_process(kafka, monkeypatch):
    from waterspout import _kafka_servers

    made = []
    make = _kafka_servers.KafkaServers.consumer
    monkeypatch.setattr(
        _kafka_servers.KafkaServers, "consumer",
        lambda self, noted: made.append(1) or make(self, noted),
    )  # fmt: skip
    topic = kafka.fresh_topic()
    kafka.send(topic, values(range(40)))
    spout = OpaqueKafkaSpout(
        kafka.bootstrap, topic, max_batch_size=5, options={"client.id": topic}, **QUICK
    )

    run = finish(counting(spout, kafka.brokers[0].folder / f"{topic}.db"))

    assert run.loop.ledger.current == 9
    assert len(made) == 1
