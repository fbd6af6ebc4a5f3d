"""A campaign: as many runs as fit into a time, and what came of them.

Theory of operation. A campaign goes round: so many runs by Hypothesis, then as many walks from a
seed. Every round has its own seeds, taken from the campaign's, so the rounds of a seed are always
the same ones; the clock only decides how many there are. Time is looked at when a run begins. The
first fall ends the search: Hypothesis shrinks what it found, for a limited time, and the smallest
program is shrunk further (`shrink`). Ctrl-C ends it with what is known so far.

    round ──▶ Hypothesis: machine_class ──▶ Tally ◀── Wanderer ◀── round
                                              └──▶ Summary

The verdict has three values. It *holds* only if the time asked for was spent and nothing fell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from time import monotonic

from attrs import define, field, frozen
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as seeded_with
from hypothesis.stateful import run_state_machine_as_test

from servecheck.fuzz.machine import Tally, machine_class
from servecheck.fuzz.shrink import shrunk
from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.wander import Wanderer
from servecheck.marks import Mark, possible
from servespec.errors import ConfigError
from servespec.policy import PROFILES, VLLM_0_33, Policy, prioritised
from servespec.properties import PROPERTIES

STEPS_PER_RUN = 40
"""Moves of a run; a move is one action or some."""
RUNS_PER_ROUND = 100
"""Runs of Hypothesis in a round, and walks."""
SHRINKING = 20.0
"""Seconds that Hypothesis may shrink."""
STRIDE = 1_000_003
"""Seeds of a campaign lie so far from those of the next."""

NAMED = {**PROFILES, "VLLM_0_33_PRIORITY": prioritised(VLLM_0_33)}
"""Policies that a campaign can be kept to."""


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


@define
class _Campaign:
    seconds: float
    seed: int
    moves: int
    policy: Policy | None
    tell: Callable[[Progress], None]
    clock: Callable[[], float]
    begun: float
    tally: Tally = field(factory=Tally)
    fell_at: float | None = None

    def rounds(self) -> None:
        """Search until time is up or something falls."""
        number = self.seed * STRIDE
        while not self.tally.falls:
            self.by_hypothesis(number)
            for offset in range(RUNS_PER_ROUND):
                if self.tally.falls:
                    break
                self.by_walk(number * RUNS_PER_ROUND + offset)
            number += 1

    def by_hypothesis(self, number: int) -> None:
        machine = machine_class(
            policy=self.policy, tally=self.tally, before_run=self.look_at_the_clock
        )
        # What it raises the tally has already; only the smallest is of interest.
        with suppress(PropertyFell):
            run_state_machine_as_test(
                seeded_with(number)(machine),
                settings=settings(SEARCH, stateful_step_count=self.moves),
            )

    def by_walk(self, number: int) -> None:
        self.look_at_the_clock()
        wanderer = Wanderer(number, tuple(PROPERTIES.values()), policy=self.policy)
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

    def summary(self, interrupted: bool) -> Summary:
        elapsed, tally = self.clock() - self.begun, self.tally
        fall = next(iter(tally.falls.values()), None)
        if fall is not None and not interrupted:
            fall = shrunk(fall)
        able = {mark for world in tally.worlds for mark in possible(*world)}
        silent = [mark for mark in Mark if not tally.marks[mark]]
        return Summary(
            verdict=_verdict(fall, interrupted or tally.runs == 0),
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
            fall=fall,
        )


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
) -> Summary:
    """Fuzz the specification for so many seconds, under one profile or all kinds of policies.

    `progress` is told when a run begins. `clock` gives seconds.

    Raises:
        ConfigError: there is no such profile.
    """
    if profile is not None and profile not in NAMED:
        raise ConfigError("profile", f"{profile!r} is unknown", f"take one of {', '.join(NAMED)}")
    policy = None if profile is None else NAMED[profile]
    work = _Campaign(seconds, seed, steps_per_run, policy, progress, clock, clock())
    interrupted = False
    try:
        work.rounds()
    except _TimeUp:
        pass
    except KeyboardInterrupt:
        interrupted = True
    return work.summary(interrupted)
