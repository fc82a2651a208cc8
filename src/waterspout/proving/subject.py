"""What is proved: the states that a topology writes, what each promises, and what it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waterspout._config import Config
from waterspout.coordination.transactions import state_verdicts
from waterspout.errors import TopologyError
from waterspout.proving.comparing import Content, bag_of
from waterspout.proving.stand_ins import described, stand_in, written_states
from waterspout.state._base import StateFactory
from waterspout.state._batched import BatchedMap
from waterspout.state._rows import RowsState
from waterspout.topology._graph import Topology
from waterspout.transactional._builder import TransactionalTopology
from waterspout.trident._topology import TridentTopology
from waterspout.trident.isolation.rewriting import LETTERS_STATE, letters_location, with_letters
from waterspout.trident.isolation.store import LettersLocation
from waterspout.trident.operations.row_updaters import UpsertRows
from waterspout.trident.plan.verdicts import Verdict, verdict_of

__all__ = ["HOME", "ProvedState", "Subject", "subject_of"]

HOME = "home"
"""The waterspout home of a trial, in its folder."""

_NAMED_BY = ("table", "topic", "prefix")
_OWN = ("waterspout.trident.windowing", "waterspout.trident.deduplication")


@dataclass(frozen=True)
class ProvedState:
    """A state that is compared, and what `explain()` says of it."""

    name: str
    label: str
    exact: bool
    why: str
    store: str
    """Class and kind of what the topology has."""
    instead: str
    """Class and kind of what stands in for it; "" where nothing need."""
    table: str = ""
    factory: StateFactory | None = None
    finisher: Any = None
    """Makes what a reader sees of what is kept."""


@dataclass(frozen=True)
class Subject:
    """A topology that can be proved."""

    name: str
    states: tuple[ProvedState, ...]

    def contents(self, folder: Path) -> dict[str, Content]:
        """Return what each state holds, by its label, in the folder of a trial."""
        return {state.label: self._content(state, folder) for state in self.states}

    def _content(self, state: ProvedState, folder: Path) -> Content:
        if state.factory is None:
            letters = LettersLocation(folder / HOME / self.name).letters()
            return bag_of((letter.failed_in, letter.content) for letter in letters)
        made = stand_in(state.factory, state.table, folder).make_state(Config(), 0, 1)
        with closing(made):
            if isinstance(made, RowsState):
                return bag_of(row for table in made.scan() for row in _rows(table))
            assert isinstance(made, BatchedMap)
            finish = (lambda v: v) if state.finisher is None else state.finisher.finish
            return {tuple(key): finish(value) for chunk in made.scan() for key, value in chunk}


def subject_of(topology: Topology | TridentTopology, conf: Config, folder: Path) -> Subject:
    """Return what of a topology is proved; refuse one of which nothing can be."""
    if isinstance(topology, TridentTopology):
        found = list(_of_trident(topology, conf, folder))
    elif isinstance(topology, TransactionalTopology):
        _refuse_own_writers(topology)
        found = list(_of_bolts(topology, folder))
    else:
        raise TopologyError(
            f"{topology.name!r} is a topology of spouts and bolts: its bolts write by themselves, "
            "wherever they like, so nothing can stand in for what they write, and nobody can tell "
            "whether it is right. It promises that every message is acked or replayed, and "
            "prove compares states: of Trident topologies, and of transactional ones that have "
            "with_state(...)."
        )
    if not found:
        raise TopologyError(
            f"{topology.name!r} writes no state, so there is nothing to compare after a crash; "
            "prove is for topologies with persistent_aggregate or partition_persist"
        )
    return Subject(topology.name, tuple(found))


def _of_trident(topology: TridentTopology, conf: Config, folder: Path) -> Iterator[ProvedState]:
    bare = topology.plan(conf)
    plan = with_letters(bare, conf, letters_location(bare, conf))
    taken: set[str] = set()
    for name, (table, factory) in written_states(topology).items():
        instead = stand_in(factory, table, folder)  # which refuses what nothing can stand in for
        update = plan.updates.get(name)
        if update is None or type(update.updating.operation).__module__.startswith(_OWN):
            continue  # what windows and deduplication remember is seen in what follows from it
        _refuse_unlisted(name, factory, instead)
        finisher = bare.states[name].finisher
        if factory.keeps_rows and not instead.keeps_rows:
            assert isinstance(update.updating.operation, UpsertRows)
            finisher = update.updating.operation
        yield _proved(name, taken, verdict_of(plan, update), factory, instead, table, finisher)
    if LETTERS_STATE in plan.updates:
        verdict = verdict_of(plan, plan.updates[LETTERS_STATE])
        store = "kept in the waterspout home"
        yield ProvedState(LETTERS_STATE, LETTERS_STATE, verdict.exact, verdict.why, store, "")


def _of_bolts(topology: TransactionalTopology, folder: Path) -> Iterator[ProvedState]:
    verdicts, taken = state_verdicts(topology), set[str]()
    for name, (table, factory) in written_states(topology).items():
        instead = stand_in(factory, table, folder)
        _refuse_unlisted(name, factory, instead)
        yield _proved(name, taken, verdicts[name], factory, instead, table, None)


def _proved(
    name: str,
    taken: set[str],
    verdict: Verdict,
    factory: StateFactory,
    instead: StateFactory,
    table: str,
    finisher: Any,
) -> ProvedState:
    within: Mapping[str, Any] = getattr(factory, "within", dict)()
    known = str(next((within[name] for name in _NAMED_BY if name in within), ""))
    label = known if known and known not in taken else name
    taken.add(label)
    told = described(factory), described(instead).replace("SQLiteState", "SQLite")
    return ProvedState(name, label, verdict.exact, verdict.why, *told, table, factory, finisher)


def _refuse_unlisted(name: str, factory: StateFactory, instead: StateFactory) -> None:
    with closing(instead.make_state(Config(), 0, 1)) as made:
        if not isinstance(made, BatchedMap | RowsState):
            raise TopologyError(
                f"{name} cannot be proved: what stands in for {type(factory).__name__} makes a "
                f"{type(made).__name__}, which cannot be listed and so not be compared. A stand-in "
                "makes one of waterspout's maps, or rows."
            )


def _refuse_own_writers(topology: TransactionalTopology) -> None:
    if topology.on_their_own:
        raise TopologyError(
            f"{topology.name!r} has committers that write by themselves: "
            f"{', '.join(topology.on_their_own)}. What they write, and where, only they know: "
            "nothing can stand in for it. Give each a state: "
            "set_committer_bolt(...).with_state(...)."
        )


def _rows(table: Any) -> Iterator[tuple[Any, ...]]:
    return zip(*(column.to_pylist() for column in table.columns), strict=True)
