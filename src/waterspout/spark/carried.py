"""An outage that a task has met, on its way to the driver in the text that Spark passes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from waterspout.errors import OutageError

__all__ = ["carried_outage", "carrying_outages"]

_MARK = "waterspout-outage:"


@contextmanager
def carrying_outages() -> Iterator[None]:
    """Run what a task does; mark an outage, so that the driver knows it for what it is."""
    try:
        yield
    except OutageError as error:
        marked = f"{_MARK} {json.dumps([error.service, str(error)])}"
        raise OutageError(error.service, marked) from error


def carried_outage(text: str) -> OutageError | None:
    """Return the outage that is marked in what Spark says of a failed job, if there is one."""
    if _MARK not in text:
        return None
    found = text.split(_MARK, 1)[1].lstrip()
    try:
        (service, message), _ = json.JSONDecoder().raw_decode(found)
    except ValueError:  # Spark has cut it
        service, message = "a store", found.splitlines()[0]
    return OutageError(str(service), str(message))
