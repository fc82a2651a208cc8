"""Spouts over real Redis streams: pinned ranges, lost entries, servers that die in mid-batch."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest
import redis

from tests.services.fixtures import provided
from tests.services.servers import RedisServer
from tests.soaking import soaked
from tests.trident.support import capture, wait_for
from waterspout import Config
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.events import ServiceAway, ServiceBack
from waterspout.errors import (
    DataLossError,
    FailedException,
    MalformedRowError,
    SourceError,
    TopologyError,
)
from waterspout.spouts import redis_streams
from waterspout.spouts.redis_streams import OpaqueRedisStreamSpout, TransactionalRedisStreamSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import LocalRun, run_in_process
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.trident import Count, TridentTopology

pytestmark = pytest.mark.services

BOTH = pytest.mark.parametrize("kind", [TransactionalRedisStreamSpout, OpaqueRedisStreamSpout])


@pytest.fixture
def url(redis_server):
    redis_server.roundtrip(b"FLUSHALL\r\n")
    return redis_server.url


@pytest.fixture
def raw(url):
    with redis.Redis.from_url(url, decode_responses=True) as client:
        yield client


def fill(raw, stream, numbers, **trim):
    for n in numbers:
        raw.xadd(stream, {"word": f"w{n % 3}", "n": n}, id=f"{n}-0", **trim)


class Kept:
    """Takes what an emitter emits."""

    def __init__(self):
        self.rows = []

    def emit(self, values):
        self.rows.append(tuple(values[1:]))


def emitted(spout, metadata, partition=0):
    kept = Kept()
    emitter = spout.get_emitter({}, None)
    emitter.emit_partition_batch(TransactionAttempt(1, 0), kept, partition, metadata)
    return kept.rows


def planned(spout, last=None, partition=0):
    return spout.get_emitter({}, None).next_metadata(1, partition, last)


def test_entries_become_rows_of_text_or_of_a_schema(url, raw):
    raw.xadd("s", {"name": "é", "n": "7"}, id="5-1")
    raw.xadd("s", {"name": "b", "ok": "true", "price": "1.50", "ratio": "0.5"}, id="6-0")
    plain = TransactionalRedisStreamSpout(url, "s")
    typed = TransactionalRedisStreamSpout(
        url, ["s"], "name string, n bigint, ok boolean, price decimal(9,2), ratio double"
    )
    topology = TridentTopology("shapes")
    texts = capture(topology.new_stream("plain", plain))
    values = capture(topology.new_stream("typed", typed), "id", "name", "n", "ok", "ratio")

    run_in_process(topology, Config())

    assert texts.rows[0] == ("s", "5-1", '{"name": "é", "n": "7"}')
    assert values.rows == [("5-1", "é", 7, None, None), ("6-0", "b", None, True, 0.5)]


@BOTH
def test_each_entry_of_each_stream_is_in_one_batch(url, raw, kind):
    fill(raw, "a", range(1, 26))
    fill(raw, "b", range(101, 108))
    topology = TridentTopology("two")
    spout = kind(url, ["a", "b", "not there yet"], max_entries=10)
    kept = capture(topology.new_stream("s", spout), "stream", "id")

    run_in_process(topology, Config(max_spout_pending=2))

    assert Counter(kept.in_order) == Counter(
        [("a", f"{n}-0") for n in range(1, 26)] + [("b", f"{n}-0") for n in range(101, 108)]
    )
    assert [len(rows) for rows in kept.batches.values()] == [17, 10, 5]


def test_a_range_has_the_same_entries_however_the_stream_grows(url, raw, monkeypatch):
    monkeypatch.setattr(redis_streams, "_CHUNK", 4)
    fill(raw, "s", range(1, 11))
    spout = TransactionalRedisStreamSpout(url, "s", max_entries=9)
    pinned = planned(spout)
    first = emitted(spout, pinned)
    fill(raw, "s", range(20, 25))

    assert emitted(spout, pinned) == first
    assert [row[1] for row in first] == [f"{n}-0" for n in range(1, 10)]
    assert pinned == {
        "stream": "s", "after": "0-0", "until": "9-0", "entries": 9, "added": 9,
    }  # fmt: skip


def test_a_target_sizes_a_range(url, raw):
    fill(raw, "s", range(1, 11))
    emitter = TransactionalRedisStreamSpout(url, "s", max_entries=8).get_emitter({}, None)

    sizes = [emitter.next_metadata(1, 0, None, target)["entries"] for target in (None, 3, 0, 99)]

    assert sizes == [8, 3, 1, 8]


@BOTH
def test_trimming_that_overtakes_the_spout_stops_it(url, raw, kind):
    fill(raw, "s", range(1, 11))
    spout = kind(url, "s", max_entries=4)
    first = planned(spout)
    raw.xtrim("s", maxlen=6, approximate=False)  # just what was read
    assert planned(spout, first)["entries"] == 4

    raw.xtrim("s", maxlen=3, approximate=False)

    with pytest.raises(DataLossError, match="3 entries of the Redis stream 's' behind 4-0 were"):
        planned(spout, first)


def test_or_it_skips_them_and_says_how_many(url, raw, caplog):
    fill(raw, "s", range(1, 11))
    spout = TransactionalRedisStreamSpout(url, "s", max_entries=4, on_loss="skip")
    first = planned(spout)
    raw.xtrim("s", maxlen=3, approximate=False)

    second = planned(spout, first)

    assert [row[1] for row in emitted(spout, second)] == ["8-0", "9-0", "10-0"]
    assert "3 entries of 's' were lost, and are skipped" in caplog.text
    assert planned(spout, second) is None


def test_entries_of_a_batch_that_are_gone_are_no_other_batch(url, raw):
    fill(raw, "s", range(1, 11))
    spout = TransactionalRedisStreamSpout(url, "s", on_loss="skip")
    pinned = planned(spout)
    raw.xdel("s", "5-0")

    with pytest.raises(
        DataLossError, match=r"1 of the 10 entries .* behind 0-0 up to 10-0 are gone"
    ):
        emitted(spout, pinned)


def test_an_opaque_spout_may_go_on_with_the_others(url, raw):
    fill(raw, "s", range(1, 11))
    stops, skips = (OpaqueRedisStreamSpout(url, "s", on_loss=how) for how in ("stop", "skip"))
    pinned = planned(stops)
    raw.xtrim("s", maxlen=3, approximate=False)

    with pytest.raises(DataLossError):
        emitted(stops, pinned)
    with pytest.raises(FailedException, match="The next attempt goes on with what is there"):
        emitted(skips, pinned)
    assert planned(skips)["entries"] == 3


def test_a_stream_that_is_deleted_and_made_anew_is_a_loss(url, raw):
    fill(raw, "s", range(1, 11))
    spout = TransactionalRedisStreamSpout(url, "s")
    first = planned(spout)
    raw.delete("s")
    with pytest.raises(DataLossError, match="now it is gone"):
        planned(spout, first)

    fill(raw, "s", range(1, 4))
    with pytest.raises(DataLossError, match="made anew"):
        planned(spout, first)


@pytest.mark.parametrize(("start", "ids"), [("latest", [11, 12]), ("8", [9, 10, 11, 12])])
def test_a_stream_can_begin_elsewhere_and_that_is_stored_at_once(url, raw, start, ids):
    fill(raw, "s", range(1, 11))
    raw.xtrim("s", maxlen=7, approximate=False)
    spout = TransactionalRedisStreamSpout(url, "s", start=start)
    first = planned(spout)
    assert (first["entries"], emitted(spout, first)) == (0, [])
    fill(raw, "s", [11, 12])

    second = planned(spout, first)

    assert [row[1] for row in emitted(spout, second)] == [f"{n}-0" for n in ids]
    assert second["added"] == 12


def test_the_lag_is_what_was_not_read(url, raw):
    fill(raw, "s", range(1, 11))
    spout = TransactionalRedisStreamSpout(url, "s", max_entries=4)
    emitter = spout.get_emitter({}, None)

    assert emitter.lag(0, None) == 10
    assert emitter.lag(0, planned(spout)) == 6


def test_a_value_that_does_not_fit_names_its_entry(url, raw):
    raw.xadd("s", {"n": "seven"}, id="5-1")
    spout = TransactionalRedisStreamSpout(url, "s", "n bigint")

    with pytest.raises(MalformedRowError, match=r"entry 5-1 of the Redis stream 's': 'n' cannot"):
        emitted(spout, planned(spout))


def test_a_key_that_is_no_stream_is_named(url, raw):
    raw.set("s", "text")

    with pytest.raises(SourceError, match="the key 's' is no stream"):
        planned(TransactionalRedisStreamSpout(url, "s"))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"streams": []}, "streams are the names of keys"),
        ({"streams": ["a", "a"]}, "a stream is named twice"),
        ({"start": "soon"}, "start is 'earliest', 'latest' or the id"),
        ({"max_entries": 0}, "max_entries is a number from 1 on"),
        ({"on_loss": "cry"}, "on_loss is 'stop' or 'skip'"),
        ({"timeout_secs": 0}, "timeout_secs is a number of seconds above 0"),
        ({"schema": "at timestamp"}, "field 'at' is timestamp"),
    ],
)
def test_bad_arguments_are_refused_when_it_is_built(bad, said):
    with pytest.raises(TopologyError, match=said):
        TransactionalRedisStreamSpout("redis://x", **{"streams": "s", **bad})


def test_passwords_are_not_shown():
    spout = TransactionalRedisStreamSpout("redis://me:hunter2@db:6379/0", "s")

    assert repr(spout) == "TransactionalRedisStreamSpout('redis://db:6379/0', s)"
    assert "hunter2" in pickle.loads(pickle.dumps(spout))._url


class Killing:
    """Kills a server when its streams are read for the n-th time, and starts it when missed."""

    def __init__(self, server, monkeypatch, at):
        self.server, self.left, self.told = server, at, []
        inner = redis_streams._RedisRanges._run

        def run(ranges, call):
            if call.script is None:
                self.left -= 1
                if self.left == 0:
                    server.kill()
            return inner(ranges, call)

        monkeypatch.setattr(redis_streams._RedisRanges, "_run", run)

    def __call__(self, event):
        self.told.append(type(event))
        if isinstance(event, ServiceAway) and not self.server.running:
            self.server.start()


@pytest.mark.parametrize("kind", [TransactionalRedisStreamSpout, soaked(OpaqueRedisStreamSpout)])
def test_a_server_that_dies_in_mid_batch_is_waited_for_and_all_is_counted_once(
    kind, tmp_path, monkeypatch
):
    monkeypatch.setattr(redis_streams, "_CHUNK", 10)
    with provided("redis", RedisServer) as server:
        with redis.Redis.from_url(server.url) as raw:
            fill(raw, "s", range(1, 121))
        topology = TridentTopology("killed")
        spout = kind(server.url, "s", "word string", max_entries=50, timeout_secs=2)
        state = SQLiteState.opaque(tmp_path / "counts.db", table="counts")
        counts = (
            topology.new_stream("s", spout)
            .group_by("word")
            .persistent_aggregate(state, Count(), out="n")
        )
        config = Config(max_spout_pending=2, max_retries=0, retry_backoff_millis=10)
        run = LocalRun(topology, config, store=EmbeddedStore(tmp_path / "home", "killed"))
        killing = Killing(server, monkeypatch, at=8)  # the second batch is half read
        run.loop.events.subscribe(killing)

        def all_is_counted():
            run.finish()
            server.start()  # an opaque spout goes on without its stream, and waits for nobody
            return counts.multi_get([["w0"], ["w1"], ["w2"]]) == [40, 40, 40]

        try:
            wait_for(all_is_counted, 30)
        finally:
            run.close()

        assert killing.left <= 0
        if kind is TransactionalRedisStreamSpout:
            assert {ServiceAway, ServiceBack} <= {*killing.told}
