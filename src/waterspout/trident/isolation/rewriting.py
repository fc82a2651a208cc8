"""Adds the dead letters to a plan, as hidden nodes like any others. No I/O.

Neighbouring row operations in Python, of which at least one puts rows aside, become one
`Isolated` node. What it puts aside, and the requests that somebody made for letters, go into one
more state, the letters. So letters are committed with the batch, exactly once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from waterspout._config import Config
from waterspout._letters import DeadLetter
from waterspout._schema import Schema
from waterspout.spouts._malformed import RECORD, OnMalformed
from waterspout.spouts._reads import POSITION, FilesRead, KafkaRead
from waterspout.trident.isolation.letters import ASIDE
from waterspout.trident.isolation.replay import REPLAY_SPOUT_ID, ReplaySpout
from waterspout.trident.isolation.store import LettersFactory, LettersLocation, LettersUpdater
from waterspout.trident.plan.nodes import (
    Each,
    Isolated,
    Keep,
    Mapped,
    Merge,
    Node,
    Project,
    Repartition,
    Route,
    Sifted,
    SortedOut,
    Source,
    Update,
    UpdateWith,
)
from waterspout.trident.plan.plan import Phase, Plan, Shape, StateSpec

__all__ = [
    "LETTERS_STATE",
    "count_letters_of",
    "isolates",
    "letters_location",
    "letters_of",
    "with_letters",
]

LETTERS_STATE = "dead letters"
_ASIDES = Schema(((ASIDE, "string"),))
_POSITION_FIELD = (POSITION, "string")


def isolates(node: Node, conf: Config) -> bool:
    """Whether a node puts rows aside: as it says, or by default if it runs in Python."""
    if not isinstance(node, (Each, Keep, Mapped)):
        return False
    if node.on_error is not None:
        return node.on_error == "dead_letter"
    return conf.on_error == "dead_letter" and not node.is_native


def letters_location(plan: Plan, conf: Config) -> LettersLocation:
    """Return where a topology's letters are: in its folder, if anything of it outlives the run."""
    updated = [spec.factory for spec in plan.states.values() if not spec.static]
    if updated and all(factory.volatile for factory in updated):
        where = sorted(str(factory.location()) for factory in updated)
        return LettersLocation(token=" ".join([plan.name, *where]))
    return LettersLocation(conf.home_path().absolute() / plan.name)


def with_letters(plan: Plan, conf: Config, location: LettersLocation) -> Plan:
    """Return the plan with its letters; unchanged if it puts nothing aside and never did."""
    chains = _chains(plan, conf)
    sifts = any(_sifts(source, conf) for source in plan.sources.values())
    if not chains and not sifts and not location.exists:
        return plan
    return _Rewriting(plan, conf, location, chains).plan()


def _sifts(source: Source, conf: Config) -> bool:
    """Whether malformed records of a source are put aside."""
    return source.spout.on_malformed(conf) is OnMalformed.DEAD_LETTER


def letters_of(plan: Plan) -> list[DeadLetter]:
    """Return the letters of a plan that may have some, oldest first."""
    location = _location_of(plan)
    return [] if location is None else location.letters()


def count_letters_of(plan: Plan) -> int:
    """Return how many letters a plan has, without reading them; those being committed included."""
    location = _location_of(plan)
    return 0 if location is None else location.count()


def _location_of(plan: Plan) -> LettersLocation | None:
    factory = plan.states[LETTERS_STATE].factory if LETTERS_STATE in plan.states else None
    return factory.letters if isinstance(factory, LettersFactory) else None


def _chains(plan: Plan, conf: Config) -> list[list[Node]]:
    """Return the runs of neighbouring operations in Python of which at least one isolates."""
    chains: list[list[Node]] = []
    by_last: dict[Node, list[Node]] = {}
    for node in plan.nodes:
        if not _is_row_operation(node, conf):
            continue
        before = by_last.pop(node.parents[0], None) if _goes_on(plan, node) else None
        if before is None:
            before = []
            chains.append(before)
        before.append(node)
        by_last[node] = before
    found = [chain for chain in chains if any(isolates(node, conf) for node in chain)]
    for chain in found:
        while isinstance(chain[0], Project):  # left to Spark, which then reads fewer fields
            chain.pop(0)
    return found


def _is_row_operation(node: Node, conf: Config) -> bool:
    if isinstance(node, Project):
        return True
    return isinstance(node, (Each, Keep, Mapped)) and (isolates(node, conf) or not node.is_native)


