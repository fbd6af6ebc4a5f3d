"""A campaign: as many runs as fit into a time, and what came of them.

Theory of operation. A campaign goes round: so many runs by Hypothesis, then as many walks from a
seed. Every round has its own seeds, taken from the campaign's, so the rounds of a seed are always
the same ones; the clock only decides how many there are. Time is looked at when a run begins. The
first fall ends the search: Hypothesis shrinks what it found, for a limited time, and the smallest
program is shrunk further (`shrink`). Ctrl-C ends it with what is known so far.

    round ──▶ Hypothesis: machine_class ──▶ Tally ◀── Wanderer ◀── round
                                              └──▶ Summary

The verdict *holds* only if the time asked for was spent and nothing fell.

An engine may go along (`following`). Then it can also *diverge*: the divergence is run on two new
engines before it is believed (`lockstep.twice`), or else the engine is *nondeterministic*; it is
shrunk with new engines beside it. An engine that dies or hangs ends the campaign *undetermined*,
unless it diverged. After a known deviation the walk goes on from the engine's state; where that
cannot be, the engine is let go, and a campaign in which nothing fell is *undetermined* too. Where
the register of known deviations has an entry that nothing shows any more, or one that has expired,
the campaign is *stale*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date
from enum import Enum
from pathlib import Path
from time import monotonic

from attrs import define, evolve, field, frozen
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as seeded_with
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from servecheck.engines.protocol import Capabilities, EngineError, EngineFactory, Unsupported
from servecheck.fuzz.alike import alike
from servecheck.fuzz.guide import Guide
from servecheck.fuzz.machine import Tally, machine_class
from servecheck.fuzz.shrink import shrunk, shrunk_divergence
from servecheck.fuzz.sizes import HARMLESS, Sizes, resized
from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.walk import Walk
from servecheck.fuzz.wander import Wanderer
from servecheck.fuzz.worlds import Draw, Worlds, anywhere
from servecheck.lockstep.deviations import complaints
from servecheck.lockstep.follow import Diverged, Follower
from servecheck.lockstep.report import LOCKSTEP, Report, of_divergence, of_fall
from servecheck.lockstep.shown import shown
from servecheck.lockstep.subject import Beside, Lost, Parted, Subject
from servecheck.lockstep.twice import Twice, twice
from servecheck.marks import Mark, possible
from servecheck.tell import tell_config, tell_policy, tell_program
from servecheck.trace.model import Trace, TraceError
from servecheck.trace.model import Verdict as Recorded
from servecheck.trace.write import keep, not_legal
from servespec.actions import Action
from servespec.config import check
from servespec.errors import ActionDisabled, ConfigError
from servespec.machine import Machine
from servespec.plan import State
from servespec.policy import NAMED, Policy
from servespec.properties import PROPERTIES, Step

STEPS_PER_RUN = 40
"""Moves of a run; a move is one action or some."""
RUNS_PER_ROUND = 20
"""Runs of Hypothesis in a round. A step of theirs costs twice that of a walk, and they do not go
back to what was rare."""
WALKS_PER_ROUND = 150
SHRINKING = 20.0
"""Seconds that Hypothesis may shrink."""
STRIDE = 1_000_003
"""Seeds of a campaign lie so far from those of the next."""


SEARCH = settings(
    max_examples=RUNS_PER_ROUND,
    phases=(Phase.generate, Phase.shrink),
    database=None,
    deadline=None,
    derandomize=False,
    print_blob=False,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    verbosity=Verbosity.quiet,
)
"""How Hypothesis searches. It does not hill-climb on the target of the machine: measured, that only
makes it stay in fewer worlds."""


class Verdict(Enum):
    HOLDS = "holds"
    FALLS = "falls"
    DIVERGES = "diverges"
    STALE = "stale"
    """The register of known deviations is out of date."""
    NONDETERMINISTIC = "nondeterministic"
    UNDETERMINED = "undetermined"


@frozen
class Progress:
    """How far a campaign has come."""

    elapsed: float
    seconds: float
    runs: int
    steps: int
    marks: int
    shrinking: bool


@frozen
class Seen:
    """What an engine did beside the specification."""

    engine: Capabilities
    followed: int
    """Actions in lockstep."""
    compared: int
    """Fields."""
    unseen: Counter[str]
    """Fields that could not be compared."""
    refused: int
    """Worlds that the engine could not have."""
    known: Counter[str]
    """Known deviations, by id."""
    adopted: Counter[str]
    """Those after which the specification went on from the engine's state."""
    let_go: Counter[str]
    """Those after which the engine was let go: undetermined from there."""


