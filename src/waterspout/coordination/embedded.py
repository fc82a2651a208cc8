"""The embedded coordination store: one small SQLite file per topology, no server.

The whole ledger is one row, and so is the lease; each has a checksum over its content. A
rollback journal is used rather than a write-ahead log: with a log, losing one file would
silently bring back an older ledger.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from waterspout._own_files import (
    FileKind,
    check_kind,
    is_busy,
    open_private,
    private_folder,
    refuse_link,
    transaction,
)
from waterspout._schema import check_topology_id
from waterspout._serde import checksum
from waterspout.coordination.commands.channel import FolderChannel
from waterspout.coordination.commands.messages import Wanted, from_json, to_json
from waterspout.coordination.lease import (
    Holder,
    Lease,
    Process,
    boot_clock,
    may_take_over,
    this_process,
)
from waterspout.coordination.settled_note import SettledNote
from waterspout.coordination.stopped import HolderNote, end_if_stopped, is_stopped, writers_of
from waterspout.coordination.store import CoordinationStore, refuse_changed_graph
from waterspout.errors import (
    DamagedStoreError,
    ForeignStoreError,
    LeaseHeldError,
    LeaseLostError,
    OutageError,
    StoreError,
)
from waterspout.transactional._ledger import Ledger, Metadata

__all__ = ["COORDINATION_FILE", "EmbeddedStore"]

T = TypeVar("T")

_KIND = FileKind(
    holds="a waterspout coordination store",
    application_id=0x57535054,
    format=1,
    schema="CREATE TABLE records (name TEXT PRIMARY KEY, body TEXT, checksum TEXT) STRICT",
)
COORDINATION_FILE = "coordination.db"
_NOTE = "settled"
_WANTED = "wanted"
_HOLDER = "holder"
_BUSY_S = 10.0
_MEMORY_BATCHES = 1000
_MEMORY_BYTES = 16_000_000


class EmbeddedStore(CoordinationStore):
    """The ledger and the lease of one topology in `<home>/<topology>/coordination.db`."""

    def __init__(
        self,
        home: Path,
        topology: str,
        *,
        lease_s: float = 10.0,
        clock: Callable[[], float] = boot_clock,
        durable: bool = True,
    ) -> None:
        self._topology = check_topology_id(topology)
        self._folder = home.expanduser().absolute() / topology
        self._path = self._folder / COORDINATION_FILE
        self._lease_s = lease_s
        self._clock = clock
        self._durable = durable
        self._epoch: int | None = None
        self._held: tuple[int, int] | None = None
        self._db: sqlite3.Connection | None = None
        self._remembered: int | None = None
        self._settled = SettledNote(self.folder / _NOTE)
        self._holder = HolderNote(self.folder / _HOLDER)
        self._lock = threading.RLock()

    @property
    def folder(self) -> Path:
        return self._folder

    def acquire(self, fingerprint: Mapping[str, Any], retire: Collection[str] = ()) -> int:
        """Create the store at the first run; take the lease if nobody alive holds it."""
        with self._visit():
            if not self._path.exists():
                self._create(fingerprint)
            db = self._open()
            with transaction(db):
                epoch, refusal = self._take_lease(db, fingerprint, retire)
            if refusal is not None:
                raise refusal
            self._epoch, self._held = epoch, _identity(self._path)
            self._settled.clear()
            self._holder.write()
            return epoch

    def peek(self) -> Ledger | None:
        with self._visit():
            return self._read_ledger(self._open()) if self._path.exists() else None

    def refuse_if_held(self) -> None:
        """Look at the lease; of a holder that cannot be seen from here, `acquire` judges."""
        with self._visit():
            if not self._path.exists():
                return
            lease = self._read_lease(self._open())
        reason = may_take_over(lease, self._clock())
        if reason is not None and lease.holder is not None and lease.holder.is_alive():
            raise self._taken(lease, reason)

    def make_way(self) -> None:
        """End a driver that was stopped (SIGSTOP) in the middle of a write, after `lease_s`."""
        end_if_stopped(self._path, self._holder.read(), self._lease_s)

    def load(self) -> Ledger:
        with self._lock, self._errors():
            return self._read_ledger(self._open())

    def save(self, ledger: Ledger) -> None:
        def write(db: sqlite3.Connection, _: int) -> None:
            self._put_ledger(db, ledger)
            self._remember(db, ledger)

        self._as_holder(write)

    def note(self, ledger: Ledger) -> None:
        """Write it to a file of its own, without waiting for the disk."""
        with self._lock, self._errors():
            if self._epoch is None:
                raise LeaseLostError(f"topology {self._topology!r} is not held by this driver")
            self._settled.write(ledger)

    def batch(self, txid: int) -> tuple[int, Metadata] | None:
        """Look further back than the ledger does."""
        with self._visit():
            if not self._path.exists():
                return None
            db, name = self._open(), f"batch {txid}"
            if not self._has(db, name):
                return super().batch(txid)
            attempt, metadata = json.loads(self._get(db, name))
            return attempt, metadata

    @property
    def channel(self) -> FolderChannel:
        return FolderChannel(self._folder)

    def holder(self) -> Holder | None:
        with self._visit():
            if not self._path.exists():
                return None
            return Holder.of(self._read_lease(self._open()), self._clock())

    def wanted(self) -> Wanted:
        with self._visit():
            if not self._path.exists() or not self._has(self._open(), _WANTED):
                return Wanted()
            return from_json(Wanted, json.loads(self._get(self._open(), _WANTED)))

    def want(self, wanted: Wanted) -> None:
        self._as_holder(lambda db, _: self._put(db, _WANTED, json.dumps(to_json(wanted))))

    def renew(self) -> None:
        self._as_holder(lambda db, epoch: self._put_lease(db, self._lease(epoch, this_process())))

    def release(self) -> None:
        """Leave the lease without a holder, if it is still ours, and close the file."""
        with self._lock:
            # Where this fails, somebody else has it or the disk is gone: nothing to give up.
            with suppress(Exception):
                if self._epoch is not None:
                    self._as_holder(lambda db, epoch: self._put_lease(db, self._lease(epoch, None)))
            self._epoch = self._held = None
            with suppress(OSError):
                self._settled.close()
            with suppress(sqlite3.Error):
                self._close()

    def _as_holder(self, write: Callable[[sqlite3.Connection, int], None]) -> None:
        """Write in one transaction that also checks the epoch."""
        with self._lock, self._errors():
            if self._epoch is None:
                # A late renewal, after the release: it must not open the file again.
                raise LeaseLostError(f"topology {self._topology!r} is not held by this driver")
            db = self._open()
            with transaction(db):
                self._check_epoch(db)
                write(db, self._epoch)

    def _take_lease(
        self, db: sqlite3.Connection, fingerprint: Mapping[str, Any], retire: Collection[str]
    ) -> tuple[int, LeaseHeldError | None]:
        """Return the new epoch, or why there is none: a refusal must not undo the watching."""
        ledger = self._read_ledger(db)
        lease = self._read_lease(db)
        now, me = self._clock(), this_process()
        reason = may_take_over(lease, now)
        if reason is not None:
            watched = lease.watched_from(me.boot, now)
            if watched != lease:
                self._put_lease(db, watched)
            return lease.epoch, self._taken(lease, reason)
        refuse_changed_graph(ledger, fingerprint, retire)
        if ledger.settled:
            self._put_ledger(db, ledger)  # with the note, which is then of no more use
        self._put_lease(db, self._lease(lease.epoch + 1, me))
        return lease.epoch + 1, None

    def _taken(self, lease: Lease, reason: str) -> LeaseHeldError:
        unseen = lease.holder is not None and lease.holder.is_alive() is None
        return LeaseHeldError(
            f"topology {self._topology!r} is taken: {reason}. Stop that one first; if it is gone, "
            f"wait {lease.duration_s:g} s for its lease to run out.",
            wait_s=lease.duration_s if unseen else None,
        )

    def _lease(self, epoch: int, holder: Process | None) -> Lease:
        return Lease(epoch, holder, self._clock(), self._lease_s)

    def _check_epoch(self, db: sqlite3.Connection) -> None:
        lease = self._read_lease(db)
        if lease.epoch != self._epoch:
            holder = lease.holder
            who = f"process {holder.pid} on {holder.host}" if holder else "another driver"
            raise LeaseLostError(
                f"topology {self._topology!r} was taken over by {who} (epoch {lease.epoch}, ours "
                f"was {self._epoch}). This driver writes nothing any more."
            )

    def _read_ledger(self, db: sqlite3.Connection) -> Ledger:
        ledger = Ledger.from_json(json.loads(self._get(db, "ledger")))
        if ledger.topology != self._topology:
            raise ForeignStoreError(
                f"{self._path} belongs to topology {ledger.topology!r}, not {self._topology!r}"
            )
        return self._settled.added_to(ledger)

    def _read_lease(self, db: sqlite3.Connection) -> Lease:
        return Lease.from_json(json.loads(self._get(db, "lease")))

    def _put_ledger(self, db: sqlite3.Connection, ledger: Ledger) -> None:
        text = json.dumps(ledger.to_json(), separators=(",", ":"), sort_keys=True)
        self._put(db, "ledger", text)

    def _put_lease(self, db: sqlite3.Connection, lease: Lease) -> None:
        self._put(db, "lease", json.dumps(lease.to_json()))

    def _has(self, db: sqlite3.Connection, name: str) -> bool:
        found = db.execute("SELECT 1 FROM records WHERE name = ?", (name,)).fetchone()
        return found is not None

    def _get(self, db: sqlite3.Connection, name: str) -> str:
        row = db.execute("SELECT body, checksum FROM records WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise DamagedStoreError(f"{self._path} has no {name}; {_REMEDY}")
        body, check = row
        if not isinstance(body, str) or checksum(f"{name}|{body}") != check:
            raise DamagedStoreError(f"the {name} in {self._path} is damaged; {_REMEDY}")
        return body

    def _remember(self, db: sqlite3.Connection, ledger: Ledger) -> None:
        """Keep what the last committed batch held, for whoever asks where a value came from."""
        txid, attempt = ledger.current - 1, ledger.committed_attempt
        if attempt is None or txid == self._remembered:
            return
        text = json.dumps([attempt, ledger.committed_metadata], separators=(",", ":"))
        if len(text) <= _MEMORY_BYTES // _MEMORY_BATCHES:
            self._put(db, f"batch {txid}", text)
        old = f"batch {txid - _MEMORY_BATCHES}"
        db.execute("DELETE FROM records WHERE name = ?", (old,))
        self._remembered = txid

    def _put(self, db: sqlite3.Connection, name: str, body: str) -> None:
        check = checksum(f"{name}|{body}")
        db.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (name, body, check))

    def _create(self, fingerprint: Mapping[str, Any]) -> None:
        """Make the file aside and move it in place: a file of that name is always complete."""
        self._refuse_links()
        journal = self.folder / f"{COORDINATION_FILE}-journal"
        left = journal.exists() and journal.stat().st_size > 0
        # The file is looked for again: a driver that was faster may be writing already.
        if left and not self._path.exists():
            # SQLite would roll it back into the new file.
            raise DamagedStoreError(f"{self._path} is gone, but {journal} is not; {_REMEDY}")
        _make_folder(self.folder)
        # Not named after the pid: two containers may share the folder, and each has its own 7.
        draft = self.folder / f".{COORDINATION_FILE}.{uuid.uuid4().hex}"
        try:
            os.close(open_private(draft, os.O_WRONLY | os.O_EXCL))
            self._fill(draft, fingerprint)
            # Unlike rename, this never replaces the store of a driver that was faster.
            os.link(draft, self._path)
        except FileExistsError:
            return
        finally:
            draft.unlink(missing_ok=True)
            Path(f"{draft}-journal").unlink(missing_ok=True)
        _sync_folder(self.folder)

    def _fill(self, draft: Path, fingerprint: Mapping[str, Any]) -> None:
        with closing(self._connect(draft)) as db, transaction(db):
            _KIND.mark(db)
            self._put_ledger(db, Ledger(self._topology, fingerprint, uuid.uuid4().hex))
            self._put_lease(db, self._lease(0, None))

    def _refuse_links(self) -> None:
        for path in (self.folder, self._path):
            refuse_link(path)

    def _open(self) -> sqlite3.Connection:
        if self._held is not None and self._held != _identity(self._path):
            # Its epoch would say nothing: a new file counts from 1 again.
            raise DamagedStoreError(
                f"{self._path} was removed or replaced while this driver held it; {_REMEDY}"
            )
        if self._db is not None:
            return self._db
        self._refuse_links()
        if self._path.stat().st_size == 0:
            raise DamagedStoreError(f"{self._path} is empty; {_REMEDY}")
        db = self._connect(self._path)
        try:
            check_kind(db, _KIND, self._path, _REMEDY)
        except BaseException:
            db.close()
            raise
        self._db = db
        return db

    def _connect(self, path: Path) -> sqlite3.Connection:
        uri = f"{path.as_uri()}?mode=rw"
        db = sqlite3.connect(
            uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            # Else an old ledger, its checksum intact, would stay in the file's free space, one
            # flipped bit of a page's index away from being the ledger again.
            db.execute("PRAGMA secure_delete=ON")
            db.execute("PRAGMA journal_mode=TRUNCATE")
            db.execute("PRAGMA synchronous=FULL" if self._durable else "PRAGMA synchronous=OFF")
        except BaseException:
            db.close()
            raise
        return db

    @contextmanager
    def _visit(self) -> Iterator[None]:
        """Use the file, and close it again unless the lease is held."""
        with self._lock, self._errors():
            try:
                yield
            finally:
                if self._epoch is None:
                    self._close()

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.DatabaseError, UnicodeDecodeError, json.JSONDecodeError) as error:
            self._close()
            reason = _explain(error, self._path)
            text = f"coordination store {self._path}: {reason}"
            if isinstance(error, sqlite3.Error) and is_busy(error):
                raise OutageError("the coordination store", text) from error
            if reason is not None:
                raise StoreError(text) from error
            # Cut, because the text may quote the whole ledger.
            what = str(error)[:80]
            raise DamagedStoreError(f"{self._path} is damaged ({what}); {_REMEDY}") from error
        except OSError as error:
            self._close()
            raise StoreError(
                f"the coordination store {self._path} cannot be used: {error.strerror or error}. "
                "Choose another folder with WATERSPOUT_HOME or Config(home=...)."
            ) from error


_REMEDY = (
    "restore it from a copy. If there is none, the topology can only start over: remove its "
    "folder and empty its states together."
)


def _explain(error: Exception, path: Path) -> str | None:
    """Return what is wrong around the file and what to do; None if the file itself is."""
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return "the disk is full; free some space, and the same command goes on"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return f"it cannot be written ({error}); check the permissions, or set WATERSPOUT_HOME"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return _occupied(path, error)
        case sqlite3.SQLITE_IOERR:
            return f"{error}; once the disk works again, the same command goes on"
        case _:
            return None


def _occupied(path: Path, error: Exception) -> str:
    """Say who writes to a file for too long, and what to do about it."""
    others = [pid for pid in writers_of(path) if pid != os.getpid()]
    if not others:
        return (
            f"another process has been in the middle of a write for {_BUSY_S:g} s ({error}); if it "
            "is paused, let it go on or end it, and the same command goes on"
        )
    pid = others[0]
    state = "is stopped" if is_stopped(pid) else "has been"
    return (
        f"process {pid} {state} in the middle of a write, and {_BUSY_S:g} s were not enough "
        f"({error}). Let it go on (kill -CONT {pid}) or end it (kill -9 {pid}): nothing is lost by "
        "either, and the same command goes on"
    )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _make_folder(folder: Path) -> None:
    """Make the folder and the home it is in for this user alone, to survive a power cut."""
    for path in (folder.parent, folder):
        if not path.exists():
            private_folder(path)
            _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
