"""Every view in a browser, on topologies that really run: what is read is what the API says.

A Trident topology with two databases, a replay and dead letters; a core topology with a killed
worker. `WATERSPOUT_SCREENSHOTS=docs/images` keeps pictures of what is seen (`make screenshots`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.coordination.commanded import until
from tests.ui.browsing import PHONE, TOKEN, Reader, chromium, page_server
from tests.ui.shown import orders, words
from waterspout import Config, Run, submit

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.services, pytest.mark.timeout(600)]

PICTURES = os.environ.get("WATERSPOUT_SCREENSHOTS")
VIEWS = {
    "": "Spouts", "batches": "Commit matrix", "pressure": "Durations", "states": "Look a key up",
    "dead-letters": "Asked for", "errors": "Errors", "drpc": "No function", "control": "Roll back",
    "config": "Configuration", "log": "log",
}  # fmt: skip
OF_CORE = [view for view in VIEWS if view not in ("batches", "states")]


@dataclass
class Shown:
    """Two runs that have done what there was to do, the page that shows them, and a browser."""

    runs: dict[str, Run]
    url: str
    browser: Any

    def api(self, topology: str, path: str, **query: object) -> Any:
        url = f"{self.runs[topology].server_url.rstrip('/')}/api/v1/{path}"
        answer = httpx.get(url, params=query, timeout=30, trust_env=False)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def reader(self, **how: Any) -> Reader:
        return Reader(self.browser, self.url, **how)


@pytest.fixture(scope="module")
def shown(spark, redis_server, tmp_path_factory) -> Iterator[Shown]:
    place = tmp_path_factory.mktemp("shown")
    conf = Config(
        home=str(place / "home"), serve="127.0.0.1:0", serve_token=TOKEN, max_replays=2,
        max_bad_ratio=0.5, idle_poll_millis=50,
    )  # fmt: skip
    runs = {}
    try:
        for topology in (orders(place, redis_server.url), words(place)):
            runs[topology.name] = submit(topology, spark, conf)
        for run in runs.values():
            run.process_all_available(timeout=240)
        with chromium() as browser, page_server(place / "home") as url:
            yield Shown(runs, url, browser)
    finally:
        for run in runs.values():
            run.stop()


def keep(reader: Reader, name: str) -> None:
    """Keep a picture, if pictures are wanted; once charts are drawn."""
    if PICTURES:
        folder = Path(PICTURES)
        folder.mkdir(parents=True, exist_ok=True)
        reader.page.wait_for_timeout(1500)
        reader.page.screenshot(path=folder / f"{name}.png", full_page=True)


def cells(reader: Reader, title: str) -> list[list[str]]:
    """Return the texts of the table below a title, row by row."""
    card = reader.page.locator(".q-table__container", has_text=title).first
    rows = card.locator("tbody tr")
    return [[c.strip() for c in row.locator("td").all_inner_texts()] for row in rows.all()]


def test_every_view_of_both_topologies_is_whole_at_any_width(shown):
    wide, phone, dark = (
        shown.reader(), shown.reader(size=PHONE), shown.reader(dark=True),
    )  # fmt: skip
    wide.open("/", "orders")
    wide.sees("words")
    keep(wide, "page-list")
    for topology, views in (("orders", VIEWS), ("words", OF_CORE)):
        for view in views:
            path = f"/t/{topology}/{view}".rstrip("/")
            wide.open(path, VIEWS[view])
            keep(wide, f"page-{topology}-{view or 'topology'}")
            phone.open(path, VIEWS[view])
            assert phone.overflow() <= 0, f"{path} is wider than a phone"
    for view in ("", "batches"):
        dark.open(f"/t/orders/{view}", VIEWS[view])
        keep(dark, f"page-dark-{view or 'topology'}")
    phone.open("/t/orders/batches", "Commit matrix")
    keep(phone, "page-phone-batches")
    for reader in (wide, phone, dark):
        assert reader.complaints == []
        assert TOKEN not in reader.page.content()


def test_the_batches_that_are_seen_are_those_of_the_api(shown):
    told = shown.api("orders", "batches", limit=40)
    assert len(told["states"]) == 2, "two databases"
    outcomes = [attempt["outcome"] for attempt in told["attempts"]]
    assert outcomes.count("committed") == shown.runs["orders"].snapshot().totals.committed
    assert "failed" in outcomes, "one attempt was to fail"
    reader = shown.reader()

    reader.open("/t/orders/batches", "Commit matrix")
    reader.sees("ConnectionError: the directory of cities did not answer")

    rows = cells(reader, "Outcome")
    names = [f"{a['txid']}:{a['attempt']}" if a["attempt"] else str(a["txid"])
             for a in reversed(told["attempts"])]  # fmt: skip
    assert [row[0] for row in rows] == names
    replays = {name for name, row in zip(names, rows, strict=True) if "replay" in row[1]}
    assert replays == {name for name in names if ":" in name} != set()
    begun = [n for n, a in zip(names, reversed(told["attempts"]), strict=True)
             if a["outcome"] == "committed"]  # fmt: skip
    grid = reader.page.locator("table").first.locator("tbody tr")
    matrix = [row.inner_text().split() for row in grid.all()]
    assert [row[0] for row in matrix if row[-2:] == ["committed", "committed"]] == begun


def test_a_key_is_looked_up_in_both_databases(shown):
    reader = shown.reader()
    reader.open("/t/orders/states", "Look a key up")
    for state in shown.api("orders", "topology")["states"]:
        value = shown.api("orders", f"states/{state['name']}/value", key='["Lima"]')["value"]
        reader.page.get_by_label("State").click()
        reader.page.get_by_role("option", name=state["name"]).click()
        reader.page.get_by_label("Key").fill("Lima")
        reader.page.get_by_role("button", name="Look up").click()
        reader.sees(str(value if not isinstance(value, list) else value[0]))
        reader.page.get_by_role("button", name="Explain").click()
        reader.sees("attempt")


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


def test_a_letter_is_repaired_and_replayed_only_with_the_token(shown):
    before = shown.api("orders", "dead-letters")["total"]
    assert before == 3
    reader = shown.reader()
    reader.open("/t/orders/dead-letters", f"{before} of {before}")
    reader.page.locator("tbody tr").first.locator("td").nth(2).click()
    reader.page.get_by_label("text (string)").fill("12")
    reader.page.get_by_role("button", name="Replay...").last.click()
    reader.sees("text becomes 12")
    reader.page.get_by_role("button", name="Replay", exact=True).click()
    reader.sees("Authorization: Bearer TOKEN")
    assert shown.api("orders", "dead-letters")["total"] == before

    reader.page.get_by_label("Token").fill(TOKEN)
    keep(reader, "page-orders-replay")
    reader.page.get_by_role("button", name="Replay", exact=True).click()

    reader.sees("1 dead letter is to be replayed")
    until(lambda: shown.api("orders", "dead-letters")["total"] == before - 1, 60)


def test_a_run_is_deactivated_and_activated_from_the_page_and_the_keyboard(shown):
    run, reader = shown.runs["words"], shown.reader()
    for label, status in (("Deactivate", "inactive"), ("Activate", "idle")):
        reader.open("/t/words/control", "Deactivate")
        reader.page.get_by_role("button", name=label, exact=True).focus()
        reader.page.keyboard.press("Enter")
        reader.sees(f"{label} words?")
        reader.page.get_by_label("Token").fill(TOKEN)
        reader.page.keyboard.press("Enter")
        until(lambda status=status: run.status == status, 30)
        reader.sees("it is inactive" if status == "inactive" else "it is active")
