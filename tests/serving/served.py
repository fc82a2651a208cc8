"""A run in this process, without Spark, and its server on a free port of loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.coordination.commanded import NAME, Stepping, embedded
from waterspout import Config, Run
from waterspout.coordination.progress import BatchTotals
from waterspout.coordination.recording import Recorder
from waterspout.serving import bound
from waterspout.serving._limits import Limits
from waterspout.spouts.files import FileSpout
from waterspout.state.sqlite import SQLiteState
from waterspout.testing import LocalRun
from waterspout.trident import Count, TridentTopology

TOKEN = "correct-horse-battery-staple"


def split(line: str) -> list[str]:
    """Refuse a line of the word "bad"."""
    if "bad" in line:
        raise ValueError("password=hunter2 is no line")
    return line.split()


def words(place: Path) -> TridentTopology:
    """Counts the words of three files, a file a batch; one line of the second is bad."""
    data = place / "data"
    data.mkdir(exist_ok=True)
    for n, text in enumerate(("to be\n", "bad\nto do\n", "be\n")):
        (data / f"{n}.txt").write_text(text)
    topology = TridentTopology(NAME)
    stream = topology.new_stream("in", FileSpout(str(data), max_files=1))
    counted = stream.flat_map(split, "word string").name("split").group_by("word")
    state = SQLiteState.opaque(place / "counts.db", table="counts")
    counted.persistent_aggregate(state, Count(), "count")
    return topology


@contextmanager
def serving(
    place: Path,
    *,
    limits: Limits | None = None,
    token: str | None = TOKEN,
    held: bool = False,
    **options,
) -> Iterator[tuple[Run, httpx.Client]]:
    """Serve a word count; the client knows no token. `held`: no batch goes on, until the end."""
    at = {"home": str(place / "home"), "serve": "127.0.0.1:0", "serve_token": token}
    conf = Config(idle_poll_millis=1, on_error="dead_letter", **at, **options)
    topology, server, store = words(place), bound(conf, limits), embedded(place)
    conf = conf.replace(serve_token=None)
    local = LocalRun(topology, conf, store=store)
    loop, recorder = Stepping(local), Recorder(NAME, BatchTotals())
    local.loop.events.subscribe(recorder)
    if held:
        loop.held.set()

    def attend(run: Run) -> None:
        server.start(run, topology)

    run = Run(
        loop,
        recorder,
        store,
        conf,
        explain=lambda: "the plan",
        close=local.close,
        letters=lambda: local.letters,
        attend=attend,
    )
    try:
        with httpx.Client(base_url=server.url, timeout=10, trust_env=False) as client:
            yield run, client
    finally:
        loop.held.clear()
        run.stop()


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def server_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("waterspout-server")]
