"""States beside the bare clients of their stores: `make bench-states`.

Three questions, each answered by ratios within one run, because the machine itself is noisy:

- rates: keys per second of whole batches, ours and the bare client's, taking turns, each round
  with other words; once by a combiner that the store may carry out itself, once by an updater
  that runs here. The share of the bare client is the median over the rounds, by the clock and by
  the processor time of this process and the server, which the neighbours on the machine do not
  change.
- sizes: the cost of a batch as the state grows, ours and the bare client's over the same records.
- recovery: how long a file state takes to come back into memory.

Each state is compared with what was added to it, and a wrong one ends the run.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.state_batches import COMBINE, Driver, Keys, Words, word
from benchmarks.state_peers import STORES, Files, Store, Write
from tests.services.servers import MissingServer
from waterspout.state import StateKind, StoreState
from waterspout.testing import FaultProxy

PARTS = ("rates", "sizes", "recovery")
KINDS = (StateKind.OPAQUE, StateKind.TRANSACTIONAL, StateKind.NON_TRANSACTIONAL)
SIZES = (100_000, 1_000_000)
LARGE = 10_000_000
SIZES_BATCH = 10_000
WARM_UP = 3
FLAT = 1.3
DEFAULT = [name for name, store in STORES.items() if not store.is_slow]

Turn = Callable[[Keys, list[int]], object]


def main() -> None:
    """Measure what was asked for, print tables, and say which targets were missed."""
    parser = argparse.ArgumentParser(description="States beside the bare clients of their stores.")
    parser.add_argument("--backend", nargs="+", choices=sorted(STORES), default=DEFAULT)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keys", type=int, default=50_000, help="in a batch, of twice as many")
    parser.add_argument("--large", action="store_true", help="also with ten million keys")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there too")
    options = parser.parse_args()
    screen, found = Screen(), Found()
    chosen = [STORES[name] for name in options.backend]
    for make in chosen if "rates" in options.part else ():
        with screen.available(make):
            found.rates += measure_rates(make, screen, options.keys, options.rounds)
    growing = [make for make in chosen if make.is_filled]
    for make in growing if "sizes" in options.part else ():
        with screen.available(make):
            found.sizes += measure_sizes(make, screen, options.rounds, large=options.large)
    if "recovery" in options.part and Files in chosen:
        found.recoveries = measure_recovery(screen, options.rounds)
    screen.missed(found)
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(found), indent=2) + "\n")


@dataclass
class Rate:
    """What one way of writing reached; the shares are of the bare client's rate."""

    store: str
    what: str
    keys_per_s: float
    share: float = 1.0
    share_by_cpu: float = 1.0
    round_trips: int | None = None
    target: float | None = None


@dataclass
class Size:
    """What a batch costs with so many keys in the state, and how often the least of them."""

    store: str
    keys: int
    batch_s: float
    growth: float
    bare_s: float
    bare_growth: float


@dataclass
class Recovery:
    """How long a file state took to be there again, and the bytes alone to be read."""

    keys: int
    seconds: float
    read_s: float
    megabytes: float


@dataclass
class Found:
    """All that was measured."""

    rates: list[Rate] = field(default_factory=list)
    sizes: list[Size] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)


@dataclass(frozen=True)
class Cost:
    """What something took: by the clock, and of the processors."""

    wall_s: float
    cpu_s: float


class Meter:
    """Measures what is done here and in a server for us."""

    def __init__(self, store: Store) -> None:
        process = store.server.process if store.server is not None else None
        self._server = None if process is None else psutil.Process(process.pid)

    def of(self, act: Callable[[], object]) -> Cost:
        """Return the cost of one act."""
        gc.collect()
        cpu, wall = self._cpu(), time.perf_counter()
        act()
        return Cost(time.perf_counter() - wall, self._cpu() - cpu)

    def _cpu(self) -> float:
        spent = time.process_time()
        if self._server is None:
            return spent
        for process in (self._server, *self._server.children(recursive=True)):
            times = process.cpu_times()
            spent += times.user + times.system
        return spent


# --- rates ---------------------------------------------------------------------------------------


def measure_rates(make: type[Store], screen: Screen, keys: int, rounds: int) -> list[Rate]:
    """Let the bare client and three kinds of state take turns."""
    number = round(keys * make.scale)
    words = Words(2 * number)
    with make() as store, ExitStack() as stack:
        way, bare = fastest(store.bare(), words, number)
        turns: dict[str, Turn] = {"bare": bare}
        drivers = {}
        for kind in KINDS:
            driver = stack.enter_context(closing(Driver(store.recipe(kind, place_of(kind)))))
            driver.batch(*words.all())
            drivers[kind] = driver
            for how in driver.ways:
                turns[f"{kind.value}, {how}"] = turn_of(driver, how)
        costs = take_turns(turns, Meter(store), words, number, rounds)
        for driver in drivers.values():
            driver.check()
        trips = count_round_trips(store, drivers, words, number)
    found = [rate_of(make, number, name, costs, trips) for name in turns]
    screen.show_rates(make, number, way, found)
    return found