@frozen
class Summary:
    """What came of a campaign."""

    verdict: Verdict
    seed: int
    asked: float
    """Seconds that the campaign was to take."""
    elapsed: float
    interrupted: bool
    runs: int
    steps: int
    worlds: int
    """Distinct pairs of sizes and choices."""
    moves: Counter[str]
    marks: Counter[Mark]
    missed: tuple[Mark, ...]
    """Not reached, though the sizes and choices of some run allow it."""
    excluded: tuple[Mark, ...]
    """Not possible under the sizes and choices of any run."""
    checked: Counter[str]
    """How often the antecedent of each property was true."""
    vacuous: tuple[str, ...]
    """Properties that were never really asked."""
    known: Counter[str]
    """Falls that the registry knows, by property."""
    fall: PropertyFell | None
    seen: Seen | None = None
    report: Report | None = None
    """On what fell."""
    trace: Path | None = None
    """The program on which it fell, recorded."""
    notes: tuple[str, ...] = ()
    """Why it is undetermined, nondeterministic or stale, as far as there is more to say."""
    unable: str | None = None
    """Why the engine went no further, if it could not do what the program asks for."""

    @property
    def speed(self) -> float:
        """Steps a second."""
        return self.steps / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def budget(self) -> str:
        """What was spent."""
        spent = f"{self.elapsed:.0f} s" if self.elapsed >= 10 else f"{self.elapsed:.1f} s"
        return f"{spent}, {self.runs:,} runs, {self.steps:,} steps, {self.worlds:,} worlds"


class _TimeUp(KeyboardInterrupt):
    """Ends a round. Hypothesis lets go of a run at once for an interrupt, and for nothing else."""


class _Gone(KeyboardInterrupt):
    """Ends a round, because the engine is gone."""

    def __init__(self, error: EngineError, machine: Machine, under_way: bool) -> None:
        super().__init__(str(error))
        self.machine = machine
        self.under_way = under_way
        """It was gone in the middle of a run."""


@define
class _Guarded:
    """A follower that ends the round when it is gone."""

    inner: Beside

    def follow(self, step: Step) -> State | None:
        try:
            return self.inner.follow(step)
        except Lost as lost:
            raise _Gone(lost, step.machine, True) from lost

    def allows(self, machine: Machine, state: State, action: Action) -> bool:
        return self.inner.allows(machine, state, action)


