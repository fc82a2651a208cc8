"""The examples of spouts and bolts, without Spark; `test_run` has them on it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from waterspout.cli.loading import load_topology
from waterspout.testing import run_in_process

CORE_WORD_COUNT = Path(__file__).parents[2] / "examples" / "core_word_count.py"
CORE_COUNTS = {
    "the": 3, "moon": 2, "cow": 1, "jumped": 1, "over": 1,
    "four": 1, "score": 1, "and": 1, "seven": 1, "years": 1, "ago": 1,
}  # fmt: skip


def stored(database: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(database)) as db:
        return dict(db.execute("SELECT word, count FROM counts").fetchall())


def test_the_words_are_counted_and_the_broken_sentence_is_put_aside(place):
    run = run_in_process(load_topology(str(CORE_WORD_COUNT)))

    assert stored(place / "core_word_counts.db") == CORE_COUNTS
    (letter,) = run.letters
    assert (letter.values, letter.failed_in, letter.failures) == ((1863,), "split", 4)


@pytest.mark.spark
def test_the_broken_sentence_can_be_replayed_on_spark_and_comes_back(shared_spark, cli, place):
    ran = cli("run", str(CORE_WORD_COUNT), "--until-idle", "--log-file", "spark.log")
    marked = cli("dead-letters", "replay", "core_word_count", "1")
    again = cli("run", str(CORE_WORD_COUNT), "--until-idle")
    listed = cli("dead-letters", "list", "core_word_count").out.splitlines()

    assert ran.code == 0, ran.err
    assert stored(place / "core_word_counts.db") == CORE_COUNTS
    *_, end, letters = ran.out.splitlines()
    assert end.startswith("core_word_count: done; ")
    assert ", 3 acked, 4 failed, 1 dead letter in " in end
    assert letters == (
        "core_word_count: 1 dead letter is kept; see: waterspout dead-letters list core_word_count"
    )
    assert ran.out.count("split: AttributeError: 'int' object has no attribute 'split'") == 1
    assert "Traceback" not in ran.out
    assert "in execute" in (place / "spark.log").read_text()
    assert marked.code == 0, marked.err
    assert again.code == 0, again.err
    assert [line.split()[-2] for line in listed[1:]] == ["8", "4"]
