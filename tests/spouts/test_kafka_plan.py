"""Which offsets go into a batch: no skip, no overlap, and nothing is lost without a word.

No broker: decisions are pure functions, and the planner is given what it would see.
"""

from __future__ import annotations

import logging
import pickle
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waves.driving import FakeClock
from waterspout import Config
from waterspout.errors import ConfigError, DataLossError, OutageError, TopologyError
from waterspout.spouts import SpoutContext
from waterspout.spouts._kafka_cluster import KafkaCluster
from waterspout.spouts._kafka_plan import (
    ClusterLook,
    Extent,
    TopicLook,
    ends_of,
    ids_of,
    metadata_of,
    offsets_in,
    ranges_of,
    shared_out,
    stand,
)
from waterspout.spouts._kafka_planner import KafkaPlanner
from waterspout.spouts._kafka_reading import shares_of
from waterspout.spouts.kafka import KafkaSpout, OpaqueKafkaSpout, TransactionalKafkaSpout
from waterspout.transactional._away import away_error

NOBODY = "127.0.0.1:1"
SECRET = "hunter2-s3cret"

places = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 4))


@given(st.dictionaries(places, st.integers(1, 1000)), st.integers(1, 2000), st.integers(0, 9))
def test_a_batch_is_as_large_as_it_may_be_and_each_partition_has_its_share(waiting, limit, turn):
    shares = shared_out(waiting, limit, turn)

    assert sum(shares.values()) == min(limit, sum(waiting.values()))
    assert all(0 < share <= waiting[place] for place, share in shares.items())
    unsated = [shares.get(place, 0) for place in waiting if shares.get(place, 0) < waiting[place]]
    assert all(share <= min(unsated) + 1 for share in shares.values() if unsated)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50)), min_size=1), st.integers(1, 4))
def test_ranges_are_dealt_out_whole_and_once(sizes, tasks):
    ranges = [("t", number, 7, 7 + size) for number, (_, size) in enumerate(sizes)]

    shares = shares_of(ranges, tasks)

    assert sorted(each for share in shares for each in share) == sorted(ranges)


@dataclass
class Log:
    """A topic as a broker has it."""

    id: str = "id-1"
    extents: list[Extent] = field(default_factory=lambda: [Extent(0, 0)])

    def look(self, away=()):
        there = {("t", n): e for n, e in enumerate(self.extents) if n not in away}
        gone = {("t", n): "down" for n in away if n < len(self.extents)}
        return ClusterLook({"t": TopicLook(self.id, len(self.extents))}, there, gone)


EVENTS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 3), st.integers(1, 20)),
    st.tuples(st.just("expire"), st.integers(0, 3), st.integers(1, 10)),
    st.tuples(st.just("grow"), st.just(0), st.just(0)),
    st.tuples(st.just("plan"), st.integers(0, 15), st.integers(1, 30)),
    # Back to some batch before: it failed, and all behind it are planned again.
    st.tuples(st.just("replay"), st.integers(0, 3), st.integers(1, 30)),
)


@given(st.lists(EVENTS, max_size=40))
def test_batches_follow_on_each_other_without_skip_or_overlap_whatever_happens(events):
    log, batches = Log(), []

    def plan(away, limit):
        previous = batches[-1] if batches else None
        look = log.look({n for n in range(4) if away & (1 << n)})
        standing = stand(ends_of(previous), ids_of(previous), look, wanted={"t"})
        lost = sum(loss.offsets for loss in standing.losses)
        batches.append(
            metadata_of(
                standing.positions,
                shared_out(standing.waiting, limit, len(batches)),
                ids={"t": log.id},
                firsts={},
                spout_id="s",
                lost=lost + (previous["lost"] if previous else 0),
            )
        )

    for kind, which, number in events:
        at = which % len(log.extents)
        now = log.extents[at]
        match kind:
            case "append":
                log.extents[at] = Extent(now.begin, now.end + number)
            case "expire":
                log.extents[at] = Extent(min(now.end, now.begin + number), now.end)
            case "grow" if len(log.extents) < 4:
                log.extents.append(Extent(0, 0))
            case "plan":
                plan(which, number)
            case "replay":
                del batches[max(0, len(batches) - which) :]
                plan(0, number)

    for partition in range(len(log.extents)):
        at = None
        for batch in batches:
            found = ranges_of(batch).get(("t", partition))
            if found is None:
                assert at is None  # once it was seen, it is in every batch
                continue
            start, end = found
            assert at is None or start >= at  # no overlap; a gap is what has expired
            assert start <= end <= log.extents[partition].end
            at = end
    if batches:
        read = sum(map(offsets_in, batches))
        skipped = batches[-1]["lost"]
        begun = sum(b for b, _ in _first_ranges(batches).values())
        assert begun + read + skipped == sum(ends_of(batches[-1]).values())


