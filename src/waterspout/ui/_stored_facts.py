"""What a ledger and the last words of a run tell of a topology, in the shapes of the API.

A function of what was read, without I/O. What is not stored is None, or is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from waterspout.coordination.batch_clock import CLOCK
from waterspout.coordination.commands.outside import Sight
from waterspout.transactional._ledger import SKIPPED, Ledger, Metadata, first_batch

__all__ = ["batches", "kind_of", "pressure", "states", "topology"]

# The attempt and the metadata of a committed batch, if they are still known.
Look = Callable[[int], tuple[int, Metadata] | None]

_LEFT = "a run has left it unfinished: the next one tries again"
_BEGUN = "a run has ended while it committed: its states may hold a part; the next run settles that"


def topology(sight: Sight) -> dict[str, Any]:
    """Return what is known of a topology without its code: spouts, states, how it stands."""
    graph = {} if sight.ledger is None else sight.ledger.fingerprint
    return {
        "name": sight.name,
        "kind": kind_of(sight),
        "status": sight.status,
        "uptime_s": None,
        "driver": sight.driver,
        "version": None,
        "graph": {"nodes": _nodes(graph), "edges": []},
        "states": states(graph),
        "explain": "",
    }


def kind_of(sight: Sight) -> str:
    """Return what kind of a topology it is, by what is stored of its graph; empty if nothing is."""
    graph = {} if sight.ledger is None else sight.ledger.fingerprint
    entries = {piece: entry for piece, entry in graph.items() if isinstance(entry, Mapping)}
    if any("spout" in entry for piece, entry in entries.items() if piece.startswith("spout ")):
        return "trident"
    if any(piece.startswith(("committer ", "state ")) for piece in entries):
        return "transactional"
    batches_ran = sight.ledger is not None and sight.ledger.current > 1
    return "transactional" if batches_ran else "core" if entries else ""


def states(graph: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the states of a stored graph. What they promise, only the code can tell."""
    found = []
    for piece, entry in graph.items():
        if piece.startswith("state ") and isinstance(entry, Mapping):
            at = next((f"#{entry[k]}" for k in ("table", "prefix", "path") if entry.get(k)), "")
            found.append(
                {
                    "name": piece.removeprefix("state "),
                    "kind": str(entry.get("kind") or "own"),
                    "store": f"{entry.get('backend', '?')}{at}",
                    "guarantee": None,
                    "layout": entry.get("layout"),
                    "since": first_batch(entry),
                }
            )
    return found


def batches(ledger: Ledger | None, look: Look, limit: int) -> dict[str, Any]:
    """Return what is known of the newest batches, oldest first, as the API tells attempts.

    No times are stored. `from` is what each spout gave, and `decided` what a person has decided.
    """
    if ledger is None:
        return {"attempts": [], "states": []}
    since = {state["name"]: state["since"] for state in states(ledger.fingerprint)}
    attempts = []
    for txid in range(max(1, ledger.current - limit), ledger.current):
        found = look(txid)
        if found is not None:
            attempts.append(_attempt(ledger, txid, found[0], found[1], "committed"))
    for txid, batch in sorted(ledger.emitted.items()):
        left = _attempt(ledger, txid, batch.attempt, batch.metadata, "unfinished")
        begun = txid == ledger.current and batch.attempt in ledger.begun
        attempts.append({**left, "begun": begun, "why": _BEGUN if begun else _LEFT})
    for each in attempts:
        each["states"] = {name: {} for name, first in since.items() if each["txid"] >= first}
    return {"attempts": attempts[-limit:] if limit > 0 else [], "states": list(since)}


def pressure(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return what waited when the run told last of itself: one point, if it had told anything."""
    last = snapshot.get("last_progress")
    points = []
    if isinstance(last, Mapping):
        size = last.get("tuples") or last.get("executed_tuples") or last.get("input_rows") or 0
        seconds = ("processing_s", "commit_s", "wave_s", "busy_s")
        kept = (*seconds, "backlog", "max_in_flight", "sizes", "targets")
        point = {
            "t": int(last["timestamp"]),
            "count": 1,
            "size": size,
            "size_max": size,
            "pending": last.get("pending", last.get("in_flight", 0)),
            "lag": snapshot.get("lag") or last.get("lag") or {},
            "throttled": bool(last.get("throttled")),
            **{key: last[key] for key in kept if key in last},
        }
        points = [point]
    now = points[0] if points else {}
    reason = (last or {}).get("reason") or None
    return {"window": "all", "step_s": 1, "points": points, "now": now, "reason": reason}


def _nodes(graph: Mapping[str, Any]) -> list[dict[str, Any]]:
    nodes = []
    for piece, entry in graph.items():
        kind, _, name = piece.partition(" ")
        told = entry if isinstance(entry, Mapping) else {}
        nodes.append(
            {
                "id": name,
                "kind": "bolt" if kind == "committer" else kind,
                "label": name,
                "parallelism": told.get("partitions"),
            }
        )
    return nodes


def _attempt(
    ledger: Ledger, txid: int, number: int, metadata: Metadata, outcome: str
) -> dict[str, Any]:
    given = {spout: at for spout, at in metadata.items() if spout not in (CLOCK, SKIPPED)}
    return {
        "txid": txid,
        "attempt": number,
        "replay": number > 0,
        "why": None,
        "outcome": outcome,
        "error": None,
        "from": given,
        "skipped": list(metadata.get(SKIPPED, ())),
        "decided": [dict(each) for each in ledger.decisions if each["txid"] == txid],
    }
