"""The rule of `--json`, in one place: what a program reads of a command.

Every command has the option. Its answer is then one JSON document on stdout and nothing else
there; that of `run` is many, a line each, as things happen. Exit codes are those of the command
without it: an answer that is "no" (something is missing, a key has no value, counts differ) is a
document and 1. A command that has no answer to give ends as without `--json` too, and says why as
the last line of stderr: `{"error": {"kind": ..., "message": ..., "exit_code": ...}}`.

Nobody is asked anything: what asks needs `--yes`.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from waterspout._plain import plain
from waterspout.cli.failures import INTERRUPTED, exit_code, paragraph
from waterspout.errors import ConfigError

__all__ = ["AsJson", "confirm", "print_error", "print_json", "wants_json"]

_OPTION = "--json"

AsJson = Annotated[
    bool,
    typer.Option(
        _OPTION, help="For programs: JSON on stdout and nothing else; errors as JSON on stderr."
    ),
]


def print_json(document: Mapping[str, Any]) -> None:
    """Print a document on a line of its own; what JSON does not have is a text."""
    print(json.dumps(plain(document), allow_nan=False), flush=True)


def print_error(error: BaseException, *, debug: bool = False) -> int:
    """Tell an error as JSON on stderr; return the exit code."""
    interrupted = isinstance(error, typer.Abort | KeyboardInterrupt)
    code = INTERRUPTED if interrupted else exit_code(error)
    document: dict[str, Any] = {
        "kind": "Interrupted" if interrupted else type(error).__name__,
        "message": "it was interrupted" if interrupted else paragraph(error),
        "exit_code": code,
    }
    if debug:
        document["traceback"] = "".join(traceback.format_exception(error))
    print(json.dumps({"error": document}), file=sys.stderr, flush=True)
    return code


def wants_json(arguments: Sequence[str]) -> bool:
    """Say whether a command line asks for JSON, also if the rest of it makes no sense."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return _OPTION in arguments[:end]


def confirm(question: str, *, yes: bool, as_json: bool) -> None:
    """Ask whether to go on, unless `--yes` has said so."""
    if yes:
        return
    if as_json:
        raise ConfigError(f"{question} With --json nobody is asked: add --yes to do it")
    typer.confirm(question, abort=True)
