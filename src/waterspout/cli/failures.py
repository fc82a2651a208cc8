"""What an error means for the person at the keyboard: an exit code and one paragraph."""

from __future__ import annotations

from typing import Any

import typer

from waterspout._causes import one_line, told
from waterspout.errors import DRPCExecutionException, RunFailedError, UserCodeError, WaterspoutError

__all__ = ["EXIT_CODES", "FAILED", "INTERRUPTED", "MISUSE", "exit_code", "paragraph"]

FAILED = 1
MISUSE = 2
INTERRUPTED = 130

EXIT_CODES = {
    0: "done, or stopped when asked to; `list` and `show`: seen, whatever the status",
    FAILED: "not done: a run or a call that began and failed, a command that no run has obeyed; or "
    "an answer that is no (something is missing, a key has no value, counts differ)",
    MISUSE: "refused before anything ran: no such topology, a wrong option, a changed topology, a "
    "store that cannot be reached, another driver",
    INTERRUPTED: "interrupted (Ctrl-C) before there was an answer; a run that is interrupted ends "
    "in order, with 0",
}
"""What each exit code of a command means, for the docs."""

# Older versions of Typer build on click, newer ones bring their own copy of it.
_USAGE = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def exit_code(error: BaseException) -> int:
    """Return 1 for a run or a call that began and failed, 2 for what was refused before."""
    if isinstance(error, RunFailedError | DRPCExecutionException):
        return FAILED
    return MISUSE if isinstance(error, (WaterspoutError, OSError, _USAGE)) else FAILED


def paragraph(error: BaseException) -> str:
    """Return one paragraph that names what is wrong and what to do about it."""
    if isinstance(error, _USAGE):
        return _usage(error)
    if isinstance(error, RunFailedError) and error.__cause__ is not None:
        cause, said = error.__cause__, one_line(str(error))
        # Errors of this library say themselves what to do, but not those about the user's code.
        says_more = isinstance(cause, WaterspoutError) and not isinstance(cause, UserCodeError)
        return said if says_more else f"{said.rstrip('.')}.{_GO_ON}"
    if isinstance(error, (WaterspoutError, OSError)):
        return one_line(str(error))
    return f"{told(error)}. This was not foreseen; --debug shows where it happened."


_GO_ON = " Nothing is lost: mend the cause and run the same command again."


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "waterspout"
    return f"{one_line(error.format_message()).rstrip('.')}. See: {path} --help"
