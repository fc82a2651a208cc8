"""`FailureCounts`: how often the messages of a spout have failed, also in the runs before.

What is stored names no message, and is never read back into one: a message is known again by a
digest of its id and its values. By the id alone another one might be meant: many spouts number
their messages from 1 in every run.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from waterspout._letters import stored_form

__all__ = ["Failing", "FailureCounts", "digest"]

# How many failing messages are remembered, with how often each has failed.
_FAILING_MAX = 100_000

# How many of them outlive the run: they are stored all together, whenever one has failed.
_STORED_MAX = 1_000


@dataclass(slots=True)
class Failing:
    """How often a message has failed, and since when."""

    count: int = 0
    since: float = field(default_factory=time.time)
    deadly: bool = False
    """It has killed its worker the last time."""

    key: str | None = None
    """Its digest, if it is to outlive the run."""


class FailureCounts:
    """The messages of one spout, all its tasks, that have failed and are not done yet."""

    def __init__(self, stored: Mapping[str, Any] | None = None) -> None:
        self._earlier = {key: (int(n), float(since)) for key, (n, since) in (stored or {}).items()}
        """Of runs before: messages that have not failed in this one."""
        self._failing: dict[Any, Failing] = {}
        self._keyed = 0
        self.has_news = False
        """Whether something has failed since `stored` was called."""

    def __len__(self) -> int:
        return len(self._failing)

    def add(self, name: Any, key: Callable[[], str | None], *, deadly: bool) -> Failing:
        """Count a failure of a message, and return all that is known of it."""
        failing = self._failing.pop(name, None)
        if failing is None:
            failing = self._begun(key)
        failing.count += 1
        failing.deadly = deadly
        self._failing[name] = failing
        self.has_news = self.has_news or failing.key is not None
        if len(self._failing) > _FAILING_MAX:
            # Messages that went elsewhere after they failed here; the oldest first.
            self.forget(next(iter(self._failing)))
        return failing

    def _begun(self, key: Callable[[], str | None]) -> Failing:
        if self._keyed >= _STORED_MAX:
            return Failing()
        found = key()
        if found is None:
            return Failing()
        self._keyed += 1
        if found in self._earlier:
            count, since = self._earlier.pop(found)
            return Failing(count, since, key=found)
        return Failing(key=found)

    def forget(self, name: Any) -> None:
        """Forget a message that is done, or put aside."""
        failing = self._failing.pop(name, None)
        if failing is not None and failing.key is not None:
            self._keyed -= 1

    def count_of(self, name: Any) -> int:
        """Return how often a message has failed."""
        failing = self._failing.get(name)
        return 0 if failing is None else failing.count

    def is_deadly(self, name: Any) -> bool:
        """Whether a message has killed its worker the last time."""
        failing = self._failing.get(name)
        return failing is not None and failing.deadly

    def stored(self) -> dict[str, Any]:
        """Return what the next run must know, as JSON; the newest, if there are too many."""
        self.has_news = False
        all_of_it = {key: [count, since] for key, (count, since) in self._earlier.items()}
        for failing in self._failing.values():
            if failing.key is not None:
                all_of_it[failing.key] = [failing.count, failing.since]
        return dict(list(all_of_it.items())[-_STORED_MAX:])


def digest(message_id: Any, stream: str, values: tuple[Any, ...] | None) -> str:
    """Return what a message is known by in the next run."""
    parts = [stored_form([message_id]), stream, None if values is None else stored_form(values)]
    return hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace")).hexdigest()[:24]
