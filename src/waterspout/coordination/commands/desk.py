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
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from waterspout._addresses import masked
from waterspout._config import Config
from waterspout._safe_repr import described
from waterspout.coordination.commands.messages import Change, Reply, Request, Verb, to_json
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
from waterspout.errors import (
    CommandError,
    ConfigError,
    LeaseLostError,
    OutsideError,
    WaterspoutError,
)

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
        config: Config,
        snapshot: Callable[[], RunSnapshot],
    ) -> None:
        self._loop = loop
        self._store = store
        self._channel = store.channel  # None: only this process gives commands
        self._snapshot = snapshot
        holder = store.holder()
        assert holder is not None or self._channel is None, "the lease is taken before"
        self._epoch = 0 if holder is None else holder.epoch
        wait_s = config.message_timeout_secs
        self._obedience = Obedience(self._epoch, store.wanted(), wait_s=wait_s)
        self._about = _about(self._epoch)
        self._inbox: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._published: tuple[float, dict[str, Any]] = (float("-inf"), {})
        self._stir = threading.Event()
        self._stopping = self._ended = False
        self._told = ""
        self._here: dict[str, _Asked] = {}
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
        if self._channel is not None:
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
            request = self._inbox.get()
            asked = self._here.get(request.id)
            if asked is None or asked.take():
                ends = self._carry_out(self._hear(request))
            else:
                del self._here[request.id]  # it was taken back
        return ends

    def ask(
        self, verb: Verb, by: str, wait_s: float | None, change: Change, timeout_s: float
    ) -> Reply:
        """Give a command from this process; return its last reply within `timeout_s`.

        CommandError if it is refused, or was not looked at in that time: then it is taken back.
        """
        request = Request(uuid.uuid4().hex, verb, self._epoch, by, time.time(), wait_s, change)
        try:
            request.check()
        except ValueError as error:
            raise ConfigError(str(error)) from error
        # It stays there until the run has taken note that it was taken back, or has done it.
        asked = self._here[request.id] = _Asked()
        self._inbox.put(request)
        self._loop.wake()
        if self._ended:
            asked.told(_too_late(request.id))
        reply = asked.wait(timeout_s)
        if reply is None:
            raise CommandError(
                f"the run has not looked at the command for {timeout_s:g} s; it was taken back. It "
                "may wait for a store or a source: its status says for which"
            )
        if reply.outcome == "refused":
            raise CommandError(reply.text)
        return reply

    def end(self, status: str, error: BaseException | None) -> None:
        """Reply what is left and tell how the run has ended; before the lease is given up."""
        self._stopping = True
        self._stir.set()
        if self._channel is not None:
            self._thread.join(_JOIN_S)
        # Else another driver tells now; or nobody can be told anything.
        reachable = not (isinstance(error, LeaseLostError) or self._thread.is_alive())
        self.tell(server_url=None)  # it ends with the run
        if reachable and self._obedience.is_waiting:
            why = None if error is None else described(error, _TEXT_MAX)
            self._carry_out(self._obedience.ended(why, time.time(), self._loop.standing()))
        self._ended = True
        for id, asked in list(self._here.items()):
            asked.told(_too_late(id))
        if reachable:
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
        asked = self._here.get(request.id)
        if asked is not None:
            asked.told(replace(answer, text=masked_text))
            if answer.is_final:
                del self._here[request.id]
        elif self._channel is not None:
            self._outbox.put(replace(answer, text=masked_text))
            self._stir.set()

    def _attend(self) -> None:
        assert self._channel is not None
        self._reach(self._channel.forget_answers)
        while not self._stopping:
            self._reach(lambda: self._talk(self._snapshot()))
            self._stir.wait(_LOOK_S)
            self._stir.clear()

    def _talk(self, snapshot: RunSnapshot, *, at_once: bool = False) -> None:
        """Take what is asked, deliver what is answered, and tell how the run stands, if due."""
        if self._channel is None:
            return
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
            assert self._channel is not None
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


class _Asked:
    """A command of this process: asked, then taken by the run or back, and what it was told."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_taken = self._is_back = False
        self._reply: Reply | None = None

    def take(self) -> bool:
        """Let the run have it; False if it was taken back."""
        with self._changed:
            self._is_taken = not self._is_back
            return self._is_taken

    def told(self, reply: Reply) -> None:
        """Note what has become of it; what is final stays."""
        with self._changed:
            if self._reply is None or not self._reply.is_final:
                self._reply = reply
                self._changed.notify_all()

    def wait(self, timeout_s: float) -> Reply | None:
        """Return the final reply, or the last one in that time; None: it was taken back."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._reply is not None and self._reply.is_final, timeout_s
            )
            if self._reply is None and self._is_taken:
                return Reply("", "accepted", "the run has taken it", time.time())
            self._is_back = self._reply is None
            return self._reply


def _too_late(id: str) -> Reply:
    return Reply(id, "refused", "the run has ended", time.time())


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
