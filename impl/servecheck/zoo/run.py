"""The kill matrix: every check against every entry of the zoo, and who found what.

Theory of operation. An entry is tried by four checks, each for itself: a campaign of
`servecheck fuzz` beside the specification (`told`); walks of the same kind on which the engine is
alone with the properties (`asked`); what was recorded (`golden`); and, in the world of the smallest
program found, exhaustive search for a shorter one (`search`). All is a function of entry, seed and
budget: the clock of a campaign counts actions. Only the CPU seconds are measured.

    try_entry(entry, plan) ──▶ Row ──▶ one line of JSON, kept as it comes

A row belongs to the change and to the strategies that it was made with: a run that is resumed keeps
rows for which both are still the same.
"""

from __future__ import annotations

from pathlib import Path
from time import process_time

from attrs import define, field, frozen

from servecheck.engines.protocol import EngineError
from servecheck.explore.scopes import ServingScope, named
from servecheck.fuzz.alike import alike
from servecheck.fuzz.campaign import STEPS_PER_RUN, STRIDE, campaign
from servecheck.fuzz.guide import Guide
from servecheck.fuzz.shrink import shrunk_divergence
from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.wander import Wanderer
from servecheck.lockstep.follow import Diverged, Divergence
from servecheck.lockstep.subject import Beside, Parted, Subject, parted
from servecheck.lockstep.twice import twice
from servecheck.trace.read import read_trace
from servecheck.zoo.asked import Alone, EngineFell, Fell
from servecheck.zoo.entry import Entry
from servecheck.zoo.golden import NotAgain, not_again
from servecheck.zoo.keys import change_of, hashes, strategies_of
from servecheck.zoo.search import Nearest, around, nearest
from servecheck.zoo.told import subject_of
from servespec.actions import Action
from servespec.machine import Machine
from servespec.plan import State
from servespec.properties import Step

SECONDS = 60.0
"""The default budget of `servecheck fuzz`."""
ACTIONS_A_SECOND = 1_000
"""By which a budget in seconds becomes one in actions, the same on every machine."""
CANDIDATES = 3_000
"""Programs that are tried to make a divergence smaller."""
SCOPES = "serving-tiny"
"""Where an entry that is masked is searched for a difference."""
LONGEST = 200
"""Characters of what is told of a failure."""


@frozen
class Plan:
    """How entries are tried."""

    seed: int = 0
    actions: int = round(SECONDS * ACTIONS_A_SECOND)
    """Budget of a check."""
    traces: Path | None = None
    """The folder of golden traces and recordings."""
    keep: Path | None = None
    """A folder for the smallest programs."""


@frozen
class Kill:
    """The first failure that a check has seen, before anything is made smaller."""

    by: str
    """A field, a property, or a recording."""
    what: str
    steps: int
    """Actions tried up to it, over all examples."""
    examples: int
    """Runs begun."""
    cpu: float
    """Seconds, measured."""


@frozen
class Row:
    """What came of an entry."""

    entry: str
    change: str
    """Digest of the entry's classes;"""
    strategies: str
    """and of the modules that decide what is tried. A row with others is of another run."""
    seed: int
    actions: int
    """Budget."""
    verdict: str
    """killed, missed or indistinguishable"""
    why: str
    """Where it was not killed."""
    spec: Kill | None
    properties: Kill | None
    golden: Kill | None
    program: int | None
    """Actions of the smallest program found; written by hand if comparison found none."""
    depth: int | None
    """Actions of the shortest program in its world, if the search came to it."""
    states: int
    """Of the search."""


# --- beside the specification --------------------------------------------------------------------


class _First(KeyboardInterrupt):
    """Ends a campaign, as Ctrl-C does: the first divergence is there."""


@define
class _Noting(Subject):
    """A subject that notes its first divergence, and stops there."""

    examples: int = 0
    first: tuple[Machine, tuple[Action, ...], Divergence] | None = None

    def __call__(self, machine: Machine) -> Beside:
        self.examples += 1
        made = Subject.__call__(self, machine)
        return _NotingBeside(self, made.inner, machine=machine, noting=self)


@define
class _NotingBeside(Beside):
    machine: Machine = field(kw_only=True)
    noting: _Noting = field(kw_only=True)
    way: list[Action] = field(factory=list)

    def follow(self, step: Step) -> State | None:
        self.way.append(step.action)
        try:
            return Beside.follow(self, step)
        except Diverged as diverged:
            self.noting.first = (self.machine, tuple(self.way), diverged.divergence)
            raise _First from diverged


