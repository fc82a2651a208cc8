"""Who holds a topology: the holder's identity, and when it may be taken over. No I/O on stores.

Times are read from a monotonic clock that goes on while the machine sleeps, and are compared
only between processes of one boot.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from waterspout.errors import DamagedStoreError

__all__ = ["Holder", "Lease", "Process", "boot_clock", "may_take_over", "this_process"]


def boot_clock() -> float:
    """Return seconds since boot, suspended time included."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


@dataclass(frozen=True, slots=True)
class Process:
    """A process that can be told from any other, also from a later one with its pid."""

    host: str
    boot: str
    pid: int
    started: str
    namespace: str = "?"

    def is_alive(self) -> bool | None:
        """Whether the process still runs; None if that cannot be known from here."""
        here = this_process()
        # Another boot under our host name is this machine before it was started anew, or another
        # machine of that name (a pod that was moved, a clone): nothing here tells them apart.
        # Another namespace is another container: its pids mean nothing here.
        if (self.host, self.boot, self.namespace) != (here.host, here.boot, here.namespace):
            return None
        return self.started == _start_time(self.pid)


@dataclass(frozen=True, slots=True)
class Lease:
    """A holder, its epoch, and until when it holds on.

    `watched` says, for each boot whose clock is not the holder's, since when on its own clock
    it has seen this very lease: a renewal leaves it empty again.
    """

    epoch: int
    holder: Process | None
    renewed: float
    duration_s: float
    watched: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the lease as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Lease:
        """Read a lease back."""
        try:
            holder = document["holder"]
            return replace(cls(**document), holder=None if holder is None else Process(**holder))
        except (KeyError, TypeError) as error:
            raise DamagedStoreError(f"the lease cannot be read: {error!r}") from error

    def watched_from(self, boot: str, now: float) -> Lease:
        """Return the lease with a note of when this boot saw it first."""
        if self.holder is None or self.holder.boot == boot or boot in self.watched:
            return self
        return replace(self, watched={**self.watched, boot: now})

    def has_run_out(self, boot: str, now: float) -> bool:
        """Whether its time is over by the clock of this boot."""
        if self.holder is None or self.holder.boot == boot:
            return now >= self.renewed + self.duration_s
        return boot in self.watched and now >= self.watched[boot] + self.duration_s


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a topology, as it is seen from here."""

    epoch: int
    process: Process | None
    """Who took it last; None if it was given up and that is not known any more."""
    state: Literal["held", "free", "dead", "silent"]
    """held: it runs, or may. free: given up. dead: it ended without that. silent: it is there, but
    has not renewed its lease in time, as one that is stopped (SIGSTOP)."""

    @classmethod
    def of(cls, lease: Lease, now: float) -> Holder:
        """Tell from a lease."""
        if lease.holder is None:
            return cls(lease.epoch, None, "free")
        if lease.holder.is_alive() is False:
            return cls(lease.epoch, lease.holder, "dead")
        silent = lease.has_run_out(_boot_id(), now)
        return cls(lease.epoch, lease.holder, "silent" if silent else "held")


def may_take_over(lease: Lease, now: float) -> str | None:
    """Return None if the lease is free for the taking, else why it is not.

    A dead holder is taken over at once. A living one that has not renewed (a paused process)
    when its time has run out. Of a holder on another machine only that is known, and it is
    measured on our clock, from when its lease was seen first.
    """
    holder = lease.holder
    if holder is None:
        return None
    alive = holder.is_alive()
    if alive is False:
        return None
    if lease.has_run_out(_boot_id(), now):
        return None
    where = f"process {holder.pid} on host {holder.host}"
    if alive:
        return f"{where} runs it now"
    return f"{where} held it last, and whether it still runs cannot be seen from here"


def this_process() -> Process:
    """Return the identity of the calling process."""
    pid = os.getpid()
    started = _start_time(pid) or "?"
    return Process(socket.gethostname(), _boot_id(), pid, started, _pid_namespace())


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Without /proc: the moment of boot, to the minute, stands in.
        return str(round((time.time() - boot_clock()) / 60))


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return "?"


def _start_time(pid: int) -> str | None:
    """Return when a process started, in the kernel's ticks; None if there is none."""
    try:
        # As bytes: a process may have any name, one that is not text included.
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return None if Path("/proc/self").exists() else _start_time_by_signal(pid)
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].decode("ascii").split()
    state, started = fields[0], fields[19]
    return None if state in ("Z", "X") else started


def _start_time_by_signal(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return "?"  # it runs, as somebody else
    return "?"
