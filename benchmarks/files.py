"""What it costs to look for new files among many that were read: `make bench-files`.

For each number of files and each layout, in a process of its own: the first look after a start,
looks while nothing happens, looks that find some new files, and a source of which nothing was read
yet. Times are of the CPU, so that other work on the machine counts little, except "blocked", the
longest that one call held up the driver's loop by the clock. The files are links to one empty file,
on a disk in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from waterspout import Config
from waterspout.spouts._base import SpoutContext
from waterspout.spouts._read_files import StoredRead, Tally
from waterspout.spouts.files import FileSpout

LAYOUTS = ("flat", "nested", "glob")
NESTED_FOLDERS = 1000
SETTLED_S = 2.1  # a folder is trusted when it has stayed as it is for two seconds


def main() -> None:
    """Measure each case in a child and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--layouts", nargs="*", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--new", type=int, default=10)
    parser.add_argument("--child", choices=LAYOUTS, help="for the children")
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(_measure(arguments.child, arguments.files[0], arguments.new)))
        return
    print(
        f"| files, layout | first look s | idle look ms | look with {arguments.new} new ms "
        "| blocked s | memory MB | nothing read: ready s | memory MB |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for files in arguments.files:
        for layout in arguments.layouts:
            command = [sys.executable, "-m", "benchmarks.files", "--child", layout]
            command += ["--files", str(files), "--new", str(arguments.new)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            got = json.loads(done.stdout)
            print(
                f"| {files:,} {layout} | {got['first_s']:.2f} | {got['idle_ms']:.2f} "
                f"| {got['found_ms']:.1f} | {got['blocked_s']:.2f} | {got['memory_mb']:.0f} "
                f"| {got['backlog_s']:.2f} | {got['backlog_mb']:.0f} |",
                flush=True,
            )


def _measure(layout: str, files: int, new: int) -> dict[str, Any]:
    shm = Path("/dev/shm")
    work = Path(tempfile.mkdtemp(prefix="bench-files-", dir=shm if shm.exists() else None))
    try:
        source, names = _make_source(work / "in", layout, files)
        path = f"{source}/*/*.txt" if layout == "glob" else str(source)
        spout = FileSpout(path)
        backlog = _backlog(spout, work)
        home = work / "home"
        home.mkdir()
        with closing(StoredRead(home, "in")) as listed:
            listed.put(dict.fromkeys(names, 1))
        last = {"files": [], "read": Tally().plus(names).to_json(1)}
        del names
        planner = spout.open(SpoutContext(Config(), "in", home, {1: last}, 2))
        before = _memory_mb()
        first_s, blocked = _until_looked(planner)
        time.sleep(SETTLED_S)
        _, more = _until_looked(planner)
        blocked = max(blocked, more)
        idle_s, more = _until_looked(planner)
        blocked = max(blocked, more)
        for number in range(new):
            os.link(work / "empty", source / _folder(layout, number) / f"new-{number}.txt")
        began = time.process_time()
        _force(planner)
        blocked = max(blocked, _timed(lambda: _until(lambda: planner.is_ready(None), planner))[1])
        found_s = time.process_time() - began
        assert len(planner.plan(2, last)["files"]) == new
        memory = _memory_mb() - before
        planner.close()
    finally:
        shutil.rmtree(work)
    return {
        "first_s": first_s,
        "idle_ms": idle_s * 1000,
        "found_ms": found_s * 1000,
        "blocked_s": blocked,
        "memory_mb": memory,
        **backlog,
    }


def _backlog(spout: FileSpout, work: Path) -> dict[str, float]:
    """Measure a source of which nothing was read."""
    before, began = _memory_mb(), time.process_time()
    planner = spout.open(SpoutContext(Config(), "backlog", None, {}, 1))
    _until(lambda: planner.is_ready(None), planner)
    took = time.process_time() - began
    memory = _memory_mb() - before
    planner.close()
    return {"backlog_s": took, "backlog_mb": memory}


def _make_source(source: Path, layout: str, files: int) -> tuple[Path, list[str]]:
    empty = source.parent / "empty"
    empty.touch()
    folders = [
        source / _folder(layout, n) for n in range(1 if layout == "flat" else NESTED_FOLDERS)
    ]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    names = [f"{folders[n % len(folders)]}/part-{n:08}.txt" for n in range(files)]
    for name in names:
        os.link(empty, name)
    return source, names


def _folder(layout: str, number: int) -> str:
    return "." if layout == "flat" else f"day-{number:04}"


def _until_looked(planner: Any) -> tuple[float, float]:
    """Look once; return how long it took, and how long at most one call did."""
    _force(planner)
    began = time.process_time()
    _, blocked = _timed(lambda: _until(lambda: not _looks(planner), planner))
    return time.process_time() - began, blocked


_longest = 0.0


def _until(holds: Callable[[], bool], planner: Any) -> None:
    """Call the planner, as the loop does, until something holds."""
    global _longest
    while True:
        began = time.monotonic()
        planner.is_ready(None)
        _longest = max(_longest, time.monotonic() - began)
        if holds():
            return
        time.sleep(0.005)


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    global _longest
    _longest = 0.0
    return call(), _longest


def _looks(planner: Any) -> bool:
    finder = getattr(planner, "_finder", None)
    return finder is not None and finder._looking is not None


def _force(planner: Any) -> None:
    """Let the next call look, however short ago the last look was."""
    (getattr(planner, "_finder", None) or planner)._list_at = 0.0


def _memory_mb() -> float:
    return psutil.Process().memory_info().rss / 1e6


if __name__ == "__main__":
    main()
