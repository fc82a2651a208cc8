"""Recompute a topology's states from the source, and compare them key by key.

One batch holds everything that has committed so far. It runs through the same plan on Spark and
is committed, by the same protocol, to new states in a scratch folder. Then each pair of states is
compared in chunks.
"""

from __future__ import annotations

import math
import queue
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from waterspout._config import Config
from waterspout.coordination.commit_protocol import CommitProtocol, LedgerKeeper
from waterspout.coordination.engine import Committed, Failed, Processed, Report, Wrote
from waterspout.coordination.preflight import Prepared, prepare
from waterspout.errors import ConfigError, StateMismatchError
from waterspout.spark.engine import SparkEngine
from waterspout.spark.session import SparkRuntime
from waterspout.state._base import StateKind
from waterspout.state._batched import BatchedMap
from waterspout.state._head import Claim, Head, Stamp, Writer
from waterspout.state._rows import RowsStore, RowsStoreState
from waterspout.state._store import StoreState
from waterspout.state.sqlite import SQLiteState
from waterspout.transactional._attempt import TransactionAttempt
from waterspout.transactional._ledger import Ledger, Metadata
from waterspout.trident._topology import TridentTopology
from waterspout.trident.isolation.store import LettersFactory, LettersLocation
from waterspout.trident.operations.row_updaters import AppendRows, UpsertRows
from waterspout.trident.plan.nodes import NewValues, Query, UpdateWith
from waterspout.trident.plan.plan import Plan, ancestors
from waterspout.trident.runtime.states import open_headed_states, open_state

__all__ = [
    "Difference",
    "StateAudit",
    "audit",
    "committed_ledger",
    "count_again",
    "everything",
    "scratch_plan",
    "why_not",
]

