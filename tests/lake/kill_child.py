"""Kills drivers of rows at every operation, and says what is wrong with what they leave.

    python -m tests.lake.kill_child FOLDER KIND:STEP...

makes FOLDER/KIND/killed: two batches, and an attempt at the third that was published and lost. It
is copied, and a driver that goes on there is killed before the first operation on a file or on the
table, the second and so on (each STEP-th), until one comes through. Then a reader looks, who knows
nothing of waterspout; and a last driver goes on and must come to an exact end. Each of them is a
process of its own, forked from here, where neither Arrow nor Delta has done anything yet.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from tests.lake.support import recipe, seen
from waterspout.state.parquet import committed_files
from waterspout.testing._batches import OWNER, RowBatches
from waterspout.transactional._ledger import Ledger

LAST = 5
OPERATIONS = ("fsync", "link", "unlink", "mkdir", "rename", "rmdir", "open", "makedirs")
TABLE_OPERATIONS = ("create_write_transaction", "delete", "update_incremental")


def id_of(txid: int, attempt: int) -> int:
    """Return the row of an attempt: other rows in each."""
    return txid * 100 + attempt


def rows_of_attempt(txid: int, attempt: int) -> dict[int, list[tuple[int, str]]]:
    """Return its rows by partition: one of its own, and one that says no more than the batch."""
    return {0: [(id_of(txid, attempt), "a")], 1: [(-txid, "b")]}


def load(folder: Path) -> Ledger:
    path = folder / "ledger"
    return Ledger.from_json(json.loads(path.read_text())) if path.exists() else Ledger(OWNER)


def save(folder: Path, ledger: Ledger) -> None:
    new = folder / "ledger.new"
    new.write_text(json.dumps(ledger.to_json()))
    new.replace(folder / "ledger")


def truth(ledger: Ledger) -> list[int]:
    """Return the rows of all batches that were marked."""
    marked = (ledger.committed_metadata or {}).items()
    return sorted(n for t, a in marked for n in (id_of(int(t), a), -int(t)))


def go_on(folder: Path, kind: str, epoch: int, last: int) -> RowBatches:
    ledger = load(folder)
    emitted = ledger.emitted.get(ledger.current)
    batches = RowBatches.over(
        recipe(kind, folder / "table"),
        epoch=epoch,
        ledger=ledger,
        attempt=-1 if emitted is None else emitted.attempt,
        save=lambda new: save(folder, new),
    )
    batches.verify()
    batches.recover()
    while batches.txid <= last:
        batches.claim()
        batches.write(rows_of_attempt(batches.txid, batches.attempt))
        batches.finish()
    return batches


def prepare(folder: Path, kind: str) -> None:
    folder.mkdir(parents=True)
    batches = go_on(folder, kind, 1, 2)
    batches.lose(rows_of_attempt(3, 0))


def kill_before_operation(nth: int) -> None:
    operations = count(1)

    def killing(operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            if next(operations) == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*args, **options)

        return run

    from waterspout.state.delta import _table

    for name in OPERATIONS:
        setattr(os, name, killing(getattr(os, name)))
    from deltalake import DeltaTable

    for name in TABLE_OPERATIONS:
        setattr(DeltaTable, name, killing(getattr(DeltaTable, name)))
    _table.TableLog._make_durable = killing(_table.TableLog._make_durable)  # type: ignore[method-assign]


def wrong_now(folder: Path, kind: str) -> str | None:
    """Say what a reader sees that it must not, after a driver was killed."""
    ledger = load(folder)
    ids, right = seen(kind, folder / "table"), truth(ledger)
    extra = Counter(ids) - Counter(right)
    if Counter(right) - Counter(ids):
        return f"{ids}: committed rows are missing, of {right}"
    batches = {n // 100 if n > 0 else -n for n in extra}
    if batches - {ledger.current} or any(many > 1 for many in extra.values()):
        return f"{ids}: rows too many, instead of {right}"
    if kind == "parquet":
        files = committed_files(folder / "table")
        shown = len(files)
        if shown not in (len(right), len(right) - 2) or not all(map(os.path.exists, files)):
            return f"the manifest has {files}, instead of {right}"
    return None


def wrong_at_the_end(folder: Path, kind: str) -> str | None:
    ledger = go_on(folder, kind, 3, LAST).ledger
    ids, right = seen(kind, folder / "table"), truth(ledger)
    if ids != right or len(right) != 2 * LAST:
        return f"{ids} in the end, instead of {right}"
    left = [p.name for p in (folder / "table").rglob("part-*") if "_staging" in str(p)]
    heads = list((folder / "table" / "_waterspout").glob("head-*"))
    if len(left) > 1 or len(heads) != 1:
        return f"{left} and {heads} are left"
    return None


def in_a_fork(act: Callable[[], str | None]) -> tuple[bool, str | None]:
    """Run in a forked process; return whether it was killed, and what it said."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        try:
            said = act()
        except BaseException:
            said = traceback.format_exc()
        os.write(write, json.dumps(said).encode()[:60_000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
        return False, f"ended by signal {os.WTERMSIG(status)}; 14 means that it hung"
    return os.WIFSIGNALED(status), json.loads(text) if text else None


def require(said: tuple[bool, str | None]) -> None:
    if said != (False, None):
        sys.exit(f"could not be prepared: {said}")


def kill_at_every(folder: Path, kind: str, step: int) -> dict[str, Any]:
    start = folder / "killed"
    require(in_a_fork(lambda: prepare(start, kind)))
    wrong: list[str] = []
    for nth in count(1, step):
        copy = shutil.copytree(start, folder / str(nth))

        def driver(copy: Path = copy, nth: int = nth) -> None:
            kill_before_operation(nth)
            go_on(copy, kind, 2, LAST - 1)

        killed, said = in_a_fork(driver)
        looks = [] if said is None else [said]
        for look in (wrong_now, wrong_at_the_end):
            _, found = in_a_fork(lambda: look(copy, kind))  # noqa: B023
            looks += [] if found is None else [found]
        wrong += [f"killed before operation {nth}: {text}" for text in looks]
        shutil.rmtree(copy)
        if not killed:
            return {"operations": nth, "wrong": wrong}
    raise AssertionError


if __name__ == "__main__":
    asked = [text.split(":") for text in sys.argv[2:]]
    found = {k: kill_at_every(Path(sys.argv[1], k), k, int(step)) for k, step in asked}
    print(json.dumps(found))