def _first_ranges(batches):
    found = {}
    for batch in batches:
        for place, each in ranges_of(batch).items():
            found.setdefault(place, each)
    return found


class Cluster:
    """What a planner asks, answered by the test."""

    def __init__(self, log):
        self.log, self.away, self.gone, self.times = log, set(), False, {}

    def topics(self, choice):
        if self.gone:
            return {}, {}
        return {"t": TopicLook(self.log.id, len(self.log.extents))}, {}

    def look(self, topics, leaders):
        return self.log.look(self.away) if topics else ClusterLook()

    def ids(self, names):
        return {} if self.gone else dict.fromkeys(names, self.log.id)

    def at_time(self, asked, time_ms):
        return {place: self.times.get(place) for place in asked}

    def close(self):
        pass


def planner_of(kind=TransactionalKafkaSpout, ends=(100, 100), known=None, **options):
    clock = FakeClock()
    spout = kind(NOBODY, "t", **{"refresh_secs": 0, **options})
    context = SpoutContext(Config(), "s", None, known or {}, 1, clock=clock)
    planner = KafkaPlanner(spout, context)
    planner._cluster = Cluster(Log(extents=[Extent(0, end) for end in ends]))
    return planner, planner._cluster, clock


def planned(planner, txid=1, previous=None, **options):
    return ranges_of(planner.plan(txid, previous, **options))


def test_a_batch_has_the_next_offsets_of_all_partitions_and_the_lag_is_what_is_left():
    planner, _, _ = planner_of(ends=(10, 100), max_batch_size=40)

    assert planner.is_ready(None)
    first = planner.plan(1, None)

    assert ranges_of(first) == {("t", 0): (0, 10), ("t", 1): (0, 30)}
    assert planner.size_of(first) == 40
    assert planner.lag(first) == {"offsets": 70}
    assert planned(planner, 2, first) == {("t", 0): (10, 10), ("t", 1): (30, 70)}
    assert planned(planner, 2, first, target=5) == {("t", 0): (10, 10), ("t", 1): (30, 35)}
    assert planned(planner, 2, first, target=500) == {("t", 0): (10, 10), ("t", 1): (30, 70)}
    assert not planner.is_ready(
        {**first, "topics": {"t": {**first["topics"]["t"], "ranges": [[10, 10], [100, 100]]}}}
    )


def test_who_says_nothing_gets_a_hundred_thousand_or_as_many_as_are_asked_for():
    planner, _, _ = planner_of(ends=(1_000_000,))

    assert planner.size_of(planner.plan(1, None)) == 100_000
    assert planner.size_of(planner.plan(1, None, target=300_000)) == 300_000


def test_a_transactional_spout_waits_for_a_partition_that_is_away():
    planner, cluster, _ = planner_of()
    cluster.away = {1}

    with pytest.raises(OutageError, match="t/1: down") as told:
        planner.is_ready(None)

    assert told.value.service == "kafka"


