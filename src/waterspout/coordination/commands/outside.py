"""What can be seen and asked of a run from outside its process."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from waterspout._config import Config
from waterspout.coordination.commands.channel import CommandChannel
from waterspout.coordination.commands.desk import who_asks
from waterspout.coordination.commands.messages import Change, Reply, Request, Verb, Wanted
from waterspout.coordination.factory import coordination_store, known_topologies
from waterspout.coordination.lease import Holder
from waterspout.coordination.store import CoordinationStore
from waterspout.errors import BuildError, CommandError, ConfigError, ForeignStoreError, StoreError
from waterspout.transactional._ledger import Ledger

__all__ = ["Sight", "ask", "looked_at", "open_topology", "seen", "status_of"]

_LOOK_S = 0.1
_ENDED = ("stopped", "failed")


@dataclass(frozen=True, slots=True)
class Sight:
    """What is to be seen of a topology: who has it, how its run stands, what is stored."""

    name: str
    holder: Holder | None = None
    published: Mapping[str, Any] = field(default_factory=dict)
    ledger: Ledger | None = None
    wanted: Wanted = field(default_factory=Wanted)
    problem: str = ""
    """Why it cannot be looked at."""

    @property
    def snapshot(self) -> Mapping[str, Any]:
        """What the run that holds it, or the last one, told of itself last."""
        found = self.published.get("snapshot")
        return found if isinstance(found, Mapping) and self._is_of_holder else {}

    @property
    def _is_of_holder(self) -> bool:
        # A driver that was taken over may tell once more, before it knows.
        return self.holder is not None and self.published.get("epoch") == self.holder.epoch

    @property
    def driver(self) -> str:
        """Who runs it, or ran it last."""
        process = None if self.holder is None else self.holder.process
        if process is not None:
            return f"process {process.pid} on {process.host}"
        told = self.published.get("driver") if self._is_of_holder else None
        return f"process {told['pid']} on {told['host']}" if isinstance(told, dict) else ""

    @property
    def status(self) -> str:
        """Its status: that of a run, or dead, silent, damaged."""
        return "damaged" if self.problem else status_of(self.holder, self.snapshot)


def status_of(holder: Holder | None, snapshot: Mapping[str, Any]) -> str:
    """Return the status of a topology, given who has it and what that run told last."""
    told = str(snapshot.get("status", ""))
    if holder is None:
        return "never run"
    if holder.state == "held":
        return told if told and told not in _ENDED else "starting"
    if holder.state == "free":
        # A lease in ZooKeeper is gone with its session, whether it was given up or not.
        return told if told in _ENDED or not told else "dead"
    return holder.state


@contextmanager
def open_topology(name: str, conf: Config) -> Iterator[CoordinationStore]:
    """Open the store of a topology that has run; refuse a name that is not known."""
    known = known_topologies(conf)
    if name not in known:
        where = f"the waterspout home {conf.home_path().absolute()}"
        if conf.zookeeper_servers is not None:
            where = f"ZooKeeper under {conf.zookeeper_root}"
        has = f"it has {', '.join(known)}" if known else "nothing has run there"
        raise ConfigError(
            f"there is no topology {name!r} in {where}; {has}. Another home is named by --home or "
            "WATERSPOUT_HOME, a ZooKeeper by --config or -c"
        )
    with _opened(name, conf) as store:
        yield store


@contextmanager
def _opened(name: str, conf: Config) -> Iterator[CoordinationStore]:
    store = coordination_store(name, conf)
    try:
        with store.visiting():
            yield store
    finally:
        store.release()


def looked_at(conf: Config) -> list[Sight]:
    """Look at all topologies of a home or a ZooKeeper; those of others are left out."""
    found = []
    for name in known_topologies(conf):
        try:
            with _opened(name, conf) as store:
                found.append(seen(name, store))
        except (ForeignStoreError, BuildError):
            continue  # something else is kept there
        except StoreError as error:
            found.append(Sight(name, problem=str(error)))
    return found


def seen(name: str, store: CoordinationStore) -> Sight:
    """Look at a topology."""
    published: dict[str, Any] = {}
    if store.channel is not None:
        published = store.channel.status() or {}
    return Sight(name, store.holder(), published, store.peek(), store.wanted())


def ask(
    name: str,
    store: CoordinationStore,
    verb: Verb,
    *,
    wait_s: float | None = None,
    change: Change | None = None,
    timeout_s: float = 60.0,
    told: Callable[[str], object] = lambda text: None,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Reply:
    """Give a command and wait until it is carried out; CommandError, with the reason, if it is not.

    `timeout_s` is how long the driver may be silent; what it was given to finish comes on top.
    `told` hears what happens meanwhile.
    """
    channel = store.channel
    assert channel is not None
    epoch = _living(name, store).epoch
    id = f"{time.time_ns():020d}-{uuid.uuid4().hex}"
    request = Request(id, verb, epoch, who_asks(), time.time(), wait_s, change or Change())
    channel.ask(request)
    try:
        answer = _await(name, store, channel, request, timeout_s, told, clock, pause)
    except BaseException:
        with suppress(Exception):
            channel.withdraw(id)
        raise
    if answer.outcome != "done":
        raise CommandError(answer.text)
    if verb == "kill":
        _await_release(store, epoch, clock() + timeout_s, clock, pause)
    return answer


def _await(
    name: str,
    store: CoordinationStore,
    channel: CommandChannel,
    request: Request,
    timeout_s: float,
    told: Callable[[str], object],
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> Reply:
    until, accepted = clock() + timeout_s, False
    while True:
        # Before the answer is looked for: a driver that ends leaves one behind.
        holder = store.holder()
        answer = channel.answer_to(request.id)
        if answer is not None and answer.is_final:
            return answer
        if answer is not None and not accepted:
            accepted = True
            told(answer.text)
            until = clock() + timeout_s + _given(answer, request)
        if holder is None or holder.epoch != request.epoch or holder.state != "held":
            raise CommandError(_lost(holder, request, accepted))
        if clock() >= until:
            if not accepted and channel.withdraw(request.id):
                raise CommandError(
                    f"its driver has not answered for {timeout_s:g} s; the command was "
                    "taken back. It may wait for a store or a source; its log says for which"
                )
            raise CommandError(
                f"its driver has taken the command and has not said for {timeout_s:g} s what came "
                f"of it; look at it again: waterspout show {name}"
            )
        pause(_LOOK_S)


def _given(answer: Reply, request: Request) -> float:
    """Return how long a run that has accepted a command may take for it."""
    found = answer.facts.get("within_s", request.wait_s)
    return float(found) if isinstance(found, int | float) else 0.0


def _living(name: str, store: CoordinationStore) -> Holder:
    """Return who runs a topology, or say that nobody does."""
    sight = seen(name, store)
    holder = sight.holder
    if holder is not None and holder.state == "held":
        return holder
    if holder is not None and holder.state == "silent":
        raise CommandError(
            f"its driver ({sight.driver}) has not renewed its lease: it is stopped, or hangs. Let "
            "it go on, or end that process; a new run takes over"
        )
    if sight.status == "dead":
        raise CommandError(f"it does not run: its driver ({sight.driver}) is dead")
    raise CommandError("it does not run")


def _lost(holder: Holder | None, request: Request, accepted: bool) -> str:
    if holder is not None and holder.epoch != request.epoch:
        return "another driver has taken over meanwhile; give the command again"
    states = {"dead": "died", "silent": "was stopped, or hangs,"}
    state = "ended" if holder is None else states.get(holder.state, "ended")
    done = "carried out what it had accepted" if accepted else "answered"
    return f"its driver {state} before it had {done}"


def _await_release(
    store: CoordinationStore,
    epoch: int,
    until: float,
    clock: Callable[[], float],
    pause: Callable[[float], None],
) -> None:
    """Wait until the lease is given up too, so that the next run can begin at once."""
    while clock() < until:
        holder = store.holder()
        if holder is None or holder.epoch != epoch or holder.state != "held":
            return
        pause(_LOOK_S)
