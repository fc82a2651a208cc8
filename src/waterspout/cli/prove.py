"""`waterspout prove`: kill a topology at every point of a batch, and see whether it is exact."""

from __future__ import annotations

import os
import shutil
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from waterspout._config import Config
from waterspout.cli.answers import AsJson, print_json
from waterspout.cli.failures import FAILED
from waterspout.cli.loading import load_topology
from waterspout.cli.options import ConfigFile, Settings, Target, read_config
from waterspout.cli.screen import Screen, counted, print_table
from waterspout.cli.stopping import StopSignals
from waterspout.errors import ConfigError, RunFailedError, SourceError
from waterspout.faults import POINTS
from waterspout.proving.comparing import Discrepancy, compare
from waterspout.proving.lives import Lives, Reference, Setting
from waterspout.proving.sources import refuse_consuming
from waterspout.proving.stand_ins import Stateful
from waterspout.proving.subject import Subject, subject_of
from waterspout.proving.trials import Spot, Trial, plan_trials
from waterspout.proving.verdicts import Ending, Proof, TrialResult

__all__ = ["prove"]

_PENDING = 3
_SUBJECT = 14
_KEYS_SHOWN = 3


def prove(
    target: Target,
    config: ConfigFile = None,
    setting: Settings = None,
    every: Annotated[
        bool,
        typer.Option("--every", help="In every batch, not only the first, a middle, the last."),
    ] = False,
    point: Annotated[
        list[str] | None,
        typer.Option(metavar="POINT", help="Only at this kill point; may be repeated."),
    ] = None,
    batches: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, help="Into about how many batches the source is cut, where it can."
        ),
    ] = 5,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How long one run may take.")
    ] = 120.0,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="How many trials at a time.")] = min(
        2, os.cpu_count() or 1
    ),
    embedded: Annotated[
        bool,
        typer.Option(
            "--embedded", help="A JVM for each life, as `run` has; not one Spark for all. Slow."
        ),
    ] = False,
    trust_source: Annotated[
        bool,
        typer.Option(
            "--trust-source", help="My own spout takes nothing away from its source by its ack."
        ),
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folders of all trials.")] = False,
    as_json: AsJson = False,
) -> None:
    """Kill a topology at every point of a batch, run it again, and compare its states.

    It reads its own source, which must have an end, and writes nothing of yours: SQLite in a
    temporary folder stands in for its stores. Ends with 1 if a promise of `check` does not hold.
    """
    conf = _for_a_proof(read_config(config, setting))
    _refuse_unknown(point or ())
    topology = load_topology(target)
    with StopSignals(), _scratch(keep=keep) as scratch:
        subject = subject_of(topology, conf, scratch.folder)
        assert isinstance(topology, Stateful)
        refuse_consuming(topology, trusted=trust_source)
        screen = Screen(quiet=as_json)
        with screen, _spark(scratch.folder, screen, embedded=embedded) as (remote, needed):
            same = Setting(target, conf, remote, batches, timeout, needed)
            lives = Lives(same, subject, scratch.folder)
            proving = _Proving(lives, screen, jobs, keep=keep)
            proof = proving.run(subject, conf, every=every, only=point or ())
        scratch.keep = scratch.keep or bool(proof.broken)
        if as_json:
            print_json({**proof.document(), "folder": scratch.kept})
        else:
            _print(proof, screen, scratch.kept, proving.seconds)
    if not proof.holds:
        raise typer.Exit(FAILED)


def _for_a_proof(conf: Config) -> Config:
    """Return the options without what reaches out of the scratch folder, or varies by the clock."""
    return conf.replace(
        zookeeper_servers=None,
        zookeeper_acl=None,
        serve=None,
        serve_token=None,
        retire=(),
        batch_sizing=False,
        max_spout_pending=conf.max_spout_pending or _PENDING,
    )


def _refuse_unknown(points: Sequence[str]) -> None:
    for given in points:
        if given not in POINTS:
            raise ConfigError(f"--point {given}: there are {', '.join(POINTS)}")


class _Scratch:
    """Where everything is put; removed at the end unless somebody has a reason to look into it."""

    def __init__(self, *, keep: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="waterspout-prove-"))
        self.keep = keep

    @property
    def kept(self) -> str | None:
        """The folder, if it stays."""
        return str(self.folder) if self.keep else None


@contextmanager
def _scratch(*, keep: bool) -> Iterator[_Scratch]:
    made = _Scratch(keep=keep)
    try:
        yield made
    except RunFailedError:
        made.keep = True  # it names a log in there
        raise
    finally:
        if not made.keep:
            for _ in range(20):  # a JVM that is about to end may still tidy up in there
                shutil.rmtree(made.folder, ignore_errors=True)
                if not made.folder.exists():
                    break
                time.sleep(0.1)


