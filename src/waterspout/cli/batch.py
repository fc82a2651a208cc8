"""`waterspout batch`: what an unfinished batch is pinned to, and the deliberate way past it."""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer

from waterspout._config import Config
from waterspout.cli.answers import AsJson, confirm, print_json
from waterspout.cli.loading import load_batched
from waterspout.cli.options import ConfigFile, Settings, Target, read_config
from waterspout.coordination.decisions import Decision, StuckBatch, decide, stuck_batches
from waterspout.coordination.preflight import prepare, stored_graph
from waterspout.coordination.transactions import prepare_batches, stored_batches_graph
from waterspout.errors import ConfigError
from waterspout.spouts._base import PlannedSpout
from waterspout.spouts._emitters import EmittedSpout
from waterspout.state._base import StateKind
from waterspout.transactional._builder import TransactionalTopology
from waterspout.transactional._ledger import Ledger
from waterspout.trident._topology import TridentTopology
from waterspout.trident.plan.plan import Plan

__all__ = ["batch", "told"]

batch = typer.Typer(
    name="batch",
    help="Look at a batch that does not get done, and decide how to get past it.",
    no_args_is_help=True,
)

Txid = Annotated[
    int | None,
    typer.Option("--txid", help="Which batch; else the first that cannot be read, or the next."),
]
Reason = Annotated[
    str, typer.Option("--reason", help="Why; it is kept with your name.", show_default=False)
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
Inexact = Annotated[
    bool,
    typer.Option("--inexact", help="Even if a state may be left with a part of the batch."),
]


@batch.command()
def show(
    target: Target, as_json: AsJson = False, config: ConfigFile = None, setting: Settings = None
) -> None:
    """Say what the unfinished batches are pinned to, what is wrong with it, and what was decided.

    Reads only; also while the topology runs.
    """
    topology, conf = load_batched(target), read_config(config, setting)
    if isinstance(topology, TransactionalTopology):
        (store, _), spouts = stored_batches_graph(topology, conf), _spouts(topology)
    else:
        (store, _), spouts = stored_graph(topology, conf), _spouts(topology.plan(conf))
    ledger = store.peek()
    if ledger is None:
        raise ConfigError(f"topology {topology.name!r} has never run here")
    batches = stuck_batches(ledger, spouts)
    if as_json:
        print_json(_as_json(ledger, batches))
    else:
        _print(target, ledger, batches)


@batch.command()
def skip(
    target: Target,
    reason: Reason,
    file: Annotated[
        list[str] | None,
        typer.Option("--file", help="Go on without this file only; may be repeated."),
    ] = None,
    txid: Txid = None,
    inexact: Inexact = False,
    yes: Yes = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """Go on without the input of a batch, or without some files of it. They count as read.

    For a stopped topology. The next run commits the batch; what was skipped never comes again.
    """
    files = tuple(os.path.abspath(name) for name in file or ())
    _decide("skip", target, reason, txid, files, inexact, yes, as_json, config, setting)


@batch.command()
def accept(
    target: Target,
    reason: Reason,
    txid: Txid = None,
    inexact: Inexact = False,
    yes: Yes = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """Take the files of a batch as they are now. For a stopped topology."""
    _decide("accept", target, reason, txid, (), inexact, yes, as_json, config, setting)


def _decide(
    action: Literal["skip", "accept"],
    target: str,
    reason: str,
    txid: int | None,
    files: tuple[str, ...],
    inexact: bool,
    yes: bool,
    as_json: bool,
    config: Any,
    setting: Any,
) -> None:
    topology, conf = load_batched(target), read_config(config, setting)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    decision = Decision(action, reason, _me(), now, txid, files, inexact)
    described, prepared = _prepared(topology, conf)
    with closing(prepared):
        what = f"{len(files)} files" if files else "the input"
        asked = f"Go on without {what} of" if action == "skip" else "Accept the files of"
        confirm(f"{asked} {_which(txid)} of {topology.name}?", yes=yes, as_json=as_json)
        done, taken = decide(
            described.name,
            described.fingerprint(),
            prepared.store,
            _spouts(described),
            _kinds(described),
            decision,
        )
    said = "recorded; the next run commits it" if taken else "nothing to do, it is so already"
    if as_json:
        print_json({"topology": topology.name, "txid": done, "recorded": taken})
    else:
        typer.echo(f"{topology.name}: {action} of batch {done}: {said}")


def _prepared(topology: TridentTopology | TransactionalTopology, conf: Config) -> tuple[Any, Any]:
    if isinstance(topology, TransactionalTopology):
        bolts = prepare_batches(topology, conf)
        return bolts.topology, bolts
    prepared = prepare(topology, conf)
    return prepared.plan, prepared


def _spouts(described: Plan | TransactionalTopology) -> dict[str, PlannedSpout]:
    if isinstance(described, TransactionalTopology):
        return {described.spout_id: EmittedSpout.of(described)}
    return {name: node.spout for name, node in described.sources.items() if not node.hidden}


def _kinds(described: Plan | TransactionalTopology) -> dict[str, StateKind | None]:
    if isinstance(described, TransactionalTopology):
        kinds = {name: spec.factory.kind for name, spec in described.states.items()}
        return kinds | {f"what committer {id!r} writes": None for id in described.on_their_own}
    updated = {name: spec for name, spec in described.states.items() if not spec.static}
    return {name: spec.factory.kind for name, spec in updated.items()}


def _me() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"


def _which(txid: int | None) -> str:
    return "the batch that is stuck" if txid is None else f"batch {txid}"


def _as_json(ledger: Ledger, batches: list[StuckBatch]) -> dict[str, Any]:
    return {
        "topology": ledger.topology,
        "next": ledger.current,
        "batches": [
            {
                "txid": each.txid,
                "attempt": each.attempt,
                "begun": list(each.begun),
                "skipped": each.skipped,
                "spouts": each.spouts,
                "wrong": [
                    {"spout": name, "name": piece.name, "why": piece.wrong}
                    for name, pieces in each.pieces.items()
                    for piece in pieces
                    if piece.wrong
                ],
            }
            for each in batches
        ],
        "decisions": [dict(decision) for decision in ledger.decisions],
    }


def _print(target: str, ledger: Ledger, batches: list[StuckBatch]) -> None:
    typer.echo(f"{ledger.topology}: {ledger.current - 1} batches have committed")
    if not batches:
        typer.echo("no batch is unfinished")
    for each in batches:
        begun = f"; attempts {list(each.begun)} have begun to commit" if each.begun else ""
        typer.echo(f"batch {each.txid}, attempt {each.attempt}, is unfinished{begun}")
        for name, metadata in each.spouts.items():
            _print_spout(target, each, name, metadata)
    if ledger.decisions:
        typer.echo("decided")
    for decision in ledger.decisions:
        typer.echo(f"  {told(decision)}")


def _print_spout(target: str, batch: StuckBatch, name: str, metadata: Any) -> None:
    if name in batch.skipped:
        typer.echo(f"  spout {name}: its input is skipped")
        return
    pieces = batch.pieces.get(name, [])
    if not pieces:
        typer.echo(f"  spout {name}: {json.dumps(metadata)}")
        return
    wrong = [piece for piece in pieces if piece.wrong]
    out = sum(piece.left_out for piece in pieces)
    beside = f", {out} of them left out" if out else ""
    typer.echo(f"  spout {name}: {len(pieces)} files{beside}, {len(wrong)} not as planned")
    for piece in wrong:
        typer.echo(f"    {piece.name}: {piece.wrong}")
    if wrong:
        typer.echo("  put back what it was, or decide, with --reason:")
        only = " ".join(f"--file {piece.name}" for piece in wrong[:3])
        more = " ..." if len(wrong) > 3 else ""
        typer.echo(f"    waterspout batch skip {target} {only}{more}   without these files")
        typer.echo(f"    waterspout batch skip {target}   without all input of the batch")
        typer.echo(f"    waterspout batch accept {target}   with the files as they are now")


def told(decision: Mapping[str, Any]) -> str:
    """Return a decision in one line."""
    of = ", ".join(decision.get("files", ())) or f"input of {', '.join(decision['spouts'])}"
    inexact = decision.get("inexact")
    beside = f" (not exact: {', '.join(inexact)})" if inexact else ""
    return (
        f"batch {decision['txid']}: {decision['action']} {of}, by {decision['who']} at "
        f"{decision['time']}: {decision['reason']}{beside}"
    )
