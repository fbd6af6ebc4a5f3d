"""Processes that walk the legs of a long campaign.

Theory of operation. Each process makes the engine for itself, once, and takes one leg after the
other. What it is told while it walks is one number: legs above it are not wanted any more, which it
looks at before each walk. Ctrl-C reaches only the process that puts things together; that lowers
the number, waits a little for what was walked so far, and ends who does not answer. If that process
is gone itself, the others end too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, suppress
from multiprocessing import active_children, get_context
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.util import Finalize
from time import monotonic

from attrs import define

from servecheck.fuzz.legs import Orders, Walker
from servecheck.fuzz.outcome import Leg
from servecheck.fuzz.outset import outset
from servecheck.processes import deaf, unheard

NO_END = 2**62
"""The number of a leg that there will never be."""
LOOK = 0.25
"""Seconds after which whoever waits looks at the clock."""
PATIENCE = 5.0
"""Seconds that a process has to end the walk that it is in, when somebody interrupts."""


# --- in each of them -----------------------------------------------------------------------


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
            made = stack.enter_context(self.orders.engines())
            begins = outset(self.orders.profile, self.orders.sizes, made)
            self.walker = Walker(self.orders, begins.subject, begins.draw)
            Finalize(None, stack.close, exitpriority=1)
        return self.walker.leg(number, steps, self.goes_on)

    def goes_on(self, number: int) -> bool:
        return number <= self.wanted.value and (self.until is None or monotonic() < self.until)


_worker: list[_Worker] = []


def _begin(orders: Orders, wanted: Synchronized[int], until: float | None) -> None:
    deaf()
    _worker.append(_Worker(orders, wanted, until))


def _leg(number: int, steps: int) -> Leg:
    return _worker[-1].leg(number, steps)


# --- in the one that puts things together --------------------------------------------------


def everywhere(
    orders: Orders,
    legs: Iterator[tuple[int, int]],
    jobs: int,
    until: float | None,
    put: Callable[[Leg], bool],
    look: Callable[[], None],
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
    wanted = context.Value("q", NO_END)
    under_way: set[Future[Leg]] = set()
    with ProcessPoolExecutor(jobs, context, _begin, (orders, wanted, until)) as pool:
        patience = None
        try:
            while True:
                late = until is not None and monotonic() >= until
                while len(under_way) < 2 * jobs and not late:
                    number, steps = next(legs, (NO_END, 0))
                    if number > min(wanted.value, NO_END - 1):
                        break
                    with unheard():
                        future = pool.submit(_leg, number, steps)
                    under_way.add(future)
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
                look()
        except KeyboardInterrupt:
            patience = PATIENCE
            raise
        finally:
            wanted.value = -1
            for future in wait({f for f in under_way if not f.cancel()}, patience).done:
                with suppress(BrokenProcessPool):
                    put(future.result())
            if patience is not None:
                for process in set(active_children()) - others:
                    process.terminate()
