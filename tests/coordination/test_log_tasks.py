"""Logs that are read where bolts run: ranges, retries alone, positions that are committed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waves.driving import (
    COLLAPSED,
    SPREAD,
    Do,
    Driven,
    Fails,
    ListLog,
    Record,
    forget_all,
    seen,
    seen_log,
)
from waterspout.coordination.store import SharedMemory
from waterspout.errors import StoreError
from waterspout.testing import FeederSpout
from waterspout.topology import Topology, TopologyBuilder


@pytest.fixture(autouse=True)
def _nothing_seen():
    forget_all()


def log_topology(name: str, bolt: Any = None, tasks: int = 1) -> Topology:
    builder = TopologyBuilder()
    builder.set_spout("log", ListLog(name), tasks)
    builder.set_bolt("target", bolt or Record(name), 2).shuffle_grouping("log")
    return builder.create_topology(name)


def values_of(name: str) -> list[Any]:
    return [values[0] for _, values in seen(name)]


def settled(driven: Driven) -> Driven:
    """Run until there is nothing to do, and until that is stored."""
    driven.until_idle()
    driven.clock.pass_by(5)
    driven.step(2)
    return driven.until_idle()


@pytest.mark.parametrize("shape", [COLLAPSED, SPREAD])
@pytest.mark.parametrize("ackers", [0, 1, 3])
@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_a_log_is_read_once_and_committed_to_its_end(tasks, ackers, shape):
    seen_log("log").update({0: list("abc"), 1: list("de"), "x": list("fghi")})

    driven = Driven(log_topology("log", tasks=tasks), ackers=ackers, wave_collapse_tuples=shape)
    settled(driven)

    assert sorted(values_of("log")) == list("abcdefghi")
    assert driven.positions == {"log": {"0": 3, "1": 2, "=x": 4}}
    assert sorted(seen("log, committed"), key=str) == [("x", 4), (0, 3), (1, 2)]


def test_a_log_hears_of_a_position_only_when_it_is_stored(monkeypatch):
    seen_log("log").update({0: list("abc")})
    driven = Driven(log_topology("log"))

    def refuse(ledger):
        raise StoreError("the disk is full")

    monkeypatch.setattr(driven.store, "save", refuse)
    with pytest.raises(StoreError):
        settled(driven)

    assert driven.positions == {}
    assert seen("log, committed") == []


def test_a_log_is_opened_and_closed_once_whatever_its_tasks():
    seen_log("log").update({0: ["a"], 1: ["b"]})
    driven = Driven(log_topology("log", tasks=3))
    driven.until_idle()
    driven.loop.close()

    assert (seen("log, opened"), seen("log, closed")) == (["log"], [True])


def test_a_message_that_failed_is_read_again_alone():
    seen_log("log").update({0: list("abcdef")})
    driven = Driven(log_topology("log", Fails("log", {"c": 2})))
    settled(driven)

    assert sorted(seen("log")) == list("abcdef")
    assert seen("log, read") == [(0, 0, 6), (0, 2, 3), (0, 2, 3)]
    assert driven.positions == {"log": {"0": 6}}


def test_nothing_behind_a_message_that_is_not_done_is_committed():
    seen_log("log").update({0: list("abcdef")})
    driven = Driven(log_topology("log", Do(hold_c)), message_timeout_secs=1000)
    driven.step(5)
    driven.clock.pass_by(5)
    driven.step(2)

    assert driven.positions == {"log": {"0": 2}}


def hold_c(bolt, tuple):
    if tuple["value"] != "c":
        bolt.collector.ack(tuple)


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_restart_goes_on_from_the_stored_positions(tasks):
    shared = SharedMemory()
    for part in ("ab", "cde", "f"):
        for partition in (0, 1, 2):
            seen_log("log").setdefault(partition, []).extend(f"{partition}{c}" for c in part)
        driven = Driven(log_topology("log", tasks=tasks), shared=shared)
        settled(driven)
        driven.loop.close()

    assert sorted(values_of("log")) == sorted(f"{p}{c}" for p in (0, 1, 2) for c in "abcdef")
    assert driven.positions == {"log": {"0": 6, "1": 6, "2": 6}}


def test_every_task_stores_its_own_progress_after_a_restart():
    shared = SharedMemory()
    seen_log("log").update({0: ["a"], 1: ["b"]})
    first = settled(Driven(log_topology("log", tasks=2), shared=shared))
    first.loop.close()
    seen_log("log")[0].extend("cd")
    seen_log("log")[1].extend("ef")

    second = settled(Driven(log_topology("log", tasks=2), shared=shared))

    assert second.positions == {"log": {"0": 3, "1": 3}}


def test_a_driver_that_died_repeats_only_what_was_not_committed():
    shared = SharedMemory()
    seen_log("log").update({0: list("abcdef")})
    driven = Driven(log_topology("log", Do(hold_c)), shared=shared, message_timeout_secs=1000)
    driven.step(5)
    driven.clock.pass_by(5)
    driven.step(2)

    settled(Driven(log_topology("log"), shared=shared))

    assert sorted(values_of("log")) == list("cdef")


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_partitions_may_appear_later_and_each_is_read_once(tasks):
    seen_log("log").update({"m": ["1"], "p": ["2"]})
    driven = Driven(log_topology("log", tasks=tasks))
    driven.until_idle()
    for name, value in (("a", "3"), ("n", "4"), ("z", "5"), ("b", "6")):
        seen_log("log")[name] = [value]
        seen_log("log")["m"].append(f"m{value}")
        driven.step(3)
        driven.until_idle()
    settled(driven)

    assert sorted(values_of("log")) == sorted(
        ["1", "2", "3", "4", "5", "6", "m3", "m4", "m5", "m6"]
    )
    assert driven.positions == {"log": {"=m": 5, "=p": 1, "=a": 1, "=n": 1, "=z": 1, "=b": 1}}


def test_a_log_may_have_gaps():
    seen_log("log").update({0: [None, "a", None, None, "b", None]})
    driven = settled(Driven(log_topology("log", Fails("log", {"b": 1}))))

    assert sorted(seen("log")) == ["a", "b"]
    assert driven.positions == {"log": {"0": 6}}


def test_a_message_that_is_gone_when_it_is_to_be_read_again_holds_up_nothing():
    seen_log("log").update({0: list("abc")})
    driven = Driven(log_topology("log", Do(fail_and_remove)))
    settled(driven)
    seen_log("log")[0].extend("de")
    driven.step(3)
    settled(driven)

    assert driven.positions == {"log": {"0": 5}}


def fail_and_remove(bolt, tuple):
    if tuple["value"] == "b":
        seen_log("log")[0][1] = None
        bolt.collector.fail(tuple)
    else:
        bolt.collector.ack(tuple)


@pytest.mark.parametrize("pending", [1, 2, 3, 7])
@pytest.mark.parametrize("tasks", [1, 2])
def test_a_log_keeps_to_max_spout_pending_and_forgets_no_partition(pending, tasks):
    seen_log("log").update({0: list("abc"), 1: [], 2: list("de"), 3: list("fghij"), 4: []})
    driven = Driven(log_topology("log", tasks=tasks), max_spout_pending=pending)
    settled(driven)

    assert sorted(values_of("log")) == list("abcdefghij")
    assert max(facts["tuples"] for facts in driven.heard.waves) <= pending * tasks


def test_retries_count_as_pending():
    seen_log("log").update({0: list("abcdefgh")})
    driven = Driven(log_topology("log", Fails("log", {"a": 2, "b": 2})), max_spout_pending=2)
    settled(driven)

    assert sorted(seen("log")) == list("abcdefgh")
    assert max(facts["tuples"] for facts in driven.heard.waves) <= 2


def test_one_large_partition_does_not_starve_the_others():
    seen_log("log").update({0: list(range(5000)), 1: ["b"], 2: ["c"]})
    driven = Driven(log_topology("log"), wave_max_tuples=30)
    driven.step(4)

    assert {"b", "c"} <= set(values_of("log"))


@pytest.mark.parametrize("raises", [0, 1, 2])
def test_a_log_that_cannot_tell_an_end_loses_nothing(raises):
    seen_log("log").update({0: list("abc"), 1: list("def"), 2: list("ghi")})
    seen("log, end raises").append(raises)
    driven = settled(Driven(log_topology("log")))

    assert sorted(values_of("log")) == list("abcdefghi")
    assert driven.positions == {"log": {"0": 3, "1": 3, "2": 3}}
    (note,) = driven.heard.errors
    assert note.error == f"spout 'log' (task 1) raised in end: OSError: no end of {raises}"


def test_retries_survive_a_log_that_cannot_tell_its_end():
    seen_log("log").update({0: list("abc")})
    driven = Driven(log_topology("log", Fails("log", {"b": 1})))
    driven.until(lambda: driven.counts.failed == 1)
    seen("log, end raises").append(0)
    settled(driven)

    assert sorted(seen("log")) == list("abc")
    assert driven.positions == {"log": {"0": 3}}


def test_a_log_whose_reading_raises_ends_the_run_with_its_error():
    seen_log("log").update({0: list("abc")})
    builder = TopologyBuilder()
    builder.set_spout("log", Unreadable("log"))
    builder.set_bolt("target", Record("log")).shuffle_grouping("log")
    driven = Driven(builder.create_topology("log"), max_retries=2)

    error = driven.until_error()

    assert (type(error), str(error)) == (OSError, "bad disk")
    assert seen("reads") == [1, 1, 1]
    assert driven.store.load().positions in ({}, {"log": {"0": 0}})


class Unreadable(ListLog):
    def read(self, partition, start, end):
        seen("reads").append(1)
        raise OSError("bad disk")


def test_dead_letters_of_a_log_have_its_values_and_are_committed():
    seen_log("log").update({0: list("abc")})
    driven = settled(Driven(log_topology("log", Fails("log", {"b": 99})), max_replays=2))

    (letter,) = driven.letters.all()
    assert (letter.values, letter.message_id, letter.failures) == (("b",), "(0, 1)", 3)
    assert letter.error == "ValueError: not b yet"
    assert driven.positions == {"log": {"0": 3}}


def test_a_dead_letter_of_a_log_is_replayed():
    seen_log("log").update({0: list("abc")})
    driven = settled(Driven(log_topology("log", Fails("log", {"b": 3})), max_replays=2))
    driven.letters.want()
    driven.clock.pass_by(1)
    driven.step()
    settled(driven)

    assert sorted(seen("log")) == list("abc")
    assert driven.letters.all() == []
    assert driven.positions == {"log": {"0": 3}}


class Ruled(Do):
    """Does with each value what `seen('rules')[-1]` says."""

    def __init__(self):
        super().__init__(Ruled.follow)

    def follow(self, tuple):
        rules = seen("rules")[-1] if seen("rules") else {}
        held = self.__dict__.setdefault("held", [])
        if tuple.is_tick:
            for each in held:
                self._acked(each)
            held.clear()
        elif rules.get(tuple["value"]) == "hold":
            held.append(tuple)
        elif rules.get(tuple["value"]) == "fail" and seen("failed").count(tuple["value"]) < 2:
            seen("failed").append(tuple["value"])
            self.collector.fail(tuple)
        else:
            self._acked(tuple)

    def _acked(self, tuple):
        seen("acked").append(tuple["value"])
        self.collector.ack(tuple)


@given(
    sizes=st.lists(st.integers(0, 8), min_size=1, max_size=3),
    gaps=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 7))),
    deeds=st.dictionaries(
        st.tuples(st.integers(0, 2), st.integers(0, 7)), st.sampled_from(["hold", "fail"])
    ),
    tasks=st.integers(1, 2),
    pending=st.sampled_from([None, 1, 3]),
)
def test_what_is_committed_is_the_contiguous_acked_prefix_at_every_moment(
    sizes, gaps, deeds, tasks, pending
):
    forget_all()
    seen("rules").append({f"{p}.{o}": deed for (p, o), deed in deeds.items()})
    for partition, size in enumerate(sizes):
        seen_log("log")[partition] = [
            None if (partition, offset) in gaps else f"{partition}.{offset}"
            for offset in range(size)
        ]
    driven = Driven(
        log_topology("log", Ruled(), tasks), max_spout_pending=pending, tick_tuple_freq_secs=3
    )
    for _ in range(400):
        driven.step()
        driven.clock.pass_by(1.1)
        for key, position in driven.positions.get("log", {}).items():
            for value in seen_log("log")[int(key)][:position]:
                assert value is None or value in seen("acked")
        if driven.loop.is_idle and not driven.loop.spouts.pending:
            break
    settled(driven)

    everything = [v for rows in seen_log("log").values() for v in rows if v is not None]
    assert sorted(seen("acked")) == sorted(everything)
    assert driven.positions == {"log": {str(p): size for p, size in enumerate(sizes)}}


def test_two_logs_keep_their_positions_apart():
    seen_log("one").update({0: list("abc")})
    seen_log("two").update({0: list("de"), "x": ["f"]})
    builder = TopologyBuilder()
    builder.set_spout("one", ListLog("one"))
    builder.set_spout("two", ListLog("two"), 2)
    target = builder.set_bolt("target", Record("out"))
    target.shuffle_grouping("one").shuffle_grouping("two")
    driven = settled(Driven(builder.create_topology("t")))

    assert sorted(values_of("out")) == list("abcdef")
    assert driven.positions == {"one": {"0": 3}, "two": {"0": 2, "=x": 1}}


def test_a_log_and_a_pulled_spout_share_the_waves():
    seen_log("log").update({0: list(range(50))})
    builder = TopologyBuilder()
    builder.set_spout("log", ListLog("log"))
    pulled = FeederSpout("n")
    builder.set_spout("pulled", pulled)
    for n in range(50):
        pulled.feed([n], msg_id=n)
    target = builder.set_bolt("target", Record("out"))
    target.shuffle_grouping("log").shuffle_grouping("pulled")
    driven = settled(Driven(builder.create_topology("t"), max_spout_pending=7))

    assert sorted(values_of("out")) == sorted([*range(50), *range(50)])
    assert driven.positions == {"log": {"0": 50}}


@pytest.mark.parametrize("verb", ["ack", "fail"])
def test_what_ends_while_a_log_pauses_after_an_error_is_not_forgotten(verb):
    seen_log("log").update({0: list("abc")})
    seen("verb").append(verb)
    bolt = Do(hold_until_tick)
    driven = Driven(
        log_topology("log", bolt),
        retry_backoff_millis=60_000,
        retry_backoff_max_millis=60_000,
        tick_tuple_freq_secs=10,
        message_timeout_secs=10_000,
    )
    driven.until(lambda: len(seen("held")) == 3)
    seen("log, end raises").append(0)
    driven.until(lambda: not seen("log, end raises"))
    driven.clock.pass_by(10)
    driven.step(3)  # the tick ends all three while the spout is not asked
    seen("verb").append("ack")
    driven.until_idle(tick=1)
    settled(driven)

    assert driven.positions == {"log": {"0": 3}}
    assert len(seen("held")) == (3 if verb == "ack" else 6)


def hold_until_tick(bolt, tuple):
    held = bolt.__dict__.setdefault("held", [])
    if tuple.is_tick:
        while held:
            getattr(bolt.collector, seen("verb")[-1])(held.pop())
    else:
        seen("held").append(tuple["value"])
        held.append(tuple)


def test_a_log_that_raises_now_and_then_goes_on_for_ever():
    seen_log("log").update({0: []})
    driven = Driven(log_topology("log"), max_retries=1)
    for n in range(6):
        seen("log, end raises").append(0)
        driven.until(lambda: not seen("log, end raises"))
        seen_log("log")[0].append(n)
        driven.until(lambda: len(seen("log")) > n)  # noqa: B023

    assert driven.loop.error is None


def test_a_message_whose_letter_cannot_be_written_for_now_is_not_forgotten():
    seen_log("log").update({0: list("abc")})
    builder = TopologyBuilder()
    builder.set_spout("log", Unsteady("log"))
    builder.set_bolt("target", Fails("log", {"b": 99})).shuffle_grouping("log")
    driven = Driven(builder.create_topology("log"), max_replays=1)
    settled(driven)

    assert [letter.values for letter in driven.letters.all()] == [("b",)]
    assert driven.positions == {"log": {"0": 3}}


class Unsteady(ListLog):
    """Its third read of `b`, which is the driver's own for the letter, raises."""

    def read(self, partition, start, end):
        seen("reads").append((start, end))
        if seen("reads").count((1, 2)) == 2 and len(seen("reads")) == 3:
            raise OSError("for now")
        return super().read(partition, start, end)


