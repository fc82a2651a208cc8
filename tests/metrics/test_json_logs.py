"""Logs as JSON: one object a line, with the batch that the work at hand is about."""

from __future__ import annotations

import io
import json
import logging
import threading
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import pytest

from tests.metrics.running import counting, running
from waterspout import Config, faults
from waterspout._log_context import about, subject
from waterspout.coordination.engine import Committed, Processed
from waterspout.faults import Fault, FaultPlan
from waterspout.metrics._json_logs import JsonFormatter
from waterspout.spark.phases import PhaseEngine
from waterspout.state._head import Claim
from waterspout.transactional import TransactionAttempt

log = logging.getLogger("waterspout.tests.json")


@pytest.fixture
def lines():
    """Return a function that reads what was logged, as objects."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    ours = logging.getLogger("waterspout")
    before = ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    ours.removeHandler(handler)
    ours.setLevel(before)
    faults.install(None)


def test_a_failed_batch_is_logged_with_its_topology_txid_and_attempt(lines):
    faults.install(FaultPlan([Fault("write.before", "fail", where={"txid": 2})]))

    with running(counting("a", "b")) as run:
        run.process_all_available(timeout=20)

    (failed,) = (line for line in lines() if "failed" in line["message"])
    assert (failed["level"], failed["logger"]) == ("WARNING", "waterspout.coordination.loop")
    assert (failed["topology"], failed["txid"], failed["attempt"]) == ("words", 2, 0)


class Logging(PhaseEngine):
    """An engine whose phases only log."""

    def process(self, attempt, metadata, work):
        log.info("processing")
        return Processed(attempt)

    def commit(self, claim, move_heads, work):
        log.info("committing")
        return Committed(claim.attempt)


def test_the_phases_of_a_batch_know_it_on_their_own_threads(lines):
    runtime = SimpleNamespace(tagged=lambda *args: nullcontext(), cores=2)
    engine = Logging(runtime, "words", Config(cancel_wait_secs=20))
    reports, reported = [], threading.Event()
    attempt = TransactionAttempt(7, 2)

    def report(what):
        reports.append(what)
        reported.set()

    engine.report = report
    engine.start_processing(attempt, {})
    assert reported.wait(20)
    reported.clear()
    engine.start_commit(Claim(attempt), lambda: None)
    assert reported.wait(20)
    engine.close()

    mine = [line for line in lines() if line["logger"] == log.name]
    assert [line["message"] for line in mine] == ["processing", "committing"]
    assert {(line["topology"], line["txid"], line["attempt"]) for line in mine} == {("words", 7, 2)}
    assert reports == [Processed(attempt), Committed(attempt)]


def test_a_record_of_several_lines_and_an_exception_are_one_line(lines):
    try:
        raise ValueError('a "quoted"\nmessage')
    except ValueError:
        log.exception("two\nlines: %s", {"é"})

    (line,) = lines()
    assert line["message"] == "two\nlines: {'é'}"
    assert line["exception"].splitlines()[0] == "Traceback (most recent call last):"
    assert 'a "quoted"' in line["exception"]
    assert "txid" not in line


def test_what_is_said_inside_ends_with_it_also_if_it_raises():
    with about(topology="words"):
        with suppress(ValueError), about(TransactionAttempt(3, 1)):
            assert subject() == {"topology": "words", "txid": 3, "attempt": 1}
            raise ValueError("no")
        assert subject() == {"topology": "words"}
    assert subject() == {}


def test_a_message_cannot_write_over_what_the_line_is_about(lines):
    with about(TransactionAttempt(3, 1), topology="words"):
        log.info('{"txid": 99}')

    (line,) = lines()
    assert (line["txid"], line["message"]) == (3, '{"txid": 99}')
