"""Every store on Spark, through one storm each: killed workers, lost answers, zombies, restarts."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.spark.backend_stores import (
    cassandra_store,
    file_store,
    memcached_store,
    postgres_store,
    redis_store,
    sqlite_store,
)
from tests.spark.backend_support import Numbers, Storm, Tally, cuts
from waterspout import Config, faults

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

ON_SERVERS = {
    "redis": redis_store,
    "postgres": postgres_store,
    "memcached": memcached_store,
    "cassandra": cassandra_store,
}
IN_FILES = {"sqlite": sqlite_store, "files": file_store}
STORES = [
    *(pytest.param(name, marks=pytest.mark.services) for name in ON_SERVERS),
    *IN_FILES,
]
# Rows of Cassandra are compared one by one: fewer do for it.
SIZES = {"cassandra": (20_000, 1_000)}

QUICK = Config(
    max_spout_pending=3,
    max_retries=1_000,
    retry_backoff_millis=5,
    retry_backoff_max_millis=100,
    cancel_wait_secs=0.1,
    idle_poll_millis=20,
    state_partitions=2,
)


@pytest.fixture(params=STORES)
def name(request):
    return request.param


@pytest.fixture
def store(request, name, tmp_path):
    if name in IN_FILES:
        made = IN_FILES[name](tmp_path)
    else:
        made = ON_SERVERS[name](request.getfixturevalue(f"{name}_server"))
    with made as opened:
        yield opened


def config_of(store, **more):
    return QUICK.replace(commit_in="tasks" if store.by_tasks else "driver", **more)


def storm_over(store, folder):
    """One fault a batch, of every sort that can reach this store."""
    storm = Storm(folder)
    if store.by_tasks:
        storm.once(2, "write.before", "kill")
        storm.once(3, "write.after", "kill")
        storm.fail(4, "head.after", tries=1)
        storm.zombie(5, wakes_at=7)
        storm.once(6, "write.after", "raise")  # its task runs twice, and both write
    else:
        storm.fail(2, "write.before", tries=1)
        storm.fail(3, "write.after", tries=1)
        storm.once(4, "write.after", "raise")
        storm.once(5, "head.before", "raise")
        storm.once(6, "head.after", "raise")
    storm.crash(8, "mark.before")
    storm.crash(9, "mark.after")
    if store.proxy is not None:
        storm.at("head.before", 4, lambda: store.proxy.drop_next_reply(store.head))
        storm.at("head.after", 7, lambda: store.proxy.drop_next_reply(store.write))
        storm.at("mark.after", 6, lambda: store.proxy.drop_next_reply(store.head))
        storm.at("head.after", 8, lambda: store.proxy.drop_next_request(store.write))
    if store.server is not None:
        storm.restart(10)
    return storm


def test_a_store_is_exact_through_a_storm(spark, store, name, tmp_path):
    limit, keys = SIZES.get(name, (100_000, 5_000))
    spout = Numbers(limit, (limit // 20, limit // 11))
    tally = Tally(store, spout, keys)
    storm = storm_over(store, tmp_path / "tokens")
    faults.install(storm)

    with ExitStack() as stack:
        if store.proxy is not None:
            cut = stack.enter_context(cuts(store.proxy, spout, gap_s=0.2, until=0.2, seed=3))
        progress = storm.weather(tally, spark, config_of(store))

    storm.assert_over(spark)
    if store.proxy is not None:
        assert store.proxy.dropped == 4
        assert cut
    # All but the one that the driver died of, between its mark and the note of it.
    assert sorted({9, *progress}) == list(range(1, len(progress) + 2))
    tally.assert_exact(spark, limit)
