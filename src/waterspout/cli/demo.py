"""`waterspout demo`: a word count that is killed in the middle of a commit, and still exact."""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from waterspout.cli.demo_evidence import read_counts, read_half_written, read_head
from waterspout.cli.demo_layout import DATABASE, LOG, PARTITIONS, SENTENCES, TABLE
from waterspout.cli.demo_process import ChildProcess
from waterspout.cli.demo_screen import Story
from waterspout.cli.demo_source import DemoSource, count_words
from waterspout.cli.failures import FAILED
from waterspout.cli.stopping import StopSignals
from waterspout.errors import ConfigError, RunFailedError
from waterspout.faults import Fault, FaultPlan

__all__ = ["demo"]

_BATCHES = 40
_KILLED_BATCH = 18
_KILLED_PARTITION = 1
_SENTENCES_MIN = 1000
_SHOWN_MAX = 10


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
) -> None:
    """Count words, die of kill -9 in the middle of a commit, resume, and compare.

    A Trident topology runs on an embedded Spark, in a process that is killed when some
    partitions of a batch are written and others are not. Then the same command runs again.
    """
    from waterspout.spark.java import require_java

    require_java()
    with StopSignals(), _workspace(folder, keep=keep) as workspace:
        source = DemoSource(workspace / SENTENCES, sentences, _BATCHES)
        with Story(source) as story:
            story.opens(workspace, temporary=folder is None and not keep)
            exact = _play(story, source, workspace)
        if not exact:
            raise typer.Exit(FAILED)


@contextmanager
def _workspace(folder: Path | None, *, keep: bool) -> Iterator[Path]:
    """Yield an empty folder; a temporary one is removed, except after a failure."""
    if folder is not None:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(
                f"--folder {folder} is not an empty folder, and the demo begins with nothing; "
                "name a new one"
            )
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.absolute()
        return
    workspace = Path(tempfile.mkdtemp(prefix="waterspout-demo-"))
    try:
        yield workspace
    except KeyboardInterrupt:
        _remove(workspace, keep=keep)
        raise
    _remove(workspace, keep=keep)


def _remove(workspace: Path, *, keep: bool) -> None:
    tries = 0 if keep else 20
    while tries and workspace.exists():
        shutil.rmtree(workspace, ignore_errors=True)
        time.sleep(0.1)  # a JVM that is about to end may still tidy up in there
        tries -= 1


def _play(story: Story, source: DemoSource, workspace: Path) -> bool:
    """Go through the whole story; return whether the counts are exact."""
    story.tell("source", "writing the sentences")
    source.write()

    _run_until_killed(story, source, workspace)
    _run_to_the_end(story, workspace)

    story.tell("recount", "every file in plain Python: no Spark, no waterspout")
    stored, counted = read_counts(workspace), source.recount()
    story.totals(stored, counted)
    wrong = sorted(w for w in stored.keys() | counted.keys() if stored.get(w) != counted.get(w))
    if not wrong:
        took = f"in {story.elapsed_s:.0f} s"
        story.tell("exact", f"all {len(counted):,} counts are equal, {took}", "bold green")
        return True
    story.tell("NOT EXACT", f"{len(wrong):,} of {len(counted):,} counts differ:", "bold red")
    for word in wrong[:_SHOWN_MAX]:
        story.tell(
            "", f"{word}: {stored.get(word, 0):,} in {TABLE}, {counted[word]:,} in the files"
        )
    story.tell("", f"Everything is kept in {workspace}.")
    return False


def _run_until_killed(story: Story, source: DemoSource, workspace: Path) -> None:
    where = {"txid": _KILLED_BATCH, "partition": _KILLED_PARTITION}
    plan = FaultPlan([Fault("write.after", "kill", where=where)])
    with ChildProcess(workspace, plan) as child:
        story.starts("first run", child.pid, begins_at=1)
        code = _listen(story, child, workspace)
    left = read_half_written(workspace) if code == -signal.SIGKILL else None
    if left is None:
        raise RunFailedError(
            f"the first run was to be killed, but ended with {code}{_see(workspace)}"
        )
    story.was_killed(child.pid, left.txid)
    whole = count_words(source.file(left.txid - 1))
    story.tell(
        "half-written",
        f"{DATABASE} has batch {left.txid}, attempt {left.attempt}, as begun and not committed; "
        f"{left.rows} of its {len(whole)} rows are written "
        f"({_KILLED_PARTITION + 1} of {PARTITIONS} partitions). Adding the batch once more would "
        f"count {left.words:,} words twice; leaving it at that would lose "
        f"{whole.total() - left.words:,}.",
        "yellow",
    )


def _run_to_the_end(story: Story, workspace: Path) -> None:
    head = read_head(workspace)
    with ChildProcess(workspace) as child:
        story.starts("second run", child.pid, begins_at=head.stamp.txid if head else 1)
        code = _listen(story, child, workspace)
    head = read_head(workspace)
    if code != 0 or head is None:
        raise RunFailedError(f"the second run ended with {code}{_see(workspace)}")
    story.has_finished(head.stamp.txid)


def _listen(story: Story, child: ChildProcess, workspace: Path) -> int:
    """Show what a process tells until it ends, and return its exit code."""
    for event in child.events():
        match event["event"]:
            case "started":
                story.counts()
            case "failed":
                raise RunFailedError(f"the demo's run failed: {event['error']}{_see(workspace)}")
            case _:
                story.progresses(event)
    return child.wait()


def _see(workspace: Path) -> str:
    return f"; the log is {workspace / LOG}"