def _goes_on(plan: Plan, node: Node) -> bool:
    return len(plan.children[node.parents[0]]) == 1


class _Rewriting:
    def __init__(
        self, plan: Plan, conf: Config, location: LettersLocation, chains: Sequence[Sequence[Node]]
    ) -> None:
        self._old = plan
        self._conf = conf
        self._location = location
        self._chain_of = {node: chain for chain in chains for node in chain}
        self._addresses = _addresses(plan, conf)
        taken = [*plan.nodes, *(node for call in plan.calls for node in call.nodes)]
        self._next = max((node.number for node in taken), default=0) + 1
        self._new: dict[Node, Node] = {}
        self._nodes: list[Node] = []
        self._hints = dict(plan.hints)
        self._asides: list[Node] = []
        self._positioned: set[Node] = set()
        """The new nodes that have the hidden column of positions."""
        self._wanting = self._wanting_positions()

    def plan(self) -> Plan:
        """Make every node again, with the new nodes of its parents as its parents."""
        inputs = {
            address: RECORD if isinstance(node, Source) else node.parents[0].schema
            for node, address in self._addresses.items()
        }
        self._requests = self._add(
            Source(
                number=self._number(),
                schema=_ASIDES,
                name="requests for dead letters",
                spout_id=REPLAY_SPOUT_ID,
                spout=ReplaySpout(self._location, inputs),
                hidden=True,
            )
        )
        for node in self._old.nodes:
            chain = self._chain_of.get(node)
            if chain is None:
                again = self._again(node)
                sifts = isinstance(again, Source) and _sifts(again, self._conf)
                self._new[node] = self._sift(node, again) if sifts else self._add(again)
            elif node is chain[-1]:
                self._new[node] = self._isolate(chain)
        self._keep_letters()
        factory = LettersFactory(self._location)
        spec = StateSpec(LETTERS_STATE, factory, 1, Shape.OWN, hidden=True)
        states = {**self._old.states, LETTERS_STATE: spec}
        return replace(self._old, nodes=tuple(self._nodes), states=states, hints=self._hints)

    def _again(self, node: Node) -> Node:
        """Return a node with its new parents; with the hidden position if a letter may need it."""
        parents = tuple(self._new[parent] for parent in node.parents)
        if node not in self._wanting or not all(parent in self._positioned for parent in parents):
            return replace(node, parents=tuple(map(self._without_position, parents)))
        changes: dict[str, Any] = {"parents": parents}
        match node:
            case Each(out=out):
                changes["schema"] = Schema((*parents[0].schema.fields, *out.fields))
            case Keep() | Repartition():
                changes["schema"] = parents[0].schema
            case Mapped():
                changes |= {"schema": _with_position(node.schema), "beside": (POSITION,)}
            case Project():
                changes |= {
                    "schema": _with_position(node.schema),
                    "fields": (*node.fields, POSITION),
                }
            case Merge():
                changes["parents"] = tuple(map(self._position_last, parents))
                changes["schema"] = _with_position(node.schema)
            case _:
                changes["schema"] = _with_position(node.schema)
        made = replace(node, **changes)
        self._positioned.add(made)
        return made

    def _isolate(self, chain: Sequence[Node]) -> Node:
        """Replace a chain by one node; return the node of its good rows."""
        first, last = chain[0], chain[-1]
        parent = self._new[first.parents[0]]
        positioned = parent in self._positioned
        rows = _with_position(last.schema) if positioned else last.schema
        names = ", ".join(node.title for node in chain)
        isolated = self._add(
            Isolated(
                number=self._number(),
                schema=Schema((*rows.fields, (ASIDE, "string"))),
                parents=(parent, self._requests),
                name=names,
                chain=tuple(chain),
                addresses=tuple(self._addresses.get(node) for node in chain),
                beside=(POSITION,) if positioned else (),
            )
        )
        for node in chain:
            if node.number in self._hints:
                hint = self._hints.pop(node.number)
                self._hints[isolated.number] = max(hint, self._hints.get(isolated.number, 1))
        good = self._sorted(isolated, names, rows, last.number)
        if positioned:
            self._positioned.add(good)
        return good

    def _sift(self, old: Node, source: Node) -> Node:
        """Let a source tell its malformed records; return the node of its good rows."""
        assert isinstance(source, Source)
        reader = source.spout.read_nothing()
        assert isinstance(reader, FilesRead | KafkaRead)
        positioned = source in self._positioned
        told = replace(source, schema=Schema((*source.schema.fields, (ASIDE, "string"))))
        sifted = Sifted(
            number=self._number(),
            schema=told.schema,
            parents=(self._add(told), self._requests),
            name=f"malformed records of {source.title}",
            address=self._addresses[old],
            reader=reader,
        )
        good = self._sorted(self._add(sifted), source.title, source.schema, self._number())
        if positioned:
            self._positioned.add(good)
        return good

    def _sorted(self, node: Node, names: str, rows: Schema, number: int) -> Node:
        """Part a node's rows from what is beside them; return the node of the good rows."""
        self._asides.append(
            self._add(
                SortedOut(
                    number=self._number(), schema=_ASIDES, parents=(node,), aside=True,
                    name="what was put aside",
                )
            )
        )  # fmt: skip
        name = f"good rows of {names}"
        good = SortedOut(number=number, schema=rows, parents=(node,), aside=False, name=name)
        return self._add(good)

    def _keep_letters(self) -> None:
        parents = (self._requests, *self._asides)
        merged = self._add(
            Merge(number=self._number(), schema=_ASIDES, parents=parents, name="dead letters")
        )
        sources = [a for node, a in self._addresses.items() if isinstance(node, Source)]
        limit, ratio = self._conf.dead_letters_max, self._conf.max_bad_ratio
        updater = LettersUpdater(limit, ratio, sources)
        update = Update(
            number=self._number(),
            schema=Schema(),
            parents=(merged,),
            name=f"update of {LETTERS_STATE}",
            state=LETTERS_STATE,
            updating=UpdateWith((ASIDE,), updater),
        )
        self._add(update)
        self._write_first(merged, update)

    def _write_first(self, merged: Node, update: Node) -> None:
        """Put the letters before all other states: too many letters must stop the batch early.

        Letters that arise in the commit phase, behind another update, have to wait for that.
        """
        phases = replace(self._old, nodes=tuple(self._nodes)).phases
        if phases[merged] is Phase.PROCESSING:
            early = [node for node in self._nodes if phases[node] is Phase.PROCESSING]
            late = [node for node in self._nodes if node not in early and node is not update]
            self._nodes = [*early, update, *late]
            return
        self._nodes = [node for node in self._nodes if node not in (merged, update)]
        known = 1 + max(self._nodes.index(parent) for parent in merged.parents)
        self._nodes[known:known] = [merged, update]

    def _wanting_positions(self) -> set[Node]:
        """Return the nodes whose rows need a position, because a letter may come of one row."""
        wanting: set[Node] = set()
        for node in reversed(self._old.nodes):
            for child in self._old.children[node]:
                chain = self._chain_of.get(child)
                begins = chain is not None and chain[0] is child
                # A field of the user's own of that name stays what it is.
                if POSITION not in node.schema.names and (
                    begins or (child in wanting and _carries(child))
                ):
                    wanting.add(node)
        return wanting

    def _position_last(self, node: Node) -> Node:
        if node.schema.fields[-1] == _POSITION_FIELD:
            return node
        return self._project(node, _with_position(node.schema.without((POSITION,))))

    def _without_position(self, node: Node) -> Node:
        if node not in self._positioned:
            return node
        return self._project(node, node.schema.without((POSITION,)))

    def _project(self, node: Node, schema: Schema) -> Node:
        return self._add(
            Project(number=self._number(), schema=schema, parents=(node,), fields=schema.names)
        )

    def _add(self, node: Node) -> Node:
        self._nodes.append(node)
        return node

    def _number(self) -> int:
        self._next += 1
        return self._next - 1


def _carries(node: Node) -> bool:
    """Whether each row comes from one row of a parent, so that it can keep its position."""
    if isinstance(node, Repartition):
        return node.route is not Route.CUSTOM  # a grouping of the user's own sees whole rows
    return isinstance(node, (Source, Each, Keep, Mapped, Project, Merge))


def _with_position(schema: Schema) -> Schema:
    return Schema((*schema.fields, _POSITION_FIELD))


def _addresses(plan: Plan, conf: Config) -> dict[Node, str]:
    """Return the names of the nodes in letters: the title, with a number if it is not unique."""
    times = Counter[str]()
    found: dict[Node, str] = {}
    for node in plan.nodes:
        if isolates(node, conf) or (isinstance(node, Source) and _sifts(node, conf)):
            times[node.title] += 1
            count = times[node.title]
            found[node] = node.title if count == 1 else f"{node.title} #{count}"
    return found
