"""A leg of a long campaign: so many steps of walks, which a process walks by itself.

Theory of operation. A leg is a function of the campaign's seed, its own number and its steps. It
begins with a guide that knows nothing of other legs, and its walks have seeds that no other leg
has; so it does not matter in which process it is walked, or when, and what it keeps in memory does
not grow with the campaign. It ends with its steps, at the first fall, with an engine that is gone,
or when nobody wants it any more, which is asked before each walk.

    Orders, number, steps ──▶ Walker.leg ──▶ Leg (`servecheck.fuzz.outcome`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy

from attrs import define, field, frozen

from servecheck.engines.protocol import Unsupported
from servecheck.fuzz.corpus import best_of, taught
from servecheck.fuzz.counted import Counted
from servecheck.fuzz.guide import Guide, Start
from servecheck.fuzz.judge import Gone, Guarded, beside
from servecheck.fuzz.outcome import Found, Leg, Lost, Shown
from servecheck.fuzz.outset import STEPS_PER_RUN, STRIDE
from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.wander import Wanderer
from servecheck.fuzz.worlds import Draw
from servecheck.lockstep.subject import Subject
from servespec.machine import Machine
from servespec.properties import PROPERTIES

LEG = 20_000
"""Steps of a leg: some seconds."""

Engines = Callable[[], AbstractContextManager[Subject | None]]
"""Gives the engine that goes along, in whatever process it is called."""
GoesOn = Callable[[int, Counted], bool]
"""Whether the leg of a number is still wanted; is told what it has counted so far."""


@frozen
class Orders:
    """What all legs of a campaign have in common."""

    engines: Engines
    seed: int = 0
    moves: int = STEPS_PER_RUN
    properties: tuple[str, ...] = tuple(PROPERTIES)
    """Those that are asked."""
    profile: str | None = None
    sizes: Mapping[str, int | float] = field(factory=dict)
    """Those that are kept."""
    leg: int = LEG
    """Steps of a leg."""
    starts: tuple[Start, ...] = ()
    """What the guide of each leg is taught."""
    learns: bool = False
    """Somebody wants to know the shortest starts."""


@define
class Walker:
    """Walks legs."""

    orders: Orders
    subject: Subject | None
    draw: Draw
    guide: Guide = field(init=False)
    """One that knows what it was taught, and nothing else."""

    def __attrs_post_init__(self) -> None:
        self.guide = taught(Guide(fixed=frozenset(self.orders.sizes)), self.orders.starts)

    def leg(self, number: int, steps: int, goes_on: GoesOn) -> Leg:
        """Walk so many steps, or a few more: a walk is not cut.

        Raises:
            Unsupported: the engine takes none of the worlds that are drawn for the first leg.
        """
        made, leg, orders = self.subject, Leg(number), self.orders
        subject = None if made is None else Subject(made.start, made.deviations, made.capabilities)
        guide = deepcopy(self.guide)
        walks = _Walks(orders, subject, self.draw, guide)
        first = (orders.seed * STRIDE + number) * orders.leg
        try:
            while leg.counted.steps < steps and not leg.last:
                if not goes_on(number, leg.counted):
                    leg.stopped = True
                    break
                walks.one(first, leg)
                first += 1
        except KeyboardInterrupt:
            leg.stopped = leg.interrupted = True
        if orders.learns:
            leg.learned = best_of(guide)
        leg.shown = None if subject is None else Shown.of(subject)
        return leg


@define
class _Walks:
    orders: Orders
    subject: Subject | None
    draw: Draw
    guide: Guide

    def beside(self, machine: Machine) -> Guarded:
        if self.subject is None:
            raise Unsupported("there is no engine")
        return beside(self.subject, machine)

    def one(self, seed: int, leg: Leg) -> None:
        """One walk, counted."""
        asked = tuple(PROPERTIES[name] for name in self.orders.properties)
        wanderer: Wanderer | None = None
        try:
            wanderer = Wanderer(
                seed,
                asked,
                following=self.beside if self.subject else None,
                draw=self.draw,
                guide=self.guide,
            )
            wanderer.go(self.orders.moves)
        except Unsupported:
            # The first leg says for all whether the engine takes any: a later one had bad luck.
            if leg.counted.skip() and leg.number == 0:
                raise
            return
        except PropertyFell as fall:
            leg.found = Found.of(fall)
        except Gone as gone:
            done = () if wanderer is None else tuple(wanderer.walk.actions)
            leg.lost = Lost(str(gone), gone.machine, gone.under_way, done)
        if wanderer is not None:
            leg.counted.add(wanderer.walk)
            self.guide.learn(wanderer.walk)
