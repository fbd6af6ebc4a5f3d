"""A campaign: as many runs as fit into a time, and what came of them.

Theory of operation. A campaign goes round: so many runs by Hypothesis, then as many walks from a
seed. Every round has its own seeds, taken from the campaign's, so the rounds of a seed are always
the same ones; the clock only decides how many there are. Time is looked at when a run begins. The
first fall ends the search: Hypothesis shrinks what it found, for a limited time, and the smallest
program is shrunk further (`judge`). Ctrl-C ends it with what is known so far.

    round ──▶ Hypothesis: machine_class ──▶ Tally ◀── Wanderer ◀── round
                                              └──▶ Judge ──▶ Summary

The verdict *holds* only if the time asked for was spent and nothing fell.

An engine may go along (`following`). Then it can also *diverge*, be *nondeterministic*, or have to
be let go; `judge` says when. An engine that dies or hangs ends the campaign *undetermined*, unless
it diverged. Without Hypothesis, and in several processes: `servecheck.fuzz.long`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import date
from pathlib import Path
from time import monotonic

from attrs import define, field
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as seeded_with
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from servecheck.engines.protocol import EngineFactory, Unsupported
from servecheck.fuzz.alike import alike
from servecheck.fuzz.corpus import Corpus, best_of, taught
from servecheck.fuzz.guide import Guide
from servecheck.fuzz.judge import Gone, Guarded, Judge, beside
from servecheck.fuzz.machine import Tally, machine_class
from servecheck.fuzz.outset import STEPS_PER_RUN, STRIDE, outset
from servecheck.fuzz.retry import retry
from servecheck.fuzz.sizes import Sizes
from servecheck.fuzz.summary import Progress, Retried, Spent, Summary, Verdict, summarised
from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.wander import Wanderer
from servecheck.fuzz.worlds import Draw, anywhere
from servecheck.lockstep.shown import shown
from servecheck.lockstep.subject import Subject
from servespec.machine import Machine
from servespec.properties import PROPERTIES, Property

__all__ = ["STEPS_PER_RUN", "STRIDE", "Progress", "Summary", "Verdict", "campaign"]

RUNS_PER_ROUND = 20
"""Runs of Hypothesis in a round. A step of theirs costs twice that of a walk, and they do not go
back to what was rare."""
WALKS_PER_ROUND = 150
SHRINKING = 20.0
"""Seconds that Hypothesis may shrink."""


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


class _TimeUp(KeyboardInterrupt):
    """Ends a round. Hypothesis lets go of a run at once for an interrupt, and for nothing else."""


@define
class _Campaign:
    seconds: float
    seed: int
    moves: int
    tell: Callable[[Progress], None]
    clock: Callable[[], float]
    begun: float
    subject: Subject | None = None
    draw: Draw = field(factory=anywhere)
    tally: Tally = field(factory=Tally)
    fell_at: float | None = None
    retried: Retried | None = None
    corpus: Corpus | None = None
    asked: tuple[Property, ...] = tuple(PROPERTIES.values())

    def retry(self, folder: Path) -> None:
        """Try what once fell."""

        def goes_on() -> bool:
            return self.clock() < self.begun + self.seconds

        found = retry(folder, self.subject, goes_on, self.asked)
        self.retried = found.retried
        if found.fall is not None and found.walk is not None:
            self.tally.keep(found.fall)
            self.tally.add(found.walk)

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
            properties=self.asked,
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

    def beside(self, machine: Machine) -> Guarded:
        """An engine beside a machine."""
        if self.subject is None:
            raise Unsupported("there is no engine")
        return beside(self.subject, machine)

    def by_walk(self, number: int) -> None:
        self.look_at_the_clock()
        try:
            wanderer = Wanderer(
                number,
                self.asked,
                following=self.beside if self.subject else None,
                draw=self.draw,
                guide=self.tally.guide,
            )
        except Unsupported:
            if self.tally.skip():
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
        judge: Judge,
        interrupted: bool,
        gone: Gone | None = None,
    ) -> Summary:
        """What came of it."""
        elapsed, tally = self.clock() - self.begun, self.tally
        ended = judge.ended(
            next(iter(tally.falls.values()), None),
            interrupted or tally.runs == 0,
            gone,
            tally.last.actions if tally.last else (),
            shrinks=not interrupted,
        )
        names = tuple(asked.id for asked in self.asked)
        spent = Spent(self.seed, self.seconds, elapsed, interrupted, properties=names)
        return summarised(
            ended,
            spent,
            tally,
            self.subject,
            retried=self.retried,
            taught=self.corpus.told if self.corpus else None,
        )


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
    corpus: Path | None = None,
    properties: Iterable[str] = tuple(PROPERTIES),
) -> Summary:
    """Fuzz the specification for so many seconds, under one profile or all kinds of policies.

    Args:
        progress: is told when a run begins.
        clock: gives seconds.
        following: an engine that goes along; worlds are drawn among those that it takes.
        failures: a folder for the program on which something fell; what lies there is tried first.
        again: the command that runs such a program, but for `--program FILE`.
        today: the day by which known deviations expire.
        sizes: those that are kept; all others are drawn (`servecheck.fuzz.sizes`).
        corpus: a folder of starts, which is read first and added to.
        properties: those that are asked, by id.

    Raises:
        ConfigError: there is no such profile, or the sizes contradict it.
        Unsupported: the engine takes none of the worlds.
        EngineError: the engine is not what it says it is, or cannot be started.
        RegisterError: the trace of a known deviation of this engine does not show it.
        TraceError: the corpus is no folder.
    """
    begins = outset(profile, sizes, following)
    known = None if corpus is None else Corpus.read(corpus)
    guide = Guide(fixed=frozenset(sizes or ()))
    if known is not None:
        taught(guide, known.fitting(begins.policy, sizes or {}, begins.subject))
    work = _Campaign(
        seconds,
        seed,
        steps_per_run,
        progress,
        clock,
        clock(),
        begins.subject,
        begins.draw,
        Tally(guide=guide),
        corpus=known,
        asked=tuple(PROPERTIES[name] for name in properties),
    )
    still = frozenset() if begins.subject is None else shown(begins.subject)
    judge = Judge(seed, begins.subject, failures, again, today, still)
    interrupted, gone = False, None
    try:
        if failures is not None:
            work.retry(failures)
        with alike():
            work.rounds()
    except _TimeUp:
        pass
    except Gone as error:
        gone = error
    except KeyboardInterrupt:
        interrupted = True
    try:
        if known is not None:
            known.keep(best_of(guide), seed)
        return work.summary(judge, interrupted, gone)
    except KeyboardInterrupt:  # what was found is told, though not made smaller
        return work.summary(judge, True, gone)
