"""Commands at a run: they are taken, obeyed between two steps of the loop, and answered.

A thread of its own talks to the channel, so that no batch and no wave waits for it: it takes
requests, delivers answers, and tells now and then how the run stands. The thread that drives the
loop decides (`obedience.py`) and carries out.
"""

from __future__ import annotations

import getpass
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from waterspout._addresses import masked
from waterspout._config import Config
from waterspout._safe_repr import described
from waterspout.coordination.commands.channel import CommandChannel
from waterspout.coordination.commands.messages import Reply, Request, to_json
from waterspout.coordination.commands.obedience import (
    Alter,
    End,
    KeepWanted,
    Obedience,
    SetActive,
    Step,
    Tell,
)
from waterspout.coordination.driven import DrivenLoop
from waterspout.coordination.events import CommandObeyed
from waterspout.coordination.lease import Process, this_process
from waterspout.coordination.progress import RunSnapshot
from waterspout.coordination.store import CoordinationStore
from waterspout.errors import LeaseLostError, OutsideError, WaterspoutError

__all__ = ["CommandDesk", "who_asks"]

log = logging.getLogger(__name__)

_LOOK_S = 0.25
_PUBLISH_S = 1.0
_PUBLISH_AT_LEAST_S = 5.0
_ERRORS_MAX = 5
_TEXT_MAX = 500
_JOIN_S = 2.0


