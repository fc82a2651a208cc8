"""How a run looks in a notebook: one small table, as HTML. No scripts, all text escaped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from waterspout.coordination.progress import (
    BatchProgress,
    BatchTotals,
    RunSnapshot,
    WaveProgress,
    WaveTotals,
)

__all__ = ["html_of", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"
_KEEP = 40
_TEXT_MAX = 300
_CELL = 'style="text-align:left;padding:1px 8px;vertical-align:top"'


def html_of(
    snapshot: RunSnapshot,
    recent: Sequence[BatchProgress | WaveProgress] = (),
    server_url: str | None = None,
) -> str:
    """Return how a run stands, as HTML."""
    rows = "".join(
        f"<tr><th {_CELL}>{escape(name)}</th><td {_CELL}>{escape(text)}</td></tr>"
        for name, text in _rows(snapshot, recent, server_url)
    )
    title = f"<b>{escape(snapshot.name)}</b>: {escape(snapshot.status)}"
    return f'<div class="waterspout-run">{title}<table>{rows}</table></div>'


def sparkline(values: Sequence[float]) -> str:
    """Return one bar for each value, the largest as high as they get.

    >>> sparkline([0, 1, 4, 8])
    '▁▁▄█'
    """
    top = max(values, default=0.0)
    return "".join(_BARS[int(7 * max(0.0, v) / top) if top > 0 else 0] for v in values)


def _rows(
    snapshot: RunSnapshot, recent: Sequence[BatchProgress | WaveProgress], server_url: str | None
) -> Iterator[tuple[str, str]]:
    match snapshot.totals:
        case BatchTotals() as done:
            last = "" if done.last_txid is None else f", the last is {done.last_txid}"
            yield "batches", f"{done.committed:,} committed{last}"
            if done.replayed or done.failures:
                yield "attempts", f"{done.failures:,} failed, {done.replayed:,} were replays"
            if done.input_rows or done.written_rows:
                yield "rows", f"{done.input_rows:,} read, {done.written_rows:,} written"
        case WaveTotals() as done:
            yield "waves", f"{done.waves:,}, {done.executed:,} tuples executed"
            late = f" ({done.timed_out:,} timed out)" if done.timed_out else ""
            yield "messages", f"{done.acked:,} acked, {done.failed:,} failed{late}"
            if done.dead_letters:
                yield "dead letters", f"{done.dead_letters:,} in this run"
    if snapshot.in_flight:
        yield "in flight", "; ".join(_in_flight(each) for each in snapshot.in_flight)
    rates = [rate for each in recent[-_KEEP:] if (rate := _rate(each)) is not None]
    if rates:
        yield "rows per second", f"{sparkline(rates)} {rates[-1]:,.0f}"
    for spout, lag in snapshot.lag.items():
        yield f"waits at {spout}", ", ".join(f"{count:,} {unit}" for unit, count in lag.items())
    for outage in snapshot.waiting_for:
        yield "waiting for", f"{outage.service}: {_short(outage.error)}"
    for away in snapshot.unreachable:
        where = f"partition {away.partition} of {away.component}"
        yield "left out", f"{where}: {_short(away.error)}"
    if snapshot.errors:
        error = snapshot.errors[-1]
        times = f" ({error.count:,} times)" if error.count > 1 else ""
        yield "last error", f"{error.component}{times}: {_short(error.error)}"
    if server_url is not None:
        yield "served at", server_url


def _in_flight(each: object) -> str:
    match each:
        case {"txid": txid, "attempt": attempt, "waits_for": waits}:
            return f"batch {txid}:{attempt}, {waits}"
        case {"wave": wave, "tuples": tuples, "waits_for": waits}:
            return f"wave {wave}, {tuples:,} tuples, {waits}"
        case _:
            raise AssertionError(each)


def _rate(made: BatchProgress | WaveProgress) -> float | None:
    if isinstance(made, BatchProgress):
        return made.rows_per_s
    return made.tuples / made.wave_s if made.wave_s else None


def _short(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"
