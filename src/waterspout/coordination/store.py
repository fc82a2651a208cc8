"""The coordination store: what survives the driver, and who may change it."""

from __future__ import annotations

import json
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waterspout import faults
from waterspout.coordination.commands.channel import CommandChannel
from waterspout.coordination.commands.messages import Wanted
from waterspout.coordination.graph_changes import Comparison, compare
from waterspout.coordination.lease import Holder
from waterspout.errors import ForeignStoreError, LeaseHeldError, LeaseLostError
from waterspout.transactional._ledger import Ledger, Metadata

__all__ = [
    "CoordinationStore",
    "MemoryCoordinationStore",
    "SharedMemory",
    "acquire_when_free",
    "grown",
    "refuse_changed_graph",
]

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 1.0


class CoordinationStore(ABC):
    """Keeps one topology's ledger under a lease with a fencing epoch.

    One driver at a time: `acquire` once, then `load`, then `save` before anyone acts on a
    change, `renew` from time to time, `release` at the end.
    """

    @property
    def folder(self) -> Path | None:
        """A folder on this machine that lives as long as the ledger, once the lease is taken.

        What goes with the ledger is kept in it, such as the list of the files that were read.
        None if there is no such folder.
        """
        return None

    @property
    def kept(self) -> MutableMapping[str, object]:
        """What goes with the ledger where there is no folder: it lives as long as the ledger."""
        return {}

    @abstractmethod
    def acquire(self, fingerprint: Mapping[str, Any], retire: Collection[str] = ()) -> int:
        """Take the lease and return its epoch, higher than any before.

        Refused with LeaseHeldError while another driver is alive. The fingerprint is stored at
        the first run and compared at each later one, with what is to be retired; what has changed
        is stored by whoever holds the lease then (`grown`).
        """

    @abstractmethod
    def peek(self) -> Ledger | None:
        """Return the ledger without taking the lease or creating anything; None if none."""

    @abstractmethod
    def refuse_if_held(self) -> None:
        """Raise LeaseHeldError if another driver is plainly at work; writes nothing.

        Passing is no promise: `acquire` decides.
        """

    @abstractmethod
    def load(self) -> Ledger:
        """Return the ledger as last saved; a damaged one is an error, never a new one."""

    @abstractmethod
    def save(self, ledger: Ledger) -> None:
        """Store the ledger durably, all or nothing; LeaseLostError if the epoch has moved."""

    @abstractmethod
    def note(self, ledger: Ledger) -> None:
        """Keep that the last batch is settled, until the next `save` stores it with the rest.

        At next to no cost: it must survive this process, but not a power cut.
        """

    def batch(self, txid: int) -> tuple[int, Metadata] | None:
        """Return the attempt and the metadata of a committed batch, if it is still known."""
        ledger = self.peek()
        if ledger is None:
            return None
        if txid == ledger.current - 1 and ledger.committed_attempt is not None:
            return ledger.committed_attempt, ledger.committed_metadata or {}
        if txid == ledger.current - 2 and ledger.earlier_attempt is not None:
            return ledger.earlier_attempt, ledger.earlier_metadata or {}
        return None

    @property
    def channel(self) -> CommandChannel | None:
        """How commands from other terminals reach the driver; None if they cannot."""
        return None

    def holder(self) -> Holder | None:
        """Return who has the topology, as seen from here; None if it has never run."""
        return None

    def wanted(self) -> Wanted:
        """Return what commands have left for this run and later ones."""
        return Wanted()

    @abstractmethod
    def want(self, wanted: Wanted) -> None:
        """Store that durably; LeaseLostError if the epoch has moved."""

    @contextmanager
    def visiting(self) -> Iterator[None]:
        """Stay connected for a while, without the lease."""
        yield

    @abstractmethod
    def renew(self) -> None:
        """Keep the lease; LeaseLostError if another driver has it."""

    @abstractmethod
    def release(self) -> None:
        """Give the lease up; never raises."""