_FIRST = TransactionAttempt(1, 0)


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose stored value differs from the recomputed one."""

    key: tuple[Any, ...]
    stored: Any
    counted: Any


@dataclass(frozen=True, slots=True)
class StateAudit:
    """The result for one state: how many keys were compared, or why it cannot be compared.

    `more` counts the differences beyond those kept in `differences`.
    """

    state: str
    title: str
    keys: int = 0
    differences: tuple[Difference, ...] = ()
    more: int = 0
    unknown: str | None = None


def audit(
    topology: TridentTopology, spark: Any, conf: Config, *, most: int = 20
) -> list[StateAudit]:
    """Compare every state of a stopped topology with its source; writes to none of them.

    At most `most` differences are kept per state; the rest are counted.
    """
    with closing(prepare(topology, conf)) as prepared:
        ledger = committed_ledger(prepared)
        metadata = everything(prepared, ledger)
        with tempfile.TemporaryDirectory(prefix="waterspout-audit-") as scratch:
            plan = scratch_plan(prepared.plan, Path(scratch))
            count_again(plan, metadata, SparkRuntime(spark), conf)
            return [
                _compare(name, prepared, plan, conf, most)
                for name, spec in prepared.plan.states.items()
                if not (spec.static or spec.hidden)
            ]


def committed_ledger(prepared: Prepared) -> Ledger:
    """Return the ledger of a topology that has come to rest after a batch; or refuse."""
    ledger = prepared.store.peek()
    if ledger is None or ledger.committed_metadata is None:
        raise ConfigError("nothing has committed yet, so there is nothing to compare")
    if ledger.begun:
        raise StateMismatchError(
            f"batch {ledger.current} was left in the middle of its commit; run the topology until "
            "it has committed, then do this again"
        )
    return ledger


def everything(prepared: Prepared, ledger: Ledger) -> Metadata:
    """Return the metadata of one batch that holds all that has committed."""
    committed = ledger.committed_metadata or {}
    found = {}
    for spout_id, node in prepared.plan.sources.items():
        if spout_id not in committed and not node.hidden:
            raise ConfigError(
                f"spout {spout_id!r} is new and has emitted nothing yet; run the topology first"
            )
        about = [d for d in ledger.decisions if spout_id in d["spouts"] and d["action"] == "skip"]
        if about:
            batches = [d["txid"] for d in about if "files" not in d]
            files = [name for d in about for name in d.get("files", ())]
            whole = node.spout.so_far_without(
                committed[spout_id], prepared.folder, spout_id, batches, files
            )
        else:
            whole = node.spout.so_far(committed[spout_id], prepared.folder, spout_id)
        if whole is None:
            raise ConfigError(
                f"spout {spout_id!r} cannot say what it has emitted since the beginning, so it "
                "cannot be counted again"
            )
        found[spout_id] = whole
    return found


def scratch_plan(plan: Plan, folder: Path) -> Plan:
    """Return the plan with its states in a scratch folder; static ones stay where they are."""
    states = dict(plan.states)
    for name, spec in plan.states.items():
        if isinstance(spec.factory, LettersFactory):
            states[name] = replace(spec, factory=LettersFactory(LettersLocation()))
        elif not spec.static and isinstance(spec.factory, StoreState):
            given = spec.factory
            scratch = SQLiteState.opaque(folder / f"{name}.db", table="counted")
            states[name] = replace(
                spec, factory=replace(scratch, keys=given.keys, values=given.values)
            )
        elif not spec.static and isinstance(spec.factory, RowsStoreState):
            given_rows = spec.factory
            dropped = _NowhereState(rows=given_rows.rows, keys=given_rows.keys)
            states[name] = replace(spec, factory=dropped)
        elif not spec.static:
            raise ConfigError(f"{name} is not a state in a store: it cannot be counted again")
    return replace(plan, states=states)


class _Nowhere(RowsStore):
    """Takes rows that nobody will read: those of a state that cannot be compared."""

    def __init__(self) -> None:
        self._head: Head | None = None

    def read_head(self) -> Head | None:
        return self._head

    def move_head(self, expected: Head | None, new: Head) -> None:
        self._head = new

    def write_rows(self, stamp: Stamp, partition: int, rows: Any) -> None:
        """Let them go."""


@dataclass(frozen=True, kw_only=True)
class _NowhereState(RowsStoreState):
    title = "nowhere"

    def store(self) -> _Nowhere:
        return _Nowhere()


def count_again(plan: Plan, metadata: Metadata, runtime: SparkRuntime, conf: Config) -> None:
    """Run one batch through a plan of empty states, and commit it to them."""
    # Nothing else runs on this Spark, and the result may be large.
    engine = SparkEngine(runtime, plan, conf.replace(max_spout_pending=1, commit_in="auto"))
    reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
    engine.report = reports.put
    keeper = LedgerKeeper(Ledger(plan.name), lambda ledger: None)
    states = open_headed_states(plan, conf)
    commits = CommitProtocol(states, keeper)
    commits.enroll(Writer(plan.name, 1))

    def write(claim: Claim) -> None:
        engine.start_commit(replace(claim, batch_time=0.0), lambda: None)
        _await(reports, Committed)

    try:
        keeper.emit(_FIRST, metadata)
        engine.start_processing(_FIRST, metadata)
        _await(reports, Processed)
        commits.commit(_FIRST, write)
        engine.release(_FIRST)
    finally:
        engine.close()
        for state in states.values():
            state.close()


def _await(reports: queue.SimpleQueue[Report], wanted: type[Report]) -> None:
    report = reports.get()
    while isinstance(report, Wrote):  # a step on the way, which nobody looks at here
        report = reports.get()
    if isinstance(report, Failed):
        raise report.error
    assert isinstance(report, wanted)


def _compare(name: str, prepared: Prepared, scratch: Plan, conf: Config, most: int) -> StateAudit:
    plan = prepared.plan
    factory = plan.states[name].factory
    title = getattr(factory, "title", name)
    reason = why_not(name, plan) or prepared.changes.why_not_whole(name)
    if reason is not None:
        return StateAudit(name, title, unknown=reason)
    stored = open_state(plan.states[name], conf, 0, None)
    counted = open_state(scratch.states[name], conf, 0, None)
    assert isinstance(stored, BatchedMap)
    assert isinstance(counted, BatchedMap)
    found: list[Difference] = []
    keys, more = 0, 0
    with closing(stored), closing(counted):
        for key, there, here in _walk(stored, counted):
            keys += 1
            if _same(there, here):
                continue
            if len(found) < most:
                found.append(Difference(key, there, here))
            else:
                more += 1
    return StateAudit(name, title, keys, tuple(found), more)


def _walk(
    stored: BatchedMap[Any, Any], counted: BatchedMap[Any, Any]
) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yield every key of either state with both values."""
    for chunk in counted.scan():
        there = stored.multi_get([key for key, _ in chunk])
        yield from ((tuple(key), s, value) for (key, value), s in zip(chunk, there, strict=True))
    for chunk in stored.scan():
        here = counted.multi_get([key for key, _ in chunk])
        for (key, value), known in zip(chunk, here, strict=True):
            if known is None:
                yield tuple(key), value, None


def _same(there: Any, here: Any) -> bool:
    if isinstance(there, float) and isinstance(here, float):
        # A sum that is added up in another order may differ in its last digits.
        return math.isclose(there, here, rel_tol=1e-9) or (there != there and here != here)
    if isinstance(there, tuple | list) and isinstance(here, tuple | list):
        return len(there) == len(here) and all(map(_same, there, here))
    return bool(there == here)


def why_not(name: str, plan: Plan) -> str | None:
    """Return why a state cannot be recomputed in one batch; None if it can."""
    update = plan.updates.get(name)
    if update is None:
        return "it is not updated here"
    if plan.states[name].factory.kind is StateKind.NON_TRANSACTIONAL:
        return "it is non-transactional, so replays are counted twice; that is no error"
    if isinstance(update.updating, UpdateWith):
        if isinstance(update.updating.operation, AppendRows):
            return "its rows are appended as they are, and have no key by which to compare them"
        if isinstance(update.updating.operation, UpsertRows):
            return "which row of a key it holds may depend on how rows are batched"
        return "it has a StateUpdater of its own, whose result may depend on how rows are batched"
    for node in ancestors(update):
        if isinstance(node, NewValues):
            return "it follows from the new values of each batch, which one batch cannot repeat"
        if isinstance(node, Query) and node.state in plan.updates:
            return f"it depends on what {node.state} held at each batch"
    return None