@define
class _Campaign:
    seconds: float
    seed: int
    moves: int
    policy: Policy | None
    tell: Callable[[Progress], None]
    clock: Callable[[], float]
    begun: float
    subject: Subject | None = None
    draw: Draw = field(factory=anywhere)
    failures: Path | None = None
    again: str | None = None
    today: date | None = None
    still: frozenset[str] = frozenset()
    """Known deviations that their traces show."""
    tally: Tally = field(factory=Tally)
    fell_at: float | None = None

    def rounds(self) -> None:
        """Search until time is up or something falls."""
        number = self.seed * STRIDE
        while not self.tally.falls:
            self.by_hypothesis(number)
            for offset in range(WALKS_PER_ROUND):
                if self.tally.falls:
                    break
                self.by_walk(number * WALKS_PER_ROUND + offset)
            number += 1

    def by_hypothesis(self, number: int) -> None:
        machine = machine_class(
            tally=self.tally,
            before_run=self.look_at_the_clock,
            following=self.beside if self.subject else None,
            draw=self.draw,
        )
        # With engines, shrinking is done at the end.
        phases = SEARCH.phases if self.subject is None else (Phase.generate,)
        # What it raises the tally has already; only the smallest is of interest.
        with suppress(PropertyFell, Flaky):
            run_state_machine_as_test(
                seeded_with(number)(machine),
                settings=settings(SEARCH, stateful_step_count=self.moves, phases=phases),
            )

    def beside(self, machine: Machine) -> Follower:
        """An engine beside a machine."""
        if self.subject is None:
            raise Unsupported("there is no engine")
        try:
            return _Guarded(self.subject(machine))
        except Unsupported:
            raise
        except EngineError as error:
            raise _Gone(error, machine, False) from error

    def by_walk(self, number: int) -> None:
        self.look_at_the_clock()
        try:
            wanderer = Wanderer(
                number,
                tuple(PROPERTIES.values()),
                following=self.beside if self.subject else None,
                draw=self.draw,
                guide=self.tally.guide,
            )
        except Unsupported:
            if not self.tally.runs:
                raise
            return
        try:
            wanderer.go(self.moves)
        except PropertyFell as fall:
            self.tally.keep(fall)
        finally:
            self.tally.add(wanderer.walk)

    def look_at_the_clock(self) -> None:
        now = self.clock()
        if self.tally.falls:
            self.fell_at = now if self.fell_at is None else self.fell_at
            over = now > self.fell_at + SHRINKING
        else:
            over = now >= self.begun + self.seconds
        if over:
            raise _TimeUp
        self.tell(self.progress(now))

    def progress(self, now: float) -> Progress:
        tally = self.tally
        return Progress(
            elapsed=now - self.begun,
            seconds=self.seconds,
            runs=tally.runs,
            steps=tally.steps,
            marks=len(tally.marks),
            shrinking=bool(tally.falls),
        )

    def summary(
        self,
        interrupted: bool,
        gone: _Gone | None = None,
        searched: bool = True,
        unable: str | None = None,
    ) -> Summary:
        """What came of it. A program that was only run again (not `searched`) is not shrunk, and
        says nothing about the register; `unable` is why the engine went no further."""
        elapsed, tally, subject = self.clock() - self.begun, self.tally, self.subject
        fall = next(iter(tally.falls.values()), None)
        ended = _Ended(_verdict(fall, interrupted or gone is not None or tally.runs == 0))
        if fall is None and gone is not None:
            ended.notes = tuple(_last_known(gone, tally.last))
        elif fall is None and unable is not None:
            ended.verdict = Verdict.UNDETERMINED
        elif fall is None and ended.verdict is Verdict.HOLDS and subject and subject.capabilities:
            today = self.today or date.today()
            engine, met = subject.capabilities, self.still | subject.matched.keys()
            known = subject.deviations if searched else ()
            ended.notes = tuple(complaints(known, engine, met, today))
            if ended.notes and subject.followed:
                ended.verdict = Verdict.STALE
            elif subject.let_go:
                ended.verdict = Verdict.UNDETERMINED
            ended.notes += tuple(_let_go(subject))
        elif fall is not None:
            if subject is not None and fall.property_id == LOCKSTEP:
                self.judge(subject, fall, ended, searched and not interrupted)
            else:
                ended.fall = shrunk(fall) if searched and not interrupted else fall
                self.tell_fall(ended.fall, ended)
        able = {mark for world in tally.worlds for mark in possible(*world)}
        silent = [mark for mark in Mark if not tally.marks[mark]]
        return Summary(
            verdict=ended.verdict,
            seed=self.seed,
            asked=self.seconds,
            elapsed=elapsed,
            interrupted=interrupted,
            runs=tally.runs,
            steps=tally.steps,
            worlds=len(tally.worlds),
            moves=tally.moves,
            marks=tally.marks,
            missed=tuple(mark for mark in silent if mark in able),
            excluded=tuple(mark for mark in silent if mark not in able),
            checked=tally.checked,
            vacuous=tuple(name for name in PROPERTIES if not tally.checked[name]),
            known=tally.known,
            fall=ended.fall,
            seen=None if subject is None else _seen(subject),
            report=ended.report,
            trace=ended.trace,
            notes=ended.notes,
            unable=unable,
        )

    # --- falls -------------------------------------------------------------------------------

    def judge(self, subject: Subject, fall: PropertyFell, ended: _Ended, shrinks: bool) -> None:
        """What an engine that diverged has to be told of."""
        machine, cause = Machine(fall.config, fall.policy), fall.__cause__
        ended.verdict, ended.fall = Verdict.DIVERGES, fall
        try:
            runs = twice(subject, machine, fall.actions)
            if runs.first is None or not (
                isinstance(cause, Diverged) and runs.confirms(cause.divergence)
            ):
                self.unsure(runs, cause, ended)
                return
            smallest = shrunk_divergence(subject, runs.first) if shrinks else runs.first
            runs = twice(subject, smallest.machine, smallest.actions)
            if not runs.confirms(smallest.divergence):
                self.unsure(runs, cause, ended)
                return
        except EngineError as error:
            ended.verdict = Verdict.UNDETERMINED
            ended.notes = (f"it diverged, and could not be run again: {error}", *fall.lines)
            return
        ended.fall = _fall_of(smallest, fall)
        self.record(ended.fall, smallest.divergence.engine, ended)
        if subject.capabilities is not None:
            replay = self.replay(ended.trace)
            ended.report = of_divergence(smallest, subject.capabilities, replay=replay)

    def unsure(self, runs: Twice, cause: BaseException | None, ended: _Ended) -> None:
        """The engine does not do the same twice."""
        ended.verdict = Verdict.NONDETERMINISTIC
        found = f"the search found: {cause}"
        ended.notes = (f"on the same program {runs.told}", found)

    def tell_fall(self, fall: PropertyFell, ended: _Ended) -> None:
        """The report on a property of the specification."""
        said = self.subject.capabilities if self.subject else None
        self.record(fall, "spec" if said is None else said.name, ended)
        ended.report = of_fall(
            fall.property_id,
            fall.statement,
            fall.what,
            fall.config,
            fall.policy,
            fall.actions,
            said,
            self.replay(ended.trace),
        )

    def record(self, fall: PropertyFell, engine: str, ended: _Ended) -> None:
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

    def replay(self, trace: Path | None) -> str | None:
        again = self.again
        return None if trace is None or again is None else f"{again} --program {trace}"


