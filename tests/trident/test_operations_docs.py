"""The examples in docs/operations.md: every one builds."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pyarrow.compute as pc
import pytest

import waterspout.trident
from tests.trident.support import capture
from waterspout.state import MemoryMapState
from waterspout.testing import FixedBatchSpout, run_in_process
from waterspout.trident import Count, TridentTopology

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
FIELDS = (
    "word string, n bigint, line string, user string, amount double, page string, score double, "
    "load double, capacity double"
)


def names() -> dict[str, object]:
    """Return what the examples take for granted."""
    topology = TridentTopology("examples")
    row = ("a", 1, "a b", "ann", 1.5, "p", 0.5, 2.0, 4.0)
    stream = topology.new_stream("rows", FixedBatchSpout(FIELDS, 10, [row]))
    orders = topology.new_stream("o", FixedBatchSpout("id bigint, amount double", 10, [(1, 2.0)]))
    payments = topology.new_stream("p", FixedBatchSpout("order bigint", 10, [(2,)]))
    users = stream.group_by("user").persistent_aggregate(MemoryMapState(), Count(), out="n")
    return {
        **{name: getattr(waterspout.trident, name) for name in waterspout.trident.__all__},
        "pc": pc, "topology": topology, "stream": stream, "orders": orders, "payments": payments,
        "users": users, "state": MemoryMapState(), "ask_service": len, "score": len,
        "timedelta": timedelta,
    }  # fmt: skip


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_of_the_page_builds(number):
    exec(BLOCKS[number], names())


def test_the_page_has_examples_of_all_kinds():
    assert len(BLOCKS) >= 8


def test_every_public_operation_is_on_the_page():
    text = PAGE.read_text()
    operations = [
        name
        for name in waterspout.trident.__all__
        if getattr(waterspout.trident, name).__module__.startswith("waterspout.trident.operations")
    ]
    arguments = {"OperationContext", "TridentCollector"}  # what operations are given

    missing = [n for n in operations if n not in arguments and not re.search(rf"\b{n}\b", text)]

    assert len(operations) > 40
    assert missing == []


def test_the_reducers_of_the_page_run():
    known = names()
    for block in BLOCKS:
        if "@multi_reducer" in block:
            exec(block.replace("\ntopology.", "\nkept = topology."), known)

    kept = capture(known["kept"])
    run_in_process(known["topology"])

    assert kept.rows == [(1, 2.0)]
