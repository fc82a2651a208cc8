"""The command `waterspout`: quiet if it is interrupted while it is still being loaded.

A module of its own, outside of the package: to import anything of the package imports all of it.
"""

from __future__ import annotations

import signal

__all__ = ["main"]


def main() -> int:
    """Load the commands and run the one that was asked for."""
    own = signal.getsignal(signal.SIGINT)
    if own is signal.default_int_handler:
        # An interrupt in the middle of an import would be a traceback, or a broken import.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from waterspout.cli import main as run

    signal.signal(signal.SIGINT, own)
    return run()
