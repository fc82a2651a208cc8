"""States that bolts keep: how they are declared, and what a task gets of them in an attempt.

A state is written in the commit phase only, under the head that the driver has claimed for the
attempt. What a bolt says of it before, while it executes, is noted and applied then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from waterspout._safe_repr import shown
from waterspout._schema import Schema
from waterspout.errors import StateUseError, TopologyError
from waterspout.topology._collector import restored_context
from waterspout.topology._graph import ComponentSpec
from waterspout.topology._grouping import GroupingKind, stable_hash
from waterspout.transactional._attempt import TransactionAttempt

__all__ = [
    "AttemptState",
    "BoltStateSpec",
    "StateRecipe",
    "TaskStates",
    "Updating",
    "begin_commit",
    "deal_of_keys",
]


class StateRecipe(Protocol):
    """What is used here of a `waterspout.state.StateFactory`."""

    @property
    def kind(self) -> Any:
        """What the state promises; None if it is the user's own and promises nothing."""

    def make_state(self, conf: Any, partition_index: int, num_partitions: int) -> Any:
        """Build the live state of one partition."""

    def bind(self, keys: Schema, values: Schema) -> StateRecipe:
        """Return this recipe for these key and value fields."""

    def identity(self) -> Mapping[str, Any]:
        """Return what must not change while a topology lives."""

    def location(self) -> str | None:
        """Name what is written to."""


@dataclass(frozen=True)
class BoltStateSpec:
    """A state of a bolt: its recipe, its fields, and which task of the bolt has which key."""

    name: str
    component: str
    factory: Any
    keys: Schema | None
    partitions: int
    """As many as the bolt has tasks; each task writes its own."""

    dealt_by: tuple[str, ...] | None = None
    """The fields of the key by which its tuples go to a task; None: there is one task."""

    asked: Any = None
    """What its store was found to put at risk, if it has been asked."""

    @property
    def risk(self) -> Any:
        """What makes the state not exactly-once, whatever it is fed with, if anything does."""
        return self.asked or self.factory.risk

    def identity(self) -> dict[str, Any]:
        """Return what must not change while the topology lives."""
        return {**self.factory.identity(), "bolt": self.component, "partitions": self.partitions}

    @property
    def can_be_read(self) -> bool:
        """Whether a replay reads what the first attempt read.

        A transactional state does not keep what was there before a batch, so what its bolt reads,
        and whatever follows from that, would differ in a replay.
        """
        return getattr(self.factory.kind, "value", None) != "transactional"

    def key(self, given: object, partition: int) -> tuple[Any, ...]:
        """Return a key in its one form; refuse one that another task may have."""
        key = tuple(given) if isinstance(given, tuple | list) else (given,)
        if self.keys is not None and len(key) != len(self.keys):
            raise StateUseError(
                f"state {self.name!r} has keys of {len(self.keys)} fields ({self.keys}), and "
                f"{self.component!r} gave {shown(given)}"
            )
        if self.dealt_by is not None and self.keys is not None:
            names = self.keys.names
            values = [key[names.index(field)] for field in self.dealt_by]
            owner = stable_hash(values) % self.partitions
            if owner != partition:
                raise StateUseError(
                    f"key {shown(key)} of state {self.name!r} belongs to task {owner} of "
                    f"{self.component!r}, and task {partition} uses it: two tasks would write over "
                    f"each other. Use keys whose {', '.join(self.dealt_by)} is that of the tuple, "
                    "or give the bolt one task."
                )
        return key


