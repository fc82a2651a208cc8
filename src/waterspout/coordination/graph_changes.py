"""What a changed topology means to what is stored of it. Pure rules, no I/O.

The ledger keeps the graph that it was last run with: spouts, states and committers, not user code.
`compare` takes that and the graph of the code, piece by piece. Each difference is a `GraphChange`
that is allowed, allowed with a word to the user, or refused with the reason. What is new begins
with the next batch, and the ledger notes which one that was (`since`): only so can an empty state
that is new be told from one that was wiped.

A state is found again by its place (backend and table, or what else names it there), not by its
name: Trident numbers its states in the order of the code, and a state may be added before another.
The ledger and the heads go on with the name that a state had first (`Comparison.names`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from waterspout._safe_repr import with_article
from waterspout._schema import Schema
from waterspout.errors import ConfigError, StateMismatchError
from waterspout.transactional._ledger import Ledger, first_batch

__all__ = ["NOTHING_CHANGED", "Comparison", "GraphChange", "Ruling", "compare", "piece_name"]

# What the ledger adds to what a graph says of a piece.
_NOTED = ("since", "columns_since", "filled", "filling")
_NOT_THE_PLACE = (*_NOTED, "kind", "layout", "partitions", "bolt", "by_partition", "pinned")
_KINDS = ("spout", "state", "committer")


class Ruling(Enum):
    """What becomes of a change."""

    ALLOWED = "allowed"
    NOTED = "note"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class GraphChange:
    """One difference between the stored graph and the code, in words."""

    piece: str
    ruling: Ruling
    text: str

    def __str__(self) -> str:
        return f"{self.piece} {self.text}"

    def to_json(self) -> dict[str, str]:
        return {"piece": self.piece, "ruling": self.ruling.value, "text": self.text}


@dataclass(frozen=True, slots=True)
class Comparison:
    """All changes, the graph as the ledger is to hold it, and the ledger's names of the states."""

    changes: tuple[GraphChange, ...]
    graph: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def refused(self) -> list[GraphChange]:
        """The changes that are not possible."""
        return [change for change in self.changes if change.ruling is Ruling.REFUSED]

    def lines(self) -> list[str]:
        """Return the changes for a reader, one a line; none if nothing has changed."""
        return [f"  {change.ruling.value:<8} {change}" for change in self.changes]

    def added_to(self, explained: str) -> str:
        """Return what `explain` says, with what has changed and what did not begin with batch 1."""
        found = [explained]
        if self.changes:
            found += ["", "changes since the last run", *self.lines()]
        began = list(_beginnings(self.graph))
        if began:
            found += ["", "not from batch 1 on", *began]
        return "\n".join(found)

    def why_not_whole(self, state: str) -> str | None:
        """Say why a state does not hold all that its sources gave; None if it does."""
        entry = self.graph.get(f"state {self.names.get(state, state)}", {})
        retired = [piece for piece in self.graph if piece.startswith("retired spout ")]
        if self.lacking(state) == ():
            return f"it began with batch {first_batch(entry)}, and has nothing of those before"
        for column, first in entry.get("columns_since", {}).items():
            return f"its column {column} began with batch {first}"
        return f"{retired[0].removeprefix('retired ')} was retired" if retired else None

    def lacking(self, state: str) -> tuple[str, ...] | None:
        """Return the columns of a state that lack earlier batches; (): all; None: none does."""
        entry = self.graph.get(f"state {self.names.get(state, state)}", {})
        if first_batch(entry) > 1 and not entry.get("filled"):
            return ()
        return tuple(entry.get("columns_since", {})) or None

    def refuse_retired_spouts(self) -> None:
        """Refuse to count again what nobody reads any more."""
        for piece in self.graph:
            if piece.startswith("retired spout "):
                raise ConfigError(
                    f"{piece.removeprefix('retired ')} was retired: what it gave cannot be counted "
                    "again"
                )

    def refuse_half_filled(self) -> None:
        """Refuse a topology with a state of which an interrupted fill has set a part."""
        for piece, entry in self.graph.items():
            if isinstance(entry, Mapping) and entry.get("filling"):
                raise StateMismatchError(
                    f"{piece_name(piece, entry)} was filled in part, by a fill that did not end. "
                    "Let it end first: waterspout state backfill"
                )

    def filling(self, states: Iterable[str]) -> dict[str, Any]:
        """Return the graph while these states are being filled."""
        return self._noting(states, {"filling": True}, ())

    def filled(self, states: Iterable[str]) -> dict[str, Any]:
        """Return the graph when these states have been filled: nothing is missing from them."""
        return self._noting(states, {"filled": True}, ("filling", "columns_since"))

    def _noting(
        self, states: Iterable[str], more: Mapping[str, Any], less: Collection[str]
    ) -> dict[str, Any]:
        graph = dict(self.graph)
        for state in states:
            piece = f"state {self.names.get(state, state)}"
            kept = {key: value for key, value in graph[piece].items() if key not in less}
            graph[piece] = {**kept, **more}
        return graph

    def first_of(self, state: str) -> int:
        """Return the first batch that a state has part in, by its name in the code."""
        return first_batch(self.graph.get(f"state {self.names.get(state, state)}"))


