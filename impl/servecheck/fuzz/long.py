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

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from datetime import date
from multiprocessing import get_context, parent_process
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.util import Finalize
from pathlib import Path
from threading import Thread
from time import monotonic

from attrs import define, field, frozen

from servecheck.engines.protocol import EngineError
from servecheck.fuzz.judge import Gone, Judge
from servecheck.fuzz.legs import MOST_WORLDS, Counted, Leg, Orders, Walker
from servecheck.fuzz.outset import outset
from servecheck.fuzz.summary import Ended, Progress, Spent, Summary, summarised
from servecheck.lockstep.shown import shown
from servecheck.lockstep.subject import Subject

NO_END = 2**62
"""The number of a leg that there will never be."""
LOOK = 0.25
"""Seconds after which whoever waits looks at the clock."""


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


# --- in another process --------------------------------------------------------------------


@define
class _Worker:
    """What a process keeps between its legs."""

    orders: Orders
    wanted: Synchronized[int]
    """Legs with a higher number are not wanted."""
    until: float | None
    walker: Walker | None = None

    def leg(self, number: int, steps: int) -> Leg:
        if self.walker is None:
            stack = ExitStack()
            self.walker = walker(self.orders, stack.enter_context(self.orders.engines()))
            Finalize(None, stack.close, exitpriority=1)
        return self.walker.leg(number, steps, self.goes_on)

    def goes_on(self, number: int) -> bool:
        return number <= self.wanted.value and (self.until is None or monotonic() < self.until)


_worker: list[_Worker] = []


def _begin(orders: Orders, wanted: Synchronized[int], until: float | None) -> None:
    # Ctrl-C is for the process that puts things together; this one is told when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # If that one is gone, nobody waits for this one.
    Thread(target=_end_with_parent, daemon=True).start()
    _worker.append(_Worker(orders, wanted, until))


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _leg(number: int, steps: int) -> Leg:
    return _worker[-1].leg(number, steps)


def walker(orders: Orders, subject: Subject | None) -> Walker:
    """Somebody who walks legs, here.

    Raises:
        ConfigError, Unsupported, EngineError: as for `outset`.
    """
    begins = outset(orders.profile, orders.sizes, subject)
    return Walker(orders, begins.subject, begins.draw)


# --- in this process -----------------------------------------------------------------------


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

    @property
    def until(self) -> float | None:
        return None if self.budget.seconds is None else self.begun + self.budget.seconds

    def here(self) -> None:
        """Walk in this process."""

        def goes_on(number: int) -> bool:
            self.show()
            return self.until is None or monotonic() < self.until

        for number, steps in self.budget.legs(self.orders.leg):
            if self.over or not goes_on(number):
                return
            self.put(self.walker.leg(number, steps, goes_on))

    def everywhere(self, jobs: int) -> None:
        """Walk in other processes."""
        context = get_context("spawn")
        wanted = context.Value("q", NO_END)
        pool = ProcessPoolExecutor(jobs, context, _begin, (self.orders, wanted, self.until))
        under_way: set[Future[Leg]] = set()
        try:
            with pool:
                try:
                    self.hand_out(pool, jobs, under_way, wanted)
                except KeyboardInterrupt:
                    self.interrupted = True
                finally:
                    wanted.value = -1
                    for future in under_way:
                        if not future.cancel():
                            with suppress(BrokenProcessPool):
                                self.put(future.result())
        except BrokenProcessPool:
            self.died = "a process that walked has died; what it had under way is not known"
        for number in sorted(self.ready):  # not in one row, but walked
            self.take(self.ready.pop(number))

    def hand_out(
        self,
        pool: ProcessPoolExecutor,
        jobs: int,
        under_way: set[Future[Leg]],
        wanted: Synchronized[int],
    ) -> None:
        """Keep all processes at work until the budget is spent, or a leg is the last."""
        legs = self.budget.legs(self.orders.leg)
        while not self.over:
            while len(under_way) < 2 * jobs and not self.late:
                upcoming = next(legs, None)
                if upcoming is None or upcoming[0] > wanted.value:
                    break
                under_way.add(pool.submit(_leg, *upcoming))
            if not under_way:
                return
            done, _ = wait(under_way, LOOK, FIRST_COMPLETED)
            for future in done:
                leg = future.result()
                under_way.discard(future)
                if leg.last:
                    wanted.value = min(wanted.value, leg.number)
                self.put(leg)
            self.show()

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
        if leg.shown is not None and self.walker.subject is not None:
            leg.shown.into(self.walker.subject)
        self.stopped |= leg.stopped
        self.interrupted |= leg.interrupted
        if leg.last:
            self.end = leg

    def show(self) -> None:
        self.tell(
            Progress(
                elapsed=monotonic() - self.begun,
                seconds=self.budget.seconds,
                runs=self.counted.runs,
                steps=self.counted.steps,
                marks=len(self.counted.marks),
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
) -> Summary:
    """Walk for so many steps, or seconds.

    Args:
        jobs: processes; with one, it is this one.
        progress: is told now and then.
        failures, again, today: as for `servecheck.fuzz.campaign.campaign`.

    Raises:
        ConfigError, Unsupported, EngineError, RegisterError: as for `campaign`.
    """
    with orders.engines() as made:
        run = _Run(orders, budget, progress, walker(orders, made))
        subject = run.walker.subject
        still = frozenset() if subject is None else shown(subject)
        if jobs < 2:
            run.here()
        else:
            run.everywhere(jobs)
        judge = Judge(orders.seed, subject, failures, again, today, still)
        try:
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
        worlds = len(counted.worlds)
        more = worlds >= MOST_WORLDS
        return summarised(ended, spent, counted, worlds, counted.able, subject, more_worlds=more)
