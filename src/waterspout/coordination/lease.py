"""Who holds a topology: the holder's identity, and when it may be taken over. No I/O on stores.

Times are read from a monotonic clock that goes on while the machine sleeps, and are compared
only between processes of one boot.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

__all__ = ["Lease", "Process", "boot_clock", "may_take_over", "this_process"]


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

    def is_alive(self) -> bool | None:
        """Whether the process still runs; None if that cannot be known from here."""
        here = this_process()
        if self.host != here.host:
            return None
        if self.boot != here.boot:
            return False
        return self.started == _start_time(self.pid)


@dataclass(frozen=True, slots=True)
class Lease:
    """A holder, its epoch, and until when it holds on."""

    epoch: int
    holder: Process | None
    renewed: float
    duration_s: float

    def to_json(self) -> dict[str, Any]:
        """Return the lease as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Lease:
        """Read a lease back."""
        holder = document["holder"]
        return replace(cls(**document), holder=None if holder is None else Process(**holder))


def may_take_over(lease: Lease, now: float) -> str | None:
    """Return None if the lease is free for the taking, else why it is not.

    A dead holder is taken over at once. A living one that has not renewed (a paused process)
    when its time has run out. Of a holder on another machine only the time is known, and it
    is compared only within one boot.
    """
    holder = lease.holder
    if holder is None:
        return None
    alive = holder.is_alive()
    if alive is False:
        return None
    left = lease.renewed + lease.duration_s - now
    if holder.boot == this_process().boot and left <= 0:
        return None
    where = f"process {holder.pid} on host {holder.host}"
    if alive:
        return f"{where} runs it now"
    return f"{where} held it last, and whether it still runs cannot be seen from here"


def this_process() -> Process:
    """Return the identity of the calling process."""
    return Process(socket.gethostname(), _boot_id(), os.getpid(), _start_time(os.getpid()) or "?")


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Without /proc: the moment of boot, to the minute, stands in.
        return str(round((time.time() - boot_clock()) / 60))


def _start_time(pid: int) -> str | None:
    """Return when a process started, in the kernel's ticks; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None if Path("/proc/self").exists() else _start_time_by_signal(pid)
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    state, started = fields[0], fields[19]
    return None if state in ("Z", "X") else started


def _start_time_by_signal(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return "?"
