"""Which process uses the cores, batch by batch: part of `make profile`.

The word count into Redis with several batches in flight keeps all cores busy, so what a batch takes
is what its processes take together: the JVM, of which its compilers are told apart, the driver, and
Redis. Each pass counts everything once more: in the first ones the JVM still compiles. Linux only.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.data import make_data
from tests.services.servers import RedisServer

__all__ = ["Cost", "costs_of_words"]

SENTENCES, BATCHES = 1_000_000, 20
_COMPILERS = "CompilerThre"
_MS_OF_A_TICK = 1000 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cost:
    """What one batch of a pass took, in milliseconds: by the clock, and of processor time."""

    clock: float
    jvm: float
    compilers: float
    """Part of the JVM's."""
    driver: float
    redis: float


def costs_of_words(passes: int, pending: int) -> Iterator[Cost]:
    """Count words in several passes; give what a batch of each took."""
    import redis

    from waterspout import Config, submit
    from waterspout.spark.starting import embedded_session
    from waterspout.spouts.files import FileSpout
    from waterspout.state.redis import RedisState
    from waterspout.trident import Count, Split, TridentTopology

    data = make_data(Path(__file__).parent / "data", SENTENCES, BATCHES)
    gateway = embedded_session().sparkContext._gateway
    assert gateway is not None
    jvm = gateway.jvm.java.lang.ProcessHandle.current().pid()
    with RedisServer(durable=False) as server:
        client = redis.Redis.from_url(server.url)
        processes = (jvm, os.getpid(), client.info()["process_id"])
        for number in range(passes):
            client.flushall()
            topology = TridentTopology(f"processor-time-{number}")
            state = RedisState.opaque(server.url, prefix=f"{number}:")
            lines = topology.new_stream("lines", FileSpout(data, max_files=1))
            words = lines.each("value", Split(), out="word").group_by("word")
            words.persistent_aggregate(state, Count(), out="count").parallelism_hint(1)
            before = _used(*processes)
            with tempfile.TemporaryDirectory(prefix="waterspout-profile-") as home:
                run = submit(topology, config=Config(home=home, max_spout_pending=pending))
                run.process_all_available(timeout=600)
                run.stop()
                ends = [progress["timestamp"] for progress in run.recent_progress]
            used = [now - then for now, then in zip(_used(*processes), before, strict=True)]
            clock = 1000 * (ends[-1] - ends[1]) / (len(ends) - 2)
            yield Cost(clock, *(each / BATCHES for each in used))


def _used(jvm: int, driver: int, redis: int) -> list[float]:
    """Return the processor time of all of them so far: of the JVM, its compilers, the others."""
    return [_of(f"/proc/{jvm}/stat"), _of_compilers(jvm), *map(_of_process, (driver, redis))]


def _of_process(process: int) -> float:
    return _of(f"/proc/{process}/stat")


def _of_compilers(process: int) -> float:
    found = 0.0
    for thread in Path(f"/proc/{process}/task").iterdir():
        try:
            if _COMPILERS in (thread / "comm").read_text():
                found += _of(str(thread / "stat"))
        except OSError:
            continue  # it has ended meanwhile
    return found


def _of(path: str) -> float:
    fields = Path(path).read_text().rpartition(")")[2].split()
    return _MS_OF_A_TICK * (int(fields[11]) + int(fields[12]))
