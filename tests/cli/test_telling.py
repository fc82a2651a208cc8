"""What `waterspout run --json` prints, line by line, without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.test_dead_letters import LETTER
from waterspout.cli.telling import ForPrograms, as_line
from waterspout.coordination.events import EventBus
from waterspout.coordination.progress import BatchTotals
from waterspout.events import (
    BatchCancelled,
    BatchCommitted,
    BatchFailed,
    BatchProgress,
    CommandObeyed,
    ErrorReported,
    MessageDeadLettered,
    TreesDecided,
)
from waterspout.transactional._attempt import TransactionAttempt

AT = 1_700_000_000.5


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


@pytest.fixture
def a_run(bus) -> Any:
    return SimpleNamespace(
        name="words",
        server_url=None,
        subscribe=bus.subscribe,
        snapshot=lambda: SimpleNamespace(totals=BatchTotals(committed=7, last_txid=7)),
        dead_letters=lambda: ["a letter"],
    )


def printed(capsys) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        (
            BatchCommitted("words", TransactionAttempt(7, 1), BatchProgress("words", 7, 1, AT)),
            {"txid": 7, "attempt": 1},
        ),
        (
            BatchFailed("words", TransactionAttempt(7, 0), ValueError("no"), stops=False),
            {"txid": 7, "attempt": 0, "error": "ValueError: no", "stops": False},
        ),
        (
            BatchCancelled("words", TransactionAttempt(8, 0), TransactionAttempt(7, 0)),
            {"txid": 8, "attempt": 0, "failed": {"txid": 7, "attempt": 0}},
        ),
        (
            ErrorReported("words", "split", 3, "ValueError: no", "a long traceback", 2),
            {"component": "split", "task": 3, "error": "ValueError: no", "count": 2},
        ),
        (
            TreesDecided("words", "in", acked=5),
            {"component": "in", "acked": 5, "failed": 0, "timed_out": 0, "complete_s": 0.0},
        ),
    ],
)
def test_an_event_is_a_line_with_its_name_and_its_fields(event, fields):
    line = as_line(replace(event, timestamp=AT))

    progress = line.pop("progress", {"txid": 7})
    assert progress["txid"] == 7
    assert line == {"event": type(event).__name__, "topology": "words", "timestamp": AT, **fields}


def test_a_dead_letter_is_told_as_the_list_of_them_has_it():
    line = as_line(MessageDeadLettered("words", replace(LETTER, id="4")))

    assert line["letter"]["id"] == 4
    assert line["letter"]["values"] == "['to be']"


def test_a_run_is_told_from_its_start_to_its_end(a_run, bus, capsys):
    tell = ForPrograms()
    with tell:
        tell.starting("words", Path("/tmp/words.log"), remote=False)
        tell.begun(None, a_run)
        bus.publish(CommandObeyed("words", "kill", "me@here", "done", "killed after batch 7"))
        tell.warn("something looks odd")
        tell.look(last=True)
        tell.ended("killed", 1.23456)

    lines = printed(capsys)
    assert [line.pop("timestamp") > AT for line in lines] == [True] * 5
    assert lines == [
        {"event": "Starting", "topology": "words", "log": "/tmp/words.log"},
        {"event": "Started", "topology": "words"},
        {
            "event": "CommandObeyed",
            "topology": "words",
            "command": "kill",
            "by": "me@here",
            "outcome": "done",
            "text": "killed after batch 7",
        },
        {"event": "Warning", "text": "something looks odd"},
        {
            "event": "Ended",
            "topology": "words",
            "why": "killed",
            "began": True,
            "seconds": 1.235,
            "totals": {
                "committed": 7,
                "last_txid": 7,
                "replayed": 0,
                "failures": 0,
                "input_rows": 0,
                "written_rows": 0,
                "executed_tuples": 0,
            },
            "dead_letters": 1,
        },
    ]


def test_a_run_that_is_not_read_from_is_not_held_up_and_what_is_left_out_is_counted(
    a_run, bus, capsys
):
    tell = ForPrograms(waiting_max=3)
    tell.begun(None, a_run)
    for number in range(8):
        bus.publish(TreesDecided("words", "in", acked=number))
    tell.look()

    lines = printed(capsys)[1:]
    assert [line.get("acked", line.get("lines")) for line in lines] == [5, 6, 7, 5]
    assert lines[-1]["event"] == "Skipped"


def test_being_stopped_before_it_began_is_an_end(capsys):
    ForPrograms().never_began("words")

    (line,) = printed(capsys)
    assert (line["event"], line["why"], line["began"]) == ("Ended", "stopped", False)
