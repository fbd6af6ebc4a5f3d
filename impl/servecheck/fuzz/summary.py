"""What came of a campaign, as values: the verdict, what was done to reach it, and how far it went.

Theory of operation. Whoever searches counts (`servecheck.fuzz.counted`), whoever judges says how it
ended (`Ended`); `summarised` puts both together. A mark that was not reached is a gap only if the
sizes and choices of some run allow it, and a property whose antecedent was never true was not
really asked: where that is so of all, and no engine was compared, nothing holds by it. What is here
is told by `servecheck.cli.summary` and is the same whoever searched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from enum import Enum
from pathlib import Path

from attrs import define, evolve, frozen

from servecheck.engines.protocol import Capabilities
from servecheck.fuzz.counted import Counted
from servecheck.fuzz.tell import PropertyFell
from servecheck.lockstep.report import Report
from servecheck.lockstep.subject import Subject
from servecheck.marks import Mark
from servespec.properties import PROPERTIES


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
    seconds: float | None
    """Asked for, unless steps are."""
    runs: int
    steps: int
    marks: int
    shrinking: bool
    asked_steps: int | None = None


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


@define
class Retried:
    """What came of the programs that lay there."""

    tried: int = 0
    fell: Path | None = None
    """The one on which something falls again."""
    unfit: int = 0
    """Those that this engine cannot run."""
    useless: tuple[str, ...] = ()
    """Files that are no trace, or none that is legal: what is wrong with each."""
    left: int = 0
    """Those that were not tried: there was no time, or nobody asks for what fell."""


@define
class Taught:
    """What came of a corpus (`servecheck.fuzz.corpus`)."""

    read: int = 0
    """Starts that were read;"""
    fit: int = 0
    """those of them in worlds that this campaign can have."""
    added: int = 0
    removed: int = 0
    useless: tuple[str, ...] = ()
    """Files that could not be read or written: what is wrong with each."""


@frozen
class Summary:
    """What came of a campaign."""

    verdict: Verdict
    seed: int
    asked: float | None
    """Seconds that the campaign was to take; None: it was to take steps."""
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
    """Properties that were asked, and had nothing to say."""
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
    """Why it went no further: the engine cannot do what the program asks for, or a process died."""
    asked_steps: int | None = None
    """Steps that the campaign was to take, if it was to take steps."""
    unasked: tuple[str, ...] = ()
    """Properties that nobody asked."""
    more_worlds: bool = False
    """There were more worlds than are counted."""
    retried: Retried | None = None
    """Programs that once fell, which were tried first."""
    taught: Taught | None = None
    """What the guide was taught."""

    @property
    def lockstep_only(self) -> bool:
        """No property was asked: the engine was compared, and that was all."""
        return len(self.unasked) == len(PROPERTIES)

    @property
    def said_nothing(self) -> bool:
        """No engine was compared, and no property that was asked had anything to say."""
        return self.seen is None and not any(self.checked.values())

    @property
    def speed(self) -> float:
        """Steps a second."""
        return self.steps / self.elapsed if self.elapsed > 0 else 0.0

    @property
    def budget(self) -> str:
        """What was spent."""
        spent = f"{self.elapsed:.0f} s" if self.elapsed >= 10 else f"{self.elapsed:.1f} s"
        more = "+" if self.more_worlds else ""
        return f"{spent}, {self.runs:,} runs, {self.steps:,} steps, {self.worlds:,}{more} worlds"


# --- putting it together -------------------------------------------------------------------


@define
class Ended:
    """How a campaign ended, while it is found out (`servecheck.fuzz.judge`)."""

    verdict: Verdict
    fall: PropertyFell | None = None
    report: Report | None = None
    trace: Path | None = None
    notes: tuple[str, ...] = ()


@frozen
class Spent:
    """What a campaign took."""

    seed: int
    asked: float | None
    """Seconds that it was to take;"""
    elapsed: float
    interrupted: bool
    asked_steps: int | None = None
    """or steps."""
    properties: Collection[str] = tuple(PROPERTIES)
    """Those that were asked."""


def summarised(
    ended: Ended,
    spent: Spent,
    counts: Counted,
    subject: Subject | None,
    unable: str | None = None,
    retried: Retried | None = None,
    taught: Taught | None = None,
) -> Summary:
    """The summary of a campaign. It holds by something that was checked, or is undetermined."""
    silent = [mark for mark in Mark if not counts.marks[mark]]
    found = Summary(
        verdict=ended.verdict,
        seed=spent.seed,
        asked=spent.asked,
        elapsed=spent.elapsed,
        interrupted=spent.interrupted,
        runs=counts.runs,
        steps=counts.steps,
        worlds=len(counts.worlds),
        moves=counts.moves,
        marks=counts.marks,
        missed=tuple(mark for mark in silent if mark in counts.able),
        excluded=tuple(mark for mark in silent if mark not in counts.able),
        checked=counts.checked,
        vacuous=tuple(name for name in spent.properties if not counts.checked[name]),
        known=counts.known,
        fall=ended.fall,
        seen=None if subject is None else _seen(subject),
        report=ended.report,
        trace=ended.trace,
        notes=ended.notes,
        unable=unable,
        asked_steps=spent.asked_steps,
        unasked=tuple(name for name in PROPERTIES if name not in spent.properties),
        more_worlds=counts.more_worlds,
        retried=retried,
        taught=taught,
    )
    if found.verdict is Verdict.HOLDS and found.said_nothing:
        return evolve(found, verdict=Verdict.UNDETERMINED)
    return found


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