def _beginnings(graph: Mapping[str, Any]) -> Iterator[str]:
    for piece, entry in graph.items():
        title = piece_name(piece.removeprefix("retired "), entry)
        if first_batch(entry) > 1 and not entry.get("filled"):
            yield f"  {title} began with batch {first_batch(entry)}"
        if isinstance(entry, Mapping):
            for column, first in entry.get("columns_since", {}).items():
                yield f"  column {column} of {title} began with batch {first}"
            if _is_retired(piece):
                yield f"  {title} was retired after batch {entry['until']}"


NOTHING_CHANGED = Comparison((), {})


def compare(ledger: Ledger, given: Mapping[str, Any], retire: Collection[str] = ()) -> Comparison:
    """Compare the graph of the code with the stored one; `retire` names what may be gone."""
    # Through JSON, as what is stored was: a tuple has become a list.
    return _Comparing(ledger, json.loads(json.dumps(given)), retire).result()


def piece_name(piece: str, entry: Any) -> str:
    """Return what users call a piece: a state by its table too, because its name is a number."""
    place = [str(v) for v in _place(entry).values()] if isinstance(entry, Mapping) else []
    if not piece.startswith("state ") or not place:
        return piece
    return f"{piece} ({' '.join(place)})"


class _Comparing:
    """One comparison: the changes so far, and the graph that is made."""

    def __init__(self, ledger: Ledger, given: dict[str, Any], retire: Collection[str]) -> None:
        self._ledger = ledger
        self._stored: dict[str, Any] = json.loads(json.dumps(dict(ledger.fingerprint)))
        self._given = given
        self._retire = tuple(retire)
        self._changes: list[GraphChange] = []
        self._graph: dict[str, Any] = {p: e for p, e in self._stored.items() if _is_retired(p)}
        self._names: dict[str, str] = {}
        self._alters_batches = False

    def result(self) -> Comparison:
        gone = self._retired()
        left = {p: e for p, e in self._stored.items() if p not in gone and not _is_retired(p)}
        pairs = _paired(left, self._given)
        for piece, entry in self._given.items():
            before = pairs.get(piece)
            name = self._name(piece, before)
            if before is None:
                self._add(piece, name, entry)
            else:
                self._keep(piece, name, left[before], entry)
        for piece in left:
            if piece not in pairs.values():
                self._refuse_gone(piece, left[piece])
        self._refuse_within_a_batch()
        return Comparison(tuple(self._changes), self._graph, self._names)

    def _tell(self, piece: str, entry: Any, ruling: Ruling, text: str) -> None:
        self._changes.append(GraphChange(piece_name(piece, entry), ruling, text))

    def _name(self, piece: str, before: str | None) -> str:
        """Return the name under which the ledger has a piece, or will have it."""
        kind, _, name = piece.partition(" ")
        if kind != "state":
            return piece
        used = {p.rpartition("state ")[2] for p in self._stored if "state " in p}
        used |= set(self._names.values())
        if before is not None:
            name = before.partition(" ")[2]
        elif name in used:
            number = 1
            while f"state{number}" in used:
                number += 1
            name = f"state{number}"
        self._names[piece.partition(" ")[2]] = name
        return f"state {name}"

    def _add(self, piece: str, name: str, entry: Any) -> None:
        for other, old in self._stored.items():
            if _is_retired(other) and piece.startswith("state ") and _same_place(old, entry):
                self._tell(
                    piece,
                    entry,
                    Ruling.REFUSED,
                    "is where a state was kept that has been retired: the batches since then are "
                    "not in it. Use another table for the new state.",
                )
                return
        if _is_own_store(piece, entry) and any(
            _is_own_store(p, e) for p, e in self._stored.items()
        ):
            text = (
                "is a new window or deduplicate() without a store. Those without one are kept by "
                "their order in the code: nobody could tell which of them is which. Give the new "
                "one a store, such as SQLiteState.opaque(path, table=...)."
            )
            self._tell(piece, entry, Ruling.REFUSED, text)
            return
        self._graph.pop(f"retired {piece}", None)
        current, kind = self._ledger.current, piece.partition(" ")[0]
        noted = isinstance(entry, Mapping) and current > 1
        self._graph[name] = {**entry, "since": current} if noted else entry
        if kind not in _KINDS:
            self._tell(piece, entry, Ruling.REFUSED, f"was not there, and is {entry!r} now.")
        elif kind == "spout":
            self._alters_batches = True
            at = "" if current == 1 else f", with batch {current}"
            text = f"is new: it begins at its beginning{at}."
            self._tell(piece, entry, Ruling.ALLOWED, text)
        elif current == 1:
            self._tell(piece, entry, Ruling.ALLOWED, "is new: it begins with batch 1, as all.")
        else:
            text = f"is new: it begins empty, with batch {current}."
            if kind == "state":
                held = f"{current - 1} batches" if current > 2 else "batch"
                text += f" What the {held} before it held is not in it."
            self._tell(piece, entry, Ruling.NOTED, text)

    def _keep(self, piece: str, name: str, stored: Any, given: Any) -> None:
        self._graph[name] = stored
        if not isinstance(stored, Mapping) or not isinstance(given, Mapping):
            if stored != given:
                self._tell(piece, given, Ruling.REFUSED, f"was {stored!r}, and is {given!r} now.")
            return
        noted = {key: stored[key] for key in _NOTED if key in stored}
        bare = {key: value for key, value in stored.items() if key not in _NOTED}
        self._graph[name] = {**given, **noted}
        kind = piece.partition(" ")[0]
        for key in sorted(set(bare) | set(given)):
            was, now = bare.get(key), given.get(key)
            if was == now:
                continue
            if kind == "state":
                self._state_changed(piece, name, key, was, now)
            else:
                self._other_changed(piece, key, was, now)

    def _state_changed(self, piece: str, name: str, key: str, was: Any, now: Any) -> None:
        entry = self._given[piece]
        if key in ("by_partition", "pinned") or (key in ("kind", "layout") and None in (was, now)):
            return  # an older version did not say it
        if key == "layout":
            self._layout_changed(piece, name, was, now)
        elif key == "partitions":
            self._partitions_changed(piece, was, now)
        elif key == "bolt":
            text = f"is written by bolt {now!r} from batch {self._ledger.current} on, not {was!r}."
            self._tell(piece, entry, Ruling.NOTED, text)
        elif key == "kind":
            text = (
                f"was {with_article(was)} state and is {with_article(now)} one now: its records "
                f"have another form. Use another table, or make it {was} again."
            )
            self._tell(piece, entry, Ruling.REFUSED, text)
        else:
            text = f"had {key} {was!r} and has {now!r} now: its values are not there. Change it "
            self._tell(piece, entry, Ruling.REFUSED, text + "back, or use another table.")

    def _partitions_changed(self, piece: str, was: Any, now: Any) -> None:
        entry = self._given[piece]
        text = f"is spread over {now} partitions from batch {self._ledger.current} on, not {was}."
        if entry.get("by_partition"):
            text = (
                f"had {was} partitions and is to have {now}: what a window or deduplicate() holds "
                f"is kept by partition, and would not be found. Write parallelism_hint({was})."
            )
            self._tell(piece, entry, Ruling.REFUSED, text)
        elif entry.get("pinned") and self._ledger.begun:
            text = (
                f"had {was} partitions and is to have {now}, in the middle of batch "
                f"{self._ledger.current}: it knows by partition which rows of it are there. Run "
                "the topology as it was until it comes to rest (waterspout run --until-idle)."
            )
            self._tell(piece, entry, Ruling.REFUSED, text)
        elif "layout" not in entry:
            text = (
                f"had {was} partitions and is to have {now}: only its own code knows whether what "
                f"it keeps goes by them. Write parallelism_hint({was}), or use another state."
            )
            self._tell(piece, entry, Ruling.REFUSED, text)
        else:
            text += " A key has one record, whoever writes it: nothing is moved."
            self._tell(piece, entry, Ruling.ALLOWED, text)

    def _layout_changed(self, piece: str, name: str, was: str, now: str) -> None:
        entry = self._given[piece]
        old_keys, old_values = _columns(was)
        new_keys, new_values = _columns(now)
        if old_keys != new_keys:
            text = (
                f"has the key ({_shown(old_keys)}) and is to have ({_shown(new_keys)}): its "
                "records stand under other keys. A state of other keys is another state: use "
                "another table."
            )
            self._tell(piece, entry, Ruling.REFUSED, text)
            return
        refusal = _why_not_grown(old_values, new_values)
        if refusal is not None:
            self._tell(piece, entry, Ruling.REFUSED, refusal)
            return
        current, kept = self._ledger.current, dict(self._graph[name])
        added = new_values.names[len(old_values) :]
        if current > 1:
            since = {**kept.get("columns_since", {}), **dict.fromkeys(added, current)}
            self._graph[name] = {**kept, "columns_since": since}
        self._alters_batches = True
        plural = "s begin" if len(added) > 1 else " begins"
        text = (
            f"has more columns now: {', '.join(added)}. The new column{plural} empty, with batch "
            f"{current}; the other columns go on."
        )
        self._tell(piece, entry, Ruling.NOTED, text)

    def _other_changed(self, piece: str, key: str, was: Any, now: Any) -> None:
        entry, current = self._given[piece], self._ledger.current
        if key in ("fields", "streams") and None not in (was, now):
            self._alters_batches = True
            start = "now" if current == 1 else f"batch {current}"
            text = f"has other {key} from {start} on: {_differences(key, was, now)}."
            self._tell(piece, entry, Ruling.NOTED, text)
            return
        why = {
            "spout": "a position that one has stored means nothing to the other",
            "kind": "what is stored of its batches would not fit",
            "path": "the files that were read are known by their names there, so all would count "
            "again",
            "format": "files that wait would be read in another way than the ones before",
            "inputs": "what it wrote may stand elsewhere",
        }.get(key, "its stored positions would not fit")
        text = f"had {key} {_told(was)} and has {_told(now)} now: {why}. Change it back."
        self._tell(piece, entry, Ruling.REFUSED, text)

    def _refuse_gone(self, piece: str, entry: Any) -> None:
        """Refuse a piece that was taken out of the code, and nobody said that it is to go."""
        name = _short_name(piece, entry)
        text = (
            "is not in the topology any more. If that is meant, say so: waterspout run --retire "
            f"{name}, or Config(retire=[{name!r}]). If it was renamed or moved, change it back."
        )
        if _is_own_store(piece, entry):
            text += " It is kept by its place in the code: write new states behind it."
        self._tell(piece, entry, Ruling.REFUSED, text)

    def _retired(self) -> set[str]:
        """Take out what is to be retired; return what that is."""
        in_the_code = set(_paired(self._stored, self._given).values())
        gone: set[str] = set()
        for name in self._retire:
            found = [p for p, entry in self._stored.items() if name in _names_of(p, entry)]
            if not found:
                known = sorted(_short_name(p, e) for p, e in self._stored.items())
                raise ConfigError(
                    f"retire: topology {self._ledger.topology!r} has nothing named {name!r}, but "
                    f"{', '.join(known)}"
                )
            live = [piece for piece in found if not _is_retired(piece)]
            out = [piece for piece in live if piece not in in_the_code]
            for piece in live if not out else ():
                text = "is to be retired, but it is still in the topology. Take it out of the code."
                self._tell(piece, self._stored[piece], Ruling.REFUSED, text)
            gone.update(out)
        for piece in sorted(gone):
            self._let_go(piece)
        return gone

    def _let_go(self, piece: str) -> None:
        """Retire a piece, unless it may be in the middle of a batch."""
        entry, ledger = self._stored[piece], self._ledger
        unsettled = ledger.committed_attempt is not None and not ledger.settled
        if piece.startswith("state ") and (ledger.begun or unsettled):
            batch = ledger.current if ledger.begun else ledger.current - 1
            text = (
                f"is to be retired, but the last run ended in the middle of batch {batch}, which "
                "it may hold in part. Run the topology as it was until it comes to rest "
                "(waterspout run --until-idle), then retire it."
            )
            self._tell(piece, entry, Ruling.REFUSED, text)
            return
        last = ledger.current - 1
        kind = piece.partition(" ")[0]
        says = f"is retired: batch {last} is its last. "
        says += {
            "state": "Its records stay as they are; nobody writes them any more.",
            "spout": "What it has not emitted by now is not read.",
        }.get(kind, "What it wrote stays.")
        noted = dict(entry) if isinstance(entry, Mapping) else {"was": entry}
        self._graph[f"retired {piece}"] = {**noted, "until": last}
        self._alters_batches |= kind == "spout"
        self._tell(piece, entry, Ruling.NOTED, says)

    def _refuse_within_a_batch(self) -> None:
        """Refuse to change what is in a batch of which a transactional state may hold a part."""
        if not self._ledger.begun or not self._alters_batches:
            return
        for piece, entry in self._graph.items():
            kind = entry.get("kind") if isinstance(entry, Mapping) else None
            opaque = kind in ("opaque", "non-transactional") or _is_own_store(piece, entry)
            if piece not in self._stored or _is_retired(piece) or piece.startswith("spout "):
                continue
            if not opaque:
                text = (
                    f"may hold a part of batch {self._ledger.current}, which has begun to commit, "
                    "and must be given the same rows again; with these changes they would differ. "
                    "Run the topology as it was until it comes to rest (waterspout run "
                    "--until-idle), then change it."
                )
                self._tell(piece, entry, Ruling.REFUSED, text)


