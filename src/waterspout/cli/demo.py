"""`waterspout demo`: a word count that is killed in the middle of a commit, and still exact."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from waterspout._own_files import private_folder
from waterspout.cli.answers import AsJson, print_json
from waterspout.cli.demo_source import count_words, write_sentences
from waterspout.cli.failures import FAILED
from waterspout.cli.screen import Screen
from waterspout.cli.stopping import StopSignals
from waterspout.errors import ConfigError, RunFailedError
from waterspout.faults import ENVIRONMENT_VARIABLE, Fault, FaultPlan
from waterspout.state._head import Head

__all__ = ["demo"]

_TOPOLOGY = '''\
"""Count the words of all sentences, one file per batch."""

from pathlib import Path

from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, Split, TridentTopology

here = Path(__file__).parent
counts = SQLiteState.opaque(here / "counts.db", "word_counts")

topology = TridentTopology("demo")
(
    topology.new_stream("sentences", FileSpout(here / "sentences", max_files=1))
    .each("value", Split(), "word")
    .group_by("word")
    .persistent_aggregate(counts, Count(), "count")
    .parallelism_hint(4)
)
'''
_PARTITIONS = 4
_BATCHES = 40
_KILLED_BATCH = 18
_KILLED_PARTITION = 1
_SENTENCES_MIN = 1000
_SHOWN_MAX = 10
_END_WITHIN_S = 10.0
_ONE_COMPILER = "-XX:TieredStopAtLevel=1"
_SUBJECT = 14
_INDENT = 10 + _SUBJECT


def demo(
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where to put everything; new or empty, and kept.",
            show_default=False,
        ),
    ] = None,
    sentences: Annotated[
        int, typer.Option(metavar="N", min=_SENTENCES_MIN, help="How many sentences to count.")
    ] = 200_000,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the temporary folder of sentences and counts.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Count words, die of kill -9 in the middle of a commit, resume, and compare.

    A Trident topology runs on an embedded Spark, in a process that is killed when some
    partitions of a batch are written and others are not. Then the same command runs again.
    """
    from waterspout.spark.java import require_java

    require_java()
    with StopSignals(), _workspace(folder, keep=keep) as workspace:
        fate = "kept" if folder or keep else "removed at the end; --keep keeps it"
        played = _Demo(workspace, quiet=as_json)
        exact = played.play(sentences, fate)
        if as_json:
            kept = str(workspace) if folder or keep else None
            print_json({"exact": exact, "sentences": sentences, "folder": kept, **played.facts})
        if not exact:
            raise typer.Exit(FAILED)


@contextmanager
def _workspace(given: Path | None, *, keep: bool) -> Iterator[Path]:
    """Yield an empty folder; a temporary one is removed, except after a failure."""
    if given is not None:
        if given.exists() and (not given.is_dir() or any(given.iterdir())):
            raise ConfigError(
                f"--folder {given} is not an empty folder, and the demo begins with nothing; "
                "name a new one"
            )
        private_folder(given)
        yield given.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="waterspout-demo-"))
    try:
        yield folder
    except Exception:
        keep = True
        raise
    finally:
        tries = 0 if keep else 20
        while tries and folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.1)  # a JVM that is about to end may still tidy up in there
            tries -= 1


