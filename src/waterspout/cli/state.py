"""`waterspout state`: what a state holds and why, taking the last batch back, and an audit."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from waterspout._config import Config
from waterspout.cli.loading import load_trident
from waterspout.cli.options import ConfigFile, Settings, Target, read_config
from waterspout.coordination.batch_clock import CLOCK
from waterspout.errors import ConfigError
from waterspout.state._batched import BatchedMap
from waterspout.state._kinds import OpaqueValue
from waterspout.trident.plan.plan import Plan
from waterspout.trident.runtime.states import open_state

__all__ = ["state"]

state = typer.Typer(
    name="state",
    help="Look into the states of a topology, take its last batch back, or audit it.",
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
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """Print the committed value of a key."""
    topology, conf = load_trident(target), read_config(config, setting)
    plan = topology.plan(conf)
    chosen = _choose(plan, name)
    with _open(plan, chosen, conf) as found:
        (value,) = found.multi_get([_parse_key(plan, chosen, key)])
    if value is None:
        typer.echo("no value", err=True)
        raise typer.Exit(1)
    typer.echo(_shown(value))


@state.command()
def explain(
    target: Target,
    key: KeyArgument = None,
    name: StateName = None,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """Say what a key holds, which batch and attempt wrote it, and from which source ranges."""
    from waterspout.coordination.preflight import prepare

    topology, conf = load_trident(target), read_config(config, setting)
    with closing(prepare(topology, conf)) as prepared:
        plan = prepared.plan
        chosen = _choose(plan, name)
        wanted = _parse_key(plan, chosen, key)
        with _open(plan, chosen, conf) as found:
            head = found.read_head()
            (value,) = found.multi_get([wanted])
            (record,) = found.records([wanted])
        typer.echo(f"state     {chosen} ({plan.states[chosen].factory.location()})")
        typer.echo(f"key       {json.dumps(list(wanted), default=str)}")
        typer.echo(f"value     {_shown(value)}")
        txid = getattr(record, "txid", None)
        if record is None or not txid:
            typer.echo("written   by no batch that can be named")
            return
        ledger = prepared.store.peek()
        done = ledger is not None and txid < ledger.current
        how = "committed" if done else "not committed; the value is that before it"
        typer.echo(f"written   by batch {txid}, attempt {record.attempt} ({how})")
        if isinstance(record, OpaqueValue):
            typer.echo(f"before    {_shown(record.prev)}")
        if head is not None:
            typer.echo(f"head      {head.stamp}{', committed' * head.committed}")
        batch = prepared.store.batch(txid) if done else None
        if batch is None:
            typer.echo("from      source ranges that are no longer kept")
            return
        for spout_id, metadata in batch[1].items():
            if spout_id != CLOCK:
                typer.echo(f"from      spout {spout_id}: {json.dumps(metadata)}")


@state.command()
def rollback(
    target: Target,
    yes: Annotated[bool, typer.Option("--yes", help="Do it without asking.")] = False,
    config: ConfigFile = None,
    setting: Settings = None,
) -> None:
    """Take the last committed batch back, in all states together; positions go back with it.

    Only for a stopped topology whose states are all opaque. The next run emits the batch again.
    """
    from waterspout.coordination.preflight import prepare
    from waterspout.coordination.rollback import roll_back

    conf = read_config(config, setting)
    with closing(prepare(load_trident(target), conf)) as prepared:
        plan = prepared.plan
        updated = {spec.name: spec.factory.kind for spec in plan.states.values() if not spec.static}
        if not yes:
            ledger = prepared.store.peek()
            last = 0 if ledger is None else ledger.current - 1
            typer.confirm(f"Take batch {last} of {plan.name} back?", abort=True)
        txid = roll_back(plan.name, plan.fingerprint(), prepared.store, prepared.states, updated)
    typer.echo(f"{plan.name}: batch {txid} was taken back; the next run emits it again")


@state.command()
def audit(
    target: Target,
    config: ConfigFile = None,
    setting: Settings = None,
    master: Annotated[str | None, typer.Option(help="A Spark master, such as local[4].")] = None,
    most: Annotated[int, typer.Option(help="How many differing keys to print per state.")] = 20,
) -> None:
    """Count everything again from the source, and print the keys that differ."""
    from waterspout.coordination.preflight import prepare
    from waterspout.spark.audit import audit as run_audit
    from waterspout.spark.starting import open_session

    topology, conf = load_trident(target), read_config(config, setting)
    prepare(topology, conf).close()  # before a JVM is started
    log = Path(tempfile.mkdtemp(prefix="waterspout-")) / "audit.log"
    session = open_session(log, master=master)
    try:
        results = run_audit(topology, session, conf, most=most)
    finally:
        session.stop()
    wrong = 0
    for result in results:
        if result.unknown is not None:
            typer.echo(f"{result.state} ({result.title}): not audited, {result.unknown}")
            continue
        count = len(result.differences) + result.more
        wrong += count
        verdict = "exact" if count == 0 else f"{count:,} differ"
        typer.echo(f"{result.state} ({result.title}): {result.keys:,} keys, {verdict}")
        for difference in result.differences:
            typer.echo(
                f"  {json.dumps(list(difference.key), default=str)}: the state has "
                f"{_shown(difference.stored)}, the source gives {_shown(difference.counted)}"
            )
        if result.more:
            typer.echo(f"  and {result.more:,} more")
    if wrong:
        raise typer.Exit(1)


def _choose(plan: Plan, name: str | None) -> str:
    """Return the state that is meant: by name, by location, or the only one."""
    chosen = {n: s.factory for n, s in plan.states.items() if not (s.static or s.hidden)}
    locations = {n: str(factory.location()) for n, factory in chosen.items()}
    if name is None and len(locations) == 1:
        return next(iter(locations))
    matching = [n for n, at in locations.items() if name in (n, at) or at.endswith(f"#{name}")]
    if len(matching) == 1:
        return matching[0]
    listed = "; ".join(f"{n} ({location})" for n, location in locations.items())
    what = "has several states" if name is None else f"has no single state {name!r}"
    raise ConfigError(f"topology {plan.name!r} {what}; choose one with --state: {listed}")


@contextmanager
def _open(plan: Plan, name: str, conf: Config) -> Iterator[BatchedMap[Any, Any]]:
    with closing(open_state(plan.states[name], conf, 0, None)) as found:
        if not isinstance(found, BatchedMap):
            raise ConfigError(f"{name} is not one of waterspout's maps; it cannot be asked by key")
        yield found


def _parse_key(plan: Plan, name: str, text: str | None) -> tuple[Any, ...]:
    update = plan.updates[name]
    names: tuple[str, ...] = getattr(update.updating, "keys", ())
    types = [update.schema.type_of(field) for field in names]
    if not names:
        if text is not None:
            raise ConfigError(f"{name} is a global state; it has no keys")
        return ()
    wanted = ", ".join(f"{n} {t}" for n, t in zip(names, types, strict=True))
    if text is None:
        raise ConfigError(f"give the key: {wanted}")
    values: list[Any] = [text]
    if len(names) > 1 or text.lstrip().startswith("["):
        try:
            values = json.loads(text)
        except json.JSONDecodeError:
            values = [text]
    if not isinstance(values, list) or len(values) != len(names):
        raise ConfigError(f"{text!r} is not a key of {wanted}; give a JSON list of its values")
    return tuple(_typed(value, kind, text) for value, kind in zip(values, types, strict=True))


def _typed(value: Any, kind: str | None, text: str) -> Any:
    if value is None or kind is None:
        return value
    readers: dict[str, Any] = {
        "string": str, "bigint": int, "int": int, "smallint": int, "tinyint": int,
        "double": float, "float": float, "date": date.fromisoformat,
        "timestamp": datetime.fromisoformat, "timestamp_ntz": datetime.fromisoformat,
        "boolean": lambda v: v if isinstance(v, bool) else {"true": True, "false": False}[v],
    }  # fmt: skip
    read = Decimal if kind.startswith("decimal") else readers.get(kind, lambda v: v)
    try:
        return read(value)
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        raise ConfigError(f"{value!r} in the key {text!r} is not a {kind}") from error


def _shown(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value, default=str)
