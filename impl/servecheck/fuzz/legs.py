"""A leg of a long campaign: so many steps of walks, which a process walks by itself.

Theory of operation. A leg is a function of the campaign's seed, its own number and its steps. It
begins with a guide that knows nothing of other legs, and its walks have seeds that no other leg
has; so it does not matter in which process it is walked, or when, and what it keeps in memory does
not grow with the campaign. It ends with its steps, at the first fall, with an engine that is gone,
or when nobody wants it any more, which is asked before each walk. What came of it travels between
processes, so it is told in values: a divergence by its words.

    Orders, number, steps ──▶ Walker.leg ──▶ Leg: what was counted, shown, found
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from hashlib import blake2b

from attrs import define, field, frozen

from servecheck.engines.protocol import Unsupported
from servecheck.fuzz.corpus import Best, best_of, taught
from servecheck.fuzz.guide import Guide, Start
from servecheck.fuzz.judge import Gone, Guarded, beside
from servecheck.fuzz.outset import STEPS_PER_RUN, STRIDE
from servecheck.fuzz.tell import PropertyFell, fell
from servecheck.fuzz.walk import Walk
from servecheck.fuzz.wander import Wanderer
from servecheck.fuzz.worlds import Draw
from servecheck.lockstep.follow import ADDRESS, Diverged
from servecheck.lockstep.subject import Subject, parted
from servecheck.marks import Mark, possible
from servecheck.trace.codec import canonical
from servespec.actions import Action
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import Policy
from servespec.properties import PROPERTIES

LEG = 20_000
"""Steps of a leg: some seconds."""
MOST_WORLDS = 100_000
"""Worlds that are told apart; what comes after these is not counted."""
HOPELESS = 20
"""Walks without a world in a row, at the start, after which the engine is held to take none."""

Engines = Callable[[], AbstractContextManager[Subject | None]]
"""Gives the engine that goes along, in whatever process it is called."""
GoesOn = Callable[[int], bool]
"""Whether the leg of a number is still wanted."""


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
class Counted:
    """What walks did, in memory that has a bound."""

    runs: int = 0
    steps: int = 0
    moves: Counter[str] = field(factory=Counter)
    marks: Counter[Mark] = field(factory=Counter)
    checked: Counter[str] = field(factory=Counter)
    known: Counter[str] = field(factory=Counter)
    worlds: set[bytes] = field(factory=set)
    """Digests."""
    able: set[Mark] = field(factory=set)
    """Marks that the sizes and choices of some walk allow."""

    def add(self, walk: Walk) -> None:
        """Count one walk that has ended."""
        self.runs += 1
        self.steps += len(walk.actions)
        self.moves.update(walk.moves)
        self.marks.update(walk.marks)
        self.checked.update(walk.watch.checked)
        self.known.update(walk.known)
        world = walk.config, walk.policy
        digest = blake2b(canonical(world), digest_size=8).digest()
        if digest not in self.worlds and len(self.worlds) < MOST_WORLDS:
            self.worlds.add(digest)
            self.able.update(possible(*world))

    def merge(self, other: Counted) -> None:
        """Count what another one has counted."""
        self.runs += other.runs
        self.steps += other.steps
        self.moves.update(other.moves)
        self.marks.update(other.marks)
        self.checked.update(other.checked)
        self.known.update(other.known)
        if len(self.worlds) < MOST_WORLDS:
            self.worlds.update(sorted(other.worlds)[: MOST_WORLDS - len(self.worlds)])
        self.able |= other.able


@frozen
class Shown:
    """What an engine showed in a leg, as a `Subject` counts it."""

    followed: int
    refused: int
    counts: tuple[Counter[str], ...]
    why_let_go: dict[str, str]

    @staticmethod
    def of(subject: Subject) -> Shown:
        """All that a subject has counted."""
        return Shown(subject.followed, subject.refused, _counters(subject), subject.why_let_go)

    def into(self, subject: Subject) -> None:
        """Let another subject have counted it too."""
        subject.followed += self.followed
        subject.refused += self.refused
        for mine, counted in zip(_counters(subject), self.counts, strict=True):
            mine.update(counted)
        for name, why in self.why_let_go.items():
            subject.why_let_go.setdefault(name, why)


def _counters(subject: Subject) -> tuple[Counter[str], ...]:
    return subject.compared, subject.unseen, subject.matched, subject.adopted, subject.let_go


@frozen
class Found:
    """A fall, or a divergence, with all that it takes to repeat it."""

    property_id: str
    statement: str
    what: str
    config: Config
    policy: Policy
    actions: tuple[Action, ...]
    differences: str | None
    """All that a divergence consists of."""

    @staticmethod
    def of(fall: PropertyFell) -> Found:
        """A fall, told."""
        cause = fall.__cause__
        told = _told(cause) if isinstance(cause, Diverged) else None
        world = fall.config, fall.policy
        return Found(fall.property_id, fall.statement, fall.what, *world, fall.actions, told)

    def fall(self, subject: Subject | None) -> PropertyFell:
        """The fall; a divergence that another engine shows on the same program is its cause.

        Raises:
            EngineError: an engine cannot be made, or is gone.
        """
        world = self.config, self.policy
        name = self.property_id
        found = fell(name)(name, self.statement, self.what, *world, self.actions)
        if self.differences is None or subject is None:
            return found
        again = parted(subject, Machine(*world), self.actions)
        same = None if again is None else Diverged(again.divergence)
        agrees = same is not None and _told(same) == self.differences
        found.__cause__ = same if agrees else AssertionError(self.what)
        return found


def _told(parted: Diverged) -> str:
    return ADDRESS.sub("0x…", repr(parted.divergence))


@frozen
class Lost:
    """An engine that is gone: why, in which world, after which actions."""

    why: str
    machine: Machine
    under_way: bool
    actions: tuple[Action, ...]


@define
class Leg:
    """What came of a leg."""

    number: int
    counted: Counted = field(factory=Counted)
    shown: Shown | None = None
    found: Found | None = None
    lost: Lost | None = None
    stopped: bool = False
    """It was not walked to its end."""
    interrupted: bool = False
    """By Ctrl-C, in this process."""
    learned: Best = field(factory=dict)
    """The shortest starts, if somebody wants to know."""

    @property
    def last(self) -> bool:
        """Nobody need walk another one after it."""
        return self.found is not None or self.lost is not None


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
            Unsupported: the engine takes none of the worlds that are drawn.
        """
        made, leg, orders = self.subject, Leg(number), self.orders
        subject = None if made is None else Subject(made.start, made.deviations, made.capabilities)
        guide = deepcopy(self.guide)
        walks = _Walks(orders, subject, self.draw, guide)
        first = (orders.seed * STRIDE + number) * orders.leg
        try:
            while leg.counted.steps < steps and not leg.last:
                if not goes_on(number):
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
    refused: int = 0

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
            self.refused += 1
            if not leg.counted.runs and self.refused >= HOPELESS:
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
