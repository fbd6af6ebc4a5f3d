"""Processes that walk the legs of a long campaign.

Theory of operation. Each process makes the engine for itself, once, and takes one leg after the
other. What it is told while it walks is one number: legs above it are not wanted any more, which it
looks at before each walk. It says then how far it has come, in a place of its own, so that nobody
waits for anybody. Ctrl-C reaches only the process that puts things together; that lowers the
number, waits a little for what was walked so far, and ends who does not answer. If that process is
gone itself, the others end too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from ctypes import Array, c_bool, c_longlong
from multiprocessing import active_children, get_context
from multiprocessing.sharedctypes import RawArray, RawValue, Synchronized
from multiprocessing.util import Finalize
from time import monotonic

from attrs import define

from servecheck.fuzz.counted import Counted
from servecheck.fuzz.legs import Orders, Walker
from servecheck.fuzz.outcome import Leg
from servecheck.fuzz.outset import outset
from servecheck.marks import Mark
from servecheck.processes import deaf, unheard

NO_END = 2**62
"""The number of a leg that there will never be."""
LOOK = 0.25
"""Seconds after which whoever waits looks at the clock."""
PATIENCE = 5.0
"""Seconds that a process has to end the walk that it is in, when somebody interrupts."""
PLACES = {mark: place for place, mark in enumerate(Mark)}


Look = Callable[[int, int, int], None]
"""Is told runs, steps and marks so far."""


@define
class Walked:
    """What all processes have walked so far, in memory that they share. Nothing in it is locked: a
    number is written by one process only, a mark is only ever set."""

    runs: Array[c_longlong]
    """By process."""
    steps: Array[c_longlong]
    marks: Array[c_bool]
    """In the order of `Mark`."""

    @staticmethod
    def by(jobs: int) -> Walked:
        numbers = RawArray(c_longlong, jobs), RawArray(c_longlong, jobs)
        return Walked(*numbers, RawArray(c_bool, len(Mark)))

    def tell(self, look: Look) -> None:
        look(sum(self.runs), sum(self.steps), sum(self.marks))


# --- in each of them -----------------------------------------------------------------------


@define
class _Worker:
    """What a process keeps between its legs."""

    orders: Orders
    wanted: c_longlong
    """Legs with a higher number are not wanted. It has no lock: who lowers it would wait for ever
    for one that was killed while it looked."""
    until: float | None
    walked: Walked
    place: int
    """Its own."""
    runs: int = 0
    """Of legs that are done."""
    steps: int = 0
    walker: Walker | None = None

    def leg(self, number: int, steps: int) -> Leg:
        if number > self.wanted.value:  # not even an engine is made for it
            return Leg(number, stopped=True)
        if self.walker is None:
            stack = ExitStack()
            made = stack.enter_context(self.orders.engines())
            begins = outset(self.orders.profile, self.orders.sizes, made)
            self.walker = Walker(self.orders, begins.subject, begins.draw)
            Finalize(None, stack.close, exitpriority=1)
        leg = self.walker.leg(number, steps, self.goes_on)
        self.tell(leg.counted)
        self.runs += leg.counted.runs
        self.steps += leg.counted.steps
        return leg

    def tell(self, leg: Counted) -> None:
        self.walked.runs[self.place] = self.runs + leg.runs
        self.walked.steps[self.place] = self.steps + leg.steps
        for mark in leg.marks:
            self.walked.marks[PLACES[mark]] = True

    def goes_on(self, number: int, leg: Counted) -> bool:
        self.tell(leg)
        return number <= self.wanted.value and (self.until is None or monotonic() < self.until)


_worker: list[_Worker] = []


def _begin(
    orders: Orders,
    wanted: c_longlong,
    until: float | None,
    walked: Walked,
    begun: Synchronized[int],
) -> None:
    deaf()
    with begun.get_lock():
        place, begun.value = begun.value, begun.value + 1
    _worker.append(_Worker(orders, wanted, until, walked, place))


def _leg(number: int, steps: int) -> Leg:
    return _worker[-1].leg(number, steps)


# --- in the one that puts things together --------------------------------------------------


def everywhere(
    orders: Orders,
    legs: Iterator[tuple[int, int]],
    jobs: int,
    until: float | None,
    put: Callable[[Leg], bool],
    look: Look,
) -> None:
    """Have legs walked, by number and steps.

    Args:
        until: when no more are begun, and those under way are cut, by the monotonic clock.
        put: is given each leg as it is done, in any order; false: no more are wanted.
        look: is called now and then.

    Raises:
        BrokenProcessPool: a process has died; all legs that were done are put.
        KeyboardInterrupt: also the legs under way are put, as far as they were walked.
    """
    context, others = get_context("spawn"), set(active_children())
    begun, walked = context.Value("q", 0), Walked.by(jobs)
    wanted = RawValue(c_longlong, NO_END)
    under_way: set[Future[Leg]] = set()
    given = orders, wanted, until, walked, begun
    with ProcessPoolExecutor(jobs, context, _begin, given) as pool:
        patience = None
        try:
            while True:
                late = until is not None and monotonic() >= until
                while len(under_way) < 2 * jobs and not late:
                    number, steps = next(legs, (NO_END, 0))
                    if number > min(wanted.value, NO_END - 1):
                        break
                    with unheard():
                        under_way.add(pool.submit(_leg, number, steps))
                if not under_way:
                    return
                done, _ = wait(under_way, LOOK, FIRST_COMPLETED)
                for future in done:
                    leg = future.result()
                    under_way.discard(future)
                    if leg.last:
                        wanted.value = min(wanted.value, leg.number)
                    if not put(leg):
                        return
                walked.tell(look)
        except KeyboardInterrupt:
            patience = PATIENCE
            raise
        finally:
            wanted.value = -1
            ended = False
            try:
                for future in wait(under_way, patience).done:
                    with suppress(BrokenProcessPool):
                        put(future.result())
                ended = patience is None
            finally:  # also when somebody interrupts again: Python would wait for them for ever
                if not ended:
                    with unheard():
                        for process in set(active_children()) - others:
                            process.terminate()
