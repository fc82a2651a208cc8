"""The matrix of spouts and states again, with the states on real servers."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.semantics.test_matrix import AFTER, EXACT, SPOUTS, WRONG, YES
from tests.trident.support import finish
from waterspout import Config, faults
from waterspout.faults import FaultPlan
from waterspout.state.postgres import PostgresState
from waterspout.state.redis import RedisState
from waterspout.trident import Sum, TridentTopology

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.timeout(120)]


@pytest.fixture(params=["postgres", "redis"])
def make(request):
    """Return how to make a new state of a kind."""
    if request.param == "redis":
        url = request.getfixturevalue("redis_server").url
        return lambda kind: RedisState(url, uuid4().hex, kind=kind)
    dsn = request.getfixturevalue("postgres_server").dsn
    return lambda kind: PostgresState(dsn, f"matrix_{uuid4().hex}", kind=kind)


def outcome(spark, spout, state, fault):
    """Run all rows into a state, with one fault, and return what each key holds at the end."""
    faults.install(FaultPlan([fault]))
    topology = TridentTopology("matrix")
    held = (
        topology.new_stream("rows", SPOUTS[spout]())
        .group_by("key")
        .persistent_aggregate(state, "n", Sum(), out="sum")
        .parallelism_hint(1)
    )
    run = finish(topology, spark, Config(retry_backoff_millis=1))
    assert [p["attempt"] for p in run.recent_progress][1] == 1
    return dict(zip("xy", held.multi_get(["x", "y"]), strict=True))


@pytest.mark.parametrize(("spout", "state"), YES, ids=lambda kind: kind.value)
def test_a_cell_that_says_yes_is_exact_on_a_server(spark, make, spout, state):
    assert outcome(spark, spout, make(state), AFTER) == EXACT


@pytest.mark.soak
@pytest.mark.parametrize(("spout", "state"), WRONG, ids=lambda kind: kind.value)
def test_a_cell_that_says_no_is_wrong_on_a_server(spark, make, spout, state):
    fault, wrong = WRONG[spout, state]

    assert outcome(spark, spout, make(state), fault) == wrong != EXACT
