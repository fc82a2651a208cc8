"""The coordination store in ZooKeeper, for a driver that may come back on another machine.

    <root>/<topology>               who took the lease last, and under which epoch
    <root>/<topology>/ledger        the whole ledger, one record
    <root>/<topology>/settled       the last batch that all states know of, until the ledger says so
    <root>/<topology>/lease-<name>  ephemeral: there as long as the holder's session is
    <root>/<topology>/wanted        what commands have left for later runs

A lease has a random name that is used once, and the topology's node says which name counts. So
a lease that is gone never comes back, and one transaction takes it: set the topology's node if
its version is still the one that was judged, and create the new ephemeral node. One transaction
saves: check the version of the topology's node, check that the lease is there, set the ledger if
its version is ours. ZooKeeper carries it out as a whole or not at all, so whoever lost its
session, or was taken over, changes nothing.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waterspout._schema import check_topology_id
from waterspout._tls import TLS
from waterspout.coordination.commands.messages import Wanted, from_json, to_json
from waterspout.coordination.commands.zookeeper import ZooKeeperChannel
from waterspout.coordination.lease import Holder, this_process
from waterspout.coordination.store import CoordinationStore, refuse_changed_graph
from waterspout.coordination.zookeeper_records import (
    REMEDY,
    Home,
    Owner,
    is_seen_dead,
    pack,
    unpack,
)
from waterspout.coordination.zookeeper_session import (
    Address,
    Session,
    StoredNode,
    Unanswered,
    check_root,
    require_library,
)
from waterspout.errors import (
    DamagedStoreError,
    ForeignStoreError,
    LeaseHeldError,
    LeaseLostError,
    StoreError,
)
from waterspout.transactional._ledger import Ledger

__all__ = ["ZooKeeperStore", "topologies"]

# ZooKeeper refuses packets above 1,048,575 bytes (jute.maxbuffer); the rest is for the paths.
_LEDGER_BYTES_MAX = 1_000_000


class ZooKeeperStore(CoordinationStore):
    """The ledger and the lease of one topology in ZooKeeper.

    Args:
        servers: Host names, each with a port of its own (`host:port`) or without.
        topology: The id of the topology.
        port: The port of servers that are given without.
        root: The node under which topologies are kept; it is created where it is not there.
        auth: `user:password` of ZooKeeper's digest scheme, best as `${NAME}` from the
            environment. What is created is then for this user alone. None: for anyone.
        tls: Encrypt, and check the servers' certificates; None: neither.
        acl: Who else may use what is created, as `scheme:id:permissions` of zkCli.
        session_s: How long a driver that is not heard of keeps its lease. The server may bind
            it: by default to between 2 and 20 of its ticks, 4 to 40 s.
        connect_s: How long a first connection may take.
        operation_s: How long an operation waits for a connection that was lost.
        folder: A folder of this machine that the topology depends on as well: a driver without
            the one that the last driver used is refused. None: any machine will do.
    """

    def __init__(
        self,
        servers: Sequence[str],
        topology: str,
        *,
        port: int = 2181,
        root: str = "/transactional",
        auth: str | None = None,
        tls: TLS | None = None,
        acl: Sequence[str] = (),
        session_s: float = 10.0,
        connect_s: float = 10.0,
        operation_s: float = 30.0,
        folder: Path | None = None,
    ) -> None:
        require_library()
        self._topology = check_topology_id(topology)
        self._path = check_root(root, topology)
        waits = session_s, connect_s, operation_s
        self._address = Address(servers, port, *waits, auth, tls, acl)
        self._home = None if folder is None else Home(folder)
        self._session: Session | None = None
        self._visitors = 0
        self._held: _Held | None = None
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"ZooKeeperStore({self._address.hosts}{self._path})"

    @property
    def folder(self) -> Path | None:
        """The local folder that goes with the topology, if there is one."""
        return None if self._home is None else self._home.folder

    def acquire(self, fingerprint: Mapping[str, Any], retire: Collection[str] = ()) -> int:
        """Create the nodes at the first run; take the lease if no session holds it."""
        with self._connected() as session:
            session.catch_up(self._path)
            deadline = time.monotonic() + self._address.operation_s
            tried: set[str] = set()
            # Not for ever: each round but the last was beaten by a rival or lost its answer.
            while True:
                found = self._read(session)
                held = self._if_taken_by(found, tried)
                if held is not None:
                    self._held = held
                    if self._home is not None:
                        self._home.forget_all_but(held.lease)
                    return held.epoch
                if time.monotonic() > deadline:
                    session.give_up(self._path)
                self._refuse_to_take(found, fingerprint, retire)
                tried.add(self._try_to_take(session, found, fingerprint))

    def peek(self) -> Ledger | None:
        with self._connected() as session:
            session.catch_up(self._path)
            found = self._read(session)
            return None if found.owner is None else self._checked_ledger(found)

    def refuse_if_held(self) -> None:
        """Look whether a session holds the lease, and for the folder; `acquire` judges."""
        with self._connected() as session:
            found = self._read(session)
            self._refuse_living(found)
            self._refuse_elsewhere(found)

    def load(self) -> Ledger:
        with self._connected() as session:
            found = self._read(session)
            if found.owner is None:
                raise DamagedStoreError(f"{self._path} is not there; {REMEDY}")
            return self._checked_ledger(found)

    def save(self, ledger: Ledger) -> None:
        data = pack("ledger", ledger.to_json())
        self._refuse_too_large(data)
        with self._as_holder() as (session, held):
            deadline = time.monotonic() + self._address.operation_s
            while not self._try_to_save(session, held, data):
                # Neither stored nor refused: the request was lost on its way.
                if time.monotonic() > deadline:
                    session.give_up(self._path)

    def note(self, ledger: Ledger) -> None:
        """Send it, and do not wait for the answer: one request, into the node that is there."""
        with self._as_holder() as (session, _):
            session.send(self._settled_path, pack("settled", _named(ledger)))

    @property
    def channel(self) -> ZooKeeperChannel:
        return ZooKeeperChannel(self._path, self._lent)

    def holder(self) -> Holder | None:
        """Look at the lease; of one that is gone it cannot be told whether it was given up."""
        with self._connected() as session:
            found = self._read(session)
        owner = found.owner
        if owner is None:
            return None
        if found.lease is None:
            return Holder(owner.epoch, owner.holder, "free")
        return Holder(owner.epoch, owner.holder, "dead" if is_seen_dead(owner.holder) else "held")

    def wanted(self) -> Wanted:
        path = self._wanted_path
        with self._connected() as session:
            found = session.get(path)
        return Wanted() if found is None else from_json(Wanted, unpack("wanted", found.data, path))

    def want(self, wanted: Wanted) -> None:
        path, data = self._wanted_path, pack("wanted", to_json(wanted))
        with self._as_holder() as (session, held):
            deadline = time.monotonic() + self._address.operation_s
            while True:
                is_there = session.get(path) is not None

                def build(transaction: Any, is_there: bool = is_there) -> None:
                    self._check(transaction, held)
                    (transaction.set_data if is_there else transaction.create)(path, data)

                # Once more, after an answer was lost, changes nothing.
                with suppress(Unanswered):
                    if session.transact(path, build) is not None:
                        return
                self._refuse_if_lost(self._read(session), held)
                if time.monotonic() > deadline:
                    session.give_up(path)

    @contextmanager
    def visiting(self) -> Iterator[None]:
        with self._lent():
            yield

    def renew(self) -> None:
        """Check the lease; the client itself keeps the session alive."""
        with self._as_holder() as (session, held):
            deadline = time.monotonic() + self._address.operation_s
            while True:
                try:
                    if session.transact(self._path, lambda t: self._check(t, held)) is not None:
                        return
                except Unanswered:
                    pass  # it would have changed nothing: ask again
                self._refuse_if_lost(self._read(session), held)
                if time.monotonic() > deadline:
                    session.give_up(self._path)

    def release(self) -> None:
        """End the session, and the lease with it."""
        with self._lock:
            self._held = None
            self._close()

    def _if_taken_by(self, found: _Found, tried: set[str]) -> _Held | None:
        """Return the lease if one of our tries has got it; a lost answer may have hidden that."""
        owner, lease = found.owner, found.lease
        if owner is None or lease is None or owner.lease not in tried:
            return None
        assert found.node is not None
        ledger = found.ledger_version
        return _Held(owner.epoch, owner.lease, found.node.version, ledger, lease.session_id)

    def _refuse_to_take(
        self, found: _Found, fingerprint: Mapping[str, Any], retire: Collection[str]
    ) -> None:
        if found.owner is None:
            return
        ledger = self._checked_ledger(found)
        self._refuse_living(found)
        refuse_changed_graph(ledger, fingerprint, retire)
        self._refuse_elsewhere(found)

    def _refuse_living(self, found: _Found) -> None:
        owner = found.owner
        if owner is None or found.lease is None or is_seen_dead(owner.holder):
            return
        raise LeaseHeldError(
            f"topology {self._topology!r} is taken: {owner.who} runs it now ({self._path} in "
            f"ZooKeeper). Stop that one first; if it is gone, its session runs out after "
            f"{owner.session_s:g} s.",
            wait_s=owner.session_s if owner.holder.is_alive() is None else None,
        )

    def _refuse_elsewhere(self, found: _Found) -> None:
        if self._home is None or found.owner is None:
            return
        # What the last committed batch and those after it hold is in the ledger itself.
        if self._checked_ledger(found).current > 2:
            self._home.refuse_unless_complete(found.owner)

    def _try_to_take(self, session: Session, found: _Found, fingerprint: Mapping[str, Any]) -> str:
        """Try once, if everything is still as it was found; return the name of the lease."""
        before = found.owner
        epoch = 1 if before is None else before.epoch + 1
        lease = uuid.uuid4().hex
        owner = Owner(self._topology, epoch, lease, this_process(), self._address.session_s)
        record = owner.to_bytes()
        fresh = Ledger(self._topology, fingerprint, uuid.uuid4().hex)

        def build(transaction: Any) -> None:
            if found.node is None:
                transaction.create(self._path, record)
            else:
                transaction.set_data(self._path, record, found.node.version)
            if before is None:
                transaction.create(self._ledger_path, pack("ledger", fresh.to_json()))
            else:
                transaction.check(self._ledger_path, found.ledger_version)
                if found.lease is not None:
                    transaction.delete(self._lease_path(before.lease))
            if found.settled is None:
                transaction.create(self._settled_path, pack("settled", {}))
            transaction.create(self._lease_path(lease), record, ephemeral=True)

        if self._home is not None:
            self._home.note(lease)
        if found.node is None:
            session.make_path(self._path.rpartition("/")[0])
        # Whether it was carried out is seen by looking, as in any other case.
        with suppress(Unanswered):
            session.transact(self._path, build)
        return lease

    def _check(self, transaction: Any, held: _Held) -> None:
        """Add the conditions under which the lease is ours."""
        transaction.check(self._path, held.version)
        transaction.check(self._lease_path(held.lease), 0)

    def _try_to_save(self, session: Session, held: _Held, data: bytes) -> bool:
        """Send the ledger once; False if it was certainly not stored, but may be sent again."""

        def build(transaction: Any) -> None:
            self._check(transaction, held)
            transaction.set_data(self._ledger_path, data, held.ledger_version)

        try:
            results = session.transact(self._path, build)
        except Unanswered:
            if data not in held.unanswered:
                held.unanswered.append(data)
        else:
            if results is not None:
                held.ledger_version = results[-1].version
                held.unanswered.clear()
                return True
        found = self._read(session)
        self._refuse_if_lost(found, held)
        if found.ledger is not None and found.ledger.data in held.unanswered:
            # Ours: what looked like a rival's write is one whose answer was lost.
            held.ledger_version = found.ledger.version
        elif found.ledger_version != held.ledger_version:
            raise ForeignStoreError(
                f"{self._ledger_path} was changed by something that does not hold the topology "
                f"(version {found.ledger_version}, ours was {held.ledger_version}); {REMEDY}"
            )
        stored = found.ledger is not None and found.ledger.data == data
        if stored:
            held.unanswered.clear()
        return stored

    def _refuse_if_lost(self, found: _Found, held: _Held) -> None:
        owner = found.owner
        if owner is None:
            raise DamagedStoreError(
                f"{self._path} was removed or replaced while this driver held it; {REMEDY}"
            )
        if owner.lease != held.lease:
            raise LeaseLostError(
                f"topology {self._topology!r} was taken over by {owner.who} (epoch {owner.epoch}, "
                f"ours was {held.epoch}). This driver writes nothing any more."
            )
        if found.lease is None:
            raise self._session_ended()

    def _session_ended(self) -> LeaseLostError:
        return LeaseLostError(
            f"topology {self._topology!r} is not held by this driver any more: ZooKeeper did not "
            f"hear from it for its session's {self._address.session_s:g} s, or the lease was "
            "deleted. It writes nothing any more; run it again."
        )

    def _read(self, session: Session) -> _Found:
        """Read what there is, in an order in which nothing can be missed."""
        node = session.get(self._path)
        if node is None or (not node.data and not session.children(self._path)):
            # Not there, or prepared by whoever looks after the ZooKeeper.
            return _Found(node)
        owner = Owner.from_bytes(node.data, self._path)
        if owner.topology != self._topology:
            raise ForeignStoreError(
                f"{self._path} belongs to topology {owner.topology!r}, not {self._topology!r}"
            )
        # After its name was read: a lease that is not there now will never be there.
        lease = session.get(self._lease_path(owner.lease))
        settled = session.get(self._settled_path)
        return _Found(node, owner, lease, session.get(self._ledger_path), settled)

    def _checked_ledger(self, found: _Found) -> Ledger:
        path = self._ledger_path
        if found.ledger is None:
            raise DamagedStoreError(f"there is no ledger in {path}; {REMEDY}")
        try:
            ledger = Ledger.from_json(unpack("ledger", found.ledger.data, path))
        except ForeignStoreError as error:
            raise DamagedStoreError(f"{path} holds something else; {REMEDY}") from error
        if ledger.topology != self._topology:
            raise ForeignStoreError(
                f"{path} belongs to topology {ledger.topology!r}, not {self._topology!r}"
            )
        if found.settled is not None and ledger.committed_attempt is not None:
            noted = unpack("settled", found.settled.data, self._settled_path)
            return ledger.settle() if noted == _named(ledger) else ledger
        return ledger

    def _refuse_too_large(self, data: bytes) -> None:
        if len(data) > _LEDGER_BYTES_MAX:
            raise StoreError(
                f"the ledger of topology {self._topology!r} takes {len(data):,} bytes, compressed, "
                f"and ZooKeeper keeps {_LEDGER_BYTES_MAX:,} at most. Nothing was stored. Put less "
                "into a batch (FileSpout(max_files=...)) or have fewer in flight "
                "(topology.max.spout.pending)."
            )

    @property
    def _ledger_path(self) -> str:
        return f"{self._path}/ledger"

    @property
    def _settled_path(self) -> str:
        return f"{self._path}/settled"

    @property
    def _wanted_path(self) -> str:
        return f"{self._path}/wanted"

    def _lease_path(self, name: str) -> str:
        return f"{self._path}/lease-{name}"

    @contextmanager
    def _as_holder(self) -> Iterator[tuple[Session, _Held]]:
        with self._lock:
            if self._held is None or self._session is None:
                # A late renewal, after the release: it must not connect again.
                raise LeaseLostError(f"topology {self._topology!r} is not held by this driver")
            if self._session.session_id not in (None, self._held.session_id):
                raise self._session_ended()
            yield self._session, self._held

    @contextmanager
    def _connected(self) -> Iterator[Session]:
        with self._lock:
            if self._session is None:
                self._session = Session(self._address)
            try:
                yield self._session
            finally:
                self._close_if_done()

    @contextmanager
    def _lent(self) -> Iterator[Session]:
        """Lend the session out without the lock: whoever saves does not wait for who looks."""
        with self._lock:
            if self._session is None:
                self._session = Session(self._address)
            session = self._session
            self._visitors += 1
        try:
            yield session
        finally:
            with self._lock:
                self._visitors -= 1
                self._close_if_done()

    def _close_if_done(self) -> None:
        if self._held is None and not self._visitors:
            self._close()

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def topologies(address: Address, root: str) -> list[str]:
    """Return the names of what is kept under a root."""
    session = Session(address)
    try:
        return session.children(root)
    finally:
        session.close()


@dataclass(slots=True)
class _Held:
    """Our lease: the versions under which it is ours, and writes that were never answered."""

    epoch: int
    lease: str
    version: int
    ledger_version: int
    session_id: int
    unanswered: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Found:
    """What was read of a topology: its node, and what that leads to."""

    node: StoredNode | None
    owner: Owner | None = None
    lease: StoredNode | None = None
    ledger: StoredNode | None = None
    settled: StoredNode | None = None

    @property
    def ledger_version(self) -> int:
        """The version of the ledger; one that no node has if there is none."""
        return -2 if self.ledger is None else self.ledger.version


def _named(ledger: Ledger) -> dict[str, Any]:
    """Name the last committed batch, and its attempt, as no other ledger has it."""
    return {
        "history": ledger.history,
        "txid": ledger.current - 1,
        "attempt": ledger.committed_attempt,
    }
