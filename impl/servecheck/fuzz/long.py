"""A long campaign: walks alone, without Hypothesis, in as many processes as there are to spare.

Theory of operation. The steps that are asked for are cut into legs (`servecheck.fuzz.legs`), which
know nothing of each other. Processes take the next leg when they are free; what came of the legs is
put together in the order of their numbers. The fall of the lowest leg is the one that counts: the
legs before it are walked to their end, those after it are dropped. So the same seed and steps give
the same walks, counts and verdict, with however many processes. Where seconds are asked for instead
of steps, the clock decides how many legs there are, and the last ones are cut.

    number ──▶ process: Walker.leg ──▶ Leg ──▶ in order ──▶ Counted, Subject ──▶ Judge ──▶ Summary

What was found is judged by this process, with engines of its own: as in any campaign. Ctrl-C ends
it with what is known so far, that of legs under way included. A process that dies (the memory is
full, somebody killed it) ends it *undetermined*, unless something fell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from datetime import date
from pathlib import Path
from time import monotonic

from attrs import define, evolve, field, frozen

from servecheck.engines.protocol import EngineError
from servecheck.fuzz.corpus import Best, Corpus, into
from servecheck.fuzz.counted import Counted
from servecheck.fuzz.judge import Gone, Judge
from servecheck.fuzz.legs import Orders, Walker
from servecheck.fuzz.outcome import Found, Leg, Lost
from servecheck.fuzz.outset import outset
from servecheck.fuzz.retry import retry
from servecheck.fuzz.summary import Ended, Progress, Retried, Spent, Summary, summarised
from servecheck.fuzz.workers import NO_END, everywhere
from servecheck.lockstep.shown import shown
from servespec.properties import PROPERTIES


@frozen
class Budget:
    """What a campaign may take: steps, or seconds."""

    steps: int | None = None
    seconds: float | None = None

    def legs(self, most: int) -> Iterator[tuple[int, int]]:
        """Number and steps of each leg; none has more than so many."""
        number, left = 0, NO_END if self.steps is None else self.steps
        while left > 0:
            yield number, min(most, left)
            number, left = number + 1, left - most


@define
class _Run:
    """A campaign under way."""

    orders: Orders
    budget: Budget
    tell: Callable[[Progress], None]
    walker: Walker
    begun: float = field(factory=monotonic)
    counted: Counted = field(factory=Counted)
    ready: dict[int, Leg] = field(factory=dict)
    """Legs that are done, and wait for one before them."""
    due: int = 0
    """The number of the leg that is counted next."""
    end: Leg | None = None
    """The leg that ended the search."""
    stopped: bool = False
    interrupted: bool = False
    died: str | None = None
    retried: Retried | None = None
    learned: Best = field(factory=dict)

    @property
    def until(self) -> float | None:
        return None if self.budget.seconds is None else self.begun + self.budget.seconds

    def retry(self, folder: Path) -> None:
        """Try what once fell; if it falls, nothing else is walked."""
        asked = tuple(PROPERTIES[name] for name in self.orders.properties)
        leg = Leg(-1)
        try:
            found = retry(folder, self.walker.subject, lambda: not self.late, asked)
        except Gone as gone:
            leg.lost = Lost(str(gone), gone.machine, gone.under_way, gone.actions)
        else:
            self.retried = found.retried
            if found.fall is not None and found.walk is not None:
                leg.found = Found.of(found.fall)
                leg.counted.add(found.walk)
        self.take(leg)

    def here(self) -> None:
        """Walk in this process."""

        def goes_on(number: int, leg: Counted) -> bool:
            mine = self.counted
            marks = len(mine.marks.keys() | leg.marks.keys())
            self.show(mine.runs + leg.runs, mine.steps + leg.steps, marks)
            return not self.late

        for number, steps in self.budget.legs(self.orders.leg):
            if self.over or not goes_on(number, Counted()):
                return
            self.put(self.walker.leg(number, steps, goes_on))

    def there(self, jobs: int) -> None:
        """Walk in other processes."""

        def put(leg: Leg) -> bool:
            self.put(leg)
            return not self.over

        legs = self.budget.legs(self.orders.leg)
        try:
            everywhere(self.orders, legs, jobs, self.until, put, self.show)
        except BrokenProcessPool:
            self.died = "a process that walked has died; what it had under way is not known"
        finally:
            for number in sorted(self.ready):  # not in one row, but walked
                self.take(self.ready.pop(number))

    @property
    def over(self) -> bool:
        return self.end is not None or self.interrupted

    @property
    def late(self) -> bool:
        return self.until is not None and monotonic() >= self.until

    def put(self, leg: Leg) -> None:
        """A leg is done; count it when all before it are."""
        self.ready[leg.number] = leg
        while self.due in self.ready:
            self.take(self.ready.pop(self.due))
            self.due += 1

    def take(self, leg: Leg) -> None:
        """Count a leg, unless one before it has ended the search."""
        if self.end is not None:
            return
        self.counted.merge(leg.counted)
        for mark, starts in leg.learned.items():
            into(self.learned, mark, starts)
        if leg.shown is not None and self.walker.subject is not None:
            leg.shown.into(self.walker.subject)
        self.stopped |= leg.stopped
        self.interrupted |= leg.interrupted
        if leg.last:
            self.end = leg

    def show(self, runs: int, steps: int, marks: int) -> None:
        """Tell how far it has come, legs under way included."""
        self.tell(
            Progress(
                elapsed=monotonic() - self.begun,
                seconds=self.budget.seconds,
                runs=runs,
                steps=steps,
                marks=marks,
                shrinking=False,
                asked_steps=self.budget.steps,
            )
        )

    def judged(self, judge: Judge) -> Ended:
        """How it ended."""
        found = None if self.end is None else self.end.found
        lost = None if self.end is None else self.end.lost
        short = self.interrupted or self.died is not None or self.counted.runs == 0
        short |= self.stopped and self.budget.seconds is None
        gone = None if lost is None else Gone(lost.why, lost.machine, lost.under_way)
        last = () if lost is None else lost.actions
        subject = self.walker.subject
        if found is None:
            ended = judge.ended(None, short, gone, last, shrinks=False)
        else:
            try:
                fall = found.fall(subject)
            except EngineError:
                fall = found.fall(None)  # the judge says what is the matter with the engine
            ended = judge.ended(fall, short, None, (), shrinks=not self.interrupted)
            if self.died is not None:
                ended.notes += (self.died,)
        return ended


def _silent(progress: Progress) -> None:
    """Tell nobody."""


def long_campaign(
    orders: Orders,
    budget: Budget,
    jobs: int = 1,
    progress: Callable[[Progress], None] = _silent,
    *,
    failures: Path | None = None,
    again: str | None = None,
    today: date | None = None,
    corpus: Path | None = None,
) -> Summary:
    """Walk for so many steps, or seconds.

    Args:
        jobs: processes; with one, it is this one.
        progress: is told now and then.
        failures, again, today, corpus: as for `servecheck.fuzz.campaign.campaign`.

    Raises:
        ConfigError, Unsupported, EngineError, RegisterError, TraceError: as for `campaign`.
    """
    with orders.engines() as made:
        begins = outset(orders.profile, orders.sizes, made)
        subject, known = begins.subject, None
        if corpus is not None:
            known = Corpus.read(corpus)
            starts = known.fitting(begins.policy, orders.sizes, subject)
            orders = evolve(orders, starts=starts, learns=True)
        run = _Run(orders, budget, progress, Walker(orders, subject, begins.draw))
        still = frozenset() if subject is None else shown(subject)
        try:
            if failures is not None:
                run.retry(failures)
            if not run.over:
                run.here() if jobs < 2 else run.there(jobs)
        except KeyboardInterrupt:
            run.interrupted = True
        judge = Judge(orders.seed, subject, failures, again, today, still)
        try:
            if known is not None:
                known.keep(run.learned, orders.seed)
            ended = run.judged(judge)
        except KeyboardInterrupt:  # what was found is told, though not made smaller
            run.interrupted = True
            ended = run.judged(judge)
        elapsed, counted = monotonic() - run.begun, run.counted
        spent = Spent(
            orders.seed,
            budget.seconds,
            elapsed,
            run.interrupted,
            budget.steps,
            orders.properties,
        )
        return summarised(
            ended,
            spent,
            counted,
            subject,
            unable=run.died,
            retried=run.retried,
            taught=known.told if known else None,
        )
