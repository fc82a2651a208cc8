"""What `explain` and `strict` say of every kind of spout with every kind of state."""

from __future__ import annotations

import pytest

from tests.trident.spout_kinds import (
    Batches,
    Messages,
    Opaque,
    Partitioned,
    SteadyBatches,
    Whole,
    fill,
    forget,
)
from waterspout import Config
from waterspout.errors import TopologyError
from waterspout.spouts import DataFrameSpout, SpoutKind
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, TridentTopology
from waterspout.trident.plan.explain import guarantees, refuse_weak


@pytest.fixture(autouse=True)
def _from_the_beginning():
    forget()
    fill("ab")


def frames(kind=SpoutKind.TRANSACTIONAL):
    return DataFrameSpout.of("word string", lambda txid, last: None, None, kind=kind)


SPOUTS = {
    "rich": (Messages, "non-transactional"),
    "batches": (Batches, "non-transactional"),
    "steady batches": (SteadyBatches, "transactional"),
    "whole": (Whole, "transactional"),
    "partitioned": (Partitioned, "transactional"),
    "opaque": (Opaque, "opaque"),
    "dataframe": (frames, "transactional"),
    "opaque dataframe": (lambda: frames(SpoutKind.OPAQUE), "opaque"),
}
EXACT = {
    ("transactional", "transactional"),
    ("transactional", "opaque"),
    ("opaque", "opaque"),
}


def plan_of(spout, state, tmp_path):
    topology = TridentTopology("guarantees")
    make = getattr(SQLiteState, state)
    words = topology.new_stream("words", spout(), out="word string")
    words.group_by("word").persistent_aggregate(
        make(tmp_path / "words.db", table="words"), Count(), out="n"
    )
    return topology.plan()


@pytest.mark.parametrize("state", ["non_transactional", "transactional", "opaque"])
@pytest.mark.parametrize("spout", SPOUTS)
def test_explain_says_whether_it_is_exactly_once_and_why(tmp_path, spout, state):
    make, kind = SPOUTS[spout]

    (line, *_) = guarantees(plan_of(make, state, tmp_path))

    said = ": exactly-once: " if (kind, state) in EXACT else ": not exactly-once: "
    assert said in line
    assert f"spout 'words' is {kind}" in line


@pytest.mark.parametrize("state", ["non_transactional", "transactional", "opaque"])
@pytest.mark.parametrize("spout", SPOUTS)
def test_strict_refuses_what_is_not_exactly_once(tmp_path, spout, state):
    make, kind = SPOUTS[spout]
    plan = plan_of(make, state, tmp_path)

    if (kind, state) in EXACT:
        refuse_weak(plan)
    else:
        with pytest.raises(TopologyError, match="strict=True refuses state1"):
            refuse_weak(plan)


def test_a_submitted_topology_is_refused_too(tmp_path):
    from waterspout.coordination.preflight import checked_plan

    plan = plan_of(Messages, "opaque", tmp_path)

    with pytest.raises(TopologyError, match="spout 'words' is non-transactional"):
        checked_plan(plan, Config(strict=True))
