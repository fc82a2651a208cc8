"""Addresses with secrets in them: where these come from, and how they stay out of sight."""

from __future__ import annotations

import os
import re

from waterspout.errors import ConfigError

__all__ = ["masked", "resolved"]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# `user:secret@` of a URL, and `password=secret` of a DSN or of a URL's query.
_IN_URL = re.compile(r"(?<=://)([^/@\s:]*):[^@\s]*@")
_IN_DSN = re.compile(
    r"(?i)\b(password|passwd|pwd|secret|token|sslpassword)(\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)"
)


def resolved(address: str) -> str:
    """Return an address with each `${NAME}` replaced from the environment of this process."""

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise ConfigError(
                f"{masked(address)} names the environment variable {match[1]}, which is not set "
                "here. Set it for the driver and, where tasks write, for the executors."
            )
        return found

    return _VARIABLE.sub(value, address)


def masked(text: str) -> str:
    """Return an address, or a text that quotes one, without its secrets.

    >>> masked("postgresql://me:hunter2@db/app"), masked("host=db password=hunter2")
    ('postgresql://me:***@db/app', 'host=db password=***')
    """
    return _IN_DSN.sub(r"\1\2***", _IN_URL.sub(r"\1:***@", text))
