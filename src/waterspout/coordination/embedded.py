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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from waterspout.coordination.lease import Lease, boot_clock, may_take_over, this_process
from waterspout.coordination.store import CoordinationStore, refuse_changed_graph
from waterspout.errors import (
    DamagedStoreError,
    ForeignStoreError,
    LeaseHeldError,
    LeaseLostError,
    NewerFormatError,
    StoreError,
)
from waterspout.schema import check_topology_id
from waterspout.serde import checksum
from waterspout.transactional.ledger import Ledger

__all__ = ["EmbeddedStore"]

T = TypeVar("T")

_APPLICATION_ID = 0x57535054
_FORMAT = 1
_FILE = "coordination.db"


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
        self.folder = home.expanduser().absolute() / topology
        self._path = self.folder / _FILE
        self._lease_s = lease_s
        self._clock = clock
        self._durable = durable
        self._epoch: int | None = None
        self._db: sqlite3.Connection | None = None
        self._lock = threading.RLock()

    def acquire(self, fingerprint: Mapping[str, Any]) -> int:
        """Create the store at the first run; take the lease if nobody alive holds it."""
        # Through JSON, so that it compares equal to what will be read back.
        fingerprint = json.loads(json.dumps(fingerprint))
        with self._lock, self._errors():
            if not self._path.exists():
                self._create(fingerprint)
            return self._in_transaction(lambda db: self._take_lease(db, fingerprint))

    def peek(self) -> Ledger | None:
        """Read the ledger if there is a store; nothing is created."""
        with self._lock, self._errors():
            return self._read_ledger(self._open()) if self._path.exists() else None

    def load(self) -> Ledger:
        """Read the ledger; everything about it is checked."""
        with self._lock, self._errors():
            return self._read_ledger(self._open())

    def save(self, ledger: Ledger) -> None:
        """Store the ledger in one durable transaction that also checks the epoch."""
        text = json.dumps(ledger.to_json(), separators=(",", ":"), sort_keys=True)

        def write(db: sqlite3.Connection) -> None:
            self._check_epoch(db)
            self._put(db, "ledger", text)

        with self._lock, self._errors():
            self._in_transaction(write)

    def renew(self) -> None:
        """Put a new time into the lease."""

        def write(db: sqlite3.Connection) -> None:
            self._check_epoch(db)
            self._put_lease(db, self._my_lease())

        with self._lock, self._errors():
            self._in_transaction(write)

    def release(self) -> None:
        """Leave the lease without a holder, if it is still ours, and close the file."""

        def write(db: sqlite3.Connection) -> None:
            self._check_epoch(db)
            assert self._epoch is not None
            self._put_lease(db, Lease(self._epoch, None, self._clock(), self._lease_s))

        with self._lock:
            try:
                if self._epoch is not None and self._db is not None:
                    self._in_transaction(write)
            except (StoreError, LeaseLostError, sqlite3.Error):
                # Somebody else has it, or the disk is gone: nothing is left to give up.
                self._epoch = None
            finally:
                self._epoch = None
                self._close()

    # --- within a transaction --------------------------------------------------------------

    def _take_lease(self, db: sqlite3.Connection, fingerprint: Mapping[str, Any]) -> int:
        ledger = self._read_ledger(db)
        lease = self._read_lease(db)
        reason = may_take_over(lease, self._clock())
        if reason is not None:
            raise LeaseHeldError(
                f"topology {self._topology!r} is taken: {reason}. Stop that one first; if it is "
                f"gone, wait {lease.duration_s:g} s for its lease to run out."
            )
        refuse_changed_graph(ledger.fingerprint, fingerprint, self._topology)
        self._epoch = lease.epoch + 1
        self._put_lease(db, self._my_lease())
        return self._epoch

    def _my_lease(self) -> Lease:
        assert self._epoch is not None
        return Lease(self._epoch, this_process(), self._clock(), self._lease_s)

    def _check_epoch(self, db: sqlite3.Connection) -> None:
        lease = self._read_lease(db)
        if self._epoch is None or lease.epoch != self._epoch:
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
        return ledger

    def _read_lease(self, db: sqlite3.Connection) -> Lease:
        return Lease.from_json(json.loads(self._get(db, "lease")))

    def _put_lease(self, db: sqlite3.Connection, lease: Lease) -> None:
        self._put(db, "lease", json.dumps(lease.to_json()))

    def _get(self, db: sqlite3.Connection, name: str) -> str:
        row = db.execute("SELECT body, checksum FROM records WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise DamagedStoreError(f"{self._path} has no {name}; {_REMEDY}")
        body, check = row
        if not isinstance(body, str) or checksum(f"{name}|{body}") != check:
            raise DamagedStoreError(f"the {name} in {self._path} is damaged; {_REMEDY}")
        return body

    def _put(self, db: sqlite3.Connection, name: str, body: str) -> None:
        check = checksum(f"{name}|{body}")
        db.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (name, body, check))

    # --- the file --------------------------------------------------------------------------

    def _create(self, fingerprint: Mapping[str, Any]) -> None:
        """Make the file aside and move it in place: a file of that name is always complete."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self.folder / f".{_FILE}.{os.getpid()}"
        draft.unlink(missing_ok=True)
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        db = self._connect(draft)
        try:
            db.execute(f"PRAGMA application_id={_APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={_FORMAT}")
            db.execute(
                "CREATE TABLE records (name TEXT PRIMARY KEY, body TEXT, checksum TEXT) STRICT"
            )
            ledger = Ledger(self._topology, fingerprint)
            self._put(db, "ledger", json.dumps(ledger.to_json(), sort_keys=True))
            self._put_lease(db, Lease(0, None, self._clock(), self._lease_s))
        finally:
            db.close()
        try:
            # Unlike rename, this never replaces the store of a driver that was faster.
            os.link(draft, self._path)
        except FileExistsError:
            return
        finally:
            draft.unlink(missing_ok=True)
        _sync_folder(self.folder)

    def _open(self) -> sqlite3.Connection:
        if self._db is not None:
            return self._db
        if self._path.stat().st_size == 0:
            raise DamagedStoreError(f"{self._path} is empty; {_REMEDY}")
        db = self._connect(self._path)
        try:
            (application,) = db.execute("PRAGMA application_id").fetchone()
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if application != _APPLICATION_ID:
                raise ForeignStoreError(
                    f"{self._path} is not a waterspout coordination store; {_REMEDY}"
                )
            if version > _FORMAT:
                raise NewerFormatError(
                    f"{self._path} has format {version}; this version of waterspout reads up to "
                    f"{_FORMAT}. Upgrade waterspout."
                )
        except BaseException:
            db.close()
            raise
        self._db = db
        return db

    def _connect(self, path: Path) -> sqlite3.Connection:
        uri = f"{path.as_uri()}?mode=rw"
        db = sqlite3.connect(
            uri, uri=True, timeout=10.0, isolation_level=None, check_same_thread=False
        )
        db.execute("PRAGMA journal_mode=TRUNCATE")
        db.execute("PRAGMA synchronous=FULL" if self._durable else "PRAGMA synchronous=OFF")
        return db

    def _in_transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        db = self._open()
        db.execute("BEGIN IMMEDIATE")
        try:
            result = work(db)
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
        return result

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            self._close()
            raise StoreError(_explain(error, self._path)) from error
        except (sqlite3.DatabaseError, UnicodeDecodeError, json.JSONDecodeError) as error:
            self._close()
            raise DamagedStoreError(f"{self._path} is damaged ({error}); {_REMEDY}") from error
        except OSError as error:
            self._close()
            raise StoreError(
                f"the coordination store {self._path} cannot be used: {error.strerror or error}. "
                "Choose another place with WATERSPOUT_HOME or Config(home=...)."
            ) from error


_REMEDY = (
    "restore it from a copy. If there is none, the topology can only start over: remove its "
    "folder and empty its states together."
)


def _explain(error: sqlite3.OperationalError, path: Path) -> str:
    text = str(error)
    if "full" in text:
        text = "the disk is full; free some space, and the same command goes on"
    elif "readonly" in text or "unable to open" in text:
        text = f"it cannot be written ({error}); check the permissions, or set WATERSPOUT_HOME"
    return f"coordination store {path}: {text}"


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
