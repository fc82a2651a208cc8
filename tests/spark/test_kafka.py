"""Kafka spouts on real Spark: the same rows as in process, pruned, parsed, waited for."""

from __future__ import annotations

import json
import signal

import pytest

from tests.soaking import soaked
from tests.spouts.kafka_support import KINDS, counts, once, values
from tests.trident.support import capture, finish, wait_for
from waterspout import BasicBolt, Config, TopologyBuilder, submit
from waterspout.coordination.events import ServiceAway
from waterspout.errors import FailedException, MalformedRowError, RunFailedError
from waterspout.spark.audit import audit
from waterspout.spouts.kafka import KafkaSpout, OpaqueKafkaSpout, TransactionalKafkaSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import run_in_process
from waterspout.trident import Count, TridentTopology
from waterspout.trident.isolation.repair import repaired
from waterspout.trident.isolation.rewriting import letters_location

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

QUICK = {"refresh_secs": 0, "timeout_secs": 1}
JSON = "word string, n bigint, more struct<x:double>"
VALUES = [
    *('{"word": "a", "n": 1}', None, '{"n": 2, "more": {"x": 0.5}}', '{"word": 4}', " {}"),
    *("oops", "", "[]", '[{"word": "a"}]', "7", '{"n": "two"}', '{"n": 1', b"\xff", '{"n": 1.5}'),
]
GOOD = 5


def counting(spout, path, name="counting"):
    topology = TridentTopology(name)
    state = SQLiteState.opaque(path, table="counts")
    stream = topology.new_stream("messages", spout)
    stream.group_by("value").persistent_aggregate(state, Count(), "n")
    return topology


def stream_of(spout):
    topology = TridentTopology("messages")
    return topology, capture(topology.new_stream("messages", spout))


def test_spark_and_the_engine_in_process_read_the_same(spark, kafka):
    topic = kafka.fresh_topic(3)
    kafka.send(
        topic, [None, b"\xff", "a", ""], partition=lambda n: n % 3, key=lambda n: f"k{n}",
        headers=[("h", b"1"), ("h", None)], timestamp=lambda n: 1_700_000_000_123 + n,
    )  # fmt: skip
    kafka.send(topic, values(range(9)), partition=lambda n: n % 3)
    kafka.send_in_transaction(topic, ["aborted"] * 3, commit=False)

    on_spark, there = stream_of(TransactionalKafkaSpout(kafka.bootstrap, topic))
    run = finish(on_spark, spark)
    in_process, here = stream_of(TransactionalKafkaSpout(kafka.bootstrap, topic))
    run_in_process(in_process)

    assert len(there.rows) == 13
    assert _comparable(there.rows) == _comparable(here.rows)
    assert run.last_progress.input_rows == 13


def _asdict(value):
    return value.asDict() if hasattr(value, "asDict") else value


def _comparable(rows):
    """Return rows whose headers are plain dicts, whoever made them."""
    return sorted(
        repr([*row[:-1], row[-1] and [dict(_asdict(pair)) for pair in row[-1]]]) for row in rows
    )


def test_json_is_parsed_by_the_same_rules_on_spark_and_in_process(spark, kafka):
    topic = kafka.fresh_topic()
    kafka.send(topic, VALUES, key=lambda n: f"k{n}")
    options = {"value_schema": JSON, "columns": ["key", "offset"]}

    def spout(**more):
        return TransactionalKafkaSpout(kafka.bootstrap, topic, **options, **more)

    nulls_there, there = stream_of(spout(on_error="null"))
    finish(nulls_there, spark)
    nulls_here, here = stream_of(spout(on_error="null"))
    run_in_process(nulls_here)
    failing, nothing = stream_of(spout())
    with pytest.raises(RunFailedError) as told:
        finish(failing, spark, Config(max_retries=0))

    assert [row[-1] for row in there.rows] == [row[-1] for row in here.rows]
    assert list(map(_plain_row, there.rows)) == list(map(_plain_row, here.rows))
    assert sorted(row[-1] for row in there.rows) == list(range(len(VALUES)))
    assert isinstance(told.value.__cause__, MalformedRowError)
    assert f"topic {topic}, partition 0, offset {GOOD}" in str(told.value)
    assert "'oops'" in str(told.value)
    assert nothing.rows == []


def _plain_row(row):
    word, n, more, key, offset = row
    return word, n, more and dict(_asdict(more)), key, offset


