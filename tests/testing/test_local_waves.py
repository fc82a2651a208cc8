"""`run_in_process` and `LocalWaves` for topologies of spouts and bolts: the tests a user writes."""

from __future__ import annotations

import contextlib

import pytest

from waterspout import BasicBolt, Bolt, Config, Direct, Spout, TopologyBuilder
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.errors import BoltCrash, DeadLettersFullError, TopologyError
from waterspout.spouts.lines import LinesSpout
from waterspout.testing import FeederSpout, LocalRun, LocalWaves, run_in_process


class Split(BasicBolt):
    output_fields = ("word",)

    def execute(self, tuple, collector):
        for word in tuple["sentence"].split():
            collector.emit([word])


class Count(BasicBolt):
    output_fields = ("word", "count")

    def __init__(self):
        self.counts = {}

    def execute(self, tuple, collector):
        word = tuple["word"]
        self.counts[word] = self.counts.get(word, 0) + 1
        collector.emit([word, self.counts[word]])


class Forgetful(Bolt):
    def execute(self, tuple):
        """Neither ack nor fail."""


class OnTick(Bolt):
    output_fields = ("ticks",)
    ticks = 0

    def execute(self, tuple):
        if tuple.is_tick:
            self.ticks += 1
            self.collector.emit([self.ticks])
        self.collector.ack(tuple)


class DirectSpout(Spout):
    def __init__(self):
        self.streams = {"to": Direct("x")}
        self.left = 1

    def open(self, conf, context, collector):
        self.collector, self.context = collector, context

    def next_tuple(self):
        if self.left:
            self.left -= 1
            self.collector.emit_direct(self.context.component_tasks("bolt")[0], [1], 1, "to")


def word_count(*sentences):
    spout, builder = FeederSpout("sentence", replay=True), TopologyBuilder()
    for number, sentence in enumerate(sentences):
        spout.feed([sentence], msg_id=number)
    builder.set_spout("sentences", spout)
    builder.set_bolt("split", Split(), 2).shuffle_grouping("sentences")
    builder.set_bolt("count", Count(), 2).fields_grouping("split", "word")
    return spout, builder.create_topology("words")


def one_bolt(bolt):
    spout, builder = FeederSpout("x", replay=True), TopologyBuilder()
    builder.set_spout("spout", spout)
    builder.set_bolt("bolt", bolt).shuffle_grouping("spout")
    return spout, builder.create_topology("one")


def test_what_components_emit_is_kept():
    spout, topology = word_count("to be or", "not to be")

    run = run_in_process(topology)

    assert run.emitted("sentences") == [("to be or",), ("not to be",)]
    assert sorted(run.emitted("count")) == [
        ("be", 1), ("be", 2), ("not", 1), ("or", 1), ("to", 1), ("to", 2)
    ]  # fmt: skip
    assert run.emitted("nobody") == []
    assert spout.tracker.acks == {0: 1, 1: 1}
    assert (run.letters, run.errors) == ([], [])


@pytest.mark.parametrize("collapse", [0, 2_000], ids=["spread", "collapsed"])
@pytest.mark.parametrize("keep_alive", [True, False])
def test_waves_of_any_shape_and_bolts_made_anew_give_the_same(collapse, keep_alive):
    _, topology = word_count("to be or", "not to be")
    run = LocalWaves(topology, Config(wave_collapse_tuples=collapse), keep_alive=keep_alive)

    run.finish()
    run.close()

    assert sorted(run.emitted("count"))[-1] == ("to", 2)


def test_a_message_that_always_fails_is_in_the_letters_and_its_error_is_told():
    spout, topology = word_count("to be", None)

    run = run_in_process(topology, Config(max_replays=1))

    (letter,) = run.letters
    assert (letter.values, letter.message_id, letter.failed_in) == ((None,), "1", "split")
    (error,) = run.errors
    assert error["component"] == "split"
    assert error["error"].startswith(
        f"AttributeError: 'NoneType' object has no attribute 'split' ({__file__}, line "
    )
    assert error["count"] == 2
    assert spout.tracker.acks == {0: 1, 1: 1}


