"""The end of what this process has logged, kept in memory: there need not be a file."""

from __future__ import annotations

import logging
import threading
from collections import deque

from waterspout._addresses import masked

__all__ = ["LogTail"]

_LINES_MAX = 2_000
_LINE_MAX = 4_000
_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"


class LogTail(logging.Handler):
    """The latest lines of the library's loggers, without secrets, from `open` to `close`."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=_LINES_MAX)
        self._guard = threading.Lock()
        self.setFormatter(logging.Formatter(_FORMAT, "%H:%M:%S"))

    def open(self) -> None:
        """Begin to listen."""
        logging.getLogger("waterspout").addHandler(self)

    def close(self) -> None:
        """End listening; the lines stay."""
        logging.getLogger("waterspout").removeHandler(self)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, as the lines that it has."""
        try:
            text = self.format(record)
        except Exception as error:  # of a record whose arguments do not fit it
            text = f"{record.levelname} {record.name}: {record.msg!r} ({error})"
        lines = [line[:_LINE_MAX] for line in masked(text).split("\n")]
        with self._guard:
            self._lines.extend(lines)

    def newest(self, count: int) -> list[str]:
        """Return the latest lines, oldest first."""
        with self._guard:
            lines = list(self._lines)
        return lines[-count:] if count else []