def by_fuzzing(entry: Entry, plan: Plan) -> tuple[Kill, Parted] | None:
    """A campaign beside the specification, up to the first divergence that is confirmed."""
    subject, begun = _Noting(subject_of(entry).start), process_time()
    with alike():
        campaign(
            plan.actions / ACTIONS_A_SECOND,
            plan.seed,
            clock=lambda: subject.followed / ACTIONS_A_SECOND,
            following=subject,
        )
    if subject.first is None:
        return None
    machine, actions, divergence = subject.first
    spent = process_time() - begun
    found = parted(subject_of(entry), machine, actions)
    if found is None or not twice(subject_of(entry), machine, actions).confirms(found.divergence):
        return None
    first = divergence.differences[0]
    what = f"{first.field}: {first.expected} expected, {first.observed} observed"
    kill = Kill(first.field, what[:LONGEST], subject.followed + 1, subject.examples, spent)
    return kill, found


# --- alone with the properties -------------------------------------------------------------------


def by_properties(entry: Entry, plan: Plan) -> Kill | None:
    """Walks on which the engine goes first, up to the first property that falls."""
    guide, begun, steps, examples = Guide(), process_time(), 0, 0
    number = plan.seed * STRIDE
    while steps < plan.actions:
        examples += 1
        engines: list[Alone] = []

        def beside(machine: Machine, engines: list[Alone] = engines) -> Alone:
            engines.append(Alone.of(entry, machine))
            return engines[-1]

        fell: Fell | None = None
        wanderer = None
        try:
            wanderer = Wanderer(number, (), following=beside, guide=guide)
            wanderer.go(STEPS_PER_RUN)
        except EngineFell as fallen:
            fell = fallen.fell
        except PropertyFell:
            pass  # the specification cannot go on from where the engine is
        except EngineError as error:
            fell = Fell("APPLY-1", str(error))
        steps += sum(engine.actions for engine in engines)
        if fell is not None:
            return Kill(
                fell.property_id, fell.what[:LONGEST], steps, examples, process_time() - begun
            )
        if wanderer is not None:
            guide.learn(wanderer.walk)
        number += 1
    return None


# --- a row ---------------------------------------------------------------------------------------


def try_entry(entry: Entry, plan: Plan) -> tuple[Row, Parted | None]:
    """All checks on an entry; and the shortest program on which it is known to differ."""
    fuzzed, alone = by_fuzzing(entry, plan), by_properties(entry, plan)
    golden = None if plan.traces is None else _by_golden(entry, plan.traces)
    smallest, shortest, near = None, None, None
    found = _by_hand(entry, plan.traces) if fuzzed is None else fuzzed[1]
    if found is not None:
        smallest = shrunk_divergence(subject_of(entry), found, CANDIDATES)
        world = around(smallest.machine, smallest.actions)
        near = nearest(entry, world, depth=len(smallest.actions))
        if near.program is not None:
            shortest = parted(subject_of(entry), smallest.machine, near.program)
    killed = fuzzed is not None or alone is not None or golden is not None
    verdict, why, masked = ("killed", "", None) if killed else _survived(entry, smallest)
    near = near or masked
    row = Row(
        entry.id,
        change_of(entry),
        strategies_of(hashes()),
        plan.seed,
        plan.actions,
        verdict,
        why,
        None if fuzzed is None else fuzzed[0],
        alone,
        golden,
        None if smallest is None else len(smallest.actions),
        None if shortest is None else len(shortest.actions),
        0 if near is None else near.states,
    )
    return row, shortest or smallest


def _by_golden(entry: Entry, folder: Path) -> Kill | None:
    begun = process_time()
    found: NotAgain | None = not_again(entry, folder)
    if found is None:
        return None
    what = f"{found.at} came out again"
    return Kill(found.name, what, found.at + 1, 1, process_time() - begun)


def _by_hand(entry: Entry, folder: Path | None) -> Parted | None:
    """A program on which an entry differs that no campaign came to, if somebody wrote one."""
    file = None if folder is None else folder / "zoo" / f"{entry.id}.jsonl"
    if file is None or not file.is_file():
        return None
    trace = read_trace(file)
    return parted(subject_of(entry), trace.machine, trace.actions)


def _survived(entry: Entry, known: Parted | None) -> tuple[str, str, Nearest | None]:
    """What no check has found: missed, or, where it is said to be masked, searched for."""
    if known is not None:
        return "missed", f"no check came to a program of {len(known.actions)} actions", None
    if not entry.masked:
        return "missed", "no check found it within its budget", None
    states = 0
    for scope in named(SCOPES):
        if not isinstance(scope, ServingScope):
            continue
        found = nearest(entry, scope.system, edges=1_000_000)
        states += found.states
        if found.depth is not None:
            why = f"{scope.name} tells it apart in {found.depth} actions"
            return "missed", why, found
    why = f"{entry.masked}; no difference in all {states:,} states of {SCOPES}"
    return "indistinguishable", why, Nearest(None, states, 0, True)