def place_of(kind: StateKind) -> str:
    """Return what the state of a kind is called in its store."""
    return kind.value.replace("-", "_")


def turn_of(driver: Driver, how: str) -> Turn:
    """Return a whole batch as something that takes turns with others."""
    return partial(driver.batch, combine=how == COMBINE)


def fastest(ways: Mapping[str, Write], words: Words, number: int) -> tuple[str, Write]:
    """Return the best of some ways to write; all have written before."""
    took: dict[str, float] = {}
    for name, write in ways.items():
        write(*words.all())
        tries = []
        for _ in range(2):
            keys, values = words.draw(number)
            began = time.perf_counter()
            write(keys, values)
            tries.append(time.perf_counter() - began)
        took[name] = min(tries)
    name = min(took, key=took.__getitem__)
    return name, ways[name]


def take_turns(
    turns: dict[str, Turn],
    meter: Meter,
    words: Words,
    number: int,
    rounds: int,
) -> dict[str, list[Cost]]:
    """Let each have its turn in each round, with the same words, beginning with another one."""
    costs: dict[str, list[Cost]] = {name: [] for name in turns}
    names = list(turns)
    for turn in range(rounds):
        keys, values = words.draw(number)
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            costs[name].append(meter.of(partial(turns[name], keys, values)))
    return costs


def count_round_trips(
    store: Store, drivers: dict[StateKind, Driver], words: Words, number: int
) -> dict[str, int]:
    """Return how often a client speaks and waits in one batch, connections already open.

    Replies are held back for a moment, so that a pipeline is sent whole before the first of them:
    else it would look like several.
    """
    if store.address is None:
        return {}
    trips = {}
    with FaultProxy(*store.address) as proxy:
        for kind, driver in drivers.items():
            with closing(Driver(store.recipe(kind, place_of(kind), proxy.address))) as through:
                through.txid = driver.txid
                for how in driver.ways:
                    turn = turn_of(through, how)
                    proxy.delay(0)
                    turn(*words.draw(1))
                    proxy.delay(store.reply_delay_s)
                    before = proxy.requests
                    turn(*words.draw(number))
                    trips[f"{kind.value}, {how}"] = proxy.requests - before
    return trips


def rate_of(
    make: type[Store], number: int, name: str, costs: dict[str, list[Cost]], trips: dict[str, int]
) -> Rate:
    """Compare one with the bare client, round by round."""
    mine, bare = costs[name], costs["bare"]
    pairs = list(zip(bare, mine, strict=True))
    return Rate(
        make.name,
        name,
        number / statistics.median(cost.wall_s for cost in mine),
        statistics.median(b.wall_s / m.wall_s for b, m in pairs),
        sum(b.cpu_s for b in bare) / sum(m.cpu_s for m in mine),
        trips.get(name),
        make.target if name.endswith(COMBINE) else None,
    )


# --- sizes ---------------------------------------------------------------------------------------


def measure_sizes(make: type[Store], screen: Screen, rounds: int, *, large: bool) -> list[Size]:
    """Update the same number of words in states of several sizes, each on a server of its own.

    The caches are warm as they are in the middle of a run: each state was just filled, all sizes
    then have the same number of batches by both writers before the first that counts. Nothing is
    restarted, and the memory of this machine holds all that was written.
    """
    sizes = [*SIZES, LARGE] if large and make.holds_large else list(SIZES)
    sizes = [round(size * make.scale) for size in sizes]
    number = round(SIZES_BATCH * make.scale)
    with ExitStack() as stack:
        sides = [stack.enter_context(filled(make, size)) for size in sizes]
        times: list[tuple[list[float], list[float]]] = [([], []) for _ in sides]
        for turn in range(WARM_UP + rounds * make.batches_a_round):
            for (words, driver, bare), (ours, others) in zip(sides, times, strict=True):
                keys, values = words.draw(number)
                took = driver.batch(keys, values)
                began = time.perf_counter()
                bare(keys, values)
                bare_took = time.perf_counter() - began
                if turn >= WARM_UP:
                    ours.append(took)
                    others.append(bare_took)
    # Where some batches have to do more than others, as files do, what counts is the sum.
    typical = statistics.median if make.batches_a_round == 1 else statistics.fmean
    least = [typical(side) for side in times[0]]
    found = []
    for size, (ours, others) in zip(sizes, times, strict=True):
        batch, bare_s = typical(ours), typical(others)
        grown = (batch / least[0], bare_s, bare_s / least[1])
        found.append(Size(make.name, size, batch, *grown))
    screen.show_sizes(make, number, found)
    return found


