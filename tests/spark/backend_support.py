"""Numbers that are counted into any store on Spark, and the storm that they go through."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.spark.backend_stores import Store
from tests.trident.support import wait_for
from waterspout import Config, Run, submit
from waterspout._schema import Schema
from waterspout.errors import OutageError, RunFailedError
from waterspout.faults import Fault, FaultPlan, InjectedError
from waterspout.spouts._base import BatchPlanner, BatchSpout, SpoutContext, SpoutKind
from waterspout.spouts._reads import RangeRead, Read
from waterspout.testing._proxy import FaultProxy
from waterspout.trident import Sum, TridentTopology, expr

# As the embedded session has it: a task that fails so often fails its batch.
TASK_TRIES = 4
# Above any sum, and with zeros behind it that no key has: 3_0000000004711 are three, of 4711.
ONE = 10**13
OVER = ("failed", "idle")
CUTS_MAX = 10


class Numbers(BatchSpout):
    """The numbers below a limit. Opaque: each attempt at a batch draws its size anew.

    Sizes are pairs of bounds, those of replays apart: with fewer numbers than there are keys, a
    replay does not have some keys that a lost attempt may have written.
    """

    kind = SpoutKind.OPAQUE

    def __init__(
        self, limit: int, sizes: tuple[int, int], again: tuple[int, int], seed: int = 1
    ) -> None:
        self.limit = limit
        self._sizes = sizes
        self._again = again
        self._dice = random.Random(seed)
        self._planned: set[int] = set()
        self.committed: dict[int, int] = {}

    @property
    def schema(self) -> Schema:
        return Schema.parse("value bigint, timestamp timestamp")

    @property
    def done(self) -> int:
        """How many numbers have been committed."""
        return max(self.committed.values(), default=0)

    @property
    def batches_min(self) -> int:
        """How many batches there will be at least."""
        return -(-self.limit // self._sizes[1])

    def open(self, context: SpoutContext) -> BatchPlanner:
        return _NumbersPlanner(self)

    def read(self, metadata: Any) -> Read:
        return RangeRead(self.schema, metadata["start"], metadata["end"], 0.0, 1.0)

    def next_end(self, txid: int, start: int) -> int:
        sizes = self._again if txid in self._planned else self._sizes
        self._planned.add(txid)
        return min(self.limit, start + self._dice.randint(*sizes))


class _NumbersPlanner(BatchPlanner):
    def __init__(self, spout: Numbers) -> None:
        self._spout = spout

    def is_ready(self, previous: Any) -> bool:
        return _end(previous) < self._spout.limit

    def plan(self, txid: int, previous: Any) -> Any:
        start = _end(previous)
        return {"start": start, "end": self._spout.next_end(txid, start)}

    def succeeded(self, txid: int, metadata: Any) -> None:
        self._spout.committed[txid] = metadata["end"]


def _end(previous: Any) -> int:
    return 0 if previous is None else int(previous["end"])


class Tally:
    """A state that says of each key how many numbers it has, and their sum, in one number."""

    def __init__(self, store: Store, spout: BatchSpout, keys: int) -> None:
        self.store = store
        self.keys = keys
        self.topology = TridentTopology("tally")
        self.state = (
            self.topology.new_stream("numbers", spout)
            .each("value", expr(f"value % {keys}"), out="k bigint")
            .each("value", expr(f"value + {ONE}"), out="one bigint")
            .group_by("k")
            .persistent_aggregate(store.state, "one", Sum(), out="total")
        )

    def expected(self, limit: int) -> dict[int, int]:
        """Return what the state must hold of the numbers below a limit."""
        numbers = {k: range(k, limit, self.keys) for k in range(min(self.keys, limit))}
        return {k: len(of) * ONE + sum(of) for k, of in numbers.items()}

    def read(self, spark: Any) -> dict[int, int]:
        """Return the whole state, read by executors where these can."""
        if not self.store.readers:
            keys = range(self.keys)
            values = zip(keys, self.state.multi_get(keys), strict=True)
            return {k: value for k, value in values if value is not None}
        table = self.state.to_dataframe(spark).toArrow()
        keys, values = (table.column(name).to_pylist() for name in ("k", "total"))
        assert len(set(keys)) == len(keys), "a key was read twice"
        return dict(zip(keys, values, strict=True))

    def assert_exact(self, spark: Any, limit: int) -> None:
        """Compare key by key, with our own eyes and with those of a client from outside."""
        expected = self.expected(limit)
        for who, found in (("we", self.read(spark)), ("a client", self.store.raw())):
            keys = found.keys() | expected.keys()
            wrong = [k for k in sorted(keys) if found.get(k) != expected.get(k)]
            shown = [(k, found.get(k), expected.get(k)) for k in wrong[:5]]
            assert not wrong, f"{who} found {len(wrong)} wrong keys: (key, found, expected) {shown}"


class Storm(FaultPlan):
    """Faults by batch. Those in tasks strike once over all processes, by a token in a folder.

    No fault names an attempt: one that is replayed because of an earlier batch has another.
    """

    def __init__(self, store: Store, folder: Path) -> None:
        super().__init__([])
        folder.mkdir()
        self._store = store
        self._folder = folder
        self._calls: dict[tuple[str, int], list[Callable[[], object]]] = {}
        self.tokens: list[Path] = []
        self.restarts: list[Path] = []
        self.crashes = 0
        self.losses = 0

    def __call__(self, name: str, context: Mapping[str, object]) -> None:
        for call in self._calls.pop((name, int(str(context["txid"]))), []):
            call()
        super().__call__(name, context)

    def at(self, point: str, txid: int, call: Callable[[], object]) -> None:
        """Call something in the driver, the first time a point is passed for a batch."""
        self._calls.setdefault((point, txid), []).append(call)

    def once(self, txid: int, point: str, action: str, **where: int) -> Path:
        """Let one thing happen to the first who passes a point."""
        token = self._folder / f"{len(self.tokens):03}-{txid}-{point}-{action}"
        return self._strike(token, txid, point, action, **where)

    def fail(self, txid: int, point: str, *, tries: int = TASK_TRIES, **where: int) -> None:
        """Fail the batch: a task until Spark gives up, or the driver at once."""
        for _ in range(tries):
            self.once(txid, point, "fail", **where)

    def crash(self, txid: int, point: str) -> None:
        """End the run; whoever weathers the storm starts it again."""
        self.once(txid, point, "raise")
        self.crashes += 1

    def zombie(self, txid: int, *, wakes_at: int) -> Path:
        """Let a task hang before its write while its batch fails, and write in a later one."""
        both = self._folder / f"{len(self.tokens):03}-{txid}-zombie"
        # Where one hangs, the other goes on: the token that it takes is what that waits for.
        zombie = self._strike(both.with_suffix(".go"), txid, "write.before", "hang", partition=0)
        self._strike(both, txid, "write.before", "hang", partition=1)
        self.fail(txid, "write.after", partition=1)
        self.at("head.after", wakes_at, Path(f"{zombie}.go").touch)
        return zombie

    def lose(self, point: str, txid: int, what: str) -> None:
        """Lose the reply to the next write of records or of the head, or that request itself."""
        proxy = self._store.proxy
        assert proxy is not None
        lost, arm = {
            "write": (self._store.write, proxy.drop_next_reply),
            "head": (self._store.head, proxy.drop_next_reply),
            "request": (self._store.write, proxy.drop_next_request),
        }[what]
        self.at(point, txid, lambda: arm(lost))
        self.losses += 1

    def cut(self, point: str, txid: int) -> None:
        """Cut all connections when the driver passes a point."""
        assert self._store.proxy is not None
        self.at(point, txid, self._store.proxy.cut)

    def restart(self, txid: int) -> None:
        """Kill the server in the middle of a commit; its data come back with it."""
        self.restarts.append(self.once(txid, "write.before", "hang", partition=0))

    def _strike(self, token: Path, txid: int, point: str, action: str, **where: int) -> Path:
        self.tokens.append(token)
        where = {"txid": txid, **where}
        self.faults.append(Fault(point, action, nth=None, where=where, token=str(token)))
        self._passed.append(0)
        return token

    def weather(
        self, tally: Tally, spark: Any, config: Config, *, timeout: float = 60
    ) -> list[int]:
        """Run to the end, through all of it; return the batches as they were reported."""
        progress: list[int] = []
        for left in reversed(range(self.crashes + 1)):
            run = _submitted(tally, spark, config)
            try:
                self._restart_servers(run, timeout)
                run.process_all_available(timeout=timeout)
                break
            except RunFailedError as error:
                if not left or not isinstance(error.__cause__, InjectedError):
                    raise
            finally:
                run.stop()
                progress += [p["txid"] for p in run.recent_progress]
        return progress

    def _restart_servers(self, run: Run, timeout: float) -> None:
        # Here, not where it hangs: a server dies with the thread that has started it.
        while self.restarts:
            token = self.restarts[0]
            wait_for(lambda token=token: token.exists() or run.status in OVER, timeout)
            if not token.exists():
                return
            server = self._store.server
            assert server is not None
            server.kill()
            server.start()
            Path(f"{token}.go").touch()
            self.restarts.pop(0)

    def assert_over(self, spark: Any) -> None:
        """See that every fault has struck, and that no zombie is left that could still write."""
        wait_for(lambda: running_tasks(spark) == 0)
        assert [token.name for token in self.tokens if not token.exists()] == []
        assert self._calls == {}


def _submitted(tally: Tally, spark: Any, config: Config) -> Run:
    """Start a run; again if its store was cut off just then, as whoever looks after it would."""
    for left in reversed(range(10)):
        try:
            return submit(tally.topology, spark, config)
        except OutageError:
            if not left:
                raise
    raise AssertionError


@contextmanager
def cuts(
    proxy: FaultProxy | None, spout: Numbers, *, gap_s: float, until: float, seed: int
) -> Iterator[None]:
    """Cut all connections at random moments, until a part of the numbers is in."""
    dice, over = random.Random(seed), threading.Event()
    if proxy is None:
        yield
        return

    def cut() -> None:
        for _ in range(CUTS_MAX):
            if over.wait(dice.uniform(0, 2 * gap_s)) or spout.done >= until * spout.limit:
                return
            proxy.cut()

    thread = threading.Thread(target=cut, name="cuts")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def running_tasks(spark: Any) -> int:
    tracker = spark.sparkContext.statusTracker()
    stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def jobs_of(spark: Any) -> int:
    """How many jobs the session has begun in its life."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())
