"""`waterspout state`: what a state holds and why, rollback, audit and backfill."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from waterspout.cli.answers import AsJson, confirm, print_json
from waterspout.cli.batch import told
from waterspout.cli.failures import FAILED
from waterspout.cli.loading import load_stateful
from waterspout.cli.options import ConfigFile, Settings, Target, read_config
from waterspout.coordination.preflight import prepare
from waterspout.coordination.state_lookup import StateLookup, described_of, prepared_for
from waterspout.errors import ConfigError
from waterspout.transactional._builder import TransactionalTopology
from waterspout.trident._topology import TridentTopology

__all__ = ["state"]

state = typer.Typer(
    name="state",
    help="Look into the states of a topology, take its last batch back, audit or fill it.",
    no_args_is_help=True,
)

KeyArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[KEY]",
        help="One value, or a JSON list for a key of several fields: '[\"paris\", 7]'. "
        "Nothing for a global state.",
        show_default=False,
    ),
]
StateName = Annotated[
    str | None,
    typer.Option("--state", help="Which state, by its name in `waterspout check` or its table."),
]


@state.command()
def get(
    target: Target,
    key: KeyArgument = None,
    name: StateName = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """Print the committed value of a key."""
    topology, conf = load_stateful(target), read_config(config, setting)
    described = topology.plan(conf) if isinstance(topology, TridentTopology) else topology
    states = StateLookup.of(described)
    chosen = states.choose(name)
    wanted = states.key(chosen, key)
    value = states.value(chosen, wanted, conf)
    if as_json:
        named = {"topology": topology.name, "state": chosen, "key": wanted}
        print_json({**named, "found": value is not None, "value": value})
    elif value is not None:
        typer.echo(_shown(value))
    else:
        typer.echo("no value", err=True)
    if value is None:
        raise typer.Exit(FAILED)


@state.command()
def explain(
    target: Target,
    key: KeyArgument = None,
    name: StateName = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """Say what a key holds, which batch and attempt wrote it, and from which source ranges."""
    conf = read_config(config, setting)
    with closing(prepared_for(load_stateful(target), conf)) as prepared:
        states = StateLookup.of(described_of(prepared))
        chosen = states.choose(name)
        known = states.explained(chosen, states.key(chosen, key), conf, prepared.store)
    if as_json:
        print_json(known)
    else:
        _print_explained(known)


def _print_explained(known: Mapping[str, Any]) -> None:
    typer.echo(f"state     {known['state']} ({known['store']})")
    typer.echo(f"key       {json.dumps(known['key'], default=str)}")
    typer.echo(f"value     {_shown(known['value'])}")
    written, head = known["written"], known["head"]
    if written is None:
        typer.echo("written   by no batch that can be named")
        return
    how = "committed" if written["committed"] else "not committed; the value is that before it"
    typer.echo(f"written   by batch {written['txid']}, attempt {written['attempt']} ({how})")
    if "before" in written:
        typer.echo(f"before    {_shown(written['before'])}")
    if head is not None:
        typer.echo(f"head      {head['at']}{', committed' * head['committed']}")
    if written["from"] is None:
        typer.echo("from      source ranges that are no longer kept")
        return
    for spout_id, metadata in written["from"].items():
        typer.echo(f"from      spout {spout_id}: {json.dumps(metadata)}")
    for decision in written["decided"]:
        typer.echo(f"decided   {told(decision)}")


@state.command()
def rollback(
    target: Target,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    as_json: AsJson = False,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """Take the last committed batch back, in all states together; positions go back with it.

    Only for a stopped topology whose states are all opaque. The next run emits the batch again.
    """
    from waterspout.coordination.rollback import roll_back

    conf = read_config(config, setting)
    with closing(prepared_for(load_stateful(target), conf, taking_back=True)) as prepared:
        described = described_of(prepared)
        name, graph = described.name, described.fingerprint()
        updated = StateLookup.of(described, hidden=True).kinds
        ledger = prepared.store.peek()
        last = 0 if ledger is None else ledger.current - 1
        confirm(f"Take batch {last} of {name} back?", yes=yes, as_json=as_json)
        txid = roll_back(name, graph, prepared.store, prepared.states, updated)
    if as_json:
        print_json({"topology": name, "taken_back": txid})
    else:
        typer.echo(f"{name}: batch {txid} was taken back; the next run emits it again")


@state.command()
def audit(
    target: Target,
    as_json: AsJson = False,
    config: ConfigFile = None,
    setting: Settings = None,
    master: Annotated[str | None, typer.Option(help="A Spark master, such as local[4].")] = None,
    most: Annotated[int, typer.Option(help="How many differing keys to print per state.")] = 20,
) -> None:
    """Count everything again from the source, and print the keys that differ."""
    from waterspout.spark.audit import audit as run_audit
    from waterspout.spark.starting import open_session

    topology, conf = load_stateful(target), read_config(config, setting)
    with closing(prepared_for(topology, conf)) as prepared:  # before a JVM is started
        ledger = prepared.store.peek()
    decisions = [] if ledger is None else [dict(each) for each in ledger.decisions]
    if isinstance(topology, TransactionalTopology):
        audited = [
            {
                "state": name,
                "title": spec.factory.location(),
                "unknown": f"what bolt {spec.component!r} does to it is your own code",
            }
            for name, spec in topology.states.items()
        ]
    else:
        log = Path(tempfile.mkdtemp(prefix="waterspout-")) / "audit.log"
        session = open_session(log, master=master)
        try:
            audited = [asdict(each) for each in run_audit(topology, session, conf, most=most)]
        finally:
            session.stop()
    exact = not any(each.get("differences") for each in audited)
    if as_json:
        named = {"topology": topology.name, "exact": exact}
        print_json({**named, "states": audited, "decided": decisions})
    else:
        _print_audited(audited, decisions)
    if not exact:
        raise typer.Exit(FAILED)


def _print_audited(audited: Sequence[Mapping[str, Any]], decided: Sequence[Any]) -> None:
    for decision in decided:
        typer.echo(f"decided by hand: {told(decision)}")
    for each in audited:
        subject = f"{each['state']} ({each['title']})"
        if each["unknown"] is not None:
            typer.echo(f"{subject}: not audited, {each['unknown']}")
            continue
        count = len(each["differences"]) + each["more"]
        verdict = "exact" if count == 0 else f"{count:,} differ"
        typer.echo(f"{subject}: {each['keys']:,} keys, {verdict}")
        for difference in each["differences"]:
            typer.echo(
                f"  {json.dumps(list(difference['key']), default=str)}: the state has "
                f"{_shown(difference['stored'])}, the source gives "
                f"{_shown(difference['counted'])}"
            )
        if each["more"]:
            typer.echo(f"  and {each['more']:,} more")


@state.command()
def backfill(
    target: Target,
    as_json: AsJson = False,
    config: ConfigFile = None,
    setting: Settings = None,
    master: Annotated[str | None, typer.Option(help="A Spark master, such as local[4].")] = None,
) -> None:
    """Fill states and columns that were added later, from a source that can be read again.

    Only for a stopped topology. After it, the last batch cannot be taken back.
    """
    from waterspout.spark.backfill import backfill as run_backfill
    from waterspout.spark.backfill import to_be_filled
    from waterspout.spark.starting import open_session

    topology, conf = load_stateful(target), read_config(config, setting)
    if isinstance(topology, TransactionalTopology):
        raise ConfigError(
            "what the bolts of a transactional topology do to their states is your own code: it "
            "cannot be counted again"
        )
    with closing(prepare(topology, conf, filling=True)) as prepared:
        wanted = bool(to_be_filled(prepared))
    filled: Mapping[str, int] = {}
    if wanted:
        log = Path(tempfile.mkdtemp(prefix="waterspout-")) / "backfill.log"
        session = open_session(log, master=master)
        try:
            filled = run_backfill(topology, session, conf)
        finally:
            session.stop()
    if as_json:
        print_json({"topology": topology.name, "filled": filled})
        return
    if not wanted:
        typer.echo(f"{topology.name}: every state has all batches")
    for name, keys in filled.items():
        typer.echo(f"{name}: {keys:,} keys filled")


def _shown(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value, default=str)
