"""Two processes that want the same table at the same moment, many times.

Both begin each round at a barrier. In one kind of round both claim: one must win. In the other a
driver publishes the rows of an attempt while a later attempt claims the batch: whichever is first,
no row of the lost attempt may be left. At the end of each round the winner's rows are committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.lake.support import head, put_down, seen, store_of
from waterspout.errors import FencedError
from waterspout.state._head import Head
from waterspout.state._rows import RowsStore

__all__ = ["race"]


def race(folder: Path, who: int, rounds: int, barrier: Any, answers: Any) -> None:
    """Play one of the two drivers, 0 or 1; put what happened, and what is wrong, into a queue."""
    won: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []
    every = max(1, rounds // 40)  # a look takes the longer the more rows there are
    try:
        for kind in ("delta", "parquet"):
            path = folder / kind
            store = store_of(kind, path)
            for txid in range(1, rounds + 1):
                act, name = (_claims, "claim") if txid % 2 else (_publishes, "publish")
                won[kind, name] += act(store, txid, who, barrier)
                barrier.wait(60)
                looks = who == 0 and (txid % every == 0 or txid == rounds)
                if looks and (ids := seen(kind, path)) != list(range(1, txid + 1)):
                    wrong.append(f"{kind}, round {txid}: {ids}")
                barrier.wait(60)
    except BaseException as error:
        wrong.append(repr(error))
        barrier.abort()
        raise
    finally:
        answers.put((who, won, wrong))


def _tried(act: Callable[[], object]) -> bool:
    try:
        act()
    except FencedError:
        return False
    return True


def _commit(store: RowsStore, at: Head) -> None:
    store.publish(at.stamp, [put_down(store, at, at.stamp.txid)])
    store.move_head(at, replace(at, committed=True))


def _claims(store: RowsStore, txid: int, who: int, barrier: Any) -> bool:
    """Both claim the next batch, each as a driver of its own, from the same head."""
    before = store.read_head()
    # Of the two the later epoch is not refused by its number: only the store tells them apart.
    mine = head(txid, epoch=100 * txid + who)
    barrier.wait(60)
    won = _tried(lambda: store.move_head(before, mine))
    if won:
        _commit(store, mine)
    return won


def _publishes(store: RowsStore, txid: int, who: int, barrier: Any) -> bool:
    """Driver 0 publishes what it has put down; driver 1 claims the batch for a later attempt."""
    old, new = head(txid, epoch=100 * txid), head(txid, 1, epoch=100 * txid + 1)
    receipts = []
    if who == 0:
        store.move_head(store.read_head(), old)
        receipts = [put_down(store, old, -txid), put_down(store, old, -txid, partition=1)]
    barrier.wait(60)
    if who == 1:
        store.move_head(old, new)
        _commit(store, new)
        return False
    return _tried(lambda: store.publish(old.stamp, receipts))
