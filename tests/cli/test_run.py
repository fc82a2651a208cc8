"""`waterspout run` on Spark: to the end, until it is told to stop, and into an error."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.conftest import WORD_COUNT

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"

USES_A_NEIGHBOUR = """
from neighbour import Shout
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, Split, TridentTopology

topology = TridentTopology("shouts")
words = topology.new_stream("in", FileSpout("data")).each("value", Split(), "word")
words.each("word", Shout(), "loud string").group_by("loud").persistent_aggregate(
    SQLiteState.opaque("counts.db", table="shouts"), Count(), "count"
)
"""
NEIGHBOUR = """
from waterspout.trident import Function

SUFFIX = "!"

class Shout(Function):
    def execute(self, tuple, collector):
        collector.emit((tuple[0].upper() + SUFFIX,))
"""
NEVER_ENDS = """
from waterspout.spouts.rate import RateSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, TridentTopology

topology = TridentTopology("ticks")
topology.new_stream("in", RateSpout(1000)).persistent_aggregate(
    SQLiteState.opaque("ticks.db", table="ticks"), Count(), "count"
)
"""


def counts(file: Path, table: str, key: str) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(file)) as db:
        return dict(db.execute(f"SELECT {key}, count FROM {table}").fetchall())


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "waterspout.cli", *arguments],
        cwd=cwd,
        env={**os.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# The demo runs such a file with the same command, each time.
@pytest.mark.soak
def test_the_example_counts_its_words_and_ends(place):
    arguments = ("run", str(EXAMPLES / "word_count.py"), "--until-idle", "--log-file", "spark.log")

    with start(*arguments, cwd=place) as process:
        out, err = process.communicate(timeout=110)

    texts = [file.read_text() for file in (EXAMPLES / "data").glob("*.txt")]
    assert process.returncode == 0, err
    assert err == ""
    assert "\x1b" not in out
    assert "done; 3 batches committed" in out
    assert str(place / "spark.log") in out
    assert counts(place / "word_counts.db", "word_counts", "word") == Counter(
        word for text in texts for word in text.split()
    )


@pytest.mark.soak
def test_sigterm_ends_a_run_in_order(place):
    (place / "ticks.py").write_text(NEVER_ENDS)

    with start("run", "ticks.py", cwd=place) as process:
        wait_for(lambda: (place / "ticks.db").exists(), process)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)

    assert process.returncode == 0, err
    assert err == ""
    assert "ticks: stopped;" in out.splitlines()[-1]


@pytest.mark.soak
def test_the_example_of_a_global_count_gives_its_totals(shared_spark, cli, place):
    outcome = cli("run", str(EXAMPLES / "global_count.py"), "--until-idle")

    assert outcome.code == 0, outcome.err
    with contextlib.closing(sqlite3.connect(place / "orders.db")) as db:
        assert db.execute("SELECT orders FROM orders").fetchall() == [(7,)]
        assert db.execute("SELECT revenue FROM revenue").fetchall() == [(81,)]
        assert db.execute("SELECT revenue FROM history ORDER BY 1").fetchall() == [
            (55,), (77,), (81,)
        ]  # fmt: skip


def test_functions_of_neighbouring_files_reach_the_workers(shared_spark, cli, write, place):
    write(NEIGHBOUR, "neighbour.py")

    outcome = cli("run", write(USES_A_NEIGHBOUR), "--until-idle")

    assert outcome.code == 0, outcome.err
    assert counts(place / "counts.db", "shouts", "loud") == {
        "TO!": 2, "BE!": 2, "OR!": 1, "NOT!": 1
    }  # fmt: skip


def test_a_program_hears_every_event_as_a_line(shared_spark, cli, write, place):
    outcome = cli("run", write(WORD_COUNT), "--until-idle", "--json", "--log-file", "run.log")

    lines = [json.loads(line) for line in outcome.out.splitlines()]
    assert (outcome.code, outcome.err) == (0, "")
    assert [line["event"] for line in lines if "attempt" not in line] == [
        *("Starting", "Started", "RunIdle", "RunEnded", "Ended"),
    ]  # fmt: skip
    assert lines[0]["log"] == str(place / "run.log")
    (committed,) = (line for line in lines if line["event"] == "BatchCommitted")
    assert (committed["txid"], committed["attempt"], committed["progress"]["txid"]) == (1, 0, 1)
    assert {"topology": "words", "why": "done", "began": True, "dead_letters": 0}.items() <= (
        lines[-1].items()
    )
    assert lines[-1]["totals"]["committed"] == 1
    assert counts(place / "counts.db", "word_counts", "word") == {
        "to": 2, "be": 2, "or": 1, "not": 1
    }  # fmt: skip


def test_a_run_that_fails_says_why_and_ends_with_1(shared_spark, cli, write):
    write(NEIGHBOUR.replace("tuple[0].upper()", "tuple[0].uper()"), "neighbour.py")

    outcome = cli("run", write(USES_A_NEIGHBOUR), "--until-idle", "-c", "max_retries=1")

    assert outcome.code == 1
    assert "warning: batch" in outcome.out
    assert outcome.err.startswith("error: run shouts stopped: AttributeError: 'str' object has no")
    assert "neighbour.py, line 8, in execute" in outcome.err
    assert outcome.err.count("\n") == 1


def wait_for(is_true, process: subprocess.Popen[str], timeout_s: float = 100.0) -> None:
    until = time.monotonic() + timeout_s
    while not is_true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.1)
