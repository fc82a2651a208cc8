"""The matrix of spouts and states: "yes" is exact under a failure, "no" can be made wrong.

Each cell is run on Spark with one fault. Row n adds 10**n to its key, so that a digit of the sum
says how often a row was counted: one lost and one doubled cannot cancel out.
"""

from __future__ import annotations

import pytest

from tests.trident.support import finish
from waterspout import Config, faults
from waterspout._schema import Schema
from waterspout.faults import Fault, FaultPlan
from waterspout.spouts._base import BatchPlanner, BatchSpout, SpoutKind
from waterspout.spouts._reads import RowsRead
from waterspout.state import MemoryMapState, StateKind
from waterspout.testing import MemoryLog
from waterspout.trident import Sum, TridentTopology
from waterspout.trident.plan.verdicts import exactly_once

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

ROWS = [("x", 10**0), ("y", 10**1), ("x", 10**2), ("y", 10**3), ("x", 10**4), ("y", 10**5)]
EXACT = {"x": 10101, "y": 101010}


def transactional():
    return MemoryLog("key string, n bigint", [ROWS], kind=SpoutKind.TRANSACTIONAL, take=2)


def opaque():
    """Two rows in a batch; the replay of batch 2 finds that there are four by now."""
    spout = MemoryLog("key string, n bigint", [ROWS], kind=SpoutKind.OPAQUE)
    sizes = iter([2, 2, 4])
    spout._take = lambda partition: next(sizes, 2)
    return spout


class Queue(BatchSpout):
    """Takes rows off a queue and forgets them: what a failed attempt held is gone."""

    kind = SpoutKind.NON_TRANSACTIONAL

    def __init__(self):
        self.left = list(ROWS)

    @property
    def schema(self):
        return Schema.parse("key string, n bigint")

    def open(self, context):
        return _QueuePlanner(self.left)

    def read(self, metadata):
        return RowsRead(self.schema, metadata["rows"])


class _QueuePlanner(BatchPlanner):
    def __init__(self, left):
        self._left = left

    def is_ready(self, previous):
        return bool(self._left)

    def plan(self, txid, previous):
        taken, self._left[:] = self._left[:2], self._left[2:]
        return {"rows": taken}


SPOUTS = {
    SpoutKind.NON_TRANSACTIONAL: Queue,
    SpoutKind.TRANSACTIONAL: transactional,
    SpoutKind.OPAQUE: opaque,
}

CELLS = [(spout, state) for spout in SpoutKind for state in StateKind]
YES = [cell for cell in CELLS if exactly_once(*cell)]
BEFORE = Fault("write.before", "fail", where={"txid": 2})
AFTER = Fault("write.after", "fail", where={"txid": 2})

# Where it is not exact: the one fault that shows it, and what that leaves.
WRONG = {
    # Both attempts at batch 2 are in the state.
    (SpoutKind.TRANSACTIONAL, StateKind.NON_TRANSACTIONAL): (
        AFTER, {"x": 10201, "y": 102010},
    ),
    (SpoutKind.OPAQUE, StateKind.NON_TRANSACTIONAL): (AFTER, {"x": 10201, "y": 102010}),
    # The replay holds the last rows too, but its keys have batch 2 already: they are skipped.
    (SpoutKind.OPAQUE, StateKind.TRANSACTIONAL): (AFTER, {"x": 101, "y": 1010}),
    # The rows of batch 2 are off the queue, whatever the state could have done with them.
    **{
        (SpoutKind.NON_TRANSACTIONAL, state): (BEFORE, {"x": 10001, "y": 100010})
        for state in StateKind
    },
}  # fmt: skip


def outcome(spark, spout, state, fault):
    """Run all rows into a state, with one fault, and return what each key holds at the end."""
    faults.install(FaultPlan([fault]))
    topology = TridentTopology("matrix")
    held = (
        topology.new_stream("rows", SPOUTS[spout]())
        .group_by("key")
        .persistent_aggregate(MemoryMapState(state), "n", Sum(), out="sum")
        .parallelism_hint(1)
    )
    run = finish(topology, spark, Config(retry_backoff_millis=1))
    assert [p["attempt"] for p in run.recent_progress][1] == 1
    return dict(zip("xy", held.multi_get(["x", "y"]), strict=True))


@pytest.mark.parametrize(("spout", "state"), YES, ids=lambda kind: kind.value)
def test_a_cell_that_says_yes_is_exact_after_a_failure(spark, spout, state):
    assert outcome(spark, spout, state, AFTER) == EXACT


@pytest.mark.parametrize(("spout", "state"), WRONG, ids=lambda kind: kind.value)
def test_a_cell_that_says_no_is_wrong_after_a_failure(spark, spout, state):
    fault, wrong = WRONG[spout, state]

    assert outcome(spark, spout, state, fault) == wrong != EXACT


def test_every_cell_is_shown():
    assert sorted([*YES, *WRONG], key=repr) == sorted(CELLS, key=repr)
    assert len(CELLS) == 9
