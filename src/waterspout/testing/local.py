"""Run a topology in this process, without Spark: for unit tests of topologies."""

from __future__ import annotations

import time
from collections.abc import Callable

from waterspout.config import Config
from waterspout.coordination.loop import BatchLoop, LoopListener, Parts
from waterspout.coordination.store import CoordinationStore, MemoryCoordinationStore
from waterspout.state.base import HeadedState
from waterspout.testing.engine import InProcessEngine
from waterspout.trident.plan.plan import Plan
from waterspout.trident.runtime.states import open_state
from waterspout.trident.topology import TridentTopology

__all__ = ["LocalRun", "run_in_process"]


class LocalRun:
    """A topology driven by hand: `step` does one thing, `finish` all there is to do."""

    def __init__(
        self,
        topology: TridentTopology,
        config: Config | None = None,
        *,
        store: CoordinationStore | None = None,
        clock: Callable[[], float] = time.monotonic,
        listener: LoopListener | None = None,
    ) -> None:
        conf = config or Config()
        self.plan: Plan = topology.plan(conf)
        self.engine = InProcessEngine(self.plan, conf)
        states: dict[str, HeadedState] = {}
        for name, spec in self.plan.states.items():
            state = open_state(spec, conf, 0, None)
            if not spec.static and isinstance(state, HeadedState):
                states[name] = state
            else:
                state.close()
        self._states = states
        parts = Parts(
            topology=self.plan.name,
            fingerprint=self.plan.fingerprint(),
            spouts={i: node.spout for i, node in self.plan.sources.items()},
            states=states,
            store=store or MemoryCoordinationStore(self.plan.name),
            engine=self.engine,
            config=conf,
        )
        self.loop = BatchLoop(parts, clock, listener)
        self.loop.start()
        self.engine.enroll(self.loop.writer)

    def step(self, choose: Callable[[int], int] = lambda n: 0) -> None:
        """Let the loop look once, then one phase go on by one step."""
        self.loop.step()
        self.engine.step(choose)

    def finish(self, max_steps: int = 1_000_000) -> None:
        """Step until the sources have nothing more and every batch is committed."""
        for _ in range(max_steps):
            self.step()
            if self.loop.is_idle and not self.engine.waiting:
                self.loop.step()
                if self.loop.is_idle:
                    return
        raise TimeoutError(f"{self.plan.name} was not done after {max_steps} steps")

    def close(self) -> None:
        """Give up the lease and close the states."""
        self.loop.close()
        for state in self._states.values():
            state.close()


def run_in_process(topology: TridentTopology, config: Config | None = None) -> None:
    """Run a topology until its sources have nothing more. Needs no Spark and no Java.

    Read the results from the states: `state.get(key)`.
    """
    run = LocalRun(topology, config)
    try:
        run.finish()
    finally:
        run.close()
