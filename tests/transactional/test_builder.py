"""What `TransactionalTopologyBuilder` takes, and what it refuses."""

from __future__ import annotations

import threading
from typing import ClassVar

import pytest

from tests.transactional.components import PartialCount, Upper
from waterspout import BasicBolt, Bolt
from waterspout.errors import NotPicklableError, TopologyError
from waterspout.testing import FeederSpout
from waterspout.transactional import (
    BatchBolt,
    Committer,
    MemoryTransactionalSpout,
    OpaqueMemoryTransactionalSpout,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)


class Pass(BatchBolt):
    output_fields = ("tx", "word")

    def execute(self, tuple):
        self.collector.emit(list(tuple))


class Commit(Pass, Committer):
    pass


class Emitting(TransactionalSpout):
    output_fields = ("tx", "word")

    def get_coordinator(self, conf, context):
        raise NotImplementedError

    def get_emitter(self, conf, context):
        raise NotImplementedError


def words(*rows):
    return MemoryTransactionalSpout([list(rows)], "word", 2)


def builder(name="t", spout=None, parallelism=None):
    return TransactionalTopologyBuilder(name, "spout", spout or words("a"), parallelism)


@pytest.mark.parametrize(
    "spout",
    [words("a"), OpaqueMemoryTransactionalSpout([["a"]], "word", 1), Emitting()],
    ids=["partitioned", "opaque", "with a coordinator of its own"],
)
def test_all_three_kinds_of_spouts_are_taken(spout):
    topology = builder(spout=spout, parallelism=3).build_topology()

    assert topology.spout_id == "spout"
    assert topology.tasks == {"spout": (1, 2, 3)}


@pytest.mark.parametrize(
    ("spout", "named"),
    [
        (FeederSpout("word"), "a FeederSpout"),
        (MemoryTransactionalSpout, "the class MemoryTransactionalSpout"),
        (None, "a NoneType"),
    ],
    ids=["core spout", "class", "nothing"],
)
def test_other_spouts_are_refused(spout, named):
    with pytest.raises(TopologyError, match=f"spout 's' is {named}; give a TransactionalSpout"):
        TransactionalTopologyBuilder("t", "s", spout)


class CoreBolt(Bolt):
    def execute(self, tuple):
        pass


@pytest.mark.parametrize(
    ("bolt", "named"),
    [(CoreBolt(), "a CoreBolt"), (Pass, "the class Pass"), (object(), "an object")],
    ids=["core bolt", "class", "object"],
)
def test_other_bolts_are_refused(bolt, named):
    with pytest.raises(TopologyError, match=f"bolt 'b' is {named}; .* BatchBolt or BasicBolt"):
        builder().set_bolt("b", bolt)


class BasicCommitter(BasicBolt, Committer):
    output_fields = ("tx",)

    def execute(self, tuple, collector):
        pass


def test_a_committer_must_know_when_its_batch_is_complete():
    with pytest.raises(TopologyError, match="committer 'c' is a Upper; give a BatchBolt"):
        builder().set_committer_bolt("c", Upper())
    with pytest.raises(TopologyError, match="committer 'c' is a BasicCommitter; give a BatchBolt"):
        builder().set_bolt("c", BasicCommitter())


def test_a_bolt_is_a_committer_by_its_class_or_by_how_it_is_set():
    built = builder()
    built.set_bolt("by class", Commit()).shuffle_grouping("spout")
    built.set_committer_bolt("by method", Pass()).shuffle_grouping("spout")
    built.set_bolt("neither", Pass()).shuffle_grouping("spout")

    assert built.build_topology().committers == {"by class", "by method"}


def test_what_is_behind_a_committer_is_late_and_nothing_else():
    built = builder()
    built.set_bolt("a", Pass()).shuffle_grouping("spout")
    built.set_committer_bolt("b", Pass()).shuffle_grouping("a")
    built.set_bolt("c", Pass()).shuffle_grouping("a").shuffle_grouping("b")
    built.set_bolt("d", Commit()).shuffle_grouping("c")
    built.set_bolt("e", Upper()).shuffle_grouping("d")
    built.set_bolt("f", PartialCount()).shuffle_grouping("a")

    assert built.build_topology().late == {"b", "c", "d", "e"}


