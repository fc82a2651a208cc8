"""Coordinator and ledger together: whatever happens in whatever order, and at any crash.

`Shell` checks at every change: commits in txid order without gap or repeat, each going on
where the last one ended; attempts of a txid strictly increasing over restarts; one batch
committing at a time, begun recorded first; resolved exact; stale news without effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.transactional.shell import Shell
from waterspout._backoff import Backoff
from waterspout.errors import FailedException
from waterspout.transactional._coordinator import CoordinatorPolicy

ERRORS = {"asked for": FailedException("replay"), "crash": RuntimeError("crash")}


class CoordinatorMachine(RuleBasedStateMachine):
    """Any interleaving of outcomes, late news, time, deactivation and crashes."""

    @initialize(
        max_batches=st.integers(1, 4),
        emit_interval_s=st.sampled_from([0.0, 1.0]),
        max_retries=st.integers(0, 3),
        opaque=st.booleans(),
        keep_resolved=st.booleans(),
    )
    def start(self, opaque, keep_resolved, **policy):
        self.shell = Shell(
            CoordinatorPolicy(batch_timeout_s=30.0, cancel_wait_s=5.0, **policy),
            opaque=opaque,
            keep_resolved=keep_resolved,
            supply=2,
        )

    def pick(self, data, attempts):
        return data.draw(st.sampled_from(sorted(attempts)), "attempt")

    @rule(more=st.integers(1, 3))
    def data_arrives(self, more):
        self.shell.supply += more

    @rule()
    def source_dries_up(self):
        self.shell.supply = len(self.shell.history.committed)

    @rule()
    def poll(self):
        self.shell.poll()

    @rule(seconds=st.sampled_from([0.05, 0.5, 3.0, 6.0, 40.0]))
    def time_passes(self, seconds):
        self.shell.now += seconds
        self.shell.poll()

    @rule()
    def switch_activation(self):
        self.shell.active = not self.shell.active

    @precondition(lambda self: self.shell.processing)
    @rule(data=st.data())
    def processing_succeeds(self, data):
        self.shell.report_processed(self.pick(data, self.shell.processing))

    @precondition(lambda self: self.shell.committing)
    @rule(data=st.data())
    def commit_succeeds(self, data):
        self.shell.report_committed(self.pick(data, self.shell.committing))

    @precondition(lambda self: self.shell.processing or self.shell.committing)
    @rule(data=st.data(), error=st.sampled_from(sorted(ERRORS)))
    def phase_fails(self, data, error):
        running = self.shell.processing | self.shell.committing
        self.shell.report_failed(self.pick(data, running), ERRORS[error])

    @precondition(lambda self: self.shell.committing)
    @rule(error=st.sampled_from(sorted(ERRORS)))
    def commit_fails(self, error):
        self.shell.report_failed(min(self.shell.committing), ERRORS[error])

    @precondition(lambda self: self.shell.committing)
    @rule()
    def driver_is_killed_while_committing(self):
        self.shell.restart()

    @rule(rounds=st.integers(1, 3), last_commits=st.booleans())
    def all_goes_well(self, rounds, last_commits):
        for n in range(rounds):
            self.shell.succeed(commit=last_commits or n + 1 < rounds)

    @precondition(lambda self: self.shell.draining)
    @rule(data=st.data())
    def cancelled_work_ends(self, data):
        self.shell.report_ended(self.pick(data, self.shell.draining))

    @precondition(lambda self: self.shell.dead or self.shell.draining)
    @rule(data=st.data())
    def late_news_arrives(self, data):
        self.shell.report_stale([self.pick(data, self.shell.dead | self.shell.draining)])

    @rule(error=st.sampled_from(sorted(ERRORS)))
    def the_next_plan_fails(self, error):
        self.shell.plan_error = ERRORS[error]

    @rule()
    def driver_is_killed(self):
        self.shell.restart()

    @rule(saves=st.integers(0, 2), kept=st.booleans())
    def driver_will_be_killed_at_a_save(self, saves, kept):
        self.shell.fuse = (saves, kept)

    @invariant()
    def all_is_well(self):
        self.shell.check()

    def teardown(self):
        if hasattr(self, "shell"):
            self.shell.heal()


TestEveryInterleaving = CoordinatorMachine.TestCase
TestEveryInterleaving.settings = settings(
    max_examples=3 * settings().max_examples,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


Event = tuple[str, Callable[[Shell], None]]

SMALL = CoordinatorPolicy(
    max_batches=2,
    batch_timeout_s=100.0,
    max_retries=1,
    backoff=Backoff(1.0, 1.0),
    cancel_wait_s=5.0,
)
DEPTH = 8


def events(shell: Shell) -> Iterator[Event]:
    """All that may happen next."""
    yield "poll", Shell.poll
    if shell.is_waiting:
        yield "time passes", lambda s: _advance(s, 10.0)
    yield "driver is killed", Shell.restart
    for a in sorted(shell.processing):
        yield f"{a} is processed", lambda s, a=a: s.report_processed(a)
    for a in sorted(shell.committing):
        yield f"{a} is committed", lambda s, a=a: s.report_committed(a)
    for a in sorted(shell.processing | shell.committing):
        for name, error in ERRORS.items():
            yield f"{a} fails ({name})", lambda s, a=a, e=error: s.report_failed(a, e)
    for a in sorted(shell.draining):
        yield f"{a} has ended", lambda s, a=a: s.report_ended(a)
    if shell.coordinator.in_flight:
        yield "too much time passes", lambda s: _advance(s, 1000.0)


def _advance(shell: Shell, seconds: float) -> None:
    shell.now += seconds
    shell.poll()


def outcomes(shell: Shell, act: Callable[[Shell], None]) -> Iterator[Shell]:
    """Let one event happen, and die at each of its saves, kept or lost."""
    whole = shell.fork()
    act(whole)
    yield whole
    for nth in range(whole.saves - shell.saves):
        for kept in (False, True):
            cut = shell.fork()
            cut.fuse = (nth, kept)
            act(cut)
            yield cut


def check(shell: Shell, trace: tuple[str, ...]) -> None:
    try:
        shell.check()
        shell.report_stale(shell.dead | shell.draining)
    except AssertionError as error:
        raise AssertionError(f"after {trace}") from error


def test_every_sequence_of_events_in_a_small_scope_keeps_every_invariant():
    first = Shell(SMALL, supply=3)
    frontier, seen = [(first, ())], {first.key()}
    commits: Counter[tuple[int, ...]] = Counter()
    for _ in range(DEPTH):
        found = []
        for shell, path in frontier:
            for name, act in events(shell):
                for after in outcomes(shell, act):
                    key = after.key()
                    if key in seen:
                        continue
                    seen.add(key)
                    found.append((after, (*path, name)))
                    commits[tuple(after.history.committed)] += 1
                    check(*found[-1])
        frontier = found
    for shell, trace in frontier[::20]:
        try:
            shell.heal()
        except AssertionError as error:
            raise AssertionError(f"not live after {trace}") from error

    assert len(seen) > 9_000  # else the scope has shrunk
    assert {(0,), (1,), (0, 0), (0, 0, 0)} <= set(commits)
