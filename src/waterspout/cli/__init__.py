"""The command line: one command per file, and one function that turns errors into exit codes."""

from waterspout.cli.app import main

__all__ = ["main"]
