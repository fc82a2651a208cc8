"""Answers in the shapes of the JSON API, for pages in tests."""

from __future__ import annotations

import time
from typing import Any


def bolt(id: str, executed: int, capacity: float | None, **more: Any) -> dict[str, Any]:
    return {
        "id": id,
        "system": id.startswith("__"),
        "tasks": 2,
        "last_error": None,
        "error_time": None,
        "emitted": executed * 2,
        "transferred": executed * 2,
        "executed": executed,
        "execute_ms": 0.042,
        "process_ms": 0.051,
        "finish_ms": None,
        "acked": executed,
        "failed": 3,
        "capacity": capacity,
        "per_s": executed / 600,
        "inputs": [
            {
                "component": "sentences",
                "stream": "default",
                "executed": executed,
                "execute_ms": 0.042,
                "process_ms": 0.051,
                "acked": executed,
                "failed": 3,
            }
        ],
        "outputs": [{"stream": "default", "emitted": executed * 2, "transferred": executed * 2}],
        "by_task": [
            {"task": n, "executed": executed // 2, "execute_ms": 0.04, "capacity": capacity}
            for n in (3, 4)
        ],
        **more,
    }


TOTALS = {
    "emitted": 4_201_234,
    "transferred": 4_100_000,
    "executed": 3_900_000,
    "acked": 61_234,
    "failed": 12,
    "timed_out": 2,
    "complete_ms": 231.5,
    "dead_letters": 1,
    "waves": 1200,
    "waves_retried": 2,
    "batches": 0,
}

CORE: dict[str, Any] = {
    "topology": {
        "name": "words",
        "kind": "core",
        "status": "running",
        "uptime_s": 3725.2,
        "driver": {"pid": 4242, "host": "box"},
        "version": "0.1.0",
        "graph": {
            "nodes": [
                {"id": "sentences", "kind": "spout", "label": "sentences", "parallelism": 1},
                {"id": "split", "kind": "bolt", "label": "split", "parallelism": 2},
                {"id": "count", "kind": "bolt", "label": "count", "parallelism": 4},
                {"id": "store", "kind": "bolt", "label": "store", "parallelism": 1},
                {"id": "audit", "kind": "bolt", "label": "audit", "parallelism": 1},
            ],
            "edges": [
                {"source": a, "target": b, "stream": s, "grouping": g}
                for a, b, s, g in (
                    ("sentences", "split", "default", "shuffle"),
                    ("split", "count", "default", "fields(word)"),
                    ("count", "store", "default", "global"),
                    ("split", "audit", "odd", "shuffle"),
                )
            ],
        },
        "states": [],
        "explain": "words: a topology of spouts and bolts\n\n  spout sentences (Sentences, 1 task)",
    },
    "stats": {
        "window": 600,
        "covers_s": 600.0,
        "totals": TOTALS,
        "spouts": [
            {
                "id": "sentences",
                "system": False,
                "tasks": 1,
                "last_error": None,
                "error_time": None,
                "emitted": 61_250,
                "transferred": 61_250,
                "acked": 61_234,
                "failed": 12,
                "timed_out": 2,
                "complete_ms": 231.5,
                "rows": None,
                "per_s": 102.1,
                "outputs": [{"stream": "default", "emitted": 61_250, "transferred": 61_250}],
            }
        ],
        "bolts": [
            bolt("split", 61_250, 0.12),
            bolt("count", 612_500, 0.61),
            bolt(
                "store",
                612_480,
                0.93,
                last_error="ValueError: no such column 'wrod' (topology.py, line 31, in execute)",
                error_time=time.time() - 90,
            ),
            bolt("audit", 12, 0.0),
            bolt("__acker", 1_286_242, 0.08),
        ],
        "states": [],
        "edges": [
            {"source": "sentences", "target": "split", "stream": "default", "tuples": 1,
             "per_s": 102.1},
            {"source": "split", "target": "count", "stream": "default", "tuples": 1,
             "per_s": 1020.8},
            {"source": "count", "target": "store", "stream": "default", "tuples": 1,
             "per_s": 1020.8},
            {"source": "split", "target": "audit", "stream": "odd", "tuples": 1, "per_s": 0.02},
        ],
    },
    "errors": [
        {
            "component": "store",
            "error": "ValueError: no such column 'wrod' (topology.py, line 31, in execute)",
            "traceback": "Traceback (most recent call last):\n  ...\nValueError: no such column",
            "count": 3,
            "first": time.time() - 400,
            "last": time.time() - 90,
        }
    ],
    "config": {"topology.ackers": 1, "topology.message.timeout.secs": 30, "waterspout.serve": None},
    "log": {"lines": [f"17:00:{n:02d} INFO wave {n} took 0.{n:02d} s" for n in range(60)]},
}  # fmt: skip