@pytest.mark.parametrize("id", ["", None, 7, "__x"])
def test_ids_are_checked(id):
    with pytest.raises(TopologyError):
        builder().set_bolt(id, Pass())
    with pytest.raises(TopologyError):
        TransactionalTopologyBuilder("t", id, words("a"))


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 200, "a\x00b"])
def test_the_topology_id_must_be_fit_for_a_folder_and_a_node(name):
    with pytest.raises(TopologyError):
        builder(name).build_topology()


def test_an_id_is_given_once():
    built = builder()
    built.set_bolt("b", Pass()).shuffle_grouping("spout")

    with pytest.raises(TopologyError, match="a bolt has already been declared for id 'b'"):
        built.set_bolt("b", Pass())
    with pytest.raises(TopologyError, match="a spout has already been declared for id 'spout'"):
        built.set_committer_bolt("spout", Pass())


@pytest.mark.parametrize("parallelism", [0, -1, 1.5, True, "2"])
def test_parallelism_is_a_positive_number(parallelism):
    with pytest.raises(TopologyError, match="parallelism"):
        builder(parallelism=parallelism)
    with pytest.raises(TopologyError, match="parallelism"):
        builder().set_bolt("b", Pass(), parallelism)


def test_a_circle_is_refused_with_the_bolts_in_it():
    built = builder()
    built.set_bolt("a", Pass()).shuffle_grouping("spout").shuffle_grouping("b")
    built.set_bolt("b", Pass()).shuffle_grouping("a")

    with pytest.raises(TopologyError, match="the bolts 'a', 'b' depend on each other in a circle"):
        built.build_topology()


def test_a_bolt_that_takes_its_own_stream_is_a_circle():
    built = builder()
    built.set_bolt("a", Pass()).shuffle_grouping("spout").shuffle_grouping("a")

    with pytest.raises(TopologyError, match="circle"):
        built.build_topology()


def test_a_bolt_without_input_and_one_of_an_unknown_source_are_refused():
    alone = builder()
    alone.set_bolt("a", Pass())
    with pytest.raises(TopologyError, match="bolt 'a' takes no stream"):
        alone.build_topology()

    lost = builder()
    lost.set_bolt("a", Pass()).fields_grouping("spuot", "word")
    with pytest.raises(TopologyError, match="did you mean 'spout'"):
        lost.build_topology()


def test_every_stream_needs_a_field_for_the_attempt():
    class NoFields(BatchBolt):
        streams: ClassVar = {"default": ("tx",), "empty": ()}

        def execute(self, tuple):
            pass

    built = builder()
    built.set_bolt("b", NoFields()).shuffle_grouping("spout")

    with pytest.raises(TopologyError, match="stream 'empty'"):
        built.build_topology()


def test_what_cannot_be_pickled_is_named_with_its_attribute():
    bolt = Pass()
    bolt.lock = threading.Lock()
    built = builder()
    built.set_bolt("b", bolt).shuffle_grouping("spout")

    with pytest.raises(NotPicklableError, match=r"bolt 'b'.*lock"):
        built.build_topology()


def test_the_spout_takes_no_stream_and_has_options_of_its_own():
    built = builder()

    built.spout_declarer.add_configuration("mine", 1)

    assert built.build_topology().components["spout"].configuration == {"mine": 1}
    with pytest.raises(TopologyError, match="takes no stream"):
        built.spout_declarer.shuffle_grouping("spout")


def test_the_fingerprint_holds_the_spout_and_the_committers_alone():
    def fingerprint(with_bolt, committer, grouping):
        built = builder()
        source = "spout"
        if with_bolt:
            built.set_bolt("between", Pass(), 4).shuffle_grouping("spout")
        bolt = built.set_bolt("c", committer, 2)
        getattr(bolt, grouping)(source, *(["word"] if grouping == "fields_grouping" else []))
        return built.build_topology().fingerprint()

    base = fingerprint(False, Commit(), "fields_grouping")

    assert fingerprint(True, Commit(), "fields_grouping") == base
    assert fingerprint(False, Commit(), "global_grouping") != base
    assert set(base) == {"spout spout", "committer c"}