def deal_of_keys(name: str, spec: ComponentSpec, keys: Schema | None) -> tuple[str, ...] | None:
    """Return by which fields of its keys a bolt's tuples are dealt to its tasks.

    None if there is one task. Refuses a bolt of which several tasks could write one key.
    """
    if spec.num_tasks == 1:
        return None
    dealt: tuple[str, ...] | None = None
    for given in spec.inputs:
        fields = tuple(given.grouping.fields)
        by_key = given.grouping.kind is GroupingKind.FIELDS
        by_key = by_key and keys is not None and set(fields) <= set(keys.names)
        if not by_key or dealt not in (None, fields):
            has = "no declared keys" if keys is None else f"the key {keys}"
            raise TopologyError(
                f"state {name!r} of {spec.title} has {has}, and its {spec.num_tasks} tasks take "
                f"{given.source!r} by {given.grouping} grouping: two of them could write one key. "
                'Declare the keys, with_state(..., keys="word string", values=...), and take every '
                "input by fields_grouping of the same fields of the key; or give the bolt one task."
            )
        dealt = fields
    return dealt


def begin_commit(state: Any, attempt: TransactionAttempt, resolved: Mapping[int, int]) -> None:
    """Call `begin_commit` of a state with as much as it wants to know."""
    known = inspect.signature(state.begin_commit).parameters
    extra: dict[str, Any] = {}
    if "attempt" in known:
        extra["attempt"] = attempt.attempt_id
    if "resolved" in known:
        extra["resolved"] = resolved
    state.begin_commit(attempt.txid, **extra)


@runtime_checkable
class Updating(Protocol):
    """How a value changes: a `waterspout.state.ValueUpdater`, or anything with its method."""

    def update(self, stored: Any) -> Any:
        """Return the new value."""


ValueChange: TypeAlias = Updating | Callable[[Any], Any]
"""An updater, or a function from the old value to the new one."""

StateOpener: TypeAlias = Callable[[BoltStateSpec], Any]
"""Makes a state live, for one task and attempt."""


@dataclass(frozen=True, slots=True)
class _Apply:
    """A plain function as the updater of a value."""

    function: Callable[[Any], Any]

    def update(self, stored: Any) -> Any:
        return self.function(stored)


@dataclass(frozen=True, slots=True)
class _Set:
    """An updater that puts a value in place of what was there."""

    value: Any

    def update(self, stored: Any) -> Any:
        return self.value


Note: TypeAlias = tuple[tuple[Any, ...], Updating]
"""A key, and how its value is to change."""


