"""Log records as JSON, one object a line, with the batch that they are about."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from waterspout._log_context import subject

__all__ = ["JsonFormatter"]


class JsonFormatter(logging.Formatter):
    """Makes a JSON object of each record, on one line.

    Keys: time (UTC), level, logger, message; topology, txid and attempt where they are known;
    exception, the traceback, if there is one.

    >>> record = logging.makeLogRecord({"msg": "%d done", "args": (3,), "levelname": "INFO"})
    >>> record.created, record.name = 1.5, "job"
    >>> print(JsonFormatter().format(record))
    {"time": "1970-01-01T00:00:01.500Z", "level": "INFO", "logger": "job", "message": "3 done"}
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **subject(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
