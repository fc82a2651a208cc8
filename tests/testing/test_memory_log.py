"""The log of the test kit: what each kind of spout plans again."""

from __future__ import annotations

import pytest

from tests.trident.support import capture
from waterspout import Config, faults
from waterspout.errors import TopologyError
from waterspout.faults import Fault, FaultPlan
from waterspout.spouts._base import SpoutKind
from waterspout.testing import MemoryLog, run_in_process
from waterspout.trident import TridentTopology

ROWS = [[("a", 1), ("b", 2), ("c", 3)], [("x", 4)]]


def log(**options):
    return MemoryLog("word string, id bigint", ROWS, **options)


def test_a_batch_is_the_next_range_of_every_partition():
    spout = log(take=2)

    first = spout.plan_from(None)
    second = spout.plan_from(first)

    assert (first, second) == ({"ranges": [[0, 2], [0, 1]]}, {"ranges": [[2, 3], [1, 1]]})
    assert spout.read(first).rows == [("a", 1), ("b", 2), ("x", 4)]
    assert spout.has_more(first)
    assert not spout.has_more(second)


def test_a_disabled_partition_is_left_out_and_goes_on_later():
    spout = log(take=1)
    spout.disabled = {0}

    first = spout.plan_from(None)
    more = spout.has_more(first)
    spout.disabled = set()
    second = spout.plan_from(first)

    assert (first, more) == ({"ranges": [[0, 0], [0, 1]]}, False)
    assert second == {"ranges": [[0, 1], [1, 1]]}


@pytest.mark.parametrize(("kind", "planned"), [(SpoutKind.TRANSACTIONAL, 1), (SpoutKind.OPAQUE, 2)])
def test_only_a_transactional_spout_keeps_the_plan_of_a_failed_attempt(kind, planned):
    asked = []

    def take(partition):
        asked.append(partition)
        return 3

    topology = TridentTopology("log")
    kept = capture(topology.new_stream("log", log(kind=kind, take=take)))
    faults.install(FaultPlan([Fault("processing", "fail")]))

    run_in_process(topology, Config(retry_backoff_millis=0))

    assert asked == [0, 1] * planned
    assert kept.rows == [("a", 1), ("b", 2), ("c", 3), ("x", 4)]


def test_a_log_needs_types():
    with pytest.raises(TopologyError, match="MemoryLog does not know the type of its output field"):
        MemoryLog("word", [[]])