@contextmanager
def filled(make: type[Store], size: int) -> Iterator[tuple[Words, Driver, Write]]:
    """Give out an opaque state with so many words in it, and the bare client over its records."""
    with make() as store, closing(Driver(store.recipe(StateKind.OPAQUE, "counts"))) as driver:
        words = Words(size)
        driver.batch(*words.draw(1))
        store.fill(driver, "counts", size)
        yield words, driver, store.bare_over("counts")


# --- recovery ------------------------------------------------------------------------------------


def measure_recovery(screen: Screen, rounds: int) -> list[Recovery]:
    """Open a file state again and again, after some batches, with the files in the page cache."""
    found = []
    for size in SIZES:
        with Files() as store:
            words, recipe = Words(size), store.recipe(StateKind.OPAQUE, "counts")
            with closing(Driver(recipe)) as driver:
                driver.batch(*words.all())
                for _ in range(5):
                    driver.batch(*words.draw(SIZES_BATCH))
            del driver
            meter = Meter(store)
            took = [meter.of(partial(reopen, recipe)).wall_s for _ in range(rounds)]
            files = list((store.folder / "counts").iterdir())
            read = [meter.of(partial(read_all, files)).wall_s for _ in range(rounds)]
            megabytes = sum(file.stat().st_size for file in files) / 1e6
        middle = statistics.median
        found.append(Recovery(size, middle(took), middle(read), megabytes))
    screen.show_recovery(found)
    return found


def read_all(files: Sequence[Path]) -> None:
    """Read files, and do nothing with what is in them."""
    for file in files:
        file.read_bytes()


def reopen(recipe: StoreState) -> None:
    """Bring a file state back into memory, and let it go again."""
    backing = recipe.backing()
    backing.multi_get([(word(0),)])  # reads all of it
    backing.close()


# --- what people see -----------------------------------------------------------------------------


class Screen:
    """Tables: drawn on a terminal, plain columns anywhere else."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        width = None if self._is_terminal else 100
        self._console = Console(force_terminal=self._is_terminal, width=width, highlight=False)

    @contextmanager
    def available(self, make: type[Store]) -> Iterator[None]:
        """Leave out a store whose server is not here."""
        try:
            yield
        except MissingServer as error:
            self._console.print(f"{make.name} is left out: {error.reason}", markup=False)

    def show_rates(self, make: type[Store], number: int, way: str, found: Sequence[Rate]) -> None:
        """Print what was reached on one store."""
        title = f"{make.name}: {number:,} of {2 * number:,} keys a batch; bare: {way}"
        columns = ("", "keys/s", "of bare", "of bare, by CPU", "round trips")
        rows = [
            (
                *(rate.what, f"{rate.keys_per_s:,.0f}"),
                *(f"{rate.share:.2f}", f"{rate.share_by_cpu:.2f}"),
                "-" if rate.round_trips is None else f"{rate.round_trips}",
            )
            for rate in found
        ]
        self._table(title, columns, rows)

    def show_sizes(self, make: type[Store], number: int, found: Sequence[Size]) -> None:
        """Print what a batch costs on one store as it grows."""
        title = f"{make.name}: a batch of {number:,} keys in an opaque state of so many"
        columns = ("keys in the state", "ms", "growth", "bare ms", "bare growth")
        rows = [
            (
                *(f"{size.keys:,}", f"{size.batch_s * 1e3:.1f}", f"{size.growth:.2f}"),
                *(f"{size.bare_s * 1e3:.1f}", f"{size.bare_growth:.2f}"),
            )
            for size in found
        ]
        self._table(title, columns, rows)

    def show_recovery(self, found: Sequence[Recovery]) -> None:
        """Print how long file states take to come back."""
        columns = ("keys in the state", "s", "s, reading alone", "MB")
        rows = [
            (f"{r.keys:,}", f"{r.seconds:.2f}", f"{r.read_s:.3f}", f"{r.megabytes:.1f}")
            for r in found
        ]
        self._table("files: recovery of an opaque state", columns, rows)

    def missed(self, found: Found) -> None:
        """Name the targets that were missed."""
        lines = [
            f"{r.store}, {r.what}: {r.share:.2f} of the bare client, below {r.target}"
            for r in found.rates
            if r.target is not None and r.share < r.target
        ]
        lines += [
            f"{s.store}: a batch costs {s.growth:.2f} times as much with {s.keys:,} keys "
            f"(the bare client's {s.bare_growth:.2f} times)"
            for s in found.sizes
            if s.growth > FLAT
        ]
        self._console.print(
            "Targets missed:" if lines else "Of what was measured, no target was missed."
        )
        for line in lines:
            self._console.print(f"  {line}", markup=False)

    def _table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        # Not the table's own title, which is broken to the width of the table.
        self._console.print(title, markup=False, soft_wrap=True)
        table = Table(box=box.SIMPLE if self._is_terminal else None)
        for i, column in enumerate(columns):
            table.add_column(column, justify="right" if i else "left")
        for row in rows:
            table.add_row(*row)
        self._console.print(table)
        self._console.print()


if __name__ == "__main__":
    main()
