"""The page on core and Trident topologies on Spark: a killed worker, a replay, two databases."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.ui.browsing import TOKEN, chromium, page_server
from tests.ui.looking import OF_CORE, Shown, keep
from tests.ui.shown import orders, words
from waterspout import Config, submit
from waterspout.state.redis import RedisState

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def shown(spark, redis_server, tmp_path_factory) -> Iterator[Shown]:
    place = tmp_path_factory.mktemp("shown")
    conf = Config(
        home=str(place / "home"), serve="127.0.0.1:0", serve_token=TOKEN, max_replays=1,
        max_bad_ratio=0.5, idle_poll_millis=50,
    )  # fmt: skip
    counts = RedisState.opaque(redis_server.url, prefix=f"shown-{os.getpid()}")
    runs = {}
    try:
        for topology in (orders(place, counts), words(place)):
            runs[topology.name] = submit(topology, spark, conf)
        for run in runs.values():
            run.process_all_available(timeout=400)
        with chromium() as browser, page_server(place / "home") as url:
            yield Shown(runs, url, browser)
    finally:
        for run in runs.values():
            run.stop()


def test_both_topologies_are_listed_and_every_view_of_the_core_one_is_whole(shown):
    reader = shown.reader()
    reader.open("/", "orders")
    reader.sees("words")
    keep(reader, "page-list")
    shown.look_through("words", OF_CORE)


def test_a_replay_on_spark_is_seen_in_both_databases(shown):
    told = shown.api("orders", "batches", limit=40)
    assert told["states"] == ["state1", "state2", "dead letters"]
    assert "failed" in [attempt["outcome"] for attempt in told["attempts"]]
    reader = shown.reader()

    reader.open("/t/orders/batches", "Commit matrix")
    reader.sees("the directory of cities did not answer")

    keep(reader, "page-orders-batches")


def test_a_worker_that_was_killed_has_left_a_dead_letter_that_can_be_found(shown):
    told = shown.api("words", "dead-letters")
    assert told["total"] == 2
    assert any("worker died" in letter["error"] for letter in told["letters"])
    reader = shown.reader()

    reader.open("/t/words/dead-letters", "2 of 2")
    reader.page.get_by_label("Find").fill("poison")
    reader.page.get_by_role("cell", name="the poison").click()

    reader.sees("message id")
    keep(reader, "page-words-letter")