@define
class _Ended:
    """How a campaign ended, while it is found out."""

    verdict: Verdict
    fall: PropertyFell | None = None
    report: Report | None = None
    trace: Path | None = None
    notes: tuple[str, ...] = ()


def _seen(subject: Subject) -> Seen | None:
    if subject.capabilities is None:
        return None
    return Seen(
        subject.capabilities,
        subject.followed,
        subject.compared.total(),
        subject.unseen,
        subject.refused,
        subject.matched,
        subject.adopted,
        subject.let_go,
    )


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


def _last_known(gone: _Gone, last: Walk | None) -> Iterator[str]:
    """What is known of an engine that is gone."""
    yield f"the engine is gone: {gone}"
    yield f"sizes      {tell_config(gone.machine.config)}"
    yield f"profile    {tell_policy(gone.machine.policy)}"
    if gone.under_way and last is not None:
        yield from tell_program(last.actions)


def _verdict(fall: PropertyFell | None, cut_short: bool) -> Verdict:
    if fall is not None:
        return Verdict.FALLS
    return Verdict.UNDETERMINED if cut_short else Verdict.HOLDS


def _silent(progress: Progress) -> None:
    """Tell nobody."""


def campaign(
    seconds: float = 60.0,
    seed: int = 0,
    steps_per_run: int = STEPS_PER_RUN,
    profile: str | None = None,
    progress: Callable[[Progress], None] = _silent,
    clock: Callable[[], float] = monotonic,
    *,
    following: EngineFactory | Subject | None = None,
    failures: Path | None = None,
    again: str | None = None,
    today: date | None = None,
    sizes: Sizes | None = None,
) -> Summary:
    """Fuzz the specification for so many seconds, under one profile or all kinds of policies.

    Args:
        progress: is told when a run begins.
        clock: gives seconds.
        following: an engine that goes along; worlds are drawn among those that it takes.
        failures: a folder for the program on which something fell.
        again: the command that runs such a program, but for `--program FILE`.
        today: the day by which known deviations expire.
        sizes: those that are kept; all others are drawn (`servecheck.fuzz.sizes`).

    Raises:
        ConfigError: there is no such profile, or the sizes contradict it.
        Unsupported: the engine takes none of the worlds.
        EngineError: the engine is not what it says it is, or cannot be started.
        RegisterError: the trace of a known deviation of this engine does not show it.
    """
    if profile is not None and profile not in NAMED:
        raise ConfigError("profile", f"{profile!r} is unknown", f"take one of {', '.join(NAMED)}")
    policy = None if profile is None else NAMED[profile]
    subject = _subject(following)
    if policy is not None:
        check(resized(HARMLESS, policy, sizes or {}), policy)
    draw: Draw = anywhere(policy=policy, sizes=sizes)
    if subject is not None:
        draw = Worlds.of(subject, policy=policy, sizes=sizes)
    work = _Campaign(
        seconds,
        seed,
        steps_per_run,
        policy,
        progress,
        clock,
        clock(),
        subject,
        draw,
        failures,
        again,
        today,
        still=frozenset() if subject is None else shown(subject),
        tally=Tally(guide=Guide(fixed=frozenset(sizes or ()))),
    )
    interrupted, gone = False, None
    try:
        with alike():
            work.rounds()
    except _TimeUp:
        pass
    except _Gone as error:
        gone = error
    except KeyboardInterrupt:
        interrupted = True
    try:
        return work.summary(interrupted, gone)
    except KeyboardInterrupt:  # what was found is told, though not made smaller
        return work.summary(True, gone, searched=False)


