"""Every view in a browser, on a topology that runs and is served: it is as the API says.

It has two databases, a replay and dead letters. `WATERSPOUT_SCREENSHOTS=docs/images` keeps pictures
of what is seen.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.coordination.commanded import Stepping, until
from tests.ui.browsing import PHONE, TOKEN, chromium, page_server
from tests.ui.looking import VIEWS, Shown, cells, keep
from tests.ui.shown import orders
from waterspout import Config, Run
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.coordination.progress import BatchTotals
from waterspout.coordination.recording import Recorder
from waterspout.serving import bound
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import LocalRun

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def shown(tmp_path_factory) -> Iterator[Shown]:
    """Orders, in this process without Spark; the rest is as in any run."""
    place = tmp_path_factory.mktemp("shown")
    conf = Config(
        home=str(place / "home"), serve="127.0.0.1:0", serve_token=TOKEN, max_bad_ratio=0.5,
        idle_poll_millis=20,
    )  # fmt: skip
    topology = orders(place, SQLiteState.opaque(place / "counts.db", table="counts"))
    server, store = bound(conf), EmbeddedStore(place / "home", "orders")
    conf = conf.replace(serve_token=None)
    local = LocalRun(topology, conf, store=store)
    recorder = Recorder("orders", BatchTotals())
    local.loop.events.subscribe(recorder)
    run = Run(
        Stepping(local), recorder, store, conf,
        explain=lambda: topology.explain(conf), close=local.close, letters=lambda: local.letters,
        attend=lambda run: server.start(run, topology),
    )  # fmt: skip
    try:
        run.process_all_available(timeout=120)
        with chromium() as browser, page_server(place / "home") as url:
            yield Shown({"orders": run}, url, browser)
    finally:
        run.stop()


def test_every_view_is_whole_at_any_width(shown):
    reader = shown.reader()
    reader.open("/", "orders")
    keep(reader, "page-list")
    shown.look_through("orders", list(VIEWS))
    dark, phone = shown.reader(dark=True), shown.reader(size=PHONE)
    dark.open("/t/orders/batches", "Commit matrix")
    keep(dark, "page-dark-batches")
    phone.open("/t/orders/batches", "Commit matrix")
    keep(phone, "page-phone-batches")


def test_the_batches_that_are_seen_are_those_of_the_api(shown):
    told = shown.api("orders", "batches", limit=40)
    assert told["states"] == ["state1", "state2", "dead letters"], "two databases, and the letters"
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
    assert [row[0] for row in matrix if row[-3:] == ["committed"] * 3] == begun


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


def test_a_letter_is_repaired_and_replayed_only_with_the_token(shown):
    before = shown.api("orders", "dead-letters")["total"]
    assert before == 2
    reader = shown.reader()
    reader.open("/t/orders/dead-letters", f"{before} of {before}")
    reader.page.get_by_role("button", name="5:0:0").focus()
    reader.page.keyboard.press("Enter")
    reader.page.get_by_label("value (string)").fill("berlin,12")
    reader.page.get_by_role("button", name="Replay...").last.click()
    reader.sees("value becomes berlin,12")
    reader.page.get_by_role("button", name="Replay", exact=True).click()
    reader.sees("Authorization: Bearer TOKEN")
    assert shown.api("orders", "dead-letters")["total"] == before

    reader.page.get_by_label("Token").fill(TOKEN)
    keep(reader, "page-orders-replay")
    reader.page.get_by_role("button", name="Replay", exact=True).click()

    reader.sees("1 dead letter is to be replayed")
    until(lambda: shown.api("orders", "dead-letters")["total"] == before - 1, 60)


def test_a_run_is_deactivated_and_activated_from_the_page_and_the_keyboard(shown):
    run, reader = shown.runs["orders"], shown.reader()
    for label, status in (("Deactivate", "inactive"), ("Activate", "idle")):
        reader.open("/t/orders/control", "Deactivate")
        reader.page.get_by_role("button", name=label, exact=True).focus()
        reader.page.keyboard.press("Enter")
        reader.sees(f"{label} orders?")
        reader.page.get_by_label("Token").fill(TOKEN)
        reader.page.keyboard.press("Enter")
        until(lambda status=status: run.status == status, 30)
        reader.sees("it is inactive" if status == "inactive" else "it is active")
