"""The commands together, and `main`, which turns what they raise into exit codes.

0: done, or stopped when asked to. 2: refused before anything ran. 1: a run that failed.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import traceback
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any

import typer

from waterspout.cli.answers import print_error, wants_json
from waterspout.cli.batch import batch
from waterspout.cli.bench import bench
from waterspout.cli.check import check
from waterspout.cli.dead_letters import dead_letters
from waterspout.cli.demo import demo
from waterspout.cli.doctor import doctor
from waterspout.cli.drpc import drpc
from waterspout.cli.failures import INTERRUPTED, exit_code, paragraph
from waterspout.cli.init import init
from waterspout.cli.prove import prove
from waterspout.cli.run import run
from waterspout.cli.running import activate, deactivate, kill, list_topologies, rebalance, show
from waterspout.cli.screen import harmless
from waterspout.cli.state import state
from waterspout.cli.ui import ui

__all__ = ["main"]

app = typer.Typer(
    name="waterspout",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, init, run, check, prove, doctor, bench, drpc):
    app.command()(command)
app.command("list")(list_topologies)
for asking in (ui, show, kill, activate, deactivate, rebalance):
    app.command()(asking)
app.add_typer(state)
app.add_typer(batch)
app.add_typer(dead_letters)


@app.callback(invoke_without_command=True)
def waterspout(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error, with any command.")
    ] = False,
) -> None:
    """Exactly-once streams for PySpark: Storm's guarantees on Spark's engine."""
    if show_version:
        typer.echo(f"waterspout {version('waterspout')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@cache
def _command() -> Any:
    """Return the tree of all commands, which takes long to make."""
    return typer.main.get_command(app)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; whatever goes wrong is told on stderr."""
    given, debug = _take_debug(sys.argv[1:] if arguments is None else arguments)
    as_json = wants_json(given)
    try:
        code = _command().main(args=given, prog_name="waterspout", standalone_mode=False)
        if code == INTERRUPTED:  # newer versions of Typer return what older ones raise
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except (typer.Abort, KeyboardInterrupt) as error:
        return print_error(error) if as_json else INTERRUPTED
    except Exception as error:
        if as_json:
            return print_error(error, debug=debug)
        if debug:
            traceback.print_exc()
        _complain(f"error: {harmless(paragraph(error))}")
        return exit_code(error)


def _take_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Let `--debug` stand behind the command as well as before it."""
    given = list(arguments)
    end = given.index("--") if "--" in given else len(given)
    kept = [argument for argument in given[:end] if argument != "--debug"] + given[end:]
    return kept, len(kept) < len(given)


def _complain(text: str) -> None:
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        text = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    print(text, file=sys.stderr)