@contextmanager
def _spark(
    folder: Path, screen: Screen, *, embedded: bool
) -> Iterator[tuple[str | None, dict[str, str]]]:
    """Start the Spark of all lives; no address if each has its own."""
    from waterspout.spark.java import require_java
    from waterspout.spark.shared import can_share, shared_spark

    require_java()
    shares = can_share() and not embedded
    screen.spin("starting one Spark for all lives" if shares else "")
    own: AbstractContextManager[tuple[str | None, dict[str, str]]] = nullcontext((None, {}))
    with shared_spark(folder / "spark.log") if shares else own as spark:
        if not shares and not embedded:
            screen.warn(
                "each life starts a Spark of its own, which takes long; with "
                "pip install 'waterspout[connect]' all share one"
            )
        yield spark


class _Proving:
    """The order of things: two runs without a fault, then all trials, then a look back."""

    def __init__(self, lives: Lives, screen: Screen, jobs: int, *, keep: bool) -> None:
        self._lives = lives
        self._screen = screen
        self._jobs = jobs
        self._keep = keep
        self._began = time.monotonic()
        self.seconds = 0.0

    def run(self, subject: Subject, conf: Config, *, every: bool, only: Sequence[str]) -> Proof:
        """Carry everything out."""
        self._introduce(subject)
        try:
            reference = self._reference(conf)
            trials = plan_trials(reference.passings, every=every, only=only)
            if not trials:
                raise ConfigError(
                    f"no batch passes {', '.join(only)}"
                    if only
                    else "the source is empty: no batch was committed, so there is nothing to prove"
                )
            at_once = f", {self._jobs} at a time" if self._jobs > 1 else ""
            self._tell("trials", f"{len(trials)}{at_once}; whoever is killed dies of SIGKILL")
            proof = Proof(subject, self._results(trials, reference))
            if proof.broken:
                self._look_back(reference, conf)
        finally:
            self._lives.end_all()
            self.seconds = time.monotonic() - self._began
        return proof

    def _introduce(self, subject: Subject) -> None:
        self._screen.say(f"waterspout prove: {subject.name}", "bold")
        self._screen.say("")
        for state in subject.states:
            instead = f" -> {state.instead}" if state.instead else ""
            word = "exactly-once" if state.exact else "not exactly-once"
            self._tell(state.label, f"{state.store}{instead}")
            self._tell("", f"promised: {word}: {state.why}")

    def _reference(self, conf: Config) -> Reference:
        """Run it twice without a fault; what differs then proves nothing later."""
        pending = conf.max_spout_pending or _PENDING
        other = 1 if pending > 1 else _PENDING
        self._screen.spin("running it without a fault, twice")
        with ThreadPoolExecutor(self._jobs) as pool:
            first = pool.submit(self._lives.reference, "reference", pending)
            second = pool.submit(self._lives.reference, "reference-again", other)
            try:
                found, again = first.result(), second.result()
            except BaseException:
                self._lives.end_all()
                raise
        _refuse_other(found, again, f"once with {pending} batches in flight and once with {other}")
        count = len({passing.txid for passing in found.passings})
        sizes = ", ".join(f"{len(held):,} in {label}" for label, held in found.contents.items())
        self._tell(
            "reference",
            f"{counted(count, 'batch', 'batches')}, {sizes}; the same with {pending} batches in "
            f"flight and with {other}",
        )
        return found

    def _results(self, trials: Sequence[Trial], reference: Reference) -> list[TrialResult]:
        results: list[TrialResult] = []
        with ThreadPoolExecutor(self._jobs) as pool:
            pending = [pool.submit(self._lives.attempt, trial, reference) for trial in trials]
            try:
                self._screen.spin(f"trial 1 of {len(trials)}")
                for done in as_completed(pending):
                    results.append(result := done.result())
                    if not (self._keep or result.error or result.differences):
                        self._lives.forget(result)
                    self._show(results, len(trials))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._lives.end_all()
                raise
        return sorted(results, key=lambda result: result.trial.number)

    def _show(self, results: Sequence[TrialResult], total: int) -> None:
        wrong = sum(bool(r.error or r.differences) for r in results)
        kills = sum(r.fired for r in results)
        left = ""
        if len(results) >= 2 * self._jobs:
            each = sum(r.seconds for r in results) / len(results) / self._jobs
            left = f", about {each * (total - len(results)):.0f} s left"
        seen = f"{wrong} differ" if wrong else "all exact"
        done = f"{len(results)} of {counted(total, 'trial')}"
        self._screen.show(f"  {done}, {counted(kills, 'fault')}, {seen}{left}")

    def _look_back(self, reference: Reference, conf: Config) -> None:
        """Before a promise is called broken: does a run without a fault still give the same?"""
        self._screen.spin("running it without a fault once more: has the source changed?")
        last = self._lives.reference("reference-at-the-end", conf.max_spout_pending)
        _refuse_other(reference, last, "once before the trials and once after them")

    def _tell(self, subject: str, text: str) -> None:
        first, *more = textwrap.wrap(text, max(40, self._screen.width - _SUBJECT - 2))
        self._screen.say(f"  {subject:<{_SUBJECT}}{first}")
        for line in more:
            self._screen.say(" " * (_SUBJECT + 2) + line)


