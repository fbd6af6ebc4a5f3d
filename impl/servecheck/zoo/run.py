"""The kill matrix: every check against every entry of the zoo, and who found what.

Theory of operation. An entry is tried by four checks, each for itself: a campaign of
`servecheck fuzz` beside the specification (`told`); walks of the same kind on which the engine is
alone with the properties (`asked`); what was recorded (`golden`); and, in the world of the smallest
program found, exhaustive search for a shorter one (`search`). All is a function of entry, seed and
budget: the clock of a campaign counts actions. Only the CPU seconds are measured.

    try_entry(entry, plan) ──▶ Row ──▶ one line of JSON, kept as it comes

Where another property fell first than the entry expects, the walks are done once more and only that
one is asked. This and recordings are left out for further seeds (`Plan.chance_only`). An entry that
is said to be masked is searched for a difference in every state of a group of scopes.
"""

from __future__ import annotations

from pathlib import Path
from time import process_time

from attrs import define, evolve, field, frozen

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
from servecheck.zoo.asked import CARRIED_OUT, Alone, EngineFell, Fell, asked
from servecheck.zoo.entry import Entry
from servecheck.zoo.golden import NotAgain, not_again
from servecheck.zoo.keys import change_of, hashes, strategies_of
from servecheck.zoo.rows import INDISTINGUISHABLE, KILLED, MISSED, Kill, Row
from servecheck.zoo.search import nearest, nearest_along
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
MEMORY = 1
"""States before one by which it is told apart there: an entry may remember them."""
ALL = 1_000_000
"""Actions of a scope: more than any has."""
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
    chance_only: bool = False
    """Leave out what does not depend on the seed."""


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
        ended = campaign(
            plan.actions / ACTIONS_A_SECOND,
            plan.seed,
            clock=lambda: subject.followed / ACTIONS_A_SECOND,
            following=subject,
        )
    if subject.first is None:
        if ended.interrupted:
            raise KeyboardInterrupt  # that nothing was found says nothing
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


def by_properties(entry: Entry, plan: Plan, only: str | None = None) -> Kill | None:
    """Walks on which the engine goes first, up to the first property that falls. If `only` one is
    asked, a walk goes on where another would have fallen, for as long as the engine can."""
    wanted = tuple(p for p in asked() if only in (None, p.id))
    guide, begun, steps, examples = Guide(), process_time(), 0, 0
    number = plan.seed * STRIDE
    while steps < plan.actions:
        examples += 1
        engines: list[Alone] = []

        def beside(machine: Machine, engines: list[Alone] = engines) -> Alone:
            engines.append(Alone.of(entry, machine, wanted))
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
            fell = Fell(CARRIED_OUT, str(error))
        steps += sum(engine.actions for engine in engines)
        if fell is not None and only in (None, fell.property_id):
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
    row = Row(
        entry=entry.id,
        change=change_of(entry),
        strategies=strategies_of(hashes()),
        seed=plan.seed,
        actions=plan.actions,
        verdict=KILLED if fuzzed or alone else MISSED,
        why="" if fuzzed or alone else "no check found it within its budget",
        spec=None if fuzzed is None else fuzzed[0],
        properties=alone,
        golden=None,
        program=None,
        depth=None,
        states=0,
        chance_only=plan.chance_only or None,
    )
    found = None if fuzzed is None else fuzzed[1]
    if not plan.chance_only:
        found = found or _by_hand(entry, plan.traces)
    shortest = smallest = None
    if found is not None:
        smallest = shrunk_divergence(subject_of(entry), found, CANDIDATES)
        near = nearest_along(entry, smallest.machine, smallest.actions)
        if near.program is not None:
            shortest = parted(subject_of(entry), smallest.machine, near.program)
        depth = None if shortest is None else len(shortest.actions)
        row = evolve(row, program=len(smallest.actions), depth=depth, states=near.states)
    return row if plan.chance_only else _at_length(entry, plan, row), shortest or smallest


def _at_length(entry: Entry, plan: Plan, row: Row) -> Row:
    """What need not be done with every seed."""
    golden = None if plan.traces is None else _by_golden(entry, plan.traces)
    row = evolve(row, golden=golden, expected=_by_expected(entry, plan, row.properties))
    if golden is not None:
        return evolve(row, verdict=KILLED, why="")
    if row.verdict == MISSED and row.program is not None:
        return evolve(row, why=f"no check came to a program of {row.program} actions")
    if row.verdict == MISSED and entry.masked:
        return _searched(entry, row)
    return row


def _by_expected(entry: Entry, plan: Plan, first: Kill | None) -> Kill | None:
    """When the property falls that must, whatever fell before it."""
    if first is not None and first.by == entry.expects:
        return first  # up to there the walks are the same
    return None if entry.masked else by_properties(entry, plan, entry.expects)


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


def _searched(entry: Entry, row: Row) -> Row:
    """An entry that is said to be masked: every state of a group of scopes, for a difference."""
    states = 0
    for scope in named(SCOPES):
        if not isinstance(scope, ServingScope):
            continue
        found = nearest(entry, scope.system, ALL, memory=MEMORY)
        states += found.states
        if found.depth is not None:
            why = f"{scope.name} tells it apart in {found.depth} actions"
            return evolve(row, why=why, depth=found.depth, states=states)
        if not found.whole:
            return evolve(row, why=f"{scope.name} has more than {ALL:,} actions", states=states)
    why = f"{entry.masked}; no difference in all {states:,} states of {SCOPES}"
    return evolve(row, verdict=INDISTINGUISHABLE, why=why, states=states)