def acquire_when_free(
    store: CoordinationStore,
    fingerprint: Mapping[str, Any],
    retire: Collection[str] = (),
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Take the lease; wait for that of a driver that may be gone with its machine.

    After such a driver's machine was started anew, or its pod was moved, only the silence of its
    lease shows that it is gone. A driver that is seen at work is refused at once.
    """
    until: float | None = None
    while True:
        try:
            return store.acquire(fingerprint, retire)
        except LeaseHeldError as held:
            if held.wait_s is None:
                raise
            if until is None:
                # One look more than the lease lasts: it counts from the first.
                until = clock() + held.wait_s + _LOOK_AGAIN_S
                log.warning("waiting up to %g s, because %s", held.wait_s, held)
            if clock() >= until:
                raise
            pause(_LOOK_AGAIN_S)


def refuse_changed_graph(
    ledger: Ledger, given: Mapping[str, Any], retire: Collection[str] = ()
) -> Comparison:
    """Compare the graph of the code with the stored one; refuse what the ledger cannot follow."""
    found = compare(ledger, given, retire)
    if not found.refused:
        return found
    reasons = " ".join(_sentence(str(change)) for change in found.refused)
    raise ForeignStoreError(
        f"topology {ledger.topology!r} has changed since its last run, and cannot go on so. "
        f"{reasons} Nothing was written. All changes at once: waterspout check "
        "--against-stored. A topology of another name begins anew, with states of its own."
    )


def grown(
    store: CoordinationStore, given: Mapping[str, Any], retire: Collection[str] = ()
) -> tuple[Ledger, Comparison]:
    """Return the ledger with the graph of the code in it, stored, and what has changed.

    For who holds the lease, before anything of the changed topology is planned or written.
    """
    ledger = store.load()
    found = refuse_changed_graph(ledger, given, retire)
    if found.graph == ledger.fingerprint:
        return ledger, found
    for change in found.changes:
        log.warning("%s: %s", ledger.topology, change)
    faults.point("graph.before")
    ledger = ledger.grow(found.graph)
    store.save(ledger)
    faults.point("graph.after")
    return ledger, found


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


@dataclass(slots=True)
class SharedMemory:
    """What several drivers of one process share: a ledger's JSON, and the newest epoch.

    `kept` is what spouts have put beside the ledger.
    """

    document: str | None = None
    epoch: int = 0
    held: bool = False
    wanted: Wanted = field(default_factory=Wanted)
    kept: dict[str, object] = field(default_factory=dict)


class MemoryCoordinationStore(CoordinationStore):
    """A ledger in this process, for topologies whose states end with the process too."""

    def __init__(self, topology: str, shared: SharedMemory | None = None) -> None:
        self._topology = topology
        self._shared = SharedMemory() if shared is None else shared
        self._epoch = 0

    @property
    def kept(self) -> MutableMapping[str, object]:
        return self._shared.kept

    def wanted(self) -> Wanted:
        return self._shared.wanted

    def want(self, wanted: Wanted) -> None:
        self._shared.wanted = wanted

    def peek(self) -> Ledger | None:
        text = self._shared.document
        return None if text is None else Ledger.from_json(json.loads(text))

    def acquire(self, fingerprint: Mapping[str, Any], retire: Collection[str] = ()) -> int:
        """Take the lease; an earlier holder in this process loses it."""
        if self._shared.document is None:
            self._shared.document = json.dumps(
                Ledger(self._topology, fingerprint, uuid.uuid4().hex).to_json()
            )
        refuse_changed_graph(self.load(), fingerprint, retire)
        self._shared.epoch += 1
        self._epoch = self._shared.epoch
        self._shared.held = True
        return self._epoch

    def refuse_if_held(self) -> None:
        if self._shared.held:
            raise LeaseHeldError(
                f"topology {self._topology!r} already runs in this process; stop that run first"
            )

    def load(self) -> Ledger:
        ledger = self.peek()
        assert ledger is not None, "load before acquire"
        return ledger

    def save(self, ledger: Ledger) -> None:
        self._keep(ledger)

    def note(self, ledger: Ledger) -> None:
        self._keep(ledger)

    def _keep(self, ledger: Ledger) -> None:
        self.renew()
        self._shared.document = json.dumps(ledger.to_json())

    def renew(self) -> None:
        if self._epoch != self._shared.epoch:
            raise LeaseLostError(
                f"topology {self._topology!r} was taken over (epoch {self._shared.epoch}, ours was "
                f"{self._epoch})"
            )

    def release(self) -> None:
        """Note that this driver is gone; a crash leaves that to the next one's `acquire`."""
        if self._epoch == self._shared.epoch:
            self._shared.held = False
