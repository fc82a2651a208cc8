"""What the states of a topology hold and why, for whoever looks by key: a terminal, or a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from waterspout._config import Config
from waterspout._schema import Schema
from waterspout.coordination.batch_clock import CLOCK
from waterspout.coordination.preflight import Prepared, prepare
from waterspout.coordination.store import CoordinationStore
from waterspout.coordination.transactions import PreparedBatches, prepare_batches
from waterspout.errors import ConfigError, SerdeError, WaterspoutError
from waterspout.state._base import StateKind
from waterspout.state._batched import BatchedMap
from waterspout.state._kinds import OpaqueValue
from waterspout.transactional._builder import TransactionalTopology
from waterspout.transactional._ledger import SKIPPED
from waterspout.transactional._states import BoltStateSpec
from waterspout.trident._topology import TridentTopology
from waterspout.trident.plan.nodes import Update
from waterspout.trident.plan.plan import Plan, StateSpec

__all__ = ["StateLookup", "described_of", "prepared_for"]

# What stores and encodings raise at a key that they cannot hold: too large, half a character.
_NO_KEY = (ValueError, TypeError, ArithmeticError, RecursionError)


def prepared_for(
    topology: TridentTopology | TransactionalTopology, conf: Config, *, taking_back: bool = False
) -> Prepared | PreparedBatches:
    """Return a stopped topology with its ledger and its states, or raise what is wrong."""
    if isinstance(topology, TransactionalTopology):
        return prepare_batches(topology, conf, taking_back=taking_back)
    return prepare(topology, conf, taking_back=taking_back)


def described_of(prepared: Prepared | PreparedBatches) -> Plan | TransactionalTopology:
    """Return what `StateLookup.of` takes."""
    return prepared.topology if isinstance(prepared, PreparedBatches) else prepared.plan


@dataclass(frozen=True)
class StateLookup:
    """The states of a topology of either kind, and the fields of their keys (None: any JSON)."""

    topology: str
    specs: Mapping[str, StateSpec | BoltStateSpec]
    keys: Mapping[str, Schema | None]
    on_their_own: Sequence[str] = ()

    @classmethod
    def of(cls, described: Plan | TransactionalTopology, *, hidden: bool = False) -> StateLookup:
        """Return the states that a topology updates; `hidden` also those for its own use."""
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

    def key(self, name: str, text: str | None) -> tuple[Any, ...]:
        """Read a key as people write it: one value, or a JSON list of several."""
        self._refuse_rows(name)
        return _parse_key(name, self.keys[name], text)

    def _refuse_rows(self, name: str) -> None:
        factory = self.specs[name].factory
        if getattr(factory, "keeps_rows", False):
            raise ConfigError(
                f"{name} ({factory.location()}) keeps rows, which have no key to be asked by. Read "
                "the table itself: its rows are as your stream gave them, each with its batch"
            )

    def value(self, name: str, key: tuple[Any, ...], conf: Config) -> Any:
        """Return the committed value of a key; None if there is none."""
        with self._opened(name, conf) as found:
            (value,) = found.multi_get([key])
        return self._finished(name, value)

    def _finished(self, name: str, value: Any) -> Any:
        """Return a value as a reader sees it."""
        finisher = getattr(self.specs[name], "finisher", None)
        return value if finisher is None or value is None else finisher.finish(value)

    def explained(
        self, name: str, key: tuple[Any, ...], conf: Config, store: CoordinationStore
    ) -> dict[str, Any]:
        """Return what a key holds, which attempt wrote it, and what from.

        Keys: topology; state; store; key; value; head (at, committed; None if it keeps none);
        written (None if by no batch that can be named): txid, attempt, committed, before (of an
        opaque state), from (by spout; None if no longer known), decided.
        """
        with self._opened(name, conf) as found:
            head = found.read_head()
            (value,) = found.multi_get([key])
            (record,) = found.records([key])
        known: dict[str, Any] = {
            "topology": self.topology,
            "state": name,
            "store": self.specs[name].factory.location(),
            "key": list(key),
            "value": self._finished(name, value),
            "written": None,
            "head": None if head is None else {"at": str(head.stamp), "committed": head.committed},
        }
        if record is not None and getattr(record, "txid", None):
            known["written"] = _writing(store, record)
            if "before" in known["written"]:
                known["written"]["before"] = self._finished(name, record.prev)
        return known

    @contextmanager
    def _opened(self, name: str, conf: Config) -> Iterator[BatchedMap[Any, Any]]:
        """Open a state to look into it."""
        spec = self.specs[name]
        with closing(spec.factory.make_state(conf, 0, spec.partitions)) as found:
            if not isinstance(found, BatchedMap):
                raise ConfigError(
                    f"{name} is not one of waterspout's maps; it cannot be asked by key"
                )
            try:
                yield found
            except (SerdeError, *_NO_KEY) as error:
                if isinstance(error, WaterspoutError) and not isinstance(error, SerdeError):
                    raise
                # Nothing is written here: what does not fit is the key that was asked for.
                raise ConfigError(f"{name} cannot have such a key: {error}") from error


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


def _key_fields(update: Update) -> Schema:
    names: tuple[str, ...] = getattr(update.updating, "keys", None) or ()
    types = update.parents[0].schema
    return Schema(tuple((name, types.type_of(name)) for name in names))


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
        except (ValueError, RecursionError):  # a number may have too many digits
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
    except (ValueError, RecursionError):
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
