"""An error in one paragraph: the cause first, then the place in the user's own code.

Frames of Java's, of libraries and of ours are for the log.
"""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from waterspout._safe_repr import described
from waterspout.errors import UserCodeError, WaterspoutError

__all__ = ["in_full", "located", "naming", "one_line", "operation_in", "told"]

_LENGTH_MAX = 1500
_OPERATION = "waterspout operation: "
_OURS = (os.path.dirname(__file__), sysconfig.get_path("stdlib"), "<frozen")
_TRACEBACK = "Traceback (most recent call last)"
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
_FOLDERS = ("/site-packages/", "/dist-packages/", "/waterspout.zip/", "/pyspark.zip/", "/pyspark/")
_JAVA = re.compile(r"\n+JVM stacktrace|\n\s*at [\w.$/]+\(|\nDriver stacktrace|\n\s*SQLSTATE: ")


@contextmanager
def naming(operation: str) -> Iterator[None]:
    """Note on an error that leaves this block which operation it came out of.

    A note is part of a traceback's text, and so comes back from an executor.
    """
    try:
        yield
    except Exception as error:
        # What is within has been more precise.
        if not any(note.startswith(_OPERATION) for note in getattr(error, "__notes__", ())):
            error.add_note(f"{_OPERATION}{' '.join(operation.split())}")
        raise


def operation_in(trace: str) -> str | None:
    """Return the operation that an error of an executor came out of, if its traceback has it."""
    found = [line for line in trace.splitlines() if line.startswith(_OPERATION)]
    return found[-1].removeprefix(_OPERATION) if found else None


def told(error: BaseException) -> str:
    """Return what went wrong, on one line; never raises.

    >>> told(ValueError("bad word"))
    'ValueError: bad word'
    """
    text = described(error, 10 * _LENGTH_MAX)
    if isinstance(error, WaterspoutError):  # these say themselves what they are about
        text = text.removeprefix(f"{type(error).__name__}: ")
    if _TRACEBACK in text or not _is_of_user_code(error):
        return one_line(text)
    return one_line(located(text.removesuffix(": "), in_full(error)))


def in_full(error: BaseException) -> str:
    """Return all frames of an error, of executors as well, and of what caused it."""
    frames = "".join(traceback.format_exception(error))
    remote = [e.trace for e in _chain(error) if isinstance(e, UserCodeError) and e.trace]
    return "\n".join([*remote, frames])


def located(text: str, frames: str) -> str:
    """Return an error's text with the last place in the user's own code, if frames have one.

    >>> located("ValueError: no", 'File "/home/me/job.py", line 3, in parse')
    'ValueError: no (/home/me/job.py, line 3, in parse)'
    """
    theirs = [found for found in _FRAME.finditer(frames) if _is_theirs(found["file"])]
    if not theirs:
        return text
    last = theirs[-1]
    place = f"({last['file']}, line {last['line']}, in {last['name']})"
    return text if place in text else f"{text.rstrip('.')} {place}"


def one_line(text: str) -> str:
    """Return a message on one line; of a worker's traceback only what it comes to."""
    text = _JAVA.split(text, maxsplit=1)[0]
    if _TRACEBACK in text:
        before, _, rest = text.partition(_TRACEBACK)
        text = f"{before} {located(_cause(rest), rest)}."
    line = " ".join(text.split())
    return line if len(line) <= _LENGTH_MAX else f"{line[:_LENGTH_MAX]} ..."


def _cause(frames: str) -> str:
    """Return the error that ends a traceback: all behind the last frame and its line of code."""
    last = [found.end() for found in _FRAME.finditer(frames)][-1:]
    lines = frames[last[0] if last else 0 :].strip("\n").splitlines()[1:]
    lines = [line for line in lines if not line.startswith(_OPERATION)]
    while lines and lines[0].startswith(" "):
        lines.pop(0)
    return " ".join(lines).strip().rstrip(".") or "an error"


def _is_of_user_code(error: BaseException) -> bool:
    return isinstance(error, UserCodeError) or not isinstance(error, WaterspoutError)


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__
    return found


def _is_theirs(file: str) -> bool:
    return not (file.startswith(_OURS) or any(part in file for part in _FOLDERS))