def _refuse_other(one: Reference, other: Reference, how: str) -> None:
    for label, content in one.contents.items():
        found = compare(other.contents[label], content)
        if found:
            raise SourceError(
                f"run twice without any fault ({how}), {label} was not the same: {_told(found[0])}"
                f"{f' and {len(found) - 1:,} more' if len(found) > 1 else ''}. So nothing can be "
                "proved: the source changes meanwhile, or something in the topology depends on "
                "chance, on the clock, or on the order of rows. Give it a source that stays, and "
                "functions that give the same for the same."
            )


def _told(difference: Discrepancy) -> str:
    key = difference.key
    name = repr(key[0]) if isinstance(key, tuple) and len(key) == 1 else repr(key)
    return f"{name}: got {difference.got!r}, expected {difference.expected!r}"


def _print(proof: Proof, screen: Screen, kept: str | None, seconds: float) -> None:
    screen.say("")
    _print_points(proof)
    screen.say("")
    for verdict in proof.verdicts:
        style = "bold green" if verdict.held and verdict.state.exact else "yellow"
        screen.say(f"{verdict.state.label}: {verdict.text}", style if verdict.held else "bold red")
        for result, found in verdict.examples:
            told = "; ".join(_told(each) for each in found[:_KEYS_SHOWN])
            more = f"; {len(found) - _KEYS_SHOWN:,} more" if len(found) > _KEYS_SHOWN else ""
            screen.say(f"  {_where(result.trial, proof.subject)}")
            screen.say(f"    {told}{more}")
    for result in proof.broken:
        if result.error is not None:
            screen.say(f"  {_where(result.trial, proof.subject)}: {result.error}", "red")
        screen.say(f"  kept: {result.folder}")
    for trial in proof.not_reached:
        screen.say(f"  not reached: {_where(trial, proof.subject)}", "yellow")
    killed = f"{counted(proof.kills, 'process', 'processes')} killed"
    failed = f", {counted(proof.failures, 'attempt')} failed" if proof.failures else ""
    folder = f"; everything is in {kept}" if kept else ""
    trials = counted(len(proof.results), "trial")
    screen.say(f"{trials}, {killed}{failed}, in {seconds:.0f} s{folder}")


def _print_points(proof: Proof) -> None:
    """Print a line for each place; whose it is only where that is not always the same."""
    labels = [state.label for state in proof.subject.states]
    whose = {row.place: _whose(row.place, proof.subject) for row in proof.rows}
    several = len({name for name in whose.values() if name}) > 1
    columns = ["kill point", *(["of"] if several else []), "batches"]
    right = ["trials", "kills", *(["fails"] if proof.failures else [])]
    rows = [
        [
            row.place.point,
            *([whose[row.place]] if several else []),
            _batches(row.batches),
            str(len(row.results)),
            str(row.kills),
            *([str(row.failures or "")] if proof.failures else []),
            *(row.seen(label) for label in labels),
        ]
        for row in proof.rows
    ]
    whole = (*columns, *right)
    print_table([*whole, *labels], rows, right=right, style_of=_style, whole=whole)


def _whose(place: Spot, subject: Subject) -> str:
    labels = {state.name: state.label for state in subject.states}
    return labels.get(place.state, place.state) or place.component


def _where(trial: Trial, subject: Subject) -> str:
    at = trial.at
    whose = f" of {name}" if (name := _whose(at.place, subject)) else ""
    part = "" if at.partition is None else f", partition {at.partition}"
    return f"{trial.how.value} at {at.place.point}{whose}, batch {at.txid}{part}"


def _batches(txids: Sequence[int]) -> str:
    if len(txids) > 4:
        return f"{txids[0]} to {txids[-1]}"
    return ", ".join(map(str, txids))


def _style(cell: str) -> str:
    if cell == Ending.EXACT.value:
        return "green"
    if "differ" in cell or Ending.DID_NOT_END.value in cell:
        return "bold red"
    return "yellow" if Ending.NOT_REACHED.value in cell else ""