def test_an_opaque_spout_goes_on_without_it_and_it_catches_up():
    planner, cluster, _ = planner_of(OpaqueKafkaSpout)
    cluster.away = {1}
    assert planner.is_ready(None)

    first = planner.plan(1, None)
    away = dict(planner.unreachable())
    cluster.away = set()

    assert ranges_of(first) == {("t", 0): (0, 100)}
    assert away == {"t/1": "OSError: down"}
    assert planned(planner, 2, first) == {("t", 0): (100, 100), ("t", 1): (0, 100)}
    assert planner.unreachable() == {}


def test_with_no_partition_in_reach_an_opaque_spout_waits_too():
    planner, cluster, _ = planner_of(OpaqueKafkaSpout)
    cluster.away = {0, 1}

    with pytest.raises(OutageError):
        planner.is_ready(None)


def test_a_partition_that_could_not_be_read_sits_out_the_next_attempt():
    planner, _, clock = planner_of(OpaqueKafkaSpout)
    planner.plan(1, None)

    planner.attempt_failed(away_error("other", "t/0", "no route"))
    planner.attempt_failed(away_error("s", "t/1", "no route"))
    again = planner.plan(1, None)

    assert ranges_of(again) == {("t", 0): (0, 100), ("t", 1): (0, 0)}
    assert planner.unreachable() == {"t/1": "no route"}
    assert not planner.is_drained()
    clock.now += 60
    later = planner.plan(2, again)
    assert ranges_of(later) == {("t", 0): (100, 100), ("t", 1): (0, 100)}
    planner.succeeded(2, later)
    assert planner.unreachable() == {}


@pytest.mark.parametrize("kind", [TransactionalKafkaSpout, OpaqueKafkaSpout])
def test_a_topic_made_anew_is_a_loss_once_that_is_sure_and_never_nothing_to_do(kind):
    planner, cluster, clock = planner_of(kind)
    first = planner.plan(1, None)
    cluster.log = Log("id-2", [Extent(0, 500), Extent(0, 500)])

    assert not planner.is_ready(first)
    assert not planner.is_drained()  # it has not come to rest: something is wrong
    clock.now += 4

    with pytest.raises(DataLossError, match=r"'t': it was deleted and made anew"):
        planner.is_ready(first)


def test_a_broker_that_tells_old_news_for_a_moment_does_no_harm():
    planner, cluster, clock = planner_of()
    first = planner.plan(1, None)
    cluster.gone = True
    assert not planner.is_ready(first)
    clock.now += 2

    cluster.gone = False
    cluster.log.extents = [Extent(0, 130), Extent(0, 100)]

    assert planner.is_ready(first)
    assert planned(planner, 2, first) == {("t", 0): (100, 130), ("t", 1): (100, 100)}
    cluster.gone = True
    assert not planner.is_ready(first)  # doubts begin anew
    clock.now += 2
    assert not planner.is_ready(first)


@pytest.mark.parametrize("change", ["gone", "shorter"])
def test_a_topic_that_is_gone_or_shorter_is_a_loss(change):
    planner, cluster, clock = planner_of()
    first = planner.plan(1, None)
    if change == "gone":
        cluster.gone = True
    else:
        cluster.log.extents[0] = Extent(0, 40)
    planner.is_ready(first)
    clock.now += 4

    with pytest.raises(DataLossError, match=r"is gone|ends at 40"):
        planner.is_ready(first)


def test_retention_that_overtakes_ends_the_run_or_is_counted(caplog):
    planner, cluster, _ = planner_of()
    first = planner.plan(1, None)
    cluster.log.extents = [Extent(130, 200), Extent(0, 150)]
    with pytest.raises(DataLossError, match=r"partition 0: offsets 100 to 129 are no longer kept"):
        planner.is_ready(first)

    skipping, cluster, _ = planner_of(on_data_loss="skip")
    first = skipping.plan(1, None)
    cluster.log.extents = [Extent(130, 200), Extent(0, 150)]
    with caplog.at_level(logging.WARNING):
        second = skipping.plan(2, first)

    assert ranges_of(second) == {("t", 0): (130, 200), ("t", 1): (100, 150)}
    assert (first["lost"], second["lost"]) == (0, 30)
    assert "30 offsets" in caplog.text
    third = skipping.plan(3, second)
    assert third["lost"] == 30


