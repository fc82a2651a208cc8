"""A run in a notebook: as the value of a cell, and shown as it goes on."""

from __future__ import annotations

import sys
import threading
from types import ModuleType

import pytest

from tests.metrics.running import counting, running
from waterspout import Config
from waterspout.coordination.notebook import html_of, sparkline
from waterspout.coordination.progress import (
    BatchInFlight,
    BatchProgress,
    BatchTotals,
    ErrorSummary,
    Outage,
    RunSnapshot,
    UnreachablePartition,
    WaveInFlight,
    WaveProgress,
    WaveTotals,
)
from waterspout.errors import ConfigError
from waterspout.metrics._notebook import show_progress

BAD = '<script>alert("x")</script>&\''


def standing(**more):
    empty = {"in_flight": (), "pausing_spouts": (), "errors": (), "last_progress": None}
    now = {"name": "words", "status": "running", "timestamp": 0.0, "totals": BatchTotals()}
    return RunSnapshot(**{**now, **empty, **more})


def test_a_run_of_batches_says_what_it_did_and_what_it_waits_for():
    html = html_of(
        standing(
            totals=BatchTotals(1200, 1200, 3, 2, 50_000, 40_000),
            in_flight=(BatchInFlight(1201, 0, "processed", 0.0, "its turn to commit after 1200"),),
            lag={"in": {"files": 3, "bytes": 1200}},
            waiting_for=(Outage("redis", "refused", 0.0, 1.0),),
            unreachable=(UnreachablePartition("in", 2, "gone", 0.0),),
            errors=(ErrorSummary("bolt", "KeyError: 'x'", "", 3, 0.0, 0.0),),
        ),
        [BatchProgress("words", n, 0, 0.0, rows_per_s=float(n)) for n in (1, 2, 8)],
        "http://127.0.0.1:8080",
    )

    for text in (
        "1,200 committed, the last is 1200",
        "2 failed, 3 were replays",
        "50,000 read, 40,000 written",
        "batch 1201:0, its turn to commit after 1200",
        "▁▂█ 8",
        "3 files, 1,200 bytes",
        "redis: refused",
        "partition 2 of in: gone",
        "bolt (3 times): KeyError: &#x27;x&#x27;",
        "http://127.0.0.1:8080",
    ):
        assert text in html, text


def test_a_run_of_waves_says_what_became_of_its_messages():
    html = html_of(
        standing(
            totals=WaveTotals(4, 900, 100, 7, 2, 1),
            in_flight=(WaveInFlight(5, 0, 300, 0.0, "running"),),
        ),
        [WaveProgress("words", 0.0, 4, tuples=90, wave_s=3.0)],
    )

    assert "4, 900 tuples executed" in html
    assert "100 acked, 7 failed (2 timed out)" in html
    assert "1 in this run" in html
    assert "wave 5, 300 tuples, running" in html
    assert "█ 30" in html


def test_nothing_that_a_user_wrote_is_taken_for_html():
    html = html_of(
        standing(
            name=BAD,
            status=BAD,
            lag={BAD: {BAD: 1}},
            waiting_for=(Outage(BAD, BAD, 0.0, 1.0),),
            unreachable=(UnreachablePartition(BAD, 0, BAD, 0.0),),
            errors=(ErrorSummary(BAD, BAD, BAD, 1, 0.0, 0.0),),
            in_flight=(BatchInFlight(1, 0, "processing", 0.0, BAD),),
        ),
        server_url=BAD,
    )

    assert "<script" not in html
    assert BAD not in html
    assert html.count("&lt;script&gt;") == 12


def test_a_long_error_is_cut():
    html = html_of(standing(errors=(ErrorSummary("bolt", "x" * 5000, "", 1, 0.0, 0.0),)))

    assert "x" * 299 + "…" in html
    assert "x" * 300 not in html


def test_no_bar_is_higher_than_the_highest():
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([-1.0, 5.0, 10.0]) == "▁▄█"


def test_a_run_is_the_value_of_a_cell_and_shows_no_options():
    config = Config(idle_poll_millis=1, home="/home/canary-7d1f")
    with running(counting("a"), config) as run:
        run.process_all_available(timeout=20)
        html = run._repr_html_()

    assert "<b>words</b>: idle" in html
    assert "1 committed, the last is 1" in html
    assert "canary" not in html


class Shown:
    """In place of IPython: what is displayed, and what it was replaced with."""

    def __init__(self, broken=False):
        self.html, self.broken, self.drawn = [], broken, threading.Event()

    def display(self, given, display_id):
        assert display_id
        self.html.append(given)
        return self

    def update(self, given):
        if self.broken:
            raise RuntimeError("the kernel is gone")
        self.html.append(given)
        self.drawn.set()


@pytest.fixture
def notebook(monkeypatch):
    def open_notebook(**more):
        shown = Shown(**more)
        package, module = ModuleType("IPython"), ModuleType("IPython.display")
        module.HTML, module.display = str, shown.display
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setitem(sys.modules, "IPython.display", module)
        return shown

    return open_notebook


def test_what_is_shown_is_kept_up_to_date_until_the_run_has_ended(notebook):
    shown = notebook()
    with running(counting("a", "b")) as run:
        widget = show_progress(run, every_secs=0.001)
        run.process_all_available(timeout=20)
        shown.drawn.clear()
        assert shown.drawn.wait(20)
    widget._thread.join(20)

    assert not widget._thread.is_alive(), "the end of the run ends the widget"
    assert "<b>words</b>: stopped" in shown.html[-1]
    assert "2 committed, the last is 2" in shown.html[-1]


def test_a_widget_that_is_stopped_leaves_what_is_shown(notebook):
    shown = notebook()
    with running(counting("a")) as run:
        widget = show_progress(run, every_secs=1000)
        widget.stop()
        count = len(shown.html)
        run.process_all_available(timeout=20)

    assert not widget._thread.is_alive()
    assert (count, len(shown.html)) == (2, 2)


def test_a_notebook_that_is_gone_ends_the_widget_and_not_the_run(notebook):
    notebook(broken=True)
    with running(counting("a")) as run:
        widget = show_progress(run, every_secs=0.001)
        widget._thread.join(20)
        run.process_all_available(timeout=20)

    assert not widget._thread.is_alive()
    assert run.exception() is None


def test_outside_of_a_notebook_it_says_what_to_use(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", None)
    monkeypatch.setitem(sys.modules, "IPython.display", None)

    with running(counting("a")) as run, pytest.raises(ConfigError, match=r"run\.subscribe"):
        show_progress(run)
