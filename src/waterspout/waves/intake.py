"""`Intake`: the tuples that one task gets in one wave, and what has become of them.

While the wave runs, ids are arrays and `done` is a bytearray, one byte for each tuple. When it is
over, tuples that the bolt still holds are kept by index in dicts: few of many, as a rule.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from waterspout._tuples import Origin, Tuple
from waterspout.acking.xor import NO_ROOT, Ids
from waterspout.errors import AckError
from waterspout.topology._ports import ACKED, FAILED, OPEN
from waterspout.waves.counting import InputCounts, Inputs, input_of
from waterspout.waves.frames import Frame

__all__ = ["Intake", "Outcome"]


class _Untracked:
    """Stands for `done` where no tree waits: acks and fails change nothing."""

    def __getitem__(self, index: int) -> int:
        return OPEN

    def __setitem__(self, index: int, code: int) -> None:
        pass


@dataclass(slots=True)
class Outcome:
    """Ids of the tuples that a bolt has acked and failed since it was asked last."""

    acked_roots: list[Ids] = field(default_factory=list)
    acked_edges: list[Ids] = field(default_factory=list)
    failed: list[tuple[int, int]] = field(default_factory=list)
    """Root, and the index of the tuple that failed."""
    inputs: Inputs = field(default_factory=dict)
    """What was executed, acked and failed, by where it came from."""
    now: float = field(default_factory=time.time)
    """When the books are closed, in seconds since 1970."""


@dataclass(slots=True)
class _Part:
    """Tuples of one frame that were executed."""

    start: int
    end: int
    component: str
    stream: str
    seconds: float

    def count(self, done: bytearray, inputs: Inputs) -> None:
        """Count what was executed, and what was decided in the same wave."""
        counts: InputCounts = input_of(inputs, self.component, self.stream)
        executed, acked = self.end - self.start, done.count(ACKED, self.start, self.end)
        counts.executed += executed
        counts.execute_s += self.seconds
        counts.acked += acked
        counts.failed += done.count(FAILED, self.start, self.end)
        counts.process_s += self.seconds * acked / executed if executed else 0.0


class Intake:
    """All tuples of one task and wave, numbered through all frames."""

    def __init__(self, frames: Sequence[Frame], task: int = -1) -> None:
        total = sum(map(len, frames))
        self.task = task
        """Whose tuples these are."""
        self.done: Any = bytearray(total)
        self.roots: Ids | None = None
        self.edges: Ids | None = None
        self.shared: dict[int, dict[int, int]] = {}
        self._kept: dict[int, dict[int, int]] | None = None
        self._origins: list[Origin] = []
        self._parts: list[_Part] = []
        self._came = time.time()  # the books may be closed by another process
        self.resets: list[int] = []
        self.reasons: dict[int, str] = {}
        """Why tuples were failed, where the bolt has said it; until the wave is over."""
        if any(frame.roots is not None for frame in frames):
            self.roots = np.concatenate([_or_zeros(f.roots, len(f)) for f in frames])
            self.edges = np.concatenate([_or_zeros(f.edges, len(f)) for f in frames])
        base = 0
        for frame in frames:
            for index, ids in (frame.shared or {}).items():
                self.shared[base + index] = ids
            base += len(frame)

    @property
    def is_tracked(self) -> bool:
        """Whether any tuple belongs to a tree."""
        return self.roots is not None or bool(self.shared) or bool(self._kept)

    def add(self, origin: Origin) -> None:
        """Remember who points to `done`, to have it moved later."""
        self._origins.append(origin)

    def executed(self, origin: Origin, start: int, end: int, seconds: float) -> None:
        """Note that the tuples of a frame were executed, and how long that took."""
        self._parts.append(_Part(start, end, origin.component, origin.stream, seconds))

    def cut(self, executed: int) -> None:
        """Forget tuples that were not delivered after all."""
        del self.done[executed:]
        if self.roots is not None and self.edges is not None:
            self.roots, self.edges = self.roots[:executed], self.edges[:executed]
        self.shared = {i: ids for i, ids in self.shared.items() if i < executed}

    def roots_of(self, given: Tuple) -> tuple[int, ...]:
        """Return the roots of a tuple's trees."""
        index = given._index
        if self._kept is not None:
            if index in self._kept:
                return tuple(self._kept[index])
            if index in self.done:
                return ()
            raise AckError(f"{given!r} was acked or failed in an earlier wave")
        if index in self.shared:
            return tuple(self.shared[index])
        root = NO_ROOT if self.roots is None else int(self.roots[index])
        return (root,) if root != NO_ROOT else ()

    def reset(self, given: Tuple) -> None:
        """Note that the time of a tuple's trees is to begin anew."""
        self.resets.extend(self.roots_of(given))

    def ack_rest(self, start: int, end: int) -> None:
        """Ack what is neither acked nor failed: what a basic bolt has executed."""
        codes = np.frombuffer(self.done, np.uint8)[start:end]
        codes[codes == OPEN] = ACKED

    def close_books(self, into: Outcome) -> bool:
        """Report what was acked and failed, and keep what is open; False: nothing is."""
        if self._kept is not None:
            return self._close_kept(into)
        for part in self._parts:
            part.count(self.done, into.inputs)
        if self.roots is None and not self.shared:
            self._move_done(_Untracked())
            return False
        codes = np.frombuffer(self.done, np.uint8)
        if self.roots is not None and self.edges is not None:
            acked = codes == ACKED
            into.acked_roots.append(self.roots[acked])
            into.acked_edges.append(self.edges[acked])
            for index in np.flatnonzero(codes == FAILED).tolist():
                if self.roots[index] != NO_ROOT:
                    into.failed.append((int(self.roots[index]), index))
        for index, ids in self.shared.items():
            _note_shared(ids, self.done[index], index, into)
        kept = {
            index: self.shared.get(index) or self._single(index)
            for index in np.flatnonzero(codes == OPEN).tolist()
        }
        del codes
        self._kept = {index: ids for index, ids in kept.items() if ids}
        self.roots = self.edges = None
        self.shared = {}
        self._move_done(dict.fromkeys(kept, OPEN))
        return bool(self._kept)

    def _close_kept(self, into: Outcome) -> bool:
        assert self._kept is not None
        for index in [i for i, code in self.done.items() if code != OPEN]:
            ids = self._kept.pop(index, {})
            code = self.done.pop(index)
            _note_shared(ids, code, index, into)
            self._count_late(index, code, into)
        return bool(self._kept)

    def _count_late(self, index: int, code: int, into: Outcome) -> None:
        """Count a tuple that was decided in a later wave than it came in."""
        at = bisect_right(self._parts, index, key=lambda part: part.start) - 1
        if at < 0:
            return
        part = self._parts[at]
        counts = input_of(into.inputs, part.component, part.stream)
        if code == ACKED:
            counts.acked += 1
            counts.process_s += max(0.0, into.now - self._came)
        else:
            counts.failed += 1

    def _single(self, index: int) -> dict[int, int]:
        if self.roots is None or self.edges is None:
            return {}  # all others are in several trees
        root = int(self.roots[index])
        return {} if root == NO_ROOT else {root: int(self.edges[index])}

    def _move_done(self, done: Any) -> None:
        self.done = done
        for origin in self._origins:
            origin.done = done


def _note_shared(ids: dict[int, int], code: int, index: int, into: Outcome) -> None:
    if code == ACKED:
        into.acked_roots.append(np.fromiter(ids.keys(), np.uint64, len(ids)))
        into.acked_edges.append(np.fromiter(ids.values(), np.uint64, len(ids)))
    elif code == FAILED:
        into.failed.extend((root, index) for root in ids)


def _or_zeros(ids: Ids | None, count: int) -> Ids:
    return np.zeros(count, np.uint64) if ids is None else ids