def test_a_bolt_that_forgets_to_ack_times_out_at_once():
    spout, topology = one_bolt(Forgetful())
    spout.feed([1], msg_id="a")

    run = run_in_process(topology, Config(message_timeout_secs=3600))

    (letter,) = run.letters
    assert (letter.error, letter.failures) == ("timed out", 4)


def test_an_error_that_ends_the_run_is_raised():
    _, topology = word_count(None)

    with pytest.raises(BoltCrash, match="'NoneType' object has no attribute 'split'"):
        run_in_process(topology, Config(bolt_errors="crash"))


def test_letters_that_have_no_room_end_the_run():
    spout, topology = word_count(None, None)

    with pytest.raises(DeadLettersFullError, match="1 are kept at most"):
        run_in_process(topology, Config(dead_letters_max=1))

    assert spout.tracker.acks == {}


def test_letters_go_into_the_table_that_is_given(tmp_path):
    _, topology = word_count(None)
    run = LocalWaves(topology, letters=DeadLetters(tmp_path))

    run.finish()
    run.close()

    with contextlib.closing(DeadLetters(tmp_path)) as stored:
        assert stored.all() == run.letters
        assert len(stored) == 1


def test_letters_can_be_replayed():
    _, topology = word_count(None)
    run = LocalWaves(topology)
    run.finish()

    assert run.replay_letters() == 1
    run.finish()

    assert [letter.failures for letter in run.letters] == [8]
    run.close()


def test_letters_and_emissions_are_there_after_closing_twice():
    _, topology = word_count("a", None)
    run = LocalWaves(topology)
    run.finish()
    run.close()
    run.close()

    assert len(run.letters) == 1
    assert run.emitted("split") == [("a",)]


def test_more_can_be_fed_and_finished():
    spout, topology = word_count("a")
    run = LocalWaves(topology)
    run.finish()
    spout.feed(["a"], msg_id="more")
    run.finish()
    run.close()

    assert run.emitted("count") == [("a", 1), ("a", 2)]


def test_time_passes_by_hand_for_ticks():
    _, topology = one_bolt(OnTick())
    run = LocalWaves(topology, Config(tick_tuple_freq_secs=60))
    for _ in range(3):
        run.advance(60.0)
        run.step()
    run.close()

    assert run.emitted("bolt") == [(1,), (2,), (3,)]
    assert run.emitted("__system", "__tick") == []


def test_a_topology_of_direct_streams_alone_runs_too():
    builder = TopologyBuilder()
    builder.set_spout("spout", DirectSpout())
    builder.set_bolt("bolt", Forgetful()).direct_grouping("spout", "to")

    run = run_in_process(builder.create_topology("direct"), Config(max_replays=0))

    assert [letter.values for letter in run.letters] == [(1,)]
    assert run.emitted("spout", "to") == []


def test_a_spout_that_is_read_on_executors_runs_too(tmp_path):
    (tmp_path / "a.txt").write_text("to be\nor not\n")
    builder = TopologyBuilder()
    builder.set_spout("sentences", LinesSpout(tmp_path, field="sentence"))
    builder.set_bolt("split", Split()).shuffle_grouping("sentences")

    run = run_in_process(builder.create_topology("lines"))

    assert run.emitted("sentences") == [("to be",), ("or not",)]
    assert run.emitted("split") == [("to",), ("be",), ("or",), ("not",)]


def test_a_spout_that_never_ends_is_given_up():
    class Endless(Spout):
        output_fields = ("x",)

        def open(self, conf, context, collector):
            self.collector = collector

        def next_tuple(self):
            self.collector.emit([1])

    builder = TopologyBuilder()
    builder.set_spout("spout", Endless())
    run = LocalWaves(builder.create_topology("endless"), Config(wave_max_tuples=10))

    with pytest.raises(TimeoutError, match="endless was not done after 20 steps"):
        run.finish(max_steps=20)

    run.close()


def test_a_local_run_is_for_batches():
    _, topology = word_count("a")

    with pytest.raises(TopologyError, match="'words' is a topology of spouts and bolts; drive it"):
        LocalRun(topology)
