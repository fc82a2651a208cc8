"""`waterspout state`: what a state holds and why, rollback, audit and backfill."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.cli.answers import AsJson, confirm, print_json
from waterspout.cli.batch import told
from waterspout.cli.failures import FAILED
from waterspout.cli.loading import load_stateful
from waterspout.cli.options import ConfigFile, Settings, Target, read_config
from waterspout.coordination.batch_clock import CLOCK
from waterspout.coordination.preflight import Prepared, prepare
from waterspout.coordination.store import CoordinationStore
from waterspout.coordination.transactions import PreparedBatches, prepare_batches
from waterspout.errors import ConfigError
from waterspout.state._base import StateKind
from waterspout.state._batched import BatchedMap
from waterspout.state._kinds import OpaqueValue
from waterspout.transactional._builder import TransactionalTopology
from waterspout.transactional._ledger import SKIPPED
from waterspout.transactional._states import BoltStateSpec
from waterspout.trident._topology import TridentTopology
from waterspout.trident.plan.nodes import Update
from waterspout.trident.plan.plan import Plan, StateSpec

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
    states = _States.of(topology.plan(conf) if isinstance(topology, TridentTopology) else topology)
    chosen = states.choose(name)
    wanted = _parse_key(chosen, states.keys[chosen], key)
    with states.opened(chosen, conf) as found:
        (value,) = found.multi_get([wanted])
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
    with closing(_prepared(load_stateful(target), conf)) as prepared:
        states = _States.of(_described(prepared))
        chosen = states.choose(name)
        wanted = _parse_key(chosen, states.keys[chosen], key)
        with states.opened(chosen, conf) as found:
            head = found.read_head()
            (value,) = found.multi_get([wanted])
            (record,) = found.records([wanted])
        known: dict[str, Any] = {
            "topology": states.topology,
            "state": chosen,
            "store": states.specs[chosen].factory.location(),
            "key": list(wanted),
            "value": value,
            "written": None,
            "head": None if head is None else {"at": str(head.stamp), "committed": head.committed},
        }
        if record is not None and getattr(record, "txid", None):
            known["written"] = _writing(prepared.store, record)
    if as_json:
        print_json(known)
    else:
        _print_explained(known)


def _writing(store: CoordinationStore, record: Any) -> dict[str, Any]:
    """Return which batch wrote a record, from what, and what was decided about that batch."""
    ledger = store.peek()
    done = ledger is not None and record.txid < ledger.current
    written = {"txid": record.txid, "attempt": record.attempt, "committed": done}
    if isinstance(record, OpaqueValue):
        written["before"] = record.prev
    batch = store.batch(record.txid) if done else None
    ranges = {} if batch is None else batch[1]
    written["from"] = batch and {k: v for k, v in ranges.items() if k not in (CLOCK, SKIPPED)}
    decisions = () if ledger is None or batch is None else ledger.decisions
    written["decided"] = [dict(each) for each in decisions if each["txid"] == record.txid]
    return written


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
    with closing(_prepared(load_stateful(target), conf, taking_back=True)) as prepared:
        described = _described(prepared)
        name, graph = described.name, described.fingerprint()
        updated = _States.of(described, hidden=True).kinds
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
    with closing(_prepared(topology, conf)) as prepared:  # before a JVM is started
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


@dataclass(frozen=True)
class _States:
    """The states of a topology of either kind, and the fields of their keys (None: any JSON)."""

    topology: str
    specs: Mapping[str, StateSpec | BoltStateSpec]
    keys: Mapping[str, Schema | None]
    on_their_own: Sequence[str] = ()

    @classmethod
    def of(cls, described: Plan | TransactionalTopology, *, hidden: bool = False) -> _States:
        if isinstance(described, TransactionalTopology):
            specs = described.states
            keys = {name: spec.keys for name, spec in specs.items()}
            return cls(described.name, specs, keys, described.on_their_own)
        updated = {
            name: spec
            for name, spec in described.states.items()
            if not spec.static and (hidden or not spec.hidden)
        }
        fields = {name: _key_fields(described.updates[name]) for name in updated}
        return cls(described.name, updated, fields)

    @property
    def kinds(self) -> dict[str, StateKind | None]:
        """The kind of everything that is written; None of what is the user's own affair."""
        kinds = {name: spec.factory.kind for name, spec in self.specs.items()}
        return kinds | {f"what committer {id!r} writes": None for id in self.on_their_own}

    def choose(self, name: str | None) -> str:
        """Return the state that is meant: by name, by location, or the only one."""
        locations = {n: str(spec.factory.location()) for n, spec in self.specs.items()}
        if name is None and len(locations) == 1:
            return next(iter(locations))
        matching = [n for n, at in locations.items() if name in (n, at) or at.endswith(f"#{name}")]
        if len(matching) == 1:
            return matching[0]
        listed = "; ".join(f"{n} ({location})" for n, location in locations.items())
        what = "has several states" if name is None else f"has no single state {name!r}"
        raise ConfigError(f"topology {self.topology!r} {what}; choose one with --state: {listed}")

    @contextmanager
    def opened(self, name: str, conf: Config) -> Iterator[BatchedMap[Any, Any]]:
        """Open a state to look into it."""
        spec = self.specs[name]
        with closing(spec.factory.make_state(conf, 0, spec.partitions)) as found:
            if not isinstance(found, BatchedMap):
                raise ConfigError(
                    f"{name} is not one of waterspout's maps; it cannot be asked by key"
                )
            yield found


def _prepared(
    topology: TridentTopology | TransactionalTopology, conf: Config, *, taking_back: bool = False
) -> Prepared | PreparedBatches:
    if isinstance(topology, TransactionalTopology):
        return prepare_batches(topology, conf, taking_back=taking_back)
    return prepare(topology, conf, taking_back=taking_back)


def _described(prepared: Prepared | PreparedBatches) -> Plan | TransactionalTopology:
    return prepared.topology if isinstance(prepared, PreparedBatches) else prepared.plan


def _key_fields(update: Update) -> Schema:
    names: tuple[str, ...] = getattr(update.updating, "keys", ())
    return Schema(tuple((name, update.schema.type_of(name)) for name in names))


def _parse_key(name: str, fields: Schema | None, text: str | None) -> tuple[Any, ...]:
    if fields is None:
        return _any_key(text)
    names, types = fields.names, fields.types
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


def _any_key(text: str | None) -> tuple[Any, ...]:
    """Return a key of a state that does not say of what fields its keys are."""
    if text is None:
        return ()
    try:
        given = json.loads(text)
    except json.JSONDecodeError:
        given = text
    return tuple(given) if isinstance(given, list) else (given,)


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
