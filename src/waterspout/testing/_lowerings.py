"""What the kinds of node do in process that only batches have: letters and windows by event time.

The others are in `trident/runtime/local.py`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from waterspout._arrow import arrow_schema
from waterspout._letters import DeadLetter
from waterspout._serde import encode_key
from waterspout.spouts._reads import POSITION, KafkaRead
from waterspout.testing._kafka import replayed_value
from waterspout.testing._tables import rows_of
from waterspout.trident.isolation.letters import ASIDE, LetterRequest, Seen, read_aside, to_aside
from waterspout.trident.isolation.running import isolated_steps, run_isolated
from waterspout.trident.plan.nodes import Isolated, LateRows, Sessions, Sifted, SortedOut
from waterspout.trident.runtime.local import (
    LocalBuilding,
    batches_of,
    local_lowering_of,
    lowers_locally,
)
from waterspout.trident.runtime.rows import as_tuples
from waterspout.trident.windowing.event_updater import as_numbers

__all__ = ["LocalBuilding", "local_lowering_of", "lowers_locally"]


@lowers_locally(Isolated)
def _isolated(node: Isolated, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    both = pa.concat_tables(parents, promote_options="default")
    made = run_isolated(isolated_steps(node), batches_of(both), building.conf, building.context)
    return pa.Table.from_batches(list(made), schema=arrow_schema(node.schema))


@lowers_locally(Sifted)
def _sifted(node: Sifted, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    rows, requests = parents
    made = []
    for text in requests.column(ASIDE).to_pylist():
        asked = read_aside(text)
        if not isinstance(asked, LetterRequest) or asked.action != "replay":
            continue
        if asked.letter.failed_in == node.address:
            made += _read_again(node, asked.letter)
    return pa.concat_tables([rows, pa.Table.from_pylist(made, rows.schema)])


def _read_again(node: Sifted, letter: DeadLetter) -> list[dict[str, Any]]:
    assert letter.values is not None
    if isinstance(node.reader, KafkaRead):
        row = replayed_value(node.reader, letter)
        rows, bad = ([], True) if row is None else ([row], False)
    else:
        found, bad = rows_of(node.reader, letter.values[0])
        names = node.reader.schema.names
        rows = [dict(zip(names, one, strict=True)) for one in found]
    if not bad:
        return [row | {POSITION: letter.position} for row in rows]
    now = time.time()
    again = replace(letter, id="", failures=letter.failures + 1, last_failed=now, asked=None)
    return [{ASIDE: to_aside(replace(again, txid=None, attempt=None))}]


@lowers_locally(SortedOut)
def _sorted_out(node: SortedOut, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    (table,) = parents
    beside = pc.is_valid(table.column(ASIDE))
    chosen = table.filter(beside if node.aside else pc.invert(beside))
    made = chosen.select(list(node.schema.names))
    before = node.parents[0]
    if node.aside and isinstance(before, Sifted):
        seen = to_aside(Seen({before.address: table.num_rows}))
        made = pa.concat_tables([made, pa.table({ASIDE: [seen]})])
    return made


@lowers_locally(Sessions)
def _sessions(node: Sessions, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    (rows,) = parents
    moments = as_numbers(rows.column(node.event_time)).to_pylist()
    keys = [encode_key(row.values) for row in as_tuples(rows, node.keys)]
    starts: list[int | None] = [None] * len(moments)
    last: dict[str, tuple[int, int]] = {}
    for row in sorted(
        (i for i, at in enumerate(moments) if at is not None), key=moments.__getitem__
    ):
        start, before = last.get(keys[row], (moments[row], moments[row]))
        if moments[row] - before >= node.gap:
            start = moments[row]
        starts[row], last[keys[row]] = start, (start, moments[row])
    return rows.append_column(node.schema.names[-1], pa.array(starts, pa.int64()))


@lowers_locally(LateRows)
def _late(node: LateRows, parents: Sequence[pa.Table], building: LocalBuilding) -> pa.Table:
    rows, spans = parents
    late: dict[str, list[tuple[Any, Any]]] = {}
    for span in as_tuples(spans, spans.column_names):
        *key, start, end = span.values
        late.setdefault(encode_key(key), []).append((start, end))
    moments = (row.values for row in as_tuples(rows, (*node.keys, node.event_time)))
    chosen = [
        any(_is_within(moment, span) for span in late.get(encode_key(key), ()))
        for *key, moment in moments
    ]
    return rows.filter(pa.array(chosen, pa.bool_()))


def _is_within(moment: Any, span: tuple[Any, Any]) -> bool:
    start, end = span
    if moment is None or start is None:
        return moment is None and start is None
    return bool(start <= moment < end)