class CommandDesk:
    """The commands of one run. `begin` before the loop's first step, `turn` after each."""

    def __init__(
        self,
        loop: DrivenLoop,
        store: CoordinationStore,
        channel: CommandChannel,
        config: Config,
        snapshot: Callable[[], RunSnapshot],
    ) -> None:
        self._loop = loop
        self._store = store
        self._channel = channel
        self._snapshot = snapshot
        holder = store.holder()
        assert holder is not None, "the lease is taken before"
        self._epoch = holder.epoch
        wait_s = config.message_timeout_secs
        self._obedience = Obedience(self._epoch, store.wanted(), wait_s=wait_s)
        self._about = _about(self._epoch)
        self._inbox: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._published: tuple[float, dict[str, Any]] = (float("-inf"), {})
        self._stir = threading.Event()
        self._stopping = False
        self._told = ""
        self._thread = threading.Thread(
            target=self._attend, name=f"waterspout-commands-{loop.name}", daemon=True
        )

    def begin(self) -> None:
        """Start as commands to earlier runs have left it, and listen."""
        wanted, name = self._obedience.wanted, self._loop.name
        since = f"by {wanted.by} at {time.strftime('%F %T', time.localtime(wanted.at))}"
        if wanted.change:
            try:
                self._loop.check_change(wanted.change)
                self._loop.change(wanted.change)
                log.warning("%s starts as it was rebalanced %s: %s", name, since, wanted.change)
            except WaterspoutError as error:
                text = "%s was rebalanced %s (%s), which does not fit it any more: %s"
                log.warning(text, name, since, wanted.change, error)
        if not wanted.active:
            self._loop.active = False
            log.warning(
                "%s starts inactive: it was deactivated %s. To let it go on: waterspout activate "
                "%s",
                *(name, since, name),
            )
        self._thread.start()

    def tell(self, **about: Any) -> None:
        """Tell other terminals this as well, from now on."""
        self._about = {**self._about, **about}
        self._published = (float("-inf"), {})

    def turn(self) -> bool:
        """Do what is due; return whether the run is to end. Called between two steps."""
        obedience = self._obedience
        ends = False
        if obedience.is_waiting:
            now, standing = time.monotonic(), self._loop.standing()
            ends = self._carry_out(obedience.turn(now, time.time(), standing))
        while not ends and not self._inbox.empty():
            ends = self._carry_out(self._hear(self._inbox.get()))
        return ends

    def end(self, status: str, error: BaseException | None) -> None:
        """Reply what is left and tell how the run has ended; before the lease is given up."""
        self._stopping = True
        self._stir.set()
        self._thread.join(_JOIN_S)
        if isinstance(error, LeaseLostError) or self._thread.is_alive():
            return  # another driver tells now; or nobody can be told anything
        self.tell(server_url=None)  # it ends with the run
        why = None if error is None else described(error, _TEXT_MAX)
        self._carry_out(self._obedience.ended(why, time.time(), self._loop.standing()))
        self._reach(lambda: self._talk(replace(self._snapshot(), status=status), at_once=True))

    def _hear(self, request: Request) -> list[Step]:
        if request.verb == "rebalance" and request.epoch == self._epoch:
            try:
                self._loop.check_change(request.change)
            except WaterspoutError as error:
                return [Tell(request, Reply(request.id, "refused", str(error), time.time()))]
        return self._obedience.hear(request, time.monotonic(), time.time())

    def _carry_out(self, steps: list[Step]) -> bool:
        ends, unkept = False, ""
        for step in steps:
            match step:
                case SetActive(active):
                    self._loop.active = active
                    self._loop.wake()
                case KeepWanted(wanted):
                    try:
                        self._store.want(wanted)
                    except LeaseLostError:
                        raise
                    except OutsideError as error:
                        unkept = f" (but not kept for its next run: {error})"
                case Alter(request):
                    return self._carry_out(self._alter(request))
                case End():
                    ends = True
                case Tell(request, answer):
                    self._tell(request, replace(answer, text=answer.text + unkept))
        return ends

    def _alter(self, request: Request) -> list[Step]:
        problem = None
        try:
            self._loop.change(request.change)
        except WaterspoutError as error:
            problem = str(error)
        return self._obedience.altered(problem, time.time(), self._loop.standing())

    def _tell(self, request: Request, answer: Reply) -> None:
        log.info("%s by %s: %s, %s", request.verb, request.by, answer.outcome, answer.text)
        name, masked_text = self._loop.name, masked(answer.text)
        self._loop.events.publish(
            CommandObeyed(name, request.verb, request.by, answer.outcome, masked_text)
        )
        self._outbox.put(replace(answer, text=masked_text))
        self._stir.set()

    def _attend(self) -> None:
        self._reach(self._channel.forget_answers)
        while not self._stopping:
            self._reach(lambda: self._talk(self._snapshot()))
            self._stir.wait(_LOOK_S)
            self._stir.clear()

    def _talk(self, snapshot: RunSnapshot, *, at_once: bool = False) -> None:
        """Take what is asked, deliver what is answered, and tell how the run stands, if due."""
        while not self._outbox.empty():
            answer = self._outbox.get()
            try:
                self._channel.answer(answer)
            except OutsideError:
                self._outbox.put(answer)
                raise
        for id in [] if at_once else self._channel.requests():
            request = self._channel.take(id)
            if request is not None:
                self._inbox.put(request)
                self._loop.wake()
        self._publish(snapshot, at_once)

    def _publish(self, snapshot: RunSnapshot, at_once: bool) -> None:
        now, (at, before) = time.monotonic(), self._published
        if now < at + _PUBLISH_S and not at_once:
            return
        told = _plain(asdict(snapshot))
        told["errors"] = [{**e, "traceback": ""} for e in told["errors"][-_ERRORS_MAX:]]
        same = {**told, "timestamp": 0} == {**before, "timestamp": 0}
        if at_once or not same or now >= at + _PUBLISH_AT_LEAST_S:
            wanted = to_json(self._obedience.wanted)
            self._channel.publish({**self._about, "wanted": wanted, "snapshot": told})
            self._published = now, told

    def _reach(self, talk: Callable[[], None]) -> None:
        """Talk to the channel; that it cannot be reached is logged once, and harms nobody."""
        try:
            talk()
            self._told = ""
        except Exception as error:
            text = str(error)
            if text != self._told:
                self._told = text
                log.warning("commands do not reach %s at the moment: %s", self._loop.name, text)


def who_asks(process: Process | None = None) -> str:
    """Return who this process belongs to, for people."""
    process = process or this_process()
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may know no name for its user
        user = "?"
    return f"{user}@{process.host}"


def _about(epoch: int) -> dict[str, Any]:
    me = this_process()
    driver = {"pid": me.pid, "host": me.host, "user": who_asks(me).partition("@")[0]}
    return {"epoch": epoch, "started": time.time(), "driver": driver, "server_url": None}


def _plain(value: Any) -> Any:
    """Return what JSON can hold, in short texts without secrets."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    text = masked(str(value))
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}..."
