"""The page in a browser, over runs on Spark: a worker is killed, a batch comes again.

Orders go to two databases, two of them are dead letters; the words are those of a core topology.
What is seen is what the API says, and that is exact. `WATERSPOUT_SCREENSHOTS` keeps pictures.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ui.browsing import TOKEN, chromium, page_server
from tests.ui.looking import OF_CORE, VIEWS, Shown, cells
from tests.ui.shown import CITIES, FILES, Die, orders, words
from waterspout import Config, submit
from waterspout.state.postgres import PostgresState

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

ROWS = FILES * len(CITIES)
LETTERS = 2


@pytest.fixture(scope="module")
def shown(spark, postgres_server, tmp_path_factory) -> Iterator[Shown]:
    place = tmp_path_factory.mktemp("shown")
    conf = Config(
        home=str(place / "home"), serve="127.0.0.1:0", serve_token=TOKEN, max_bad_ratio=0.5,
        idle_poll_millis=50, max_retries=3,
    )  # fmt: skip
    counts = PostgresState.opaque(postgres_server.fresh_database(), table="counts")
    topologies = {"orders": orders(place, counts, Die), "words": words(place)}
    runs = {}
    try:
        for name, topology in topologies.items():
            runs[name] = submit(topology, spark, conf)
            runs[name].process_all_available(timeout=240)
        with chromium() as browser, page_server(place / "home") as url:
            assert (place / "stumbled.killed").exists(), "a worker was to be killed as well"
            yield Shown(runs, url, browser)
    finally:
        for run in runs.values():
            run.stop()


def figure(number: int) -> str:
    return f"{number:,}"


def test_every_view_of_both_is_whole_at_any_width(shown):
    shown.look_through("orders", list(VIEWS))
    shown.look_through("words", OF_CORE)


def test_an_attempt_that_failed_is_seen_and_its_replay_counts_once(shown):
    told = shown.api("orders", "batches", limit=40)
    (failed,) = [a for a in told["attempts"] if a["outcome"] == "failed"]
    reader = shown.reader()

    reader.open("/t/orders/batches", "Commit matrix")

    rows = {row[0]: row for row in cells(reader, "Outcome")}
    assert "the directory of cities did not answer" in failed["error"]
    assert "the directory of cities did not answer" in " ".join(rows[str(failed["txid"])])
    assert "replay" in rows[f"{failed['txid']}:1"][1]
    counted = [
        shown.api("orders", "states/state2/value", key=f'["{city.title()}"]')["value"]
        for city in CITIES
    ]
    assert counted == [FILES] * len(CITIES)


def test_the_first_view_has_the_numbers_of_the_api_and_they_are_exact(shown):
    stats = shown.api("orders", "stats", window="all")
    (spout,) = [s for s in stats["spouts"] if s["id"] == "in"]
    assert spout["rows"] == ROWS + LETTERS
    written = {s["id"]: s["rows"] for s in stats["states"]}
    assert (written["state1"], written["state2"]) == (ROWS, ROWS)
    reader = shown.reader()

    reader.open("/t/orders?window=all", "Graph")
    reader.sees("Rows written")

    states = {row[0]: row for row in cells(reader, "Guarantee")}
    assert (states["state1"][4], states["state2"][4]) == (figure(ROWS), figure(ROWS))
    (seen,) = [row for row in cells(reader, "Spouts") if row[0] == "in"]
    assert figure(ROWS + LETTERS) in seen


def test_a_message_that_kills_its_worker_is_a_letter_and_the_rest_is_counted(shown, tmp_path):
    letters = shown.api("words", "dead-letters")
    assert letters["total"] == LETTERS, "the one that kills, and the one that is refused"
    stats = {bolt["id"]: bolt for bolt in shown.api("words", "stats", window="all")["bolts"]}
    assert "__acker" in stats
    reader = shown.reader()

    reader.open("/t/words?window=all", "Graph")

    rows = {row[0]: row for row in cells(reader, "Execute latency")}
    for id, bolt in stats.items():
        if not bolt["system"]:
            assert rows[id][6] == figure(bolt["executed"]), id
    (spout,) = shown.api("words", "stats", window="all")["spouts"]
    assert spout["acked"] == 60 - LETTERS
    reader.open("/t/words/dead-letters", f"{LETTERS} of {LETTERS}")
