"""Waves without Spark: the same shards, frames and packing, in this process."""

from __future__ import annotations

import time

from waterspout.waves.bolts import Worker
from waterspout.waves.engine import Wave, WaveDone, WaveEngine, WaveFailed
from waterspout.waves.over_waves import results_of
from waterspout.waves.shards import run_stage

__all__ = ["InProcessWaves"]


class InProcessWaves(WaveEngine):
    """Runs a wave when it is asked for, stage by stage and shard by shard.

    `keep_alive=False` makes every bolt anew for each wave, as if its worker had died.
    """

    def __init__(self, workers: int = 2, *, keep_alive: bool = True) -> None:
        self._workers = workers
        self._keep_alive = keep_alive
        self._worker = Worker()
        self._wave: Wave | None = None

    @property
    def workers(self) -> int:
        return self._workers

    def start(self, wave: Wave) -> None:
        self._wave = wave

    def poll(self, wait_s: float) -> WaveDone | WaveFailed | None:
        wave, self._wave = self._wave, None
        if wave is None:
            return None
        began = time.monotonic()
        rows = wave.rows()
        if not self._keep_alive:
            self._worker = Worker()
        try:
            for stage in range(len(wave.shape.stages)):
                rows = list(run_stage(wave.shape, wave.header, stage, rows, self._worker))
            return WaveDone(results_of(rows), time.monotonic() - began)
        except Exception as error:
            return WaveFailed(error)

    def wake(self) -> None:
        """Nobody waits."""

    def cancel(self) -> None:
        self._wave = None
