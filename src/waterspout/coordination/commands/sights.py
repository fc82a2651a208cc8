"""What is seen of a topology from outside, as rows, as lines, and as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from waterspout._safe_repr import shown
from waterspout.coordination.commands.outside import Sight

__all__ = [
    "COLUMNS",
    "RIGHT",
    "done",
    "facts",
    "lines",
    "remark",
    "resumes",
    "row",
    "runs",
    "server_url",
    "span",
    "why",
]

COLUMNS = ("topology", "status", "done", "in flight", "up", "driver", "last error")
RIGHT = ("done", "in flight", "up")

_TOTALS = {
    "committed": "batches committed",
    "waves": "waves",
    "executed": "tuples executed",
    "executed_tuples": "tuples executed",
    "input_rows": "rows read",
    "written_rows": "rows written",
    "acked": "acked",
    "replayed": "replayed",
    "failures": "failures",
    "failed": "failed",
    "timed_out": "timed out",
    "dead_letters": "dead letters",
}
_ALWAYS = ("committed", "waves")
_KNOWN = ("name", "status", "timestamp", "in_flight", "totals", "last_progress", "errors")


def row(sight: Sight) -> tuple[str, ...]:
    """Return a line of the list."""
    flying = sight.snapshot.get("in_flight") or ()
    return (
        sight.name,
        sight.status,
        done(sight),
        f"{len(flying):,}" if runs(sight) else "",
        span(time.time() - sight.published["started"]) if runs(sight) else "",
        sight.driver if sight.status not in ("stopped", "failed") else "",
        remark(sight),
    )


def lines(sight: Sight) -> Iterator[tuple[str, str]]:
    """Return labels and texts for people."""
    snapshot = sight.snapshot
    yield "topology", sight.name
    yield "status", f"{sight.status}{why(sight)}"
    if sight.driver:
        yield "driver", f"{sight.driver}{_since(sight)}"
    if url := server_url(sight):
        yield "served at", url
    if snapshot:
        yield "told", f"{_ago(snapshot['timestamp'])}"
        yield "in this run", ", ".join(_totals(snapshot.get("totals") or {})) or "nothing yet"
        last = snapshot.get("last_progress")
        if isinstance(last, Mapping):
            # The lag of now stands below.
            yield "last", _pairs(last, ("name", "timestamp", "lag"))
        yield from _flying(snapshot) if runs(sight) else ()
        for key, value in snapshot.items():
            if key not in _KNOWN and value not in (None, [], {}, ""):
                yield key.replace("_", " "), _compact(value)
    if sight.wanted.change:
        yield "rebalanced", f"{sight.wanted.change}, by {sight.wanted.by}"
    for error in snapshot.get("errors") or ():
        times = f" ({error['count']:,} times)" if error["count"] > 1 else ""
        yield "error", f"{error['component']}: {error['error']}{times}, {_ago(error['last'])}"
    yield from resumes(sight)


def facts(sight: Sight) -> dict[str, Any]:
    """Return everything, for JSON."""
    holder, ledger = sight.holder, sight.ledger
    return {
        "topology": sight.name,
        "status": sight.status,
        "problem": sight.problem or None,
        "epoch": None if holder is None else holder.epoch,
        "driver": sight.published.get("driver") if sight.snapshot else None,
        "started": sight.published.get("started") if sight.snapshot else None,
        "server_url": server_url(sight),
        "snapshot": dict(sight.snapshot) or None,
        "wanted": asdict(sight.wanted),
        "resumes": None
        if ledger is None
        else {
            "txid": ledger.current,
            "emitted": {txid: batch.attempt for txid, batch in ledger.emitted.items()},
            "begun": list(ledger.begun),
            "positions": dict(ledger.positions),
        },
    }


def server_url(sight: Sight) -> str | None:
    """Return where a run that goes on is served, if it is."""
    url = sight.published.get("server_url") if runs(sight) else None
    return url if isinstance(url, str) else None


def runs(sight: Sight) -> bool:
    """Whether a driver has the topology and has told how its run stands."""
    held = sight.holder is not None and sight.holder.state == "held"
    return held and bool(sight.snapshot)


def done(sight: Sight) -> str:
    """Return how far it is: the last batch or wave."""
    totals = sight.snapshot.get("totals") or {}
    if "waves" in totals:
        return f"wave {totals['waves']:,}"
    ledger = sight.ledger
    return "" if ledger is None or ledger.current == 1 else f"batch {ledger.current - 1:,}"


def remark(sight: Sight) -> str:
    """Return what is wrong with it, in short."""
    if sight.problem:
        return sight.problem
    errors = sight.snapshot.get("errors") or ()
    return shown(errors[-1]["error"], 60).strip("'\"") if errors else ""


def why(sight: Sight) -> str:
    """Return what is to be said behind its status."""
    wanted = sight.wanted
    if sight.problem:
        return f": {sight.problem}"
    if not wanted.active:
        return f" (deactivated by {wanted.by}, {_when(wanted.at)}; it stays so in later runs)"
    return " (its driver did not renew its lease: stopped, or hangs)" * (sight.status == "silent")


def _since(sight: Sight) -> str:
    started = sight.published.get("started")
    if not sight.snapshot or not isinstance(started, int | float):
        return ""
    up = f", up {span(time.time() - started)}" if runs(sight) else ""
    return f", started {_when(started)}{up}"


def _totals(totals: Mapping[str, Any]) -> Iterator[str]:
    for key, noun in _TOTALS.items():
        if totals.get(key) or (key in _ALWAYS and key in totals):
            yield f"{totals[key]:,} {noun}"


def _flying(snapshot: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for each in snapshot.get("in_flight") or ():
        what = f"batch {each['txid']}" if "txid" in each else f"wave {each['wave']}"
        phase = each.get("phase", "running")
        waits = "" if each["waits_for"] == phase else f", waits for {each['waits_for']}"
        since = span(snapshot["timestamp"] - each["since"])
        again = f" (attempt {each['attempt']})" if each["attempt"] else ""
        yield "in flight", f"{what}{again}: {phase} for {since}{waits}"


def resumes(sight: Sight) -> Iterator[tuple[str, str]]:
    """Return where its next run would go on, as labels and texts."""
    ledger = sight.ledger
    if ledger is None:
        return
    if "waves" in (sight.snapshot.get("totals") or {}) or ledger.positions:
        for spout, positions in ledger.positions.items():
            yield "a restart", f"reads {spout} from {_compact(positions)}"
        if not ledger.positions:
            yield "a restart", "begins with what its spouts give: what was not acked, as a rule"
        return
    emitted = ledger.emitted.get(ledger.current)
    again = "" if emitted is None else f", attempt {emitted.attempt + 1}: it was emitted before"
    yield "a restart", f"goes on with batch {ledger.current}{again}"


def _pairs(values: Mapping[str, Any], without: tuple[str, ...]) -> str:
    return ", ".join(
        f"{key.replace('_', ' ')} {_compact(value)}"
        for key, value in values.items()
        if key not in without and value not in (0, None, False, {}, [])
    )


def _compact(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)[:300]


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", timespec="seconds")


def _ago(seconds: float) -> str:
    return f"{span(time.time() - seconds)} ago"


def span(seconds: float) -> str:
    """Return a time in two of its units at most.

    >>> span(0.24), span(75), span(90000)
    ('0.2 s', '1 min 15 s', '1 d 1 h')
    """
    if seconds < 60:
        return f"{max(0.0, seconds):.{0 if seconds >= 10 else 1}f} s"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    left = int(seconds)
    parts: list[str] = []
    for unit, size in units:
        number, left = divmod(left, size)
        if number or parts:
            parts.append(f"{number} {unit}" if number else "")
    return " ".join(part for part in parts[:2] if part)
