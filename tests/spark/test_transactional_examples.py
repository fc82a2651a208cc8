"""The examples of transactional topologies, on Spark and on real stores."""

from __future__ import annotations

import importlib.util
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from waterspout import Config, faults, submit
from waterspout.faults import Fault, FaultPlan
from waterspout.spark.starting import ship_by_value

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name, monkeypatch, tmp_path, **environment):
    for key, value in {"TOTAL_DB": tmp_path / "total.db", "WORDS_FOLDER": tmp_path}.items():
        monkeypatch.setenv(key, str(value))
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, name, module)
    spec.loader.exec_module(module)
    ship_by_value([module])
    return module


def finish(run):
    try:
        run.process_all_available(timeout=120)
    finally:
        run.stop()


def expected(module):
    words = Counter(word for rows in module.WORDS for (word,) in rows)
    buckets = Counter(count // module.BUCKET for count in words.values())
    return dict(words), dict(buckets)


def rows(path, query):
    with sqlite3.connect(path) as db:
        return dict(db.execute(query))


BUCKETS = "SELECT bucket, words FROM buckets WHERE words != 0"


def test_the_global_count(spark, monkeypatch, tmp_path):
    module = load("transactional_global_count", monkeypatch, tmp_path)

    finish(submit(module.topology, spark, Config(max_spout_pending=3)))

    with sqlite3.connect(tmp_path / "total.db") as db:
        assert db.execute("SELECT txid, value FROM total").fetchall() == [(3, 19)]


@pytest.mark.soak
def test_words_and_their_buckets_in_two_files_through_lost_attempts(spark, monkeypatch, tmp_path):
    module = load("transactional_words", monkeypatch, tmp_path)
    # Lost after the words were written, and after the buckets were.
    plan = [
        Fault("write.after", "raise", where={"component": name}, token=str(tmp_path / name))
        for name in ("count", "buckets")
    ]
    faults.install(FaultPlan(plan))

    finish(submit(module.topology, spark, Config(max_spout_pending=3, wave_collapse_tuples=0)))

    words, buckets = expected(module)
    assert (tmp_path / "count").exists()
    assert (tmp_path / "buckets").exists()
    assert rows(tmp_path / "words.db", "SELECT word, count FROM words") == words
    assert rows(tmp_path / "buckets.db", BUCKETS) == buckets


@pytest.mark.soak
@pytest.mark.services
def test_words_in_redis_and_buckets_in_a_file(spark, redis_server, monkeypatch, tmp_path):
    url = redis_server.url
    module = load("transactional_words", monkeypatch, tmp_path, WORDS_REDIS=url)

    finish(submit(module.topology, spark, Config(max_spout_pending=2)))

    words, buckets = expected(module)
    state = module.topology.states["words"].factory.make_state(Config(), 0, 3)
    assert {key[0]: value for chunk in state.scan() for key, value in chunk} == words
    assert rows(tmp_path / "buckets.db", BUCKETS) == buckets
