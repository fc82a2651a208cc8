"""Topologies of every kind, files as users write them, on the Spark that is named.

    python -m tests.cluster.everywhere FOLDER NAME[=ADDRESS] [RUNS]

Writes what each case found to FOLDER/found.json. In a process of its own: there is one Spark in it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.test_examples import EXAMPLES, TRIDENT, tables_of
from tests.cluster.faulty import summed
from tests.drpc.reach import EXPECTED
from tests.drpc.test_examples import WORDS
from waterspout import Config, submit
from waterspout.cli import main as waterspout
from waterspout.cli.loading import load_topology
from waterspout.drpc import DRPCClient
from waterspout.sinks import exactly_once
from waterspout.spark import starting
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, Sum

RUNS = 2
"""How often each example of Trident is run: a second time there is nothing more to do."""
LINES = ["the cow jumped over the moon", "the man went to the store", "the moon"]


def command(*words: str) -> str:
    """Run a command of waterspout's; return what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = waterspout(words)
    if code:
        raise AssertionError(f"waterspout {' '.join(words)} exited with {code}: {err.getvalue()}")
    return out.getvalue()


def run_file(example: str) -> None:
    command("run", str(EXAMPLES / f"{example}.py"), "--until-idle")


def example(name: str) -> Callable[[Any], Any]:
    """An example of Trident: what its tables hold after each run."""

    def case(spark: Any) -> Any:
        found = []
        for _ in range(RUNS):
            run_file(name)
            found.append(tables_of(name, Path.cwd()))
        return found

    return case


def rows_of(database: str, query: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(database)) as db:
        return sorted(db.execute(query).fetchall())


def by_tasks(spark: Any) -> Any:
    """Sums that are written by tasks; and once more, with nothing to do."""
    found = []
    for _ in range(2):
        topology = summed(Path.cwd())
        run = submit(topology, spark, Config(commit_in="tasks"))
        run.process_all_available(timeout=120)
        run.stop()
        found.append(rows_of("sums.db", "SELECT k, total, n FROM sums"))
    return found


def bolts(spark: Any) -> Any:
    """Spouts and bolts: a sentence that cannot be split is a dead letter, and comes back."""
    run_file("core_word_count")
    counted = rows_of("core_word_counts.db", "SELECT word, count FROM counts")
    command("dead-letters", "replay", "core_word_count", "1")
    run_file("core_word_count")
    letters = json.loads(command("dead-letters", "list", "core_word_count", "--json"))["letters"]
    again = rows_of("core_word_counts.db", "SELECT word, count FROM counts")
    return [counted, again, [letter["failures"] for letter in letters]]


def batches(spark: Any) -> Any:
    """A transactional topology with a committer."""
    os.environ["TOTAL_DB"] = str(Path("total.db").absolute())
    found = []
    for _ in range(2):
        run_file("transactional_global_count")
        found.append(rows_of("total.db", "SELECT txid, value FROM total"))
    return found


def asked(example: str, function: str, questions: Any) -> Callable[[Any], Any]:
    """DRPC: each question and its answer."""

    def case(spark: Any) -> Any:
        conf = Config(serve="127.0.0.1:0", drpc_request_timeout_secs=200, message_timeout_secs=200)
        run = submit(load_topology(str(EXAMPLES / f"{example}.py")), spark, conf)
        try:
            run.process_all_available(timeout=120)
            with DRPCClient(run.server_url) as client:
                return {each: client.execute(function, each)[0][0] for each in questions}
        finally:
            run.stop()

    return case


def sink(spark: Any) -> Any:
    """A query of Structured Streaming, in two runs, with a sum and a count by key."""
    found = []
    for number in range(2):
        Path("lines").mkdir(exist_ok=True)
        Path("lines", f"{number}.txt").write_text("\n".join(LINES) + "\n")
        words = spark.readStream.text(str(Path("lines").absolute())).selectExpr(
            "explode(split(value, ' ')) AS word", "1 AS one"
        )
        state = SQLiteState.opaque(Path("sink.db").absolute(), table="words")
        counting = exactly_once(state, keys=["word"], n=Count(), total=("one", Sum()))
        query = (
            words.writeStream.foreachBatch(counting)
            .option("checkpointLocation", str(Path("checkpoint").absolute()))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)
        if query.exception() is not None:
            raise query.exception()
        found.append(rows_of("sink.db", "SELECT word, n, total FROM words"))
    return found


CASES: dict[str, Callable[[Any], Any]] = {
    **{name: example(name) for name in TRIDENT},
    "a state that tasks write": by_tasks,
    "bolts and letters": bolts,
    "transactional": batches,
    "drpc": asked("drpc_word_count", "words", WORDS),
    "drpc by bolts": asked("linear_reach", "reach", EXPECTED),
    "exactly_once sink": sink,
}


def main(folder: Path, engine: str) -> None:
    kind, _, address = engine.partition("=")
    where = {"master": address} if kind == "master" else {"remote": address} if address else {}
    began = time.monotonic()
    session = starting.open_session(folder / "spark.log", connect_timeout_secs=60, **where)
    session.stop = lambda: None  # commands think that it is their own
    starting.open_session = lambda *_, **__: session
    found: dict[str, Any] = {"seconds": {"start": time.monotonic() - began}}
    for name, case in CASES.items():
        began = time.monotonic()
        place = folder / name.replace(" ", "-")
        place.mkdir()
        os.chdir(place)
        os.environ["WATERSPOUT_HOME"] = str(place / "home")
        try:
            found[name] = case(session)
        except Exception:
            found[name] = {"error": traceback.format_exc()[-3000:]}
        found["seconds"][name] = time.monotonic() - began
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    RUNS = int(sys.argv[3]) if len(sys.argv) > 3 else RUNS
    main(Path(sys.argv[1]), sys.argv[2])