def test_no_task_of_a_log_starves_beside_a_large_one():
    seen_log("log").update({0: list(range(5000)), 1: ["b"]})
    driven = Driven(log_topology("log", tasks=2), wave_max_tuples=30)
    driven.step(5)

    assert "b" in values_of("log")


class Bytes(ListLog):
    """A log whose offsets are a thousand apart, as byte positions would be."""

    def end(self, partition):
        return 1000 * super().end(partition)

    def advance(self, partition, start, messages):
        return start + 1000 * messages

    def read(self, partition, start, end):
        for offset, values in super().read(partition, start // 1000, -(-end // 1000)):
            yield 1000 * offset, values


def test_byte_positions_starve_no_task_and_keep_waves_small():
    seen_log("log").update({0: list(range(5000)), 1: list(range(5000, 9000))})
    builder = TopologyBuilder()
    builder.set_spout("log", Bytes("log"), 2)
    builder.set_bolt("target", Record("log")).shuffle_grouping("log")
    driven = Driven(builder.create_topology("log"), wave_max_tuples=40)
    driven.step(5)
    assert {value >= 5000 for value in values_of("log")} == {True, False}

    settled(driven)

    assert sorted(values_of("log")) == list(range(9000))
    executed = [facts["executed"].get("target", 0) for facts in driven.heard.waves]
    assert max(executed) <= 50
    assert max(facts["tuples"] for facts in driven.heard.waves) <= 50
    assert driven.positions == {"log": {"0": 5_000_000, "1": 4_000_000}}