def test_skipping_a_topic_made_anew_begins_it_anew():
    planner, cluster, clock = planner_of(on_data_loss="skip")
    first = planner.plan(1, None)
    cluster.log = Log("id-2", [Extent(0, 50)])
    planner.is_ready(first)
    clock.now += 4

    second = planner.plan(2, first)

    assert ids_of(second) == {"t": "id-2"}
    assert ranges_of(second) == {("t", 0): (0, 50)}
    assert second["lost"] == 1  # at least: nobody knows how much was in it
    assert planner.plan(3, second)["lost"] == 1


def test_what_was_read_of_another_topic_of_that_name_is_not_committed():
    planner, cluster, clock = planner_of()
    first = planner.plan(1, None)
    planner.confirm(first)

    cluster.gone = True
    with pytest.raises(OutageError):
        planner.confirm(first)  # perhaps a broker that is behind
    clock.now += 4
    with pytest.raises(DataLossError, match="gone"):
        planner.confirm(first)
    cluster.gone, cluster.log.id = False, "id-2"
    with pytest.raises(DataLossError, match="made anew"):
        planner.confirm(first)


def test_a_new_partition_begins_with_its_first_message_wherever_others_began():
    planner, cluster, _ = planner_of(start="latest", ends=(100,))
    assert not planner.is_ready(None)
    cluster.log.extents = [Extent(0, 103), Extent(0, 7)]

    first = planner.plan(1, None)

    assert ranges_of(first) == {("t", 0): (100, 103), ("t", 1): (0, 7)}
    assert first["topics"]["t"]["first"] == [100, 0]


def test_latest_stays_what_it_was_when_the_first_batch_is_planned_again():
    planner, cluster, _ = planner_of(OpaqueKafkaSpout, start="latest", ends=(100,))
    planner.is_ready(None)
    cluster.log.extents = [Extent(0, 105)]
    first = planner.plan(1, None)
    cluster.log.extents = [Extent(0, 120)]

    again = planner.plan(1, None)
    # Another driver, which knows that the first attempt was emitted and not committed.
    other, cluster, _ = planner_of(OpaqueKafkaSpout, ends=(150,), start="latest", known={1: first})

    assert ranges_of(again) == {("t", 0): (100, 120)}
    assert planned(other) == {("t", 0): (100, 150)}


def test_with_latest_nothing_begins_before_every_partition_was_asked():
    planner, cluster, _ = planner_of(OpaqueKafkaSpout, start="latest")
    cluster.away = {1}

    with pytest.raises(OutageError):
        planner.is_ready(None)


def test_a_time_or_offsets_to_begin_with():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    planner, cluster, _ = planner_of(start=at)
    cluster.times = {("t", 0): 40, ("t", 1): None}
    assert planned(planner) == {("t", 0): (40, 100), ("t", 1): (100, 100)}

    planner, _, _ = planner_of(start={"t": {1: 70}})
    assert planned(planner) == {("t", 0): (0, 100), ("t", 1): (70, 100)}

    planner, _, _ = planner_of(start={"t": {1: 170}})
    with pytest.raises(ConfigError, match=r"offset 170 .* ends at 100"):
        planner.is_ready(None)
    planner, _, _ = planner_of(start={"t": {7: 0}})
    with pytest.raises(ConfigError, match="partition 7"):
        planner.is_ready(None)


