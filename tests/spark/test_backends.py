"""Every store on Spark, through one storm each: killed workers, lost answers, zombies, restarts."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.soaking import seeds_of_today
from tests.spark.backend_stores import (
    cassandra_store,
    file_store,
    memcached_store,
    postgres_store,
    redis_store,
    sqlite_store,
)
from tests.spark.backend_support import Numbers, Storm, Tally, cuts, jobs_of
from tests.trident.support import wait_for
from waterspout import Config, faults, submit

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

ON_SERVERS = {
    "redis": redis_store,
    "postgres": postgres_store,
    "memcached": memcached_store,
    "cassandra": cassandra_store,
}
IN_FILES = {"sqlite": sqlite_store, "files": file_store}
# In each run the server with most of the machinery; in soak all the others too.
SOAKED_ONLY = ("redis", "memcached", "cassandra", "sqlite", "files")
STORES = [
    pytest.param(
        name,
        marks=[
            *([pytest.mark.services] if name in ON_SERVERS else []),
            *([pytest.mark.soak] if name in SOAKED_ONLY else []),
        ],
    )
    for name in (*ON_SERVERS, *IN_FILES)
]
# How many numbers, and how many keys. Cassandra compares and sets row by row, in four rounds
# between the replicas each: it has fewer of them.
SIZES = dict.fromkeys((*ON_SERVERS, *IN_FILES), (40_000, 2_000)) | {"cassandra": (4_000, 200)}
SOAKED = dict.fromkeys(SIZES, (100_000, 10_000)) | {"cassandra": (6_000, 600)}

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
    storm = Storm(store, folder)
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
        storm.lose("head.before", 4, "head")
        storm.lose("mark.after", 6, "head")
        storm.lose("head.after", 7, "write")
        storm.lose("head.after", 8, "request")
        storm.cut("head.after", 10)
    if store.server is not None:
        storm.restart(10)
    return storm


@pytest.mark.soak
def test_a_store_is_exact_through_a_storm(spark, store, name, tmp_path):
    limit, keys = SIZES[name]
    spout = Numbers(limit, (limit // 13, limit // 11), (keys // 2, keys * 3 // 4))
    tally = Tally(store, spout, keys)
    storm = storm_over(store, tmp_path / "tokens")
    faults.install(storm)

    # Until the losses begin, which are counted; Cassandra's client takes a second to connect.
    gap_s = 1.5 if name == "cassandra" else 0.2
    with cuts(store.proxy, spout, gap_s=gap_s, until=0.1, seed=3):
        progress = storm.weather(tally, spark, config_of(store), timeout=150)

    storm.assert_over(spark)
    assert store.proxy is None or store.proxy.dropped == storm.losses
    # All but the one that the driver died of, between its mark and the note of it.
    assert sorted({9, *progress}) == list(range(1, len(progress) + 2))
    tally.assert_exact(spark, limit)


def hang_in_the_middle(store, txid, folder):
    """Let one partition of a batch be written, and the other not; return how to go on."""
    storm = Storm(store, folder)
    if store.by_tasks:
        tokens = [
            storm.once(txid, "write.before", "hang", partition=0),
            storm.once(txid, "write.after", "hang", partition=1),
        ]
    else:
        tokens = [storm.once(txid, "write.before", "hang", partition=1)]
    faults.install(storm)
    return tokens


@pytest.mark.soak
def test_readers_see_committed_values_in_the_middle_of_a_commit(spark, store, name, tmp_path):
    keys = SIZES[name][1]
    tally = Tally(store, Numbers(3 * keys, (keys, keys), (keys, keys)), keys)
    tokens = hang_in_the_middle(store, 3, tmp_path / "tokens")
    before = tally.expected(2 * keys)

    run = submit(tally.topology, spark, config_of(store, max_spout_pending=1))
    wait_for(lambda: run.exception() or all(token.exists() for token in tokens))
    found, jobs = tally.read(spark), jobs_of(spark)
    points = [tally.state.get(7), *tally.state.multi_get([0, (keys - 1,), keys])]
    jobs_for_points = jobs_of(spark) - jobs
    for token in tokens:
        Path(f"{token}.go").touch()
    run.process_all_available(timeout=60)
    run.stop()

    assert found == before
    assert points == [before[7], before[0], before[keys - 1], None]
    assert jobs_for_points == 0
    tally.assert_exact(spark, 3 * keys)
    if store.by_tasks and store.readers:
        assert tasks_with_rows(tally.state.to_dataframe(spark)) == store.readers


def tasks_with_rows(frame):
    from pyspark.sql import functions as F

    return frame.select(F.spark_partition_id()).distinct().count()


def random_storm(store, folder, batches, seed):
    """A fault of some sort in most batches; the last one is left to settle in peace."""
    dice, storm = random.Random(seed), Storm(store, folder)
    sorts = {
        "kill before": lambda t: storm.once(t, "write.before", "kill"),
        "kill after": lambda t: storm.once(t, "write.after", "kill"),
        "twice": lambda t: storm.once(t, "write.after", "raise"),
        "zombie": lambda t: storm.zombie(t, wakes_at=t + dice.choice([1, 2])),
    }
    if not store.by_tasks:
        sorts = {
            "before": lambda t: storm.once(t, "write.before", "raise"),
            "after": lambda t: storm.fail(t, "write.after", tries=1, partition=dice.choice([0, 1])),
        }
    sorts |= {
        "failed": lambda t: storm.fail(t, dice.choice(["head.before", "head.after"]), tries=1),
        "crash": lambda t: storm.crash(t, dice.choice(["mark.before", "mark.after"])),
    }
    if store.proxy is not None:
        sorts |= {
            "lost write": lambda t: storm.lose("head.after", t, "write"),
            "lost head": lambda t: storm.lose("head.before", t, "head"),
            "lost request": lambda t: storm.lose("head.after", t, "request"),
        }
    if store.server is not None:
        sorts["restart"] = storm.restart
    for txid in range(2, batches - 2):
        for sort in dice.sample(sorted(sorts), dice.choice([1, 1, 2])):
            sorts[sort](txid)
    return storm


# Every store has had the storm above: of these, each day two stores have one, and another one.
OF_TODAY = seeds_of_today(1).start
STORES_OF_TODAY = [STORES[(2 * (OF_TODAY // 100_000) + n) % len(STORES)] for n in (0, 1)]


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STORES_OF_TODAY)
@pytest.mark.parametrize("seed", [OF_TODAY])
def test_many_numbers_are_exact_through_a_random_storm(spark, store, name, tmp_path, seed):
    limit, keys = SOAKED[name]
    spout = Numbers(limit, (limit // 14, limit // 12), (keys // 2, keys * 3 // 4), seed)
    tally = Tally(store, spout, keys)
    storm = random_storm(store, tmp_path / "tokens", spout.batches_min, seed)
    faults.install(storm)

    with cuts(store.proxy, spout, gap_s=5.0, until=0.7, seed=seed):
        storm.weather(tally, spark, config_of(store), timeout=400)

    storm.assert_over(spark)
    assert spout.done == limit
    tally.assert_exact(spark, limit)
