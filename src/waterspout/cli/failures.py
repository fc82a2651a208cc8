"""What an error means for the person at the keyboard: an exit code and one paragraph."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

import waterspout
from waterspout.errors import RunFailedError, UserCodeError, WaterspoutError

__all__ = ["FAILED", "INTERRUPTED", "MISUSE", "exit_code", "one_line", "paragraph"]

FAILED = 1
MISUSE = 2
INTERRUPTED = 130

_LENGTH_MAX = 1500
# Older versions of Typer build on click, newer ones bring their own copy of it.
_USAGE = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
_LIBRARIES = ("/site-packages/", "/waterspout.zip/", "/pyspark.zip/", "/pyspark/", "<frozen")
_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')


def exit_code(error: BaseException) -> int:
    """Return 1 for a run that began and failed, 2 for what was refused before."""
    if isinstance(error, RunFailedError):
        return FAILED
    return MISUSE if isinstance(error, (WaterspoutError, OSError, _USAGE)) else FAILED


def paragraph(error: BaseException) -> str:
    """Return one paragraph that names what is wrong and what to do about it."""
    if isinstance(error, _USAGE):
        return _usage(error)
    if isinstance(error, RunFailedError) and error.__cause__ is not None:
        cause = error.__cause__
        told = f"{str(error).removesuffix(str(cause)).rstrip()} {_named(cause)}"
        # Errors of this library say themselves what to do, but not those about the user's code.
        says_more = isinstance(cause, WaterspoutError) and not isinstance(cause, UserCodeError)
        return told if says_more else f"{told.rstrip('.')}.{_GO_ON}"
    if isinstance(error, (WaterspoutError, OSError)):
        return one_line(str(error))
    return f"{_named(error)}. This was not foreseen; --debug shows where it happened."


_GO_ON = " Nothing is lost: mend the cause and run the same command again."


def _named(error: BaseException) -> str:
    text = str(error)
    if isinstance(error, WaterspoutError) or _TRACEBACK in text:
        return one_line(text)
    return one_line(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "waterspout"
    return f"{one_line(error.format_message()).rstrip('.')}. See: {path} --help"


def one_line(text: str) -> str:
    """Return a message on one line; of a worker's traceback only what it comes to."""
    if _TRACEBACK in text:
        before, _, rest = text.partition(_TRACEBACK)
        text = f"{before} {_last_of_traceback(rest)}"
    line = " ".join(text.split("\n\nJVM stacktrace", 1)[0].split())
    return line if len(line) <= _LENGTH_MAX else f"{line[:_LENGTH_MAX]} ..."


def _last_of_traceback(text: str) -> str:
    """Return the error that ends a traceback, with the last line in the user's own code."""
    errors = [line for line in text.strip().splitlines() if line and line[0] not in " :("]
    frames = [m for m in _FRAME.finditer(text) if not _is_ours(m["file"])]
    where = ""
    if frames:
        last = frames[-1]
        where = f" ({last['file']}, line {last['line']}, in {last['name']})"
    return f"{errors[-1].rstrip('.') if errors else 'an error'}{where}."


def _is_ours(file: str) -> bool:
    library = str(Path(waterspout.__file__).parent)
    return file.startswith(library) or any(folder in file for folder in _LIBRARIES)
