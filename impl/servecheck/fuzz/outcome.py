"""What came of a leg of a long campaign, in values that travel between processes.

Theory of operation. A leg may be walked in another process, whose engine cannot be brought along.
So what the engine showed is told as counts, a divergence by its words, and an engine that is gone
by its last program. The process that puts legs together makes a fall of that again, with an engine
of its own: the same words on the same program are the same divergence.

    Leg: Counted, Shown, Found or Lost ──▶ Found.fall ──▶ PropertyFell
"""

from __future__ import annotations

from collections import Counter

from attrs import define, field, frozen

from servecheck.fuzz.corpus import Best
from servecheck.fuzz.counted import Counted
from servecheck.fuzz.tell import PropertyFell, fell
from servecheck.lockstep.follow import ADDRESS, Diverged
from servecheck.lockstep.subject import Subject, parted
from servespec.actions import Action
from servespec.config import Config
from servespec.machine import Machine
from servespec.policy import Policy


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