def _paired(stored: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, str]:
    """Return, for each piece of the code that is stored, under which name it is."""
    pairs = {p: p for p in given if p in stored and not p.startswith("state ")}
    for same_name in (True, False):
        for piece, entry in given.items():
            if piece in pairs or not piece.startswith("state "):
                continue
            for other, old in stored.items():
                free = other.startswith("state ") and other not in pairs.values()
                if free and (piece == other or not same_name) and _same_place(old, entry):
                    pairs[piece] = other
                    break
    return pairs


def _place(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in (*_NOT_THE_PLACE, "until")}


def _same_place(stored: Any, given: Any) -> bool:
    if not isinstance(stored, Mapping) or not isinstance(given, Mapping):
        return bool(stored == given)
    return _place(stored) == _place(given)


def _is_retired(piece: str) -> bool:
    return piece.startswith("retired ")


def _is_own_store(piece: str, entry: Any) -> bool:
    """Whether this is the topology's own store of a window, whose table is named as the state.

    A state of a bolt has a name that the user gave it; that may well be its table's too.
    """
    named = isinstance(entry, Mapping) and "bolt" not in entry
    return named and piece == f"state {entry.get('table')}"


def _names_of(piece: str, entry: Any) -> set[str]:
    """Return the names by which a user may mean a piece: its own, or that of its table."""
    piece = piece.removeprefix("retired ")
    own = {piece, piece.partition(" ")[2]}
    if not piece.startswith("state ") or not isinstance(entry, Mapping):
        return own
    place = {key: value for key, value in _place(entry).items() if key != "backend"}
    return own | {str(value) for value in place.values()}


