"""The judgement of what a search found: is it so, how small can it be, and what is to be told.

Theory of operation. A fall of a property is made small and recorded. A divergence is run on two new
engines before it is believed (`lockstep.twice`), or else the engine is *nondeterministic*; it is
made small with new engines beside it, and run twice once more. Where nothing fell, the register of
known deviations is asked whether it is up to date (*stale* if not), and an engine that was let go
at a known deviation leaves the campaign *undetermined*. So does one that is gone (`Gone`).

    fall, gone, or neither ──▶ Judge.ended ──▶ Ended, with the report and the trace
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from attrs import define, field

from servecheck.engines.protocol import EngineError, Unsupported
from servecheck.fuzz.shrink import shrunk, shrunk_divergence
from servecheck.fuzz.summary import Ended, Verdict
from servecheck.fuzz.tell import PropertyFell
from servecheck.lockstep.deviations import complaints
from servecheck.lockstep.follow import Diverged
from servecheck.lockstep.report import LOCKSTEP, of_divergence, of_fall
from servecheck.lockstep.subject import Beside, Lost, Parted, Subject
from servecheck.lockstep.twice import Twice, twice
from servecheck.tell import tell_config, tell_policy, tell_program
from servecheck.trace.model import TraceError
from servecheck.trace.model import Verdict as Recorded
from servecheck.trace.write import keep, not_legal
from servespec.actions import Action
from servespec.machine import Machine
from servespec.plan import State
from servespec.properties import Step


class Gone(KeyboardInterrupt):
    """Ends a search, because the engine is gone. Hypothesis lets go of a run at once for an
    interrupt, and for nothing else."""

    def __init__(self, why: object, machine: Machine, under_way: bool) -> None:
        super().__init__(str(why))
        self.machine = machine
        self.under_way = under_way
        """It was gone in the middle of a run."""
        self.actions: tuple[Action, ...] = ()
        """Of that run, where it is not the one that ended last."""


@define
class Guarded:
    """A follower that ends the search when it is gone."""

    inner: Beside

    def follow(self, step: Step) -> State | None:
        try:
            return self.inner.follow(step)
        except Lost as lost:
            raise Gone(lost, step.machine, True) from lost

    def allows(self, machine: Machine, state: State, action: Action) -> bool:
        return self.inner.allows(machine, state, action)


def beside(subject: Subject, machine: Machine) -> Guarded:
    """An engine beside a machine.

    Raises:
        Unsupported: it cannot have these sizes and choices.
        Gone: it cannot be made.
    """
    try:
        return Guarded(subject(machine))
    except Unsupported:
        raise
    except EngineError as error:
        raise Gone(error, machine, False) from error


@define
class Judge:
    """Says how a campaign ended."""

    seed: int
    subject: Subject | None = None
    failures: Path | None = None
    """A folder for the program on which something fell."""
    again: str | None = None
    """The command that runs such a program, but for `--program FILE`."""
    today: date | None = None
    still: frozenset[str] = frozenset()
    """Known deviations that their traces show."""
    searched: bool = field(default=True)
    """A program that was only run again is not made small, and says nothing about the register."""

    def ended(
        self,
        fall: PropertyFell | None,
        cut_short: bool,
        gone: Gone | None,
        last: Sequence[Action],
        *,
        shrinks: bool,
        unable: str | None = None,
    ) -> Ended:
        """What came of a search.

        Args:
            cut_short: the budget was not spent, or nothing was run.
            last: the actions of the run that ended last.
            unable: why the engine went no further.
        """
        subject, ended = self.subject, Ended(_verdict(fall, cut_short or gone is not None))
        if fall is None and gone is not None:
            ended.notes = tuple(_last_known(gone, last))
        elif fall is None and unable is not None:
            ended.verdict = Verdict.UNDETERMINED
        elif fall is None and ended.verdict is Verdict.HOLDS and subject is not None:
            self._nothing_fell(subject, ended)
        elif fall is not None:
            if subject is not None and fall.property_id == LOCKSTEP:
                self._diverged(subject, fall, ended, shrinks)
            else:
                ended.fall = shrunk(fall) if shrinks else fall
                self._fell(ended.fall, ended)
        return ended

    def _nothing_fell(self, subject: Subject, ended: Ended) -> None:
        if subject.capabilities is None:
            return
        today = self.today or date.today()
        engine, met = subject.capabilities, self.still | subject.matched.keys()
        known = subject.deviations if self.searched else ()
        ended.notes = tuple(complaints(known, engine, met, today))
        if ended.notes and subject.followed:
            ended.verdict = Verdict.STALE
        elif subject.let_go:
            ended.verdict = Verdict.UNDETERMINED
        ended.notes += tuple(_let_go(subject))

    def _diverged(self, subject: Subject, fall: PropertyFell, ended: Ended, shrinks: bool) -> None:
        """What an engine that diverged has to be told of."""
        machine, cause = Machine(fall.config, fall.policy), fall.__cause__
        ended.verdict, ended.fall = Verdict.DIVERGES, fall
        try:
            runs = twice(subject, machine, fall.actions)
            if runs.first is None or not (
                isinstance(cause, Diverged) and runs.confirms(cause.divergence)
            ):
                _unsure(runs, cause, ended)
                return
            smallest = shrunk_divergence(subject, runs.first) if shrinks else runs.first
            runs = twice(subject, smallest.machine, smallest.actions)
            if not runs.confirms(smallest.divergence):
                _unsure(runs, cause, ended)
                return
        except EngineError as error:
            ended.verdict = Verdict.UNDETERMINED
            ended.notes = (f"it diverged, and could not be run again: {error}", *fall.lines)
            return
        ended.fall = _fall_of(smallest, fall)
        self._record(ended.fall, smallest.divergence.engine, ended)
        if subject.capabilities is not None:
            replay = self._replay(ended.trace)
            ended.report = of_divergence(smallest, subject.capabilities, replay=replay)

    def _fell(self, fall: PropertyFell, ended: Ended) -> None:
        """The report on a property of the specification."""
        said = self.subject.capabilities if self.subject else None
        self._record(fall, "spec" if said is None else said.name, ended)
        ended.report = of_fall(
            fall.property_id,
            fall.statement,
            fall.what,
            fall.config,
            fall.policy,
            fall.actions,
            said,
            self._replay(ended.trace),
        )

    def _record(self, fall: PropertyFell, engine: str, ended: Ended) -> None:
        """Write the program, if somebody asked for it. What was found is told in any case."""
        if self.failures is None:
            return
        name = "".join(c if c.isalnum() or c in "-._" else "-" for c in engine[:40])
        machine = Machine(fall.config, fall.policy)
        verdict = Recorded("falls", fall.property_id, fall.what)
        name = f"{fall.property_id}-{name}"
        try:
            kept = keep(self.failures, name, machine, fall.actions, verdict, seed=self.seed)
            stops = None if fall.property_id != LOCKSTEP else not_legal(machine, fall.actions)
            if stops is None:
                ended.trace = kept
                return
            what = f"the trace {kept} is not whole: from an adopted state only: {stops}"
            ended.notes = (*ended.notes, what)
        except TraceError as error:
            ended.notes = (*ended.notes, f"the trace is not written: {error}")

    def _replay(self, trace: Path | None) -> str | None:
        again = self.again
        return None if trace is None or again is None else f"{again} --program {trace}"


def _verdict(fall: PropertyFell | None, cut_short: bool) -> Verdict:
    if fall is not None:
        return Verdict.FALLS
    return Verdict.UNDETERMINED if cut_short else Verdict.HOLDS


def _unsure(runs: Twice, cause: BaseException | None, ended: Ended) -> None:
    """The engine does not do the same twice."""
    ended.verdict = Verdict.NONDETERMINISTIC
    found = f"the search found: {cause}"
    ended.notes = (f"on the same program {runs.told}", found)


def _fall_of(smallest: Parted, found: PropertyFell) -> PropertyFell:
    machine = smallest.machine
    what = str(Diverged(smallest.divergence))
    return type(found)(
        found.property_id,
        found.statement,
        what,
        machine.config,
        machine.policy,
        smallest.actions,
    )


def _let_go(subject: Subject) -> Iterator[str]:
    """Known deviations from which on nothing was seen of the engine."""
    for name, count in sorted(subject.let_go.items()):
        times = "once" if count == 1 else f"{count:,} times"
        why = subject.why_let_go[name]
        yield f"let go {times} at {name!r}, undetermined from there: {why}"


def _last_known(gone: Gone, last: Sequence[Action]) -> Iterator[str]:
    """What is known of an engine that is gone."""
    yield f"the engine is gone: {gone}"
    yield f"sizes      {tell_config(gone.machine.config)}"
    yield f"profile    {tell_policy(gone.machine.policy)}"
    if gone.under_way:
        yield from tell_program(gone.actions or last)
