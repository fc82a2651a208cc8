"""PostgreSQL through the suite of all stores: directly, through a cache, over a bad network."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from waterspout._schema import Schema
from waterspout.state._cache import CachedMap
from waterspout.state.postgres import PostgresState
from waterspout.state.postgres._connections import close_idle
from waterspout.testing._proxy import FaultProxy
from waterspout.testing.conformance import StateConformance
from waterspout.testing.conformance.hooks import StoreHooks
from waterspout.testing.conformance.network import NetworkSuite

NUMBERS = count()


@pytest.fixture(scope="module")
def database(postgres_server):
    yield postgres_server.fresh_database()
    close_idle()


class Postgres(StoreHooks):
    many = 20_000
    commit_request = b"COMMIT"
    options: Mapping[str, float] = {}

    @pytest.fixture(autouse=True)
    def _database(self, database):
        self.dsn = self.direct = database
        yield
        # Hundreds of tables, each with an index and a TOAST table, would slow the server down.
        with psycopg.connect(self.direct, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")

    def make_backing(self, kind):
        return self.opened(self.make_recipe(kind))

    def make_int_backing(self, kind):
        keys, values = Schema.parse("word string"), Schema.parse("n bigint")
        return self.opened(self.make_recipe(kind).bind(keys, values))

    def make_recipe(self, kind):
        return PostgresState(self.dsn, f"state{next(NUMBERS)}", kind=kind, **self.options)

    def lose_records(self, backing):
        with psycopg.connect(self.direct, autocommit=True) as connection:
            connection.execute(f"TRUNCATE {backing.uncached.recipe.table}")
        return True

    def opened(self, recipe):
        backing = recipe.backing()
        backing.recipe = recipe
        return backing

    def reopen(self, backing):
        return self.opened(backing.recipe)


class TestPostgres(Postgres, StateConformance):
    pass


@pytest.mark.soak
class TestCachedPostgres(Postgres, StateConformance):
    def make_backing(self, kind):
        return CachedMap(super().make_backing(kind), 50)

    def reopen(self, backing):
        return CachedMap(super().reopen(backing.uncached), backing._cache)


class OverABadNetwork(Postgres):
    many = 2_000
    options: Mapping[str, float] = {"statement_timeout_secs": 5.0}

    @pytest.fixture(autouse=True)
    def _network(self, _database, postgres_server):
        with FaultProxy(postgres_server.host, postgres_server.port) as self.proxy:
            host, port = self.proxy.address
            self.dsn = make_conninfo(self.direct, host=host, port=port)
            yield
            close_idle()
            assert self.proxy.connections >= 0  # it has taken note that they are closed


@pytest.mark.soak
class TestPostgresOverABadNetwork(OverABadNetwork, NetworkSuite):
    pass


@pytest.mark.soak
class TestAllOverABadNetwork(OverABadNetwork, StateConformance):
    pass
