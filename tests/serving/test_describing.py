"""A topology as JSON: the same shape, whatever its kind."""

from __future__ import annotations

from waterspout import BasicBolt, Config, TopologyBuilder
from waterspout.serving._describing import graph, kind_of, states
from waterspout.state import MemoryMapState
from waterspout.testing import FeederSpout, FixedBatchSpout
from waterspout.transactional import (
    BatchBolt,
    Committer,
    MemoryTransactionalSpout,
    TransactionalTopologyBuilder,
)
from waterspout.trident import Count, TridentTopology


class Pass(BasicBolt):
    output_fields = ("word",)

    def execute(self, tuple, collector):
        collector.emit([tuple[0]])


class Keep(BatchBolt, Committer):
    output_fields = ("word",)

    def execute(self, tuple):
        pass

    def finish_batch(self):
        pass


def test_a_core_topology_is_its_components_and_what_they_take():
    builder = TopologyBuilder()
    builder.set_spout("in", FeederSpout("word"))
    builder.set_bolt("pass", Pass(), 3).fields_grouping("in", "word")
    topology = builder.create_topology("words")

    assert kind_of(topology) == "core"
    assert states(topology) == []
    assert graph(topology, Config()) == {
        "nodes": [
            {"id": "in", "kind": "spout", "label": "in", "parallelism": 1},
            {"id": "pass", "kind": "bolt", "label": "pass", "parallelism": 3},
        ],
        "edges": [
            {"source": "in", "target": "pass", "stream": "default", "grouping": "fields(word)"}
        ],
    }


def test_a_transactional_topology_has_the_states_of_its_committers():
    spout = MemoryTransactionalSpout({0: [["a"]]}, ["word"], 1)
    builder = TransactionalTopologyBuilder("words", "in", spout)
    keep = builder.set_committer_bolt("keep", Keep())
    keep.with_state("kept", MemoryMapState())
    keep.global_grouping("in")
    topology = builder.build_topology()

    assert kind_of(topology) == "transactional"
    assert [node["id"] for node in graph(topology, Config())["nodes"]] == ["in", "keep"]
    (state,) = states(topology)
    assert (state["name"], state["guarantee"]) == ("kept", "exactly-once")


def test_the_nodes_of_trident_have_the_names_that_statistics_use():
    topology = TridentTopology("words")
    stream = topology.new_stream("in", FixedBatchSpout("word string", 1, [["a"]]))
    stream.group_by("word").persistent_aggregate(MemoryMapState(), Count(), "count")
    plan = topology.plan(Config())

    drawn = graph(plan, Config())

    assert kind_of(topology) == "trident"
    labels = {node["kind"]: node["label"] for node in drawn["nodes"]}
    assert (labels["spout"], labels["state"]) == ("in", states(plan)[0]["name"])
    assert drawn["edges"][-1]["target"] == drawn["nodes"][-1]["id"]
