"""DRPC point reads while a word count commits: `make bench-drpc`.

The driver and its server run in this process, as they do in a real run. The callers are in another
process and speak HTTP on kept connections by themselves: what is measured is the server, not a
client library. First requests come at a fixed rate, and the time of each counts from when it
was due, so that a server that stands still is not measured as a quick one. Then 32 callers ask
without a pause. Every answer is compared with the one before it: a count never goes down.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.data import make_data
from waterspout import Config, submit
from waterspout.spark.starting import embedded_session
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.trident import Count, MapGet, Split, TridentTopology

CLIENTS = 32


class Caller:
    """One kept connection that asks for the count of a word."""

    def __init__(self, url: str, word: str) -> None:
        address = urlsplit(url)
        self._host, self._port = str(address.hostname), int(address.port or 80)
        body = word.encode()
        self._request = (
            f"POST /drpc/words HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        self._last = 0

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)

    async def ask(self) -> None:
        """Ask once, and see that the count is not below the last one."""
        self._writer.write(self._request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        body = json.loads(await self._reader.readexactly(length))
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head!r} {body}")
        (count,) = body["result"][0]
        if (count or 0) < self._last:
            raise RuntimeError(f"the count went down from {self._last} to {count}")
        self._last = count or 0


async def at_rate(url: str, word: str, rate: float, seconds: float) -> dict[str, float]:
    """Ask at a fixed rate; return percentiles of the times, in milliseconds."""
    free: asyncio.Queue[Caller] = asyncio.Queue()
    for _ in range(CLIENTS):
        caller = Caller(url, word)
        await caller.open()
        free.put_nowait(caller)
    times: list[float] = []

    async def one(due: float) -> None:
        caller = await free.get()
        await caller.ask()
        times.append(time.perf_counter() - due)
        free.put_nowait(caller)

    began = time.perf_counter()
    tasks = []
    for number in range(int(rate * seconds)):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(one(due)))
    await asyncio.gather(*tasks)
    cuts = statistics.quantiles(times, n=100)
    return {"p50_ms": 1000 * cuts[49], "p99_ms": 1000 * cuts[98], "requests": len(times)}


async def without_pause(url: str, word: str, seconds: float) -> dict[str, float]:
    """Let 32 callers ask without a pause; return how many answers a second that makes."""
    callers = [Caller(url, word) for _ in range(CLIENTS)]
    for caller in callers:
        await caller.open()
    until = time.perf_counter() + seconds
    counts = [0] * CLIENTS

    async def ask(number: int) -> None:
        while time.perf_counter() < until:
            await callers[number].ask()
            counts[number] += 1

    await asyncio.gather(*(ask(number) for number in range(CLIENTS)))
    return {"per_second": sum(counts) / seconds, "clients": CLIENTS}


async def call_all(url: str, word: str, seconds: float) -> dict[str, object]:
    """Be the callers."""
    await without_pause(url, word, 2.0)  # what is made with the first request is there then
    return {
        "at 100/s": await at_rate(url, word, 100.0, seconds),
        "32 clients": await without_pause(url, word, seconds),
    }


def main() -> None:
    """Measure and print, as lines and as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--sentences", type=int, default=2000, help="a batch")
    parser.add_argument("--call", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--word", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.call:
        print(json.dumps(asyncio.run(call_all(args.call, args.word, args.seconds))))
        return
    print(json.dumps(_measured(args.seconds, args.sentences)))


def _measured(seconds: float, sentences: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (sample,) = make_data(place / "sample", sentences, 1).iterdir()
        lines = sample.read_text()
        word = lines.split()[0]
        topology = TridentTopology("bench_drpc")
        (place / "data").mkdir()
        state = SQLiteState.opaque(place / "counts.db", "counts")
        counts = (
            topology.new_stream("lines", FileSpout(str(place / "data"), max_files=1))
            .each("value", Split(), "word")
            .group_by("word")
            .persistent_aggregate(state, Count(), "count")
        )
        asked = topology.new_drpc_stream("words").each("args", Split(), "word")
        asked.state_query(counts, "word", MapGet(), "count").project("count")
        conf = Config(serve="127.0.0.1:0", home=str(place / "home"))
        run = submit(topology, embedded_session(), conf)
        try:
            (place / "data" / "0.txt").write_text(lines)
            run.process_all_available()
            found = _called(str(run.server_url), word, seconds, place, lines)
            run.process_all_available()
        finally:
            run.stop()
    return {**found, "sentences a batch": sentences}


def _called(url: str, word: str, seconds: float, place: Path, lines: str) -> dict[str, object]:
    """Let another process call, while files are added so that batches commit all the time."""
    callers = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.drpc", "--call", url, "--word", word, "--seconds",
         str(seconds)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    number = 1
    while callers.poll() is None:
        (place / f"{number}.new").write_text(lines)
        (place / f"{number}.new").rename(place / "data" / f"{number}.txt")
        number += 1
        time.sleep(0.5)
    out, _ = callers.communicate()
    if callers.returncode:
        raise SystemExit("a caller failed: see above")
    result: dict[str, object] = json.loads(out)
    return {**result, "batches": number}


if __name__ == "__main__":
    main()