def _short_name(piece: str, entry: Any) -> str:
    """Return the name to give to `retire`."""
    name = piece.rpartition(" ")[2]
    if "state " not in piece or not isinstance(entry, Mapping):
        return name
    return str(next((v for k, v in _place(entry).items() if k in ("table", "prefix")), name))


def _columns(layout: str) -> tuple[Schema | None, Schema]:
    keys, _, values = layout.rpartition(" -> ")
    if keys == "(rows)":  # which are appended, and have no key
        return Schema((("(rows)", None),)), Schema.parse(values)
    return None if keys == "(any key)" else Schema.parse(keys), Schema.parse(values)


def _why_not_grown(old: Schema, new: Schema) -> str | None:
    """Say why values of these columns cannot become values of those; None: they can."""
    types = dict(new.fields)
    gone = [name for name in old.names if name not in types]
    if gone:
        return (
            f"has a column {gone[0]!r} that is not in the topology any more: its values would "
            "stand still among the others. Write it again, or use another table."
        )
    for name, kind in old:
        if types[name] != kind:
            return (
                f"has {name!r} as {kind}, and it is to be {types[name]}: what is stored is "
                f"{kind}. Give it its type back, or add a column of another name."
            )
    if new.names[: len(old)] != old.names:
        return (
            f"has the columns {', '.join(old.names)} in this order. Write them so, and new ones "
            "behind them."
        )
    return None


def _differences(key: str, was: Any, now: Any) -> str:
    if key == "streams":
        old, new = {k: str(v) for k, v in was.items()}, {k: str(v) for k, v in now.items()}
    else:
        old, new = ({n: str(t) for n, t in Schema.parse(text)} for text in (was, now))
    said = [f"{name} is new" for name in new if name not in old]
    said += [f"{name} is gone" for name in old if name not in new]
    said += [
        f"{name} was {old[name]} and is {new[name]}"
        for name in new
        if name in old and old[name] != new[name]
    ]
    return "; ".join(said) or "their order"


def _shown(keys: Schema | None) -> str:
    return "any" if keys is None else str(keys) or "none"


def _told(value: Any) -> str:
    if isinstance(value, Iterable) and not isinstance(value, str):
        return json.dumps(value)
    return "none" if value is None else str(value)
