"""Logging of a command: everything into a file, warnings of ours on the screen as well."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from waterspout._causes import one_line
from waterspout._own_files import make_private, private_folder
from waterspout.cli.screen import Throttle
from waterspout.metrics import JsonFormatter

__all__ = ["logging_to"]

_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s"


@contextmanager
def logging_to(file: Path, warn: Callable[[str], None], *, as_json: bool = False) -> Iterator[None]:
    """Send what is logged to a file, beside what Spark writes there; `warn` hears our warnings."""
    private_folder(file.parent)
    make_private(file, follow=True)
    to_file = logging.FileHandler(file, encoding="utf-8", delay=True)
    lines = logging.Formatter(_FORMAT, "%H:%M:%S")
    to_file.setFormatter(JsonFormatter() if as_json else lines)
    told = _Warnings(warn)
    ours = logging.getLogger("waterspout")
    before = ours.level
    ours.setLevel(logging.INFO)
    logging.getLogger().addHandler(to_file)
    ours.addHandler(told)
    try:
        yield
    finally:
        ours.removeHandler(told)
        told.finish()
        logging.getLogger().removeHandler(to_file)
        ours.setLevel(before)
        to_file.close()


class _Warnings(logging.Handler):
    """Tells warnings, each on one line of its own, not too many alike."""

    def __init__(self, warn: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn
        self._throttles: dict[str, Throttle] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno > logging.WARNING:
            return  # what ends a run is raised as well, and told at the end
        named = ("more warning like it", "more warnings like it")
        throttle = self._throttles.setdefault(str(record.msg), Throttle(*named))
        if throttle.is_over:
            self._tell_held_back(throttle)
        if throttle.passes():
            self._warn(one_line(record.getMessage()))

    def finish(self) -> None:
        """Say what was held back until now."""
        for throttle in self._throttles.values():
            self._tell_held_back(throttle)

    def _tell_held_back(self, throttle: Throttle) -> None:
        for line in throttle.held_back():
            self._warn(line)
