"""Output for people: a line that changes on a terminal, plain lines anywhere else."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import TextIO

from rich.console import Console, JustifyMethod
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

__all__ = ["Screen", "Throttle", "counted", "harmless", "print_table"]

_UNLIMITED = 10_000
_SHOW_EVERY_S = 10.0
_LINES_PER_INTERVAL = 5
_INTERVAL_S = 10.0


class Screen:
    """Permanent lines, and below them, on a terminal, one that is drawn anew as things change.

    Where the output is a file or a pipe there is no such line: what it would show is printed
    now and then, without escape codes. A quiet one prints nothing at all.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        terminal = sys.stdout.isatty() and not quiet
        # Said outright: Rich would also believe FORCE_COLOR.
        self._console = Console(
            file=_own_stdout() if terminal else None,
            force_terminal=terminal,
            highlight=False,
            soft_wrap=not terminal,
            quiet=quiet,
        )
        self.is_live = terminal and not self._console.is_dumb_terminal
        self._live: Live | None = None
        self._shown_at = float("-inf")
        self._shown = ""

    def __enter__(self) -> Screen:
        if self.is_live:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def width(self) -> int:
        """How long a line may be."""
        return min(100, self._console.width) if self.is_live else 100

    def say(self, text: str, style: str = "") -> None:
        """Print a line that stays; what cannot be printed is spelled out."""
        self._console.print(Text(harmless(text), style=style))

    def warn(self, text: str) -> None:
        """Print a warning."""
        self.say(f"warning: {text}", "yellow")

    def show(self, text: str) -> None:
        """Show how things stand: on a terminal in the changing line, else as a line at times."""
        now = time.monotonic()
        if self._live is not None:
            self._live.update(Text(harmless(text)))
        elif text != self._shown and now - self._shown_at >= _SHOW_EVERY_S:
            self._shown, self._shown_at = text, now
            self.say(text)

    def spin(self, text: str) -> None:
        """Show on a terminal that something takes its time."""
        if self._live is not None:
            dots = "dots" if self._console.encoding.startswith("utf") else "line"
            self._live.update(Spinner(dots, harmless(text), style="cyan"))

    def take_over(self) -> None:
        """Begin a new line, with the cursor shown, after a process that died while it drew."""
        if self.is_live:
            self._console.show_cursor()
            self._console.line()


class Throttle:
    """Lets five lines through in ten seconds, and counts what it holds back.

    `noun` and `nouns` are what one more line is called, and several.
    """

    def __init__(self, noun: str, nouns: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._names = (noun, nouns)
        self._clock = clock
        self._since = float("-inf")
        self._passed = 0
        self._held_back = 0

    def passes(self) -> bool:
        """Say whether one more line may be shown now."""
        if self.is_over:
            self._since, self._passed = self._clock(), 0
        self._passed += 1
        if self._passed <= _LINES_PER_INTERVAL:
            return True
        self._held_back += 1
        return False

    @property
    def is_over(self) -> bool:
        """Whether the next line begins an interval."""
        return self._clock() - self._since >= _INTERVAL_S

    def held_back(self) -> list[str]:
        """Say in a line how many were held back since the last call, if any were."""
        count, self._held_back = self._held_back, 0
        return [f"{counted(count, *self._names)}; the log has them"] if count else []


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str] = (),
    style_of: Callable[[str], str] = lambda _: "",
    whole: Collection[str] = (),
) -> None:
    """Print a table: folded to fit on a terminal, anywhere else a line for each row.

    `style_of` gives the colour of a cell by its text, for a terminal; columns that are `whole` are
    not folded.
    """
    terminal = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        justify: JustifyMethod = "right" if column in right else "left"
        no_wrap = not terminal or column in whole
        table.add_column(column, justify=justify, no_wrap=no_wrap, overflow="fold")
    for row in rows:
        table.add_row(*(Text(harmless(cell), style=style_of(cell)) for cell in row))
    console = Console(
        force_terminal=terminal, highlight=False, width=None if terminal else _UNLIMITED
    )
    with console.capture() as drawn:
        console.print(table)
    # Rich fills up to the width of the table.
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """Return a number with its noun.

    >>> counted(1, "wave"), counted(1200, "wave"), counted(2, "batch", "batches")
    ('1 wave', '1,200 waves', '2 batches')
    """
    return f"1 {noun}" if number == 1 else f"{number:,} {nouns or noun + 's'}"


def harmless(text: str) -> str:
    r"""Return text on one line that cannot move the cursor, change colours or hide anything.

    >>> print(harmless("a \x1b[31mred\n[bold]line"))
    a \x1b[31mred\n[bold]line
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _own_stdout() -> TextIO:
    # While a JVM starts, the process's own standard output leads to a log file.
    return os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding=sys.stdout.encoding)
