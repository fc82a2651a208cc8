"""Cassandra through the suite of all stores: both modes, and over a bad network."""

from __future__ import annotations

import uuid

import pytest

from waterspout.state.cassandra import CassandraState
from waterspout.state.cassandra._session import Statement
from waterspout.testing._proxy import FaultProxy
from waterspout.testing.conformance import StateConformance
from waterspout.testing.conformance.contract import ContractSuite
from waterspout.testing.conformance.heads import HeadSuite
from waterspout.testing.conformance.hooks import StoreHooks
from waterspout.testing.conformance.losses import LossSuite
from waterspout.testing.conformance.network import NetworkSuite
from waterspout.testing.conformance.outside import OutsideSuite
from waterspout.testing.conformance.semantics import SemanticsSuite
from waterspout.testing.conformance.witnesses import WitnessSuite
from waterspout.testing.conformance.zombies import ZombieSuite

pytestmark = pytest.mark.usefixtures("cassandra_sessions")


@pytest.fixture(scope="module")
def keyspace(cassandra_server):
    return cassandra_server.fresh_keyspace()


class Cassandra(StoreHooks):
    many = 2_000
    keeps_removed = True
    mode = "lwt"

    @pytest.fixture(autouse=True)
    def _server(self, cassandra_server, keyspace):
        self.address = cassandra_server.address
        self.keyspace = keyspace
        self.used = 0

    def fresh(self, kind):
        self.used = 0
        return super().fresh(kind)

    def make_backing(self, kind):
        # To create a table takes longer than a whole test: those of earlier ones are emptied.
        self.used += 1
        recipe = self._recipe(f"state{self.used}", kind)
        backing = recipe.backing()
        backing.recipe = recipe
        empty(backing)
        return backing

    def make_recipe(self, kind):
        return self._recipe(f"typed_{uuid.uuid4().hex[:12]}", kind)

    def _recipe(self, table, kind):
        options = {"keyspace": self.keyspace, "mode": self.mode, "kind": kind}
        return CassandraState(self.address, table=table, **options)

    def lose_records(self, backing):
        table = f'"{backing._keyspace}"."{backing._table}"'
        backing._client.run(Statement(f"TRUNCATE {table}"))
        return True

    def reopen(self, backing):
        other = backing.recipe.backing()
        other.recipe = backing.recipe
        return other


def empty(backing):
    """Remove all rows of a table, and its head, as if it were new."""
    client, table = backing._client, backing._table
    if not client.has_table(table):
        return
    name = f'"{backing._keyspace}"."{table}"'
    keys = client.run(Statement(f"SELECT key FROM {name}"))
    if keys:
        client.run_many(Statement(f"DELETE FROM {name} WHERE key = ? IF EXISTS"), keys)
    heads = f'"{backing._keyspace}".waterspout_heads'
    client.run(Statement(f"DELETE FROM {heads} WHERE name = ? IF EXISTS"), [table])
    client.run(backing._cql.insert_head, (*backing._header.row(None), uuid.uuid4(), table))


class TestCassandra(Cassandra, SemanticsSuite, ZombieSuite, WitnessSuite):
    # Takes ten seconds: with all of the suites, in soak.
    test_no_history_of_a_state_that_is_whole_looks_like_a_loss = None


@pytest.mark.soak
class TestAllOfCassandra(Cassandra, StateConformance):
    pass


@pytest.mark.soak
class TestCassandraWithASingleWriter(
    Cassandra, ContractSuite, HeadSuite, LossSuite, OutsideSuite, SemanticsSuite, ZombieSuite
):
    mode = "single_writer"

    def test_an_attempt_that_meets_the_late_write_of_a_zombie_counts_all_the_same(self):
        pytest.skip(
            "a single writer does not compare; tests/state/test_cassandra.py has its zombies"
        )


class OverABadNetwork(Cassandra):
    @pytest.fixture(autouse=True)
    def _network(self, cassandra_server):
        with FaultProxy(*cassandra_server.address) as self.proxy:
            self.address = self.proxy.address
            yield


@pytest.mark.soak
class TestCassandraOverABadNetwork(OverABadNetwork, NetworkSuite):
    pass


@pytest.mark.soak
class TestCassandraWithASingleWriterOverABadNetwork(OverABadNetwork, NetworkSuite):
    mode = "single_writer"
