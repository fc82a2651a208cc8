"""Redis streams, RabbitMQ streams and distant files on real Spark: read by tasks, exactly once."""

from __future__ import annotations

import pytest
import redis
from pyarrow.fs import LocalFileSystem

from tests.services.fixtures import provided
from tests.services.servers import RedisServer
from tests.trident.support import capture, finish, put, wait_for
from waterspout import Config, submit
from waterspout.errors import DataLossError, RunFailedError
from waterspout.spouts.files import FileSpout
from waterspout.spouts.rabbitmq_streams import TransactionalRabbitMQStreamSpout
from waterspout.spouts.redis_streams import OpaqueRedisStreamSpout, TransactionalRedisStreamSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, TridentTopology

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.timeout(120)]

ENTRIES = 3_000


def fill(url, stream, entries=ENTRIES):
    with redis.Redis.from_url(url) as raw, raw.pipeline() as pipeline:
        for n in range(1, entries + 1):
            pipeline.xadd(stream, {"word": f"w{n % 3}", "n": n}, id=f"{n}-0")
        pipeline.execute()


def counting(tmp_path, spout, field="word"):
    topology = TridentTopology("streams")
    state = SQLiteState.opaque(tmp_path / "counts.db", table="counts")
    stream = topology.new_stream("s", spout)
    counts = stream.group_by(field).persistent_aggregate(state, Count(), out="n")
    return topology, counts


@pytest.mark.parametrize(
    "kind",
    [
        TransactionalRedisStreamSpout,
        pytest.param(OpaqueRedisStreamSpout, marks=pytest.mark.soak),
    ],
)
def test_a_redis_that_is_killed_is_waited_for_and_every_entry_counts_once(spark, tmp_path, kind):
    with provided("redis", RedisServer) as server:
        fill(server.url, "s")
        spout = kind(server.url, "s", "word string", max_entries=500, timeout_secs=2)
        topology, counts = counting(tmp_path, spout)
        config = Config(max_spout_pending=2, max_retries=0, retry_backoff_millis=50)
        run = submit(topology, spark, config)
        try:
            wait_for(lambda: run.recent_progress, 60)
            server.kill()
            is_opaque = kind is OpaqueRedisStreamSpout
            wait_for(lambda: run.snapshot().waiting_for or is_opaque, 60)
            server.start()
            done = [ENTRIES // 3] * 3

            def all_counted():
                run.process_all_available(timeout=60)
                return counts.multi_get([["w0"], ["w1"], ["w2"]]) == done

            wait_for(all_counted, 60)
        finally:
            run.stop()

        assert counts.multi_get([["w0"], ["w1"], ["w2"]]) == done


def test_entries_that_are_gone_when_a_task_reads_them_end_the_run(spark, tmp_path, redis_server):
    redis_server.roundtrip(b"FLUSHALL\r\n")
    fill(redis_server.url, "s", 100)

    class Trimming(TransactionalRedisStreamSpout):
        """Loses entries between the plan of a batch and its tasks."""

        def get_emitter(self, conf, context):
            emitter = super().get_emitter(conf, context)
            inner = emitter.next_metadata

            def next_metadata(txid, partition, last, target=None):
                found = inner(txid, partition, last, target)
                with redis.Redis.from_url(self._url) as raw:
                    raw.xtrim("s", maxlen=10, approximate=False)
                return found

            emitter.next_metadata = next_metadata
            return emitter

    topology, counts = counting(tmp_path, Trimming(redis_server.url, "s", "word string"))
    run = submit(topology, spark, Config(max_retries=5))

    with pytest.raises(RunFailedError) as failed:
        run.process_all_available(timeout=60)
    run.stop()

    assert isinstance(failed.value.__cause__, DataLossError)
    assert "90 of the 100 entries of the Redis stream 's'" in str(failed.value.__cause__)
    assert counts.multi_get([["w0"]]) == [None]


@pytest.mark.soak
def test_messages_of_a_rabbitmq_stream_are_read_by_tasks(spark, tmp_path, rabbitmq):
    stream = rabbitmq.fresh_queue(x_queue_type="stream")
    rabbitmq.publish(stream, [b"w%d" % (n % 3) for n in range(900)])
    spout = TransactionalRabbitMQStreamSpout(rabbitmq.url, stream, max_messages=250)
    topology, counts = counting(tmp_path, spout, "body")

    finish(topology, spark, Config(max_spout_pending=2, max_retries=0))

    assert counts.multi_get([["w0"], ["w1"], ["w2"]]) == [300, 300, 300]


def test_files_of_a_url_are_listed_by_pyarrow_and_read_by_spark(spark, tmp_path):
    put(tmp_path / "a b" / "c[1] d.txt", "one\ntwo\n")
    put(tmp_path / "a b" / "deep" / "e.txt", "three\n")
    topology = TridentTopology("urls")
    here = FileSpout(f"file://{tmp_path}/a%20b")
    # As of an object store: through pyarrow, and by URLs.
    distant = FileSpout(tmp_path / "a b", max_files=1, filesystem=LocalFileSystem())
    assert distant.find()[0][1].startswith("file:///")
    read = [capture(topology.new_stream(f"s{n}", each)) for n, each in enumerate([here, distant])]

    finish(topology, spark, Config(max_retries=0))

    assert [kept.rows for kept in read] == [[("one",), ("three",), ("two",)]] * 2
