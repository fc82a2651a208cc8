"""`adopt`: a topology goes on where a streaming query with `exactly_once` has stopped."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from waterspout.config import Config
from waterspout.coordination.embedded import EmbeddedStore
from waterspout.errors import ConfigError, StateMismatchError, TopologyError
from waterspout.sinks.checkpoint import Checkpoint, read_checkpoint
from waterspout.spouts.files import FileSpout
from waterspout.state.base import FencedMap
from waterspout.state.head import Head, Stamp, Writer
from waterspout.state.store import StoreState
from waterspout.trident.plan.plan import Plan
from waterspout.trident.topology import TridentTopology

__all__ = ["adopt"]


def adopt(
    checkpoint: str | Path,
    topology: TridentTopology,
    *,
    name: str = "foreachBatch",
    config: Config | None = None,
) -> int:
    """Make a topology continue a stopped query; return the txid it will begin with.

    The query read one directory of files and wrote, through `exactly_once`, exactly the states
    that the topology updates; `name` is the name of that sink. The topology's `FileSpout` then
    begins with the files that the query has not read, and the states change their owner. Nothing
    is written before everything is checked; run again, it goes on where it was interrupted.
    """
    conf = config or Config()
    if conf.zookeeper_servers:
        raise ConfigError(
            "adopt writes to the embedded coordination store; leave zookeeper_servers out, and "
            "run the topology without it too"
        )
    plan = topology.plan(conf)
    spout_id, spout = _one_file_spout(plan)
    stopped = read_checkpoint(checkpoint)
    maps = _maps(plan)
    try:
        heads = {
            title: _head_of(title, fence, stopped, plan, name) for title, fence in maps.items()
        }
        last = _agreed(heads)
        files = stopped.files()
        newest = max(files.values(), default=0)
        # Only the last batch must be told from those before it.
        by_txid = {f: last.stamp.txid - (batch < newest) for f, batch in files.items()}
        store = EmbeddedStore(conf.home_path(), plan.name, lease_s=conf.lease_secs)
        _refuse_other_past(store, stopped, last)
        epoch = store.acquire(plan.fingerprint())
        try:
            metadata = spout.adopt(store.folder, spout_id, by_txid)
            ledger = replace(
                store.load(),
                history=stopped.query,
                current=last.stamp.txid + 1,
                committed_attempt=last.stamp.attempt,
                committed_metadata={spout_id: metadata},
                resolved=last.resolved,
            )
            store.save(ledger)
            writer = Writer(plan.name, epoch, stopped.query, uuid.uuid4().hex)
            for title, fence in maps.items():
                if heads[title].stamp.writer.owner != plan.name:
                    stamp = Stamp(writer, last.stamp.txid, last.stamp.attempt)
                    fence.move_head(heads[title], Head(stamp, True, last.resolved))
        finally:
            store.release()
    finally:
        for fence in maps.values():
            fence.close()
    return last.stamp.txid + 1


def _one_file_spout(plan: Plan) -> tuple[str, FileSpout]:
    found = [(spout_id, node.spout) for spout_id, node in plan.sources.items()]
    if len(found) != 1 or not isinstance(found[0][1], FileSpout):
        raise TopologyError("adopt needs a topology with one spout, and that a FileSpout")
    return found[0][0], found[0][1]


def _maps(plan: Plan) -> dict[str, FencedMap[object]]:
    maps: dict[str, FencedMap[object]] = {}
    for spec in plan.states.values():
        if spec.static:
            continue
        factory = spec.factory
        fence = factory.backing().fence if isinstance(factory, StoreState) else None
        if not isinstance(factory, StoreState) or fence is None:
            raise TopologyError(f"{spec.name} is not a state in a store; it cannot be adopted")
        maps[factory.title] = fence
    return maps


def _head_of(
    title: str, fence: FencedMap[object], stopped: Checkpoint, plan: Plan, name: str
) -> Head:
    head = fence.read_head()
    if head is None:
        raise StateMismatchError(f"{title} is empty; the query of {stopped.path} never wrote to it")
    writer = head.stamp.writer
    if writer.owner not in (f"sink {name}", plan.name):
        raise StateMismatchError(f"{title} belongs to {writer.owner!r}, not to 'sink {name}'")
    if writer.history not in ("", stopped.query):
        raise StateMismatchError(
            f"{title} was written by the streaming query {writer.history}; {stopped.path} is the "
            f"checkpoint of {stopped.query}"
        )
    if not head.committed:
        raise StateMismatchError(
            f"{title} holds batch {head.stamp.txid} in part. Start the query once more, let it "
            "come to rest, and stop it."
        )
    return head


def _agreed(heads: Mapping[str, Head]) -> Head:
    """Return the head that all states have, but for who wrote it."""
    facts = {
        (h.stamp.txid, h.stamp.attempt, tuple(sorted(h.resolved.items()))) for h in heads.values()
    }
    if len(facts) != 1:
        raise StateMismatchError(
            "the states are not at the same attempt of the same batch: "
            + "; ".join(f"{title} at {head.stamp}" for title, head in heads.items())
            + ". Let the query run for one more batch, and stop it."
        )
    head = next(iter(heads.values()))
    resolved = dict(head.resolved)
    if head.stamp.attempt > 0:
        resolved[head.stamp.txid] = head.stamp.attempt
    return replace(head, resolved=resolved)


def _refuse_other_past(store: EmbeddedStore, stopped: Checkpoint, last: Head) -> None:
    ledger = store.peek()
    if ledger is None or ledger.current == 1:
        return
    if (ledger.history, ledger.current) != (stopped.query, last.stamp.txid + 1):
        raise StateMismatchError(
            f"topology {ledger.topology!r} has a past of its own in {store.folder}. Give the "
            "topology that adopts the query another name."
        )