def _subject(following: EngineFactory | Subject | None) -> Subject | None:
    if following is None or isinstance(following, Subject):
        return following
    return Subject.of(following)


def rerun(
    trace: Trace,
    following: EngineFactory | Subject | None = None,
    again: str | None = None,
) -> Summary:
    """The program of a trace once more, every property asked, with an engine beside it. It ends
    undetermined at the first action that the engine says that it cannot do. `again` is the command
    that does the same.

    Raises:
        Unsupported: the engine cannot have these sizes and choices.
        EngineError: the engine cannot be made.
        RegisterError: the trace of a known deviation of this engine does not show it.
        ActionDisabled: the program is not legal.
    """
    subject = _subject(following)
    begun = monotonic()
    work = _Campaign(0.0, 0, 0, None, _silent, monotonic, begun, subject)
    machine, gone, unable = trace.machine, None, None
    follower = None if subject is None else _Guarded(subject(machine))
    work.still = frozenset() if subject is None else shown(subject)
    walk = Walk(machine, tuple(PROPERTIES.values()), follower=follower)
    try:
        for action in trace.actions:
            if follower is not None and not follower.allows(machine, walk.state, action):
                unable = f"the engine says that it cannot do action {len(walk.actions)}"
                break
            walk.do(action)
    except PropertyFell as fall:
        if isinstance(fall.__cause__, ActionDisabled):
            raise fall.__cause__ from None
        work.tally.keep(fall)
    except _Gone as error:
        gone = error
    finally:
        work.tally.add(walk)
    found = work.summary(False, gone, searched=False, unable=unable)
    if found.report is None:
        return found
    return evolve(found, report=evolve(found.report, replay=again))
