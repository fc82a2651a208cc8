"""A wave loop in this process with a clock of its own, and small components to run through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from waterspout import Config
from waterspout.coordination.dead_letters import DeadLetters
from waterspout.coordination.events import (
    ErrorReported,
    Event,
    ProgressBetweenWaves,
    WaveFinished,
)
from waterspout.coordination.progress import WaveProgress
from waterspout.coordination.store import MemoryCoordinationStore, SharedMemory
from waterspout.coordination.wave_loop import WaveLoop, WaveSetup
from waterspout.testing._waves import InProcessWaves
from waterspout.topology import BasicBolt, Bolt, Topology
from waterspout.topology._component import LogSpout
from waterspout.waves.engine import WaveDone, WaveEngine, WaveFailed

SPREAD = 0
COLLAPSED = 1_000_000

Seen = list[Any]
_seen: dict[str, Seen] = {}


def seen(name: str) -> Seen:
    """The list of this name, the same one for every copy of a bolt in this process."""
    return _seen.setdefault(name, [])


def forget_all() -> None:
    """Begin with nothing seen."""
    _seen.clear()
    _logs.clear()


class FakeClock:
    """A clock that stands still until it is told the time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


class LateWaves(InProcessWaves):
    """Runs a wave when it has been asked for several times: meanwhile the loop collects."""

    def __init__(self, workers: int = 2, *, keep_alive: bool = True, looks: int = 3) -> None:
        super().__init__(workers, keep_alive=keep_alive)
        self._looks, self._left = looks, looks

    def poll(self, wait_s: float) -> WaveDone | WaveFailed | None:
        if self._left:
            self._left -= 1
            return None
        self._left = self._looks
        return super().poll(wait_s)


class Heard:
    """Everything a loop has said."""

    def __init__(self) -> None:
        self.waves: list[WaveProgress] = []
        self.errors: list[ErrorReported] = []

    def __call__(self, event: Event) -> None:
        match event:
            case WaveFinished(progress=progress) | ProgressBetweenWaves(progress=progress):
                self.waves.append(progress)
            case ErrorReported():
                self.errors.append(event)


class Driven:
    """A topology that is run step by step."""

    def __init__(
        self,
        topology: Topology,
        *,
        engine: WaveEngine | None = None,
        shared: SharedMemory | None = None,
        letters: DeadLetters | None = None,
        keep_alive: bool = True,
        workers: int = 2,
        **options: Any,
    ) -> None:
        options = {"wave_collapse_tuples": COLLAPSED, "retry_backoff_millis": 0, **options}
        self.clock = FakeClock()
        self.heard = Heard()
        self.engine = engine or InProcessWaves(workers, keep_alive=keep_alive)
        # Not `or`: one that is empty is false.
        self.letters = DeadLetters(None) if letters is None else letters
        self.store = MemoryCoordinationStore(topology.name, shared or SharedMemory())
        setup = WaveSetup(topology, self.engine, self.store, self.letters, Config(**options))
        self.loop = WaveLoop(setup, self.clock, self.heard)
        self.loop.start()

    @property
    def counts(self) -> Any:
        return self.loop.spouts.counts

    @property
    def positions(self) -> Any:
        return self.store.load().positions

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.loop.step()

    def until(self, condition: Callable[[], bool], steps: int = 10_000, tick: float = 0.01) -> None:
        """Step until something is so; time passes by a little with each step."""
        for _ in range(steps):
            if condition():
                return
            self.loop.step()
            self.clock.pass_by(tick)
        raise AssertionError(f"not so after {steps} steps")

    def until_idle(self, steps: int = 10_000, tick: float = 0.01) -> Driven:
        self.loop.step()
        self.until(lambda: self.loop.is_idle, steps, tick)
        return self

    def until_error(self, steps: int = 10_000, tick: float = 0.05) -> BaseException:
        """Step until the run ends by itself, and return what ended it."""
        for _ in range(steps):
            try:
                self.loop.step()
            except Exception as error:
                return error
            self.clock.pass_by(tick)
        raise AssertionError(f"still running after {steps} steps")


class Record(BasicBolt):
    """Appends what it gets to `seen(name)`, with its task."""

    output_fields = ()

    def __init__(self, name: str) -> None:
        self._name = name

    def prepare(self, conf, context):
        self._task = context.this_task_id

    def execute(self, tuple, collector):
        seen(self._name).append((self._task, tuple.values))


class Pass(BasicBolt):
    """Emits what it gets."""

    def __init__(self, *fields: str) -> None:
        self.output_fields = fields

    def execute(self, tuple, collector):
        collector.emit(tuple.values)


class Do(Bolt):
    """Calls a function with itself and each tuple; `prepare` has set `collector` and `task`."""

    def __init__(
        self,
        function: Callable[[Any, Any], None],
        fields: Sequence[str] | None = None,
        streams: dict[str, Sequence[str]] | None = None,
    ) -> None:
        self._function = function
        self.output_fields = fields
        self.streams = streams

    def prepare(self, conf, context, collector):
        self.collector = collector
        self.task = context.this_task_id
        self.context = context

    def execute(self, tuple):
        self._function(self, tuple)


class Fails(BasicBolt):
    """Fails each value as often as `times` says, in all its copies together; notes the rest."""

    def __init__(self, name: str, times: dict[Any, int]) -> None:
        self._name, self._times = name, times

    def execute(self, tuple, collector):
        value = tuple[0]
        seen(f"{self._name}, tried").append(value)
        if seen(f"{self._name}, tried").count(value) <= self._times.get(value, 0):
            raise ValueError(f"not {value} yet")
        seen(self._name).append(value)


class ListLog(LogSpout):
    """A log in a dict of lists, by name, in this process; None in a list is a gap."""

    output_fields = ("value",)

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def content(self) -> dict[Any, list[Any]]:
        return seen_log(self._name)

    def open(self, conf, context):
        seen(f"{self._name}, opened").append(context.this_component_id)

    def partitions(self):
        return list(self.content)

    def end(self, partition):
        trouble = seen(f"{self._name}, end raises")
        if partition in trouble:
            trouble.remove(partition)
            raise OSError(f"no end of {partition}")
        return len(self.content[partition])

    def read(self, partition, start, end):
        seen(f"{self._name}, read").append((partition, start, end))
        for offset in range(start, end):
            if self.content[partition][offset] is not None:
                yield offset, [self.content[partition][offset]]

    def committed(self, partition, offset):
        seen(f"{self._name}, committed").append((partition, offset))

    def close(self):
        seen(f"{self._name}, closed").append(True)


_logs: dict[str, dict[Any, list[Any]]] = {}


def seen_log(name: str) -> dict[Any, list[Any]]:
    """The content of a log."""
    return _logs.setdefault(name, {})
