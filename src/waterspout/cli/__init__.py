"""The command line: one command per file, and one function that turns errors into exit codes."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waterspout.cli.app import main

__all__ = ["main"]


def __getattr__(name: str) -> Any:
    # On demand: a life that `prove` starts needs one module of these, and starts a hundred times.
    if name == "main":
        from waterspout.cli.app import main

        return main
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