@pytest.mark.soak
def test_malformed_values_are_letters_and_come_back_with_their_messages(spark, kafka, tmp_path):
    topic = kafka.fresh_topic()
    kafka.send(topic, VALUES, key=lambda n: f"k{n}", headers=[("h", b"1")])
    topology = TridentTopology("letters")
    spout = TransactionalKafkaSpout(
        kafka.bootstrap, topic, value_schema=JSON, on_error="dead_letter"
    )
    state = SQLiteState.opaque(tmp_path / "c.db", table="counts")
    stream = topology.new_stream("messages", spout)
    # The key and the headers of a message come back with it.
    stream.transform(
        lambda df: df.selectExpr("cast(concat(key, '/', headers[0].value) as binary) as value"),
        "value binary",
    ).group_by("value").persistent_aggregate(state, Count(), "n")

    run = submit(topology, spark)
    try:
        run.process_all_available(timeout=120)
        letters = sorted(run.dead_letters(), key=lambda each: json.loads(each.position)["offset"])
        before = counts(tmp_path / "c.db")
        requests = letters_location(topology.plan(Config()), Config()).requests()
        requests.add("replay", [repaired(letters[0], {"record": '{"word": "mended"}'}), letters[1]])
        requests.close()
        run.process_all_available(timeout=120)
        left = [letter.failures for letter in run.dead_letters()]
    finally:
        run.stop()

    assert before == {f"k{n}/1": 1 for n in range(GOOD)}
    assert len(letters) == len(VALUES) - GOOD
    assert counts(tmp_path / "c.db") == {f"k{n}/1": 1 for n in range(GOOD + 1)}
    assert sorted(left) == [1] * (len(VALUES) - GOOD - 2) + [2]


def test_only_the_columns_that_are_read_are_made_and_an_audit_counts_again(spark, kafka, tmp_path):
    topic = kafka.fresh_topic(2)
    kafka.send(topic, values(range(40)))
    spout = OpaqueKafkaSpout(kafka.bootstrap, topic, max_batch_size=15, **QUICK)
    topology = counting(spout, tmp_path / "c.db")

    run = finish(topology, spark)
    (audited,) = audit(counting(spout, tmp_path / "c.db"), spark, Config())

    assert counts(tmp_path / "c.db") == once(range(40))
    assert (audited.keys, audited.differences) == (40, ())
    assert [progress.input_rows for progress in run.recent_progress] == [15, 15, 10]
    assert run.last_progress.lag == {"messages": {"offsets": 0}}


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["transactional", soaked("opaque")])
def test_a_broker_that_hangs_is_waited_for_on_spark(spark, kafka, tmp_path, kind):
    topic = kafka.fresh_topic(2)
    kafka.send(topic, values(range(100)))
    process, heard = kafka.brokers[0].process, []

    def hear(event):
        heard.append(event)
        if isinstance(event, ServiceAway):
            process.send_signal(signal.SIGCONT)

    spout = KINDS[kind](kafka.bootstrap, topic, max_batch_size=20, **QUICK)
    run = submit(counting(spout, tmp_path / "c.db"), spark, Config(max_retries=0))
    run.subscribe(hear)
    try:
        run.process_all_available(timeout=60)
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: any(isinstance(event, ServiceAway) for event in heard))
        kafka.send(topic, values(range(100, 150)))
        run.process_all_available(timeout=60)
    finally:
        process.send_signal(signal.SIGCONT)
        run.stop()

    assert {event.service for event in heard if isinstance(event, ServiceAway)} == {"kafka"}
    assert counts(tmp_path / "c.db") == once(range(150))


def test_messages_of_a_core_topology_are_read_on_the_executors(spark, kafka, tmp_path):
    topic = kafka.fresh_topic(2)
    kafka.send(topic, values(range(200)))
    builder = TopologyBuilder()
    builder.set_spout("messages", KafkaSpout(kafka.bootstrap, topic, retry_secs=0.01))
    builder.set_bolt("write", Append(tmp_path / "out.txt")).shuffle_grouping("messages")
    topology = builder.create_topology("core-kafka")

    run = submit(topology, spark)
    run.process_all_available(timeout=100)
    run.stop()

    assert sorted(map(int, (tmp_path / "out.txt").read_text().split())) == list(range(200))


class Append(BasicBolt):
    """Appends to a file; fails once for one message."""

    def __init__(self, path):
        self.path = path

    def execute(self, tuple, collector):
        mark = self.path.with_suffix(".failed")
        if tuple["value"] == "3" and not mark.exists():
            mark.touch()
            raise FailedException("once")
        with self.path.open("a") as file:
            file.write(f"{tuple['value']}\n")
