"""What travels between stages: rows of stage, part and packed content; and one stage's work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from waterspout.waves.engine import Wave
from waterspout.waves.frames import pack, unpack
from waterspout.waves.live import LiveTasks
from waterspout.waves.part import DRIVER, PartInput, PartResult, WaveHeader, run_part
from waterspout.waves.shape import WaveShape

__all__ = ["Row", "first_rows", "results_of", "run_stage"]


@dataclass(frozen=True, slots=True)
class Row:
    """Packed content on its way to a part of a stage, or to the driver."""

    stage: int
    part: int
    data: bytes


def first_rows(wave: Wave) -> list[Row]:
    """Return a wave's first rows: one for each part, so that a row needs no other."""
    return [Row(0, part, pack(given)) for part, given in sorted(wave.inputs.items())]


def run_stage(
    shape: WaveShape,
    header: WaveHeader,
    stage: int,
    rows: Iterable[Row],
    live: LiveTasks,
    token: str = "",
) -> Iterator[Row]:
    """Run the parts of a stage whose rows these are; rows of others pass through."""
    inputs: dict[int, PartInput] = {}
    for row in rows:
        if row.stage != stage:
            yield row
            continue
        given: PartInput = unpack(row.data)
        for to_stage, to_part, data in given.passengers:
            yield Row(to_stage, to_part, data)
        inputs.setdefault(row.part, PartInput()).add(given)
    for part, given in inputs.items():
        result, onward = run_part(shape, stage, part, given, header, live, token)
        for (to_stage, to_part), something in onward.items():
            yield Row(to_stage, to_part, pack(something))
        yield Row(DRIVER, 0, pack(result))


def results_of(rows: Iterable[Row]) -> list[PartResult]:
    """Return what the parts of a wave tell the driver."""
    return [unpack(row.data) for row in rows if row.stage == DRIVER]
