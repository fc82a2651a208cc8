"""What `waterspout run` says of a run: batches, waves, errors, and not too much of it."""

from __future__ import annotations

import doctest
import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from waterspout._log_context import about
from waterspout.cli import screen as screens
from waterspout.cli.logs import logging_to
from waterspout.cli.screen import Screen
from waterspout.cli.watching import BatchWatcher, ErrorLines, WaveWatcher
from waterspout.coordination.progress import (
    BatchInFlight,
    BatchTotals,
    ErrorSummary,
    RunSnapshot,
    WaveProgress,
    WaveTotals,
)
from waterspout.transactional import TransactionAttempt


def a_run(errors: Any = (), letters: int = 0, **snapshot: Any) -> Any:
    totals = snapshot.pop("totals", WaveTotals())
    given = {"in_flight": (), "last_progress": None, "pausing_spouts": (), **snapshot}
    now = RunSnapshot("words", "running", 0.0, totals=totals, errors=tuple(errors), **given)
    return SimpleNamespace(
        name="words",
        errors=list(errors),
        snapshot=lambda: now,
        dead_letters=lambda: ["a letter"] * letters,
    )


def an_error(text: str, count: int = 1, component: str = "count") -> ErrorSummary:
    return ErrorSummary(component, text, "...", count, 0.0, 0.0)


@pytest.fixture
def still(monkeypatch):
    """A clock that stands still, one second after it began."""
    times = iter([0.0])
    monkeypatch.setattr("waterspout.cli.watching.time.monotonic", lambda: next(times, 1.0))


def test_waves_are_told_with_all_that_is_worth_it(still):
    run = a_run(
        totals=WaveTotals(3, 2100, acked=288, failed=12, timed_out=3, dead_letters=1),
        last_progress=WaveProgress("words", 0.0, 4, pending=3000, throttled=True),
    )
    watcher = WaveWatcher(run)

    assert watcher.now() == (
        "3 waves, 2,100 tuples executed, 288 acked, 12 failed, 3 timed out, 1 dead letter, "
        "3,000 pending, 2,100 tuples/s, throttled: the bolts are behind"
    )
    assert watcher.total() == (
        "3 waves, 2,100 tuples executed, 288 acked, 12 failed, 3 timed out, 1 dead letter"
    )


def test_a_run_without_waves_says_so(still):
    watcher = WaveWatcher(a_run())

    assert watcher.now() == "0 waves, 0 tuples executed, 0 acked, 0 pending, 0 tuples/s"
    assert watcher.news(last=True) == []
    assert watcher.afterwards() == []


def test_why_a_batch_failed_is_told():
    run = a_run(
        totals=BatchTotals(), errors=[an_error("BatchTimeoutError: raise it", 1, "batch 7:0")]
    )

    assert BatchWatcher(run).news() == ["batch 7:0: BatchTimeoutError: raise it"]


@pytest.mark.parametrize(
    ("count", "line"),
    [
        (1, "words: 1 dead letter is kept; see: waterspout dead-letters list words"),
        (1200, "words: 1,200 dead letters are kept; see: waterspout dead-letters list words"),
    ],
)
def test_letters_are_pointed_at_when_the_run_has_ended(count, line):
    assert WaveWatcher(a_run(letters=count)).afterwards() == [line]
    assert BatchWatcher(a_run(letters=count)).afterwards() == [line]


def test_batches_are_told_with_what_is_in_flight(still):
    run = a_run(
        totals=BatchTotals(2, last_txid=4, replayed=1, input_rows=9000, written_rows=1500),
        in_flight=(BatchInFlight(5, 0, "processing", 0.0, "processing"),),
    )
    watcher = BatchWatcher(run)

    assert watcher.now() == (
        "2 batches committed (up to 4), 1 replayed, 9,000 rows read, 1,500 rows written, "
        "1 in flight, 9,000 rows/s"
    )
    assert watcher.total() == (
        "2 batches committed (up to 4), 1 replayed, 9,000 rows read, 1,500 rows written"
    )
    assert (watcher.news(), watcher.afterwards()) == ([], [])


def test_each_kind_of_error_is_told_once():
    lines = ErrorLines()
    bad = an_error("ValueError: bad word", 3)

    assert lines.new(a_run(errors=[bad])) == ["count: ValueError: bad word (3 times)"]
    more = an_error("ValueError: bad word", 70)
    again = [more, an_error("KeyError: 'x'"), an_error("ValueError: bad word")]
    assert lines.new(a_run(errors=again)) == ["count: KeyError: 'x'"]
    assert lines.new(a_run(errors=again), last=True) == []


def test_an_error_of_many_lines_is_told_on_one():
    run = a_run(errors=[an_error("ValueError: first\n  second", component="split")])

    assert ErrorLines().new(run) == ["split: ValueError: first second"]


def test_errors_of_many_kinds_are_held_back_and_counted():
    now = 0.0
    lines = ErrorLines(lambda: now)
    errors = [an_error(f"ValueError: {n}") for n in range(9)]

    assert lines.new(a_run(errors=errors[:8])) == [f"count: ValueError: {n}" for n in range(5)]
    now = 9.9
    assert lines.new(a_run(errors=errors)) == []
    now = 10.0
    assert lines.new(a_run(errors=errors)) == ["4 more errors of other kinds; the log has them"]
    assert lines.new(a_run(errors=errors), last=True) == []


def test_what_is_held_back_is_counted_at_the_end():
    errors = [an_error(f"ValueError: {n}") for n in range(6)]

    lines = ErrorLines(lambda: 0.0).new(a_run(errors=errors), last=True)

    assert lines[-1] == "1 more error of another kind; the log has them"


def test_a_log_as_json_has_an_object_on_each_line(tmp_path):
    subject = about(TransactionAttempt(7, 1), topology="words")
    with Screen() as screen, logging_to(tmp_path / "run.log", screen.warn, as_json=True), subject:
        logging.getLogger("waterspout.tests").info("two\nlines")

    (line,) = map(json.loads, (tmp_path / "run.log").read_text().splitlines())
    del line["time"]
    assert line == {
        "level": "INFO", "logger": "waterspout.tests", "message": "two\nlines",
        "topology": "words", "txid": 7, "attempt": 1,
    }  # fmt: skip


def test_warnings_alike_are_held_back_on_the_screen_and_all_in_the_log(tmp_path, capsys):
    log = logging.getLogger("waterspout.test")
    with Screen() as screen, logging_to(tmp_path / "run.log", screen.warn):
        for number in range(8):
            log.warning("message %d is now a dead letter", number)
        log.warning("something else")

    out = capsys.readouterr().out
    assert out.splitlines() == [
        *(f"warning: message {number} is now a dead letter" for number in range(5)),
        "warning: something else",
        "warning: 3 more warnings like it; the log has them",
    ]
    assert (tmp_path / "run.log").read_text().count("is now a dead letter") == 8


def test_a_warning_cannot_touch_the_terminal(tmp_path, capsys):
    with Screen() as screen, logging_to(tmp_path / "run.log", screen.warn):
        logging.getLogger("waterspout.test").warning("bad \x1b[31m[red]%s", "a\nb")

    assert capsys.readouterr().out == "warning: bad \\x1b[31m[red]a b\n"


def test_the_examples_of_harmless_text_hold():
    assert doctest.testmod(screens) == (0, 2)
