"""Named kill points: positions in the code where a test may kill, stop, delay or fail this process.

    faults.point("mark.before", txid=7)

does nothing (one comparison) unless a plan is installed. A plan is data, so that it can be
given to a child process in the environment variable `WATERSPOUT_FAULTS` and shipped to
Spark's Python workers along with the work.

The points, in the order in which a batch passes them:

    metadata.before        the attempt and its metadata are not yet in the coordination store
    metadata.after         they are; nothing was emitted
    processing             (task) a partition of the batch is being processed
    processed              (driver) the processing phase is over
    commit.before_record   the attempt is not yet recorded as begun
    commit.after_record    it is; no state knows of it
    head.before, head.after          a state's head is moved to this attempt
    write.before, write.after        (task or driver) one partition's keys are written
    transaction.before, transaction.after   (task or driver) a transaction of Kafka's commits: that
                           of a partition's rows, or (partition -1) of a head
    publish.before, publish.after    (driver) rows that all partitions have put down are shown
    mark.before, mark.after          the batch is marked as committed
    settle.before, settle.after      a state's head is told that the batch has committed
    cleanup                old metadata, staged blocks and spout positions are dropped

and those that a wave of a core topology passes:

    wave.execute           (task) the tuples of one bolt task are about to be executed
    wave.done              (driver) the wave is over; no message was acked yet
    letters.before, letters.after    messages are put aside as dead letters; not yet acked
    positions.before, positions.after   positions of logs are stored
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from waterspout.errors import ConfigError, FailedException

__all__ = [
    "BATCH_POINTS",
    "ENVIRONMENT_VARIABLE",
    "KAFKA_POINTS",
    "POINTS",
    "ROWS_POINTS",
    "WAVE_POINTS",
    "Fault",
    "FaultPlan",
    "InjectedError",
    "current_plan",
    "install",
    "point",
]

ENVIRONMENT_VARIABLE = "WATERSPOUT_FAULTS"

BATCH_POINTS = (
    "metadata.before",
    "metadata.after",
    "processing",
    "processed",
    "commit.before_record",
    "commit.after_record",
    "head.before",
    "head.after",
    "write.before",
    "write.after",
    "mark.before",
    "mark.after",
    "settle.before",
    "settle.after",
    "cleanup",
)

ROWS_POINTS = ("publish.before", "publish.after")
"""Between write and mark, where a state shows its rows only when all partitions are there."""

KAFKA_POINTS = ("transaction.before", "transaction.after")
"""Within head, write and settle, where a state is a topic of Kafka."""

WAVE_POINTS = (
    "wave.execute",
    "wave.done",
    "letters.before",
    "letters.after",
    "positions.before",
    "positions.after",
)

GROWTH_POINTS = ("graph.before", "graph.after", "fill.before", "fill.after")
"""Around the record that a changed topology is taken in; before a fill, and after a part of it."""

POINTS = (*BATCH_POINTS, *ROWS_POINTS, *KAFKA_POINTS, *WAVE_POINTS, *GROWTH_POINTS)

ACTIONS = ("kill", "raise", "fail", "stop", "hang", "note")

Hook = Callable[[str, Mapping[str, object]], None]


class InjectedError(RuntimeError):
    """Raised by a fault whose action is `raise`: an error that no one expected."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong: the n-th time a point is passed with these particulars.

    Actions: `kill` (SIGKILL to this very process), `stop` (SIGSTOP), `raise` (an unexpected
    error), `fail` (FailedException), `hang` (wait until the file `<token>.go` appears, then make
    `<token>.woke` and go on). With a `token`, the fault fires once over all processes: the first
    to create that file, in which it leaves its process id. `nth` None: every time.

    `note` does no harm: it adds a line to the file `token`, as JSON, with the point, what is known
    of this passing of it, and the process. So whoever plans kills learns what can be killed.
    """

    point: str
    action: str
    nth: int | None = 1
    where: Mapping[str, object] = field(default_factory=dict)
    token: str | None = None

    def __post_init__(self) -> None:
        if self.point not in POINTS:
            raise ConfigError(f"unknown kill point {self.point!r}; there are {', '.join(POINTS)}")
        if self.action not in ACTIONS:
            raise ConfigError(f"unknown action {self.action!r}; there are {', '.join(ACTIONS)}")
        if self.action == "note" and self.token is None:
            raise ConfigError("a note needs a token: the file that it is written to")

    def fire(self, context: Mapping[str, object] | None = None) -> None:
        """Do what the fault says, if its token is still free; `context` is what a note tells."""
        if self.action == "note":
            _note(str(self.token), {**(context or {}), "point": self.point, "process": os.getpid()})
            return
        if self.token is not None and not _take(self.token):
            return
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.action == "hang":
            _wait_for(f"{self.token}.go")
            Path(f"{self.token}.woke").touch()
        elif self.action == "fail":
            raise FailedException(f"injected at {self.point}")
        else:
            raise InjectedError(f"injected at {self.point}")


class FaultPlan:
    """Some faults, and how often each has been passed in this process."""

    def __init__(self, faults: list[Fault]) -> None:
        self.faults = faults
        self._passed = [0] * len(faults)

    def __call__(self, name: str, context: Mapping[str, object]) -> None:
        for index, fault in enumerate(self.faults):
            if fault.point != name or any(context.get(k) != v for k, v in fault.where.items()):
                continue
            self._passed[index] += 1
            if fault.nth is None or self._passed[index] == fault.nth:
                fault.fire(context)

    def to_json(self) -> str:
        """Return the plan as text for a child process."""
        return json.dumps([asdict(fault) for fault in self.faults])

    @classmethod
    def from_json(cls, text: str) -> FaultPlan:
        """Read a plan back."""
        return cls([Fault(**entry) for entry in json.loads(text)])


_hook: Hook | None = None


def point(name: str, **context: object) -> None:
    """Pass a kill point. Costs one comparison when no plan is installed."""
    if _hook is not None:
        _hook(name, context)


def install(hook: Hook | None) -> None:
    """Have every point call `hook` from now on; None switches them off."""
    global _hook
    _hook = hook


def current_plan() -> FaultPlan | None:
    """Return the installed plan, to be shipped along with work for other processes."""
    return _hook if isinstance(_hook, FaultPlan) else None


def _take(token: str) -> bool:
    try:
        with open(token, "x", opener=_private) as file:
            file.write(f"{os.getpid()}\n")
    except FileExistsError:
        return False
    return True


def _note(path: str, passed: Mapping[str, object]) -> None:
    with open(path, "a", opener=_private) as file:
        file.write(json.dumps(passed, default=str) + "\n")  # at once: no two processes' lines mix


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.02)


if ENVIRONMENT_VARIABLE in os.environ:
    install(FaultPlan.from_json(os.environ[ENVIRONMENT_VARIABLE]))