class AttemptState:
    """A state as a task of a bolt has it in one attempt at a batch: `context.state(name)`.

    A key is a tuple or list of values; of one field, the bare value will do. Written when
    `finish_batch` has returned, all or nothing, and only if the attempt is still the one that may
    write. Until the commit phase changes are noted: `update` and `put` then return None, and
    nothing can be read, because batches before this one may not have committed yet.
    """

    __slots__ = ("_live", "_notes", "_open", "_partition", "_spec")

    def __init__(self, spec: BoltStateSpec, partition: int, open: StateOpener | None) -> None:
        self._spec = spec
        self._partition = partition
        self._open = open
        self._live: Any = None
        self._notes: list[Note] = []

    def __reduce__(self) -> tuple[object, ...]:
        # A bolt may keep it as an attribute, and travels; its notes travel beside the bolt.
        return (_restored_state, (self._spec.name,))

    def get(self, key: object = ()) -> Any:
        """Return the value of a key as the batches before this one, and this task, have left it.

        Of an opaque or non-transactional state: a transactional one cannot tell, in a replay, what
        was there before the batch.
        """
        return self.multi_get([key])[0]

    def put(self, key: object, value: Any) -> None:
        """Set a value whatever was there."""
        self.multi_put([key], [value])

    def remove(self, key: object) -> None:
        """Leave a key without a value."""
        self.multi_remove([key])

    def update(self, key: object, updater: ValueChange) -> Any:
        """Change a value, by a `ValueUpdater` or a function from the old to the new one.

        The old one is None where there is none. Return the new value, in the commit phase and of a
        state that can be read (`get`); else None.
        """
        return self.multi_update([key], [updater])[0]

    def multi_get(self, keys: Sequence[object]) -> list[Any]:
        """Return one value per key, in order."""
        spec = self._spec
        if self._open is None:
            raise StateUseError(
                f"{spec.component!r} reads state {spec.name!r} while it executes; batches before "
                "this one may not have committed yet. Read it in finish_batch."
            )
        if not spec.can_be_read:
            raise StateUseError(
                f"{spec.component!r} reads state {spec.name!r}, which is transactional: in a "
                "replay it cannot tell what was there before the batch. Use an opaque state to "
                "read; update() and put() need none."
            )
        wanted = [spec.key(key, self._partition) for key in keys]
        return list(self._map().multi_get(wanted))

    def multi_put(self, keys: Sequence[object], values: Sequence[Any]) -> None:
        """Set one value per key."""
        self._change(keys, [_Set(value) for value in values])

    def multi_remove(self, keys: Sequence[object]) -> None:
        """Leave keys without a value."""
        self.multi_put(keys, [None] * len(keys))

    def multi_update(self, keys: Sequence[object], updaters: Sequence[ValueChange]) -> list[Any]:
        """Apply one updater (or function) per key and return the new values; a key may come twice.

        Where they cannot be told, as `update` says, each is None.
        """
        return self._change(keys, [_as_updater(updater) for updater in updaters])

    def _change(self, keys: Sequence[object], updaters: Sequence[Updating]) -> list[Any]:
        notes = [
            (self._spec.key(key, self._partition), updater)
            for key, updater in zip(keys, updaters, strict=True)
        ]
        if self._open is None:
            self._notes += notes
            return [None] * len(notes)
        return self._apply(notes)

    def _apply(self, notes: Sequence[Note]) -> list[Any]:
        keys, updaters = [key for key, _ in notes], [updater for _, updater in notes]
        new = list(self._map().multi_update(keys, updaters))
        return new if self._spec.can_be_read else [None] * len(new)

    def _map(self) -> Any:
        """Return the live state; what was noted before is in it."""
        if self._live is None:
            assert self._open is not None
            self._live = self._open(self._spec)
            if self._notes:
                notes, self._notes = self._notes, []
                self._apply(notes)
        return self._live

    def write(self, txid: int) -> Any:
        """Write what has changed, and return what the state tells of that, if it does.

        Called by the runner, when the bolt has finished.
        """
        if not self._notes and self._live is None:
            return None
        live = self._map()
        live.commit(txid)
        return getattr(live, "written", None)

    def close(self) -> None:
        """Give up the connection. Called by the runner."""
        if self._live is not None:
            self._live.close()
            self._live = None


def _as_updater(given: ValueChange) -> Updating:
    if isinstance(given, Updating):
        return given
    if callable(given):
        return _Apply(given)
    raise StateUseError(f"an updater is a ValueUpdater or a function, not {shown(given)}")


def _restored_state(name: str) -> AttemptState:
    context: Any = restored_context()
    state: AttemptState = context.state(name)
    return state


class TaskStates:
    """The states of one task in one attempt; `open` makes one live, in the commit phase."""

    def __init__(
        self,
        specs: Sequence[BoltStateSpec],
        partition: int,
        open: StateOpener | None,
    ) -> None:
        self.by_name = {spec.name: AttemptState(spec, partition, open) for spec in specs}

    def notes(self) -> dict[str, list[Note]]:
        """Return what was noted, to travel beside the bolt."""
        return {name: state._notes for name, state in self.by_name.items() if state._notes}

    def take(self, notes: Mapping[str, Sequence[Note]]) -> None:
        """Take over what was noted in the processing phase."""
        for name, noted in notes.items():
            self.by_name[name]._notes = [*noted]

    def write(self, txid: int) -> list[tuple[str, Any]]:
        """Write what the bolt has changed; return, by name, what the states tell of it."""
        told = [(name, state.write(txid)) for name, state in self.by_name.items()]
        return [(name, written) for name, written in told if written is not None]

    def close(self) -> None:
        """Give up all connections."""
        for state in self.by_name.values():
            state.close()