class _Demo:
    """The story, told as it happens; in between `waterspout run` shows how far it is."""

    def __init__(self, folder: Path, *, quiet: bool = False) -> None:
        self.facts: dict[str, Any] = {"batches": _BATCHES}
        self._quiet = quiet
        self._folder = folder
        self._sentences = folder / "sentences"
        self._log = folder / "spark.log"
        self._screen = Screen(quiet=quiet)
        self._began = time.monotonic()

    def play(self, sentences: int, fate: str) -> bool:
        """Go through the whole story; return whether the counts are exact."""
        say = self._screen.say
        say("waterspout demo: count words exactly, through a kill -9", "bold")
        say("")
        say(f"  source     {sentences:,} sentences, a batch is one of {_BATCHES} files")
        say("  topology   FileSpout -> Split -> group_by word -> Count, on an embedded Spark")
        say(f"  state      opaque, table word_counts of counts.db, {_PARTITIONS} partitions")
        say(f"  folder     {self._folder} ({fate})")
        say("")
        self._tell("source", "writing the sentences")
        write_sentences(self._sentences, sentences, _BATCHES)
        (self._folder / "word_count.py").write_text(_TOPOLOGY, encoding="utf-8")
        self._run_until_killed()
        self._run_to_the_end()
        self._tell("recount", "every file in plain Python: no Spark, no waterspout")
        stored = dict(self._query("SELECT word, count FROM word_counts"))
        return self._compare(stored, count_words(*self._sentences.iterdir()))

    def _run_until_killed(self) -> None:
        where = {"txid": _KILLED_BATCH, "partition": _KILLED_PARTITION}
        plan = FaultPlan([Fault("write.after", "kill", where=where)])
        with self._started({ENVIRONMENT_VARIABLE: plan.to_json()}) as process:
            self._tell("first run", f"process {process.pid}: waterspout run word_count.py")
            code = process.wait()
        head = self._head()
        if code != -signal.SIGKILL or head is None or head.committed:
            raise self._failed(f"the first run was to be killed, but ended with {code}")
        self._screen.take_over()
        txid, attempt = head.stamp.txid, head.stamp.attempt
        killed = f"SIGKILL hit process {process.pid} in the commit of batch {txid}"
        self._tell("killed", killed, "bold red")
        ((rows, words),) = self._query(
            "SELECT count(*), coalesce(sum(count - coalesce(_prev_count, 0)), 0)"
            " FROM word_counts WHERE _txid = ? AND _attempt = ?",
            *(txid, attempt),
        )
        whole = count_words(sorted(self._sentences.iterdir())[txid - 1])
        self.facts["killed"] = {
            "txid": txid,
            "attempt": attempt,
            "rows_written": rows,
            "rows": len(whole),
            "words_added_twice_otherwise": words,
            "words_lost_otherwise": whole.total() - words,
        }
        self._tell(
            "half-written",
            f"counts.db has batch {txid}, attempt {attempt}, as begun and not committed; {rows} "
            f"of its {len(whole)} rows are written ({_KILLED_PARTITION + 1} of {_PARTITIONS} "
            f"partitions). Adding the batch once more would count {words:,} words twice; leaving "
            f"it at that would lose {whole.total() - words:,}.",
            "yellow",
        )

    def _run_to_the_end(self) -> None:
        head = self._head()
        with self._started() as process:
            at = f"resumes at batch {head.stamp.txid}" if head else "begins"
            self._tell("second run", f"process {process.pid}: the same command again {at}")
            code = process.wait()
        if code != 0:
            raise self._failed(f"the second run ended with {code}")

    @contextmanager
    def _started(
        self, faults: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Start `waterspout run`, in a session of its own so that it can be ended with its JVM."""
        temporary = self._folder / "tmp"
        private_folder(temporary)
        own = {
            "WATERSPOUT_HOME": str(self._folder / "home"),
            "TMPDIR": str(temporary),
            "SPARK_LOCAL_DIRS": str(temporary),
            # Neither JVM lives long enough for the second compiler to pay for itself.
            "JDK_JAVA_OPTIONS": f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {_ONE_COMPILER}",
        }
        given = {name: v for name, v in os.environ.items() if name != ENVIRONMENT_VARIABLE}
        topology, log = str(self._folder / "word_count.py"), str(self._log)
        options = ("--until-idle", "--log-file", log, "-c", "max_spout_pending=3")
        process = subprocess.Popen(
            [sys.executable, "-m", "waterspout.cli", "run", topology, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if self._quiet else None,
            env={**given, **own, **(faults or {})},
            start_new_session=True,
        )
        try:
            yield process
        except BaseException:
            # The group outlives its leader for as long as the JVM takes to notice.
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(_END_WITHIN_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._screen.take_over()
            raise

    def _compare(self, stored: Mapping[str, int], counted: Mapping[str, int]) -> bool:
        """Print what the state says beside what the files say; return whether it is the same."""
        self._screen.say("")
        for name, counts in (("state", stored), ("recount", counted)):
            total = f"{sum(counts.values()):>12,} words, {len(counts):,} different ones"
            self._screen.say(f"  {name:<9}{total}")
        self._screen.say("")
        every = stored.keys() | counted.keys()
        wrong = sorted(word for word in every if stored.get(word) != counted.get(word))
        self.facts |= {
            "words": {"state": sum(stored.values()), "recount": sum(counted.values())},
            "different_words": len(counted),
            "wrong": wrong[:_SHOWN_MAX],
            "wrong_words": len(wrong),
            "seconds": round(time.monotonic() - self._began, 1),
        }
        if not wrong:
            took = f"in {time.monotonic() - self._began:.0f} s"
            self._tell("exact", f"all {len(counted):,} counts are equal, {took}", "bold green")
            return True
        self._tell("NOT EXACT", f"{len(wrong):,} of {len(counted):,} counts differ:", "bold red")
        for word in wrong[:_SHOWN_MAX]:
            there, real = stored.get(word, 0), counted.get(word, 0)
            self._tell("", f"{word}: {there:,} in word_counts, {real:,} in the files")
        self._tell("", f"Everything is kept in {self._folder}.")
        return False

    def _tell(self, subject: str, text: str, style: str = "") -> None:
        """Print a line of the story; a long one goes on below itself."""
        first, *more = textwrap.wrap(text, max(40, self._screen.width - _INDENT))
        clock = f"[{time.monotonic() - self._began:5.1f} s]" if subject else ""
        self._screen.say(f"{clock:<9} {subject:<{_SUBJECT}}{first}", style)
        for line in more:
            self._screen.say(" " * _INDENT + line, style)

    def _head(self) -> Head | None:
        rows = self._query("SELECT head FROM _waterspout_heads WHERE name = 'word_counts'")
        return Head.from_text(rows[0][0]) if rows and rows[0][0] else None

    def _query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Read the database without touching it."""
        uri = f"{(self._folder / 'counts.db').as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=10.0)) as db:
            return db.execute(statement, parameters).fetchall()

    def _failed(self, what: str) -> RunFailedError:
        return RunFailedError(f"{what}; the log is {self._log}")
