"""What a server knows of the run that it serves."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from waterspout._addresses import Secrets, masked
from waterspout._config import Config
from waterspout.coordination.factory import ZOOKEEPER_AUTH
from waterspout.coordination.run import Run
from waterspout.drpc._attending import service_of
from waterspout.metrics import RunStats, stats_of
from waterspout.serving._answers import JSONAnswer
from waterspout.serving._callers import Callers
from waterspout.serving._log_tail import LogTail
from waterspout.topology._graph import Topology
from waterspout.transactional._builder import TransactionalTopology
from waterspout.trident._topology import TridentTopology
from waterspout.trident.plan.plan import Plan

__all__ = ["Served"]


@dataclass(frozen=True)
class Served:
    """A run, the topology that it runs, and its options. Every router is made of one of these."""

    run: Run
    topology: Topology | TridentTopology
    config: Config
    """Without the token: what tasks get may be shown."""
    token: str | None = field(default=None, repr=False)
    log: LogTail = field(default_factory=LogTail)
    started: float = field(default_factory=time.time)

    @cached_property
    def described(self) -> Topology | Plan:
        """The topology, or the plan of one of Trident."""
        found = self.topology
        return found.plan(self.config) if isinstance(found, TridentTopology) else found

    @cached_property
    def stats(self) -> RunStats:
        """The statistics of the run, counted from when they were asked for first."""
        return stats_of(self.run, self.described)

    @cached_property
    def callers(self) -> Callers:
        """Those who call the functions of the run; made before its first step."""
        return Callers(service_of(self.run, self.topology, self.config), self.hide)

    def answer(self, content: Any, status: int = 200) -> JSONAnswer:
        """Return an answer none of whose texts has a secret in it."""
        return JSONAnswer(content, status, hide=self.hide)

    def hide(self, text: str) -> str:
        """Return a text without secrets: those that are known, and what looks like one."""
        if any(word in text for word in self._secrets.words):
            text = self._secrets.hidden(text)
        return masked(text) if "=" in text or "://" in text else text

    @cached_property
    def _secrets(self) -> Secrets:
        """The last line: whoever makes a text has left them out before."""
        words = self.token, os.environ.get(ZOOKEEPER_AUTH, "").partition(":")[2] or None
        return Secrets.of(*self._addresses(), words=words)

    def _addresses(self) -> Iterator[str]:
        described = self.described
        recipes: list[Any] = []
        if isinstance(described, Plan):
            recipes += [spec.factory for spec in described.states.values()]
            recipes += [node.spout for node in described.sources.values()]
        elif isinstance(described, TransactionalTopology):
            recipes += [spec.factory for spec in described.states.values()]
        if isinstance(described, Topology):
            recipes += [spec.component for spec in described.components.values()]
        for recipe in recipes:
            yield from (text for text in _texts(recipe) if "=" in text or "://" in text)


def _texts(recipe: Any) -> Iterator[str]:
    names = [*getattr(recipe, "__dataclass_fields__", ()), *getattr(recipe, "__dict__", ())]
    for name in dict.fromkeys(names):
        value = getattr(recipe, name, None)
        if isinstance(value, str):
            yield value
