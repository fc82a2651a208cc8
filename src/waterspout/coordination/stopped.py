"""A driver that was stopped (SIGSTOP) in the middle of a write to the embedded store.

It keeps SQLite's lock on the file for as long as it stands still, and nobody else can write: not
even its successor, to take the lease. So the successor ends it, if that is certainly right:

- the process that has the lock is the very one that has noted that it holds the lease: the same
  machine, boot, container, number and time of its start;
- it was seen to stand still, with the lock, for as long as a lease lasts;
- it is signalled through a handle that means this process, whoever gets its number.

A process that is gone writes nothing more, and SQLite takes back what it had written by half. In
any other case the error of the write names the process and says what to do
(docs/decisions/0029-a-driver-that-stands-still.md).
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from waterspout._own_files import open_private
from waterspout.coordination.lease import Process, this_process

__all__ = ["HolderNote", "end_if_stopped", "is_stopped", "writers_of"]

log = logging.getLogger(__name__)

_LOCKS = Path("/proc/locks")
# The bytes of a file that SQLite locks: pending, reserved, and those shared by readers.
_LOCK_BYTES = range(0x40000000, 0x40000000 + 512)
_LOOK_EVERY_S = 0.1
_END_WAIT_S = 10.0


class HolderNote:
    """Who took the lease last, in a file that can be read while the store is locked."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self) -> None:
        """Note that this process has it; without the note, nobody ends this process."""
        with suppress(OSError):
            handle = open_private(self._path, os.O_WRONLY | os.O_TRUNC)
            try:
                os.write(handle, json.dumps(asdict(this_process())).encode())
            finally:
                os.close(handle)

    def read(self) -> Process | None:
        """Return who has it, if that can be read."""
        try:
            return Process(**json.loads(self._path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None


def writers_of(path: Path) -> list[int]:
    """Return the processes that are in the middle of a write to an SQLite file, as Linux tells.

    Not by asking for the locks: to close the file afterwards would take those of this process away.
    """
    try:
        found, lines = path.stat(), _LOCKS.read_text().splitlines()
    except OSError:
        return []
    file = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    pids = set()
    for line in lines:
        words = line.split()
        if len(words) != 8 or words[3] != "WRITE" or words[5] != file:
            continue
        if words[1] == "POSIX" and words[6].isdecimal() and int(words[6]) in _LOCK_BYTES:
            pids.add(int(words[4]))
    return sorted(pid for pid in pids if pid > 0)


def is_stopped(pid: int) -> bool:
    """Whether a process stands still because of a signal, or under a debugger."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat[stat.rindex(b")") + 2 :][:1] in (b"T", b"t")


def end_if_stopped(
    path: Path,
    holder: Process | None,
    patience_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """End the holder if it stands still in the middle of a write; return whether it was ended."""

    def stands_still() -> bool:
        assert holder is not None
        return is_stopped(holder.pid) and bool(holder.is_alive()) and holder.pid in writers_of(path)

    if holder is None or holder.pid == os.getpid() or not stands_still():
        return False
    log.warning(
        "process %d was stopped in the middle of a write to %s, so that nobody else can write; "
        "if it does not go on within %g s, it is ended, and this driver takes over",
        *(holder.pid, path, patience_s),
    )
    until = clock() + patience_s
    while clock() < until:
        pause(min(_LOOK_EVERY_S, patience_s))
        if not stands_still():
            return False
    return _end(holder, stands_still)


def _end(holder: Process, stands_still: Callable[[], bool]) -> bool:
    try:
        handle = os.pidfd_open(holder.pid)
    except (AttributeError, OSError):
        return False  # no such call here, or no such process any more
    try:
        # Looked at once more: from here on the handle means this process, whoever has its number.
        if not stands_still():
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        ended = select.poll()
        ended.register(handle, select.POLLIN)
        if not ended.poll(_END_WAIT_S * 1000):
            return False
    except PermissionError:
        return False  # somebody else's; the error of the write names it
    finally:
        os.close(handle)
    log.warning("process %d was ended: it stood still in the middle of a write", holder.pid)
    return True