def test_pieces_can_be_left_out_and_all_offsets_so_far_are_known():
    planner, _, _ = planner_of(ends=(10, 20))
    first = planner.plan(1, None)
    spout = TransactionalKafkaSpout(NOBODY, "t")

    names = [piece.name for piece in spout.pieces(first)]
    less = spout.leave_out(first, names[:1])

    assert names == ["t/0: offsets 0 to 9", "t/1: offsets 0 to 19"]
    assert ranges_of(less) == {("t", 0): (10, 10), ("t", 1): (0, 20)}
    assert ranges_of(spout.so_far(less, None, "s")) == {("t", 0): (0, 10), ("t", 1): (0, 20)}
    assert spout.so_far({**first, "lost": 3}, None, "s") is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topics": "no spaces"}, "not the name of a topic"),
        ({"topics": []}, "one topic or more"),
        ({"topics": "^("}, "no pattern"),
        ({"bootstrap": ""}, "names no Kafka broker"),
        ({"start": "sometimes"}, "earliest"),
        ({"start": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"start": {"u": {0: 1}}}, "none of the topics"),
        ({"start": {"t": {0: -1}}}, "numbers from 0 on"),
        ({"on_data_loss": "ignore"}, "'fail' or 'skip'"),
        ({"isolation": "dirty"}, "read_committed"),
        ({"max_batch_size": 0}, "at least 1"),
        ({"timeout_secs": "1"}, "number of seconds"),
        ({"columns": ["value", "body"]}, "columns are some of"),
        ({"columns": []}, "at least one column"),
        ({"on_error": "null"}, "give value_schema too"),
        ({"value_schema": "a string", "on_error": "drop"}, "dead_letter"),
        ({"value_schema": "key string"}, "columns="),
        ({"value_schema": "a"}, "type"),
        ({"options": {"auto.offset.reset": "latest"}}, "start=... says where to begin"),
        ({"options": {"no.such.option": 1}}, "no.such.option"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_spout_is_made(options, told):
    given = {"bootstrap": NOBODY, "topics": "t", **options}

    with pytest.raises(TopologyError, match=told):
        TransactionalKafkaSpout(given.pop("bootstrap"), given.pop("topics"), **given)


def test_columns_and_json_fields_make_the_schema():
    parsed = OpaqueKafkaSpout(NOBODY, "t", value_schema="a string, n bigint", columns=["key"])

    assert str(parsed.schema) == "a string, n bigint, key binary"
    assert TransactionalKafkaSpout(NOBODY, "t").schema.names[:2] == ("key", "value")
    assert parsed.identity() == {
        "spout": "Kafka", "kind": "opaque", "fields": "a string, n bigint, key binary",
    }  # fmt: skip


@pytest.mark.parametrize("kind", [TransactionalKafkaSpout, KafkaSpout])
def test_no_option_is_shown_anywhere(kind):
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": SECRET,
    }
    spout = kind(NOBODY, "t", options=options)
    bad = {**options, "sasl.mechanism": SECRET}

    with pytest.raises(TopologyError) as refused:
        kind(NOBODY, "t", options={**bad, "broker.address.family": SECRET})

    shown = [repr(spout), str(spout), repr(spout.servers), str(refused.value)]
    shown += [str(spout.servers.away(f"password {SECRET} refused")), repr(spout.__dict__)]
    if kind is TransactionalKafkaSpout:
        shown += [repr(spout.read_nothing()), repr(spout.identity())]
    assert SECRET not in "".join(shown)
    assert pickle.loads(pickle.dumps(spout)).servers == spout.servers


class Odd:
    """A client that hands out one number for whatever offset it is asked for."""

    def __init__(self, offset):
        self._offset = offset

    def list_offsets(self, asked, **options):
        answers = {place: Future() for place in asked}
        for answer in answers.values():
            answer.set_result(SimpleNamespace(offset=self._offset))
        return answers


def asking(offset):
    cluster = KafkaCluster(OpaqueKafkaSpout(NOBODY, "t").servers)
    cluster._admin = Odd(offset)
    return cluster


@pytest.mark.parametrize("offset", [-1001, -1])
def test_an_answer_without_an_offset_is_none(offset):
    look = asking(offset).look({"t": TopicLook("id", 1)}, {("t", 0): 1})

    assert look.extents == {}
    assert look.away == {("t", 0): "broker 1: it answers without an offset"}


def test_no_message_of_a_time_or_later_is_an_answer_but_no_offset_is_not():
    assert asking(-1).at_time([("t", 0)], 5) == {("t", 0): None}
    with pytest.raises(OutageError, match="without an offset"):
        asking(-1001).at_time([("t", 0)], 5)
