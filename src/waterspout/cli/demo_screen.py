"""How the demo looks: a story of few lines, each with its time, and a bar below them."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.progress_bar import ProgressBar

from waterspout.cli.demo_layout import DATABASE, IN_FLIGHT_MAX, LOG, PARTITIONS, TABLE
from waterspout.cli.demo_source import DemoSource
from waterspout.cli.screen import Screen
from waterspout.cli.watching import Rate

__all__ = ["Story"]

_SUBJECT = 14
_INDENT = 10 + _SUBJECT


class Story:
    """Tells what happens as it happens, and how far the counting is."""

    def __init__(self, source: DemoSource) -> None:
        self._source = source
        self._screen = Screen()
        self._began = time.monotonic()
        self._name = ""
        self._begins_at = 1
        self._rate = Rate()
        self._replayed = 0

    def __enter__(self) -> Story:
        self._screen.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._screen.__exit__(kind, error, trace)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the story began."""
        return time.monotonic() - self._began

    def opens(self, place: Path, *, temporary: bool) -> None:
        """Say what is going to happen, and where."""
        source, say = self._source, self._screen.say
        fate = "removed at the end; --keep keeps it" if temporary else "kept"
        say("waterspout demo: count words exactly, through a kill -9", "bold")
        say("")
        say(f"  source     {source.sentences:,} sentences, a batch is one of {source.files} files")
        say("  topology   FileSpout -> Split -> group_by word -> Count, on an embedded Spark")
        say(f"  state      opaque, table {TABLE} of {DATABASE}, {PARTITIONS} partitions")
        say(f"  folder     {place} ({fate})")
        say(f"  Spark log  {place / LOG}")
        say("")

    def tell(self, subject: str, text: str, style: str = "") -> None:
        """Print a line of the story; a long one goes on below itself."""
        width = max(40, self._screen.width - _INDENT)
        first, *more = textwrap.wrap(text, width) or [""]
        clock = self._clock() if subject else ""
        self._screen.say(f"{clock:<9} {subject:<{_SUBJECT}}{first}", style)
        for line in more:
            self._screen.say(" " * _INDENT + line, style)

    def starts(self, name: str, pid: int, begins_at: int) -> None:
        """A process was started, and with it a JVM."""
        self._name, self._begins_at = name, begins_at
        again = "the same command again: " if begins_at > 1 else ""
        self.tell(name, f"{again}process {pid} starts Spark")
        self._screen.clear()
        self._screen.spin(f"{name}: Spark is starting")

    def counts(self) -> None:
        """The topology runs."""
        self._rate = Rate(self._source.sentences_before(self._begins_at - 1))
        if self._begins_at > 1:
            self.tell(self._name, f"resumes at batch {self._begins_at}")
        else:
            self.tell(self._name, f"counts, at most {IN_FLIGHT_MAX} batches in flight")
        self._screen.clear()

    def progresses(self, event: Mapping[str, Any]) -> None:
        """The run has told how far it is."""
        total, txid = self._source.files, event["txid"] or self._begins_at - 1
        self._replayed = event["replayed"]
        flying = f"{event['in_flight']} in flight"
        rate = f"{self._rate.at(self._source.sentences_before(txid)):,.0f} sentences/s"
        bar = ProgressBar(total=total, completed=txid, width=max(10, self._screen.width - 64))
        self._screen.show(
            f"{self._clock()} {self._name:<{_SUBJECT}}"
            f"txid {txid} of {total} committed, {flying}, {rate}",
            self._screen.beside_spinner(self._name, bar, f"txid {txid}/{total}, {flying}, {rate}"),
        )

    def was_killed(self, pid: int, txid: int) -> None:
        """The process is dead, as planned."""
        self._screen.clear()
        self.tell("killed", f"SIGKILL hit process {pid} in the commit of batch {txid}", "bold red")

    def has_finished(self, batches: int) -> None:
        """The process has counted everything."""
        self._screen.clear()
        self.tell(
            self._name,
            f"done: {batches} batches committed, {self._replayed} of them replayed",
        )

    def totals(self, stored: Mapping[str, int], counted: Counter[str]) -> None:
        """Print what the state says beside what the files say."""
        self._screen.say("")
        for name, counts in (("state", stored), ("recount", counted)):
            total = f"{sum(counts.values()):>12,} words, {len(counts):,} different ones"
            self._screen.say(f"  {name:<9}{total}")
        self._screen.say("")

    def _clock(self) -> str:
        return f"[{self.elapsed_s:5.1f} s]"
