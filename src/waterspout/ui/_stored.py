"""A topology that nobody serves: what its home or ZooKeeper holds of it, and what can be asked.

What is shown is stored by the run itself, for its next run. Commands go the way of `waterspout
kill` and the others: they are left for the driver, which obeys between two steps.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from waterspout._causes import told
from waterspout._config import Config
from waterspout.coordination.commands.messages import Change, Verb
from waterspout.coordination.commands.outside import Sight, ask, open_topology
from waterspout.coordination.commands.sights import facts
from waterspout.coordination.kept_letters import kept_letters, listing
from waterspout.errors import CommandError, WaterspoutError
from waterspout.ui import _stored_facts as stored
from waterspout.ui._sources import NotAnswered

__all__ = ["StoredSource"]

T = TypeVar("T")

_LIMIT = 100
_VERBS: tuple[Verb, ...] = ("activate", "deactivate", "kill", "rebalance")
_ASK_S = 30.0
_ONLY_SERVED = "only a run that is served tells that; start it with --serve, or with --ui"
_NEEDS_CODE = "states are opened by the code of the topology, which is not stored"
_TERMINAL = {
    "value": "waterspout state get FILE KEY",
    "explain": "waterspout state explain FILE KEY",
    "rollback": "waterspout state rollback FILE",
}


class StoredSource:
    """What is stored of a topology, in the shapes of the API."""

    live = False

    def __init__(
        self,
        name: str,
        conf: Config,
        where: str,
        look: Callable[[], Awaitable[Sight | None]],
        *,
        token: str | None = None,
    ) -> None:
        self.name = name
        self.where = where
        self._conf = conf
        self._look = look
        self._token = token
        """With which the page was started; without one it changes nothing."""

    async def get(self, path: str, **query: object) -> Any:
        sight = await self._look()
        if sight is None:
            raise NotAnswered("absent", f"there is no topology {self.name!r} in {self.where}")
        limit = int(str(query.get("limit") or _LIMIT))
        match path:
            case "topology":
                return stored.topology(sight)
            case "snapshot" if sight.snapshot:
                return dict(sight.snapshot)
            case "resumes":
                return facts(sight)["resumes"]
            case "progress":
                last = sight.snapshot.get("last_progress")
                return [] if last is None else [dict(last)]
            case "errors":
                return list(sight.snapshot.get("errors") or ())
            case "batches":
                return await self._within(lambda: self._batches(sight, limit))
            case "pressure":
                return stored.pressure(sight.snapshot)
            case "dead-letters":
                component = query.get("component")
                chosen = None if component is None else str(component)
                return await self._within(lambda: self._letters(sight, chosen, limit))
        raise NotAnswered("absent", _why_not_told(path))

    async def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, token: str | None = None
    ) -> Any:
        self._refuse_without_token(token)
        given = dict(body or {})
        if path in _VERBS:
            return await self._within(lambda: self._give(path, given))
        if path == "dead-letters/replay":
            sight = await self._look()
            return await self._within(lambda: self._replay(sight, given))
        terminal = _TERMINAL.get(path)
        line = f"; from a terminal: {terminal}" if terminal else ""
        raise NotAnswered("refused", f"{path}: it is not served, so that nobody does it{line}")

    async def close(self) -> None:
        """Hold nothing, so that there is nothing to give up."""

    def _refuse_without_token(self, given: str | None) -> None:
        if self._token is None:
            raise NotAnswered(
                "refused",
                "this page only shows: it was started without a token. Start it with one, or use "
                "a terminal: waterspout kill, activate, deactivate, rebalance, dead-letters",
            )
        if not hmac.compare_digest((given or "").encode(), self._token.encode()):
            raise NotAnswered("refused", "give the token that the page was started with")

    async def _within(self, work: Callable[[], T]) -> T:
        """Do what waits for files or ZooKeeper on another thread; its errors are answers."""
        try:
            return await asyncio.to_thread(work)
        except CommandError as error:
            raise NotAnswered("refused", str(error)) from error
        except (WaterspoutError, OSError) as error:
            raise NotAnswered("failed", told(error)) from error

    def _batches(self, sight: Sight, limit: int) -> dict[str, Any]:
        with open_topology(self.name, self._conf) as store:
            return stored.batches(sight.ledger, store.batch, limit)

    def _letters(self, sight: Sight, component: str | None, limit: int) -> dict[str, Any]:
        with kept_letters(self.name, self._conf, is_trident=_is_trident(sight)) as found:
            return listing(found.all(), component, limit)

    def _replay(self, sight: Sight | None, body: Mapping[str, Any]) -> dict[str, Any]:
        ids, changes = body.get("ids"), body.get("set") or {}
        with kept_letters(self.name, self._conf, is_trident=_is_trident(sight)) as found:
            letters = found.chosen(None if ids is None else [str(id) for id in ids])
            texts = {str(name): str(text) for name, text in changes.items()}
            outcome = found.replay(letters, texts, skip=ids is None)
        return {"done": outcome.done, "text": outcome.text, "problem": outcome.problem}

    def _give(self, verb: Any, body: Mapping[str, Any]) -> dict[str, Any]:
        wait = body.get("wait_s")
        change = Change(body.get("pending"), body.get("workers"), body.get("parallelism") or {})
        try:
            change.check()
        except ValueError as error:
            raise NotAnswered("refused", str(error)) from error
        with open_topology(self.name, self._conf) as store:
            answer = ask(
                self.name,
                store,
                verb,
                wait_s=None if wait is None else float(wait),
                change=change,
                timeout_s=_ASK_S,
            )
        return {"outcome": "done", "text": answer.text, **answer.facts}


def _is_trident(sight: Sight | None) -> bool:
    return sight is not None and stored.kind_of(sight) == "trident"


def _why_not_told(path: str) -> str:
    """Say why something is not stored, and who tells it.

    >>> _why_not_told("states/counts/value")
    'states are opened by the code of the topology, which is not stored; from a terminal: \
waterspout state get FILE KEY'
    """
    end = path.rpartition("/")[2]
    if path.startswith("states/") and end in _TERMINAL:
        return f"{_NEEDS_CODE}; from a terminal: {_TERMINAL[end]}"
    return _ONLY_SERVED
