"""The page in a browser, in short: a topology that was stopped, its batches, its dead letter."""

from __future__ import annotations

from tests.coordination.commanded import embedded, running, words
from tests.ui.browsing import TOKEN, Reader, chromium, page_server


def test_a_stopped_topology_is_read_in_a_browser_and_nothing_complains(tmp_path):
    with running(words(tmp_path), embedded(tmp_path)) as (run, _):
        run.process_all_available(timeout=30)

    with chromium() as browser, page_server(tmp_path / "home") as url:
        reader = Reader(browser, url)
        reader.open("/", "words")
        reader.open("/t/words/batches", "Commit matrix")
        rows = reader.page.locator("table").first.locator("tbody tr")
        cells = [row.inner_text().split() for row in rows.all()]
        assert cells == [["3", "committed"], ["2", "committed"], ["1", "committed"]]
        reader.open("/t/words/dead-letters", "No dead letter")
        assert TOKEN not in reader.page.content()
        assert reader.overflow() == 0
        assert reader.complaints == []
