"""What each property says of thousands of steps in which one small thing is other than it was.

Theory of operation. `tests.verdicts` spoils steps as an engine might that is far off. Here a step
is off by little: one number by one, one flag, one choice, one place in an order, somewhere in the
action, the events, the states on either side, the sizes or the policy. Most clauses of a property
are about such a difference, and a bound that is off by one shows here and nowhere else. The steps
are of runs under every choice of policy. What is pinned is the answer to each step, a letter as in
`tests.verdicts`, and what the falls say: some of it to read, all of it as a hash. `python -m
tests.nudges` writes the file anew: read the difference before it is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from itertools import product
from pathlib import Path
from typing import TypedDict, TypeVar, cast

import attrs
from attrs import evolve

from servecheck.fuzz.draw import Chance, Seeded, pick
from servecheck.watch import Watch
from servespec.actions import Abort, Complete, Discard, ResetCache, Schedule, Submit
from servespec.chain import Chain, Namespace
from servespec.config import Config
from servespec.errors import SpecError
from servespec.events import Reason, Skipped
from servespec.machine import Machine, Universe
from servespec.policy import MINIATURE, VLLM_0_33, Policy, Publish, Release, prioritised
from servespec.pool import Blocks, Index
from servespec.properties import PROPERTIES, Property, Step, step_of
from tests.verdicts import letter, runs

PINNED = Path(__file__).parent / "golden" / "nudges.json"
NUDGED = 4000
"""Steps, each with one thing nudged, or two."""
TO_READ = 4
"""So many different things that falls say are told as they are."""

SIZES = (
    Config(6, 2, 9, 6, 3),
    Config(7, 2, 9, 5, 3, num_speculative_tokens=2, num_lookahead_tokens=1),
    Config(11, 1, 9, 5, 3, long_prefill_token_threshold=2, watermark=0.1),
    Config(12, 2, 9, 6, 4, num_speculative_tokens=1),
    Config(16, 1, 9, 8, 4, num_speculative_tokens=2, num_lookahead_tokens=2, watermark=0.2),
)
COMING = (
    Submit("a", (0, 1, 0, 1), 5),
    Submit("b", (0, 1, 0), 6, priority=1),
    Submit("c", (0, 1, 0, 1, 0, 0, 1), 2, Namespace(salt="s"), stop=(0,)),
    Submit("d", (0, 1, 0, 1, 1), 3, with_last=True),
    Submit("e", (1,), 4),
)
LONG = 50
OFTEN = (*(Schedule, Complete) * 5, *(Submit,) * 4, *(Discard,) * 3, *(Abort,) * 2, ResetCache)
"""What a run does, as often as it is named."""
LATE = evolve(VLLM_0_33, publish=Publish.AFTER_STEP, release=Release.DEFERRED)
BASES = (VLLM_0_33, prioritised(VLLM_0_33), MINIATURE, LATE)

T = TypeVar("T")


def choices() -> Iterator[Policy]:
    """Some policies, and each of them with one choice that is another."""
    for base in BASES:
        yield base
        for axis in attrs.fields(Policy):
            chosen = getattr(base, axis.name)
            others = (not chosen,) if isinstance(chosen, bool) else type(chosen)
            for other in others:
                if other is not chosen:
                    yield changed_in(base, axis.name, other)


@cache
def varied() -> tuple[tuple[Step, ...], ...]:
    """A run under each of these policies, the sizes in turn; those that are varied at each size."""
    found = []
    bases = product(BASES, SIZES)
    turns = ((policy, SIZES[at % len(SIZES)]) for at, policy in enumerate(choices()))
    for at, (policy, sizes) in enumerate((*bases, *turns)):
        try:
            machine = Machine(sizes, policy)
        except SpecError:  # a choice that needs another one beside it
            continue
        found.append(busy(machine, at))
    return tuple(found)


def busy(machine: Machine, seed: int) -> tuple[Step, ...]:
    """A run that mostly schedules and completes; what else can be done comes in now and then."""
    universe = Universe(COMING, (0, 1))
    chance, state, steps = Seeded(seed), machine.initial(), list[Step]()
    while len(steps) < LONG:
        kind = pick(chance, OFTEN)
        actions = [a for a in machine.enabled(state, universe) if isinstance(a, kind)]
        if actions:
            action = pick(chance, actions)
            steps.append(step_of(machine, state, action, machine.apply(state, action)))
            state = steps[-1].after
    return tuple(steps)


def parts_of(thing: object) -> list[str]:
    """The names of what a thing is made from."""
    kind = cast(type[attrs.AttrsInstance], type(thing))
    return [part.name for part in attrs.fields(kind) if part.init]


def changed_in(thing: T, name: str, value: object) -> T:
    """The same thing with another value by this name."""
    make: Callable[..., T] = type(thing)
    return make(
        **{part: getattr(thing, part) for part in parts_of(thing) if part != name}, **{name: value}
    )


def nudged(value: T, chance: Chance) -> T:
    """The same, but for one small thing; sometimes nothing, where there is nothing to change."""
    return cast(T, _other(value, chance))


def _other(value: object, chance: Chance) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + pick(chance, (1, -1))
    if isinstance(value, Enum):
        return pick(chance, [other for other in type(value) if other is not value])
    if isinstance(value, tuple):
        return _other_order(value, chance)
    if isinstance(value, Index):
        key = pick(chance, [None, *value.copies])
        copies = {
            k: v if k is not key else cast(Blocks, _other_order(v, chance))
            for k, v in value.copies.items()
        }
        return Index({k: v for k, v in copies.items() if v})
    if attrs.has(type(value)) and not isinstance(value, Chain):
        names = parts_of(value)
        if not names:
            return value
        name = pick(chance, names)
        try:
            return changed_in(value, name, _other(getattr(value, name), chance))
        except SpecError:
            return value
    return value


def _other_order(value: tuple[object, ...], chance: Chance) -> tuple[object, ...]:
    if not value:
        return value
    at = chance.below(len(value))
    ways = (
        (*value[:at], _other(value[at], chance), *value[at + 1 :]),
        (*value[:at], _other(value[at], chance), *value[at + 1 :]),
        (*value[:at], _other(value[at], chance), *value[at + 1 :]),
        (*value[:at], *value[at + 1 :]),
        (*value[at:], *value[:at]),
        value[: at + 1] + value[at:],
    )
    return pick(chance, ways)


def with_a_nudge(step: Step, chance: Chance) -> Step:
    """A step that is off by little."""
    machine, before, action = step.machine, step.before, step.action
    after, events = step.after, step.events
    match chance.below(7):
        case 0:
            before = nudged(before, chance)
        case 1:
            action = nudged(action, chance)
        case 2 | 3:
            after = nudged(after, chance)
        case 4 | 5:
            events = nudged(events, chance)
        case _:
            machine = nudged(machine, chance)
    return Step(machine, before, action, after, events)


@cache
def nudges() -> tuple[Step, ...]:
    """Steps of all runs that are off by little."""
    chance, found = Seeded(0), list[Step]()
    of = (*runs(), *varied())
    for _ in range(NUDGED):
        step = pick(chance, pick(chance, of))
        right = step
        while step == right:
            step = with_a_nudge(step, chance)
        if chance.below(3) == 0:
            step = with_a_nudge(step, chance)
        found.append(step)
    return tuple(found)


WHY_NOT = tuple(Reason)[: tuple(Reason).index(Reason.PADDING) + 1]
"""Why a request may get nothing in a pass."""
OF_PASSES = ("TOK-1", "ADM-1", "WRK-1", "PRE-1", "DEM-1", "CON-2", "BUD-2")
"""Properties that hold a pass to what is due under its sizes and choices."""
PASSES = 2500


@cache
def passes() -> tuple[Step, ...]:
    """Passes of a machine of other sizes or choices; and those in which a request gets nothing, for
    each reason that was not named."""
    chance, found = Seeded(1), list[Step]()
    all_of_them = [s for run in varied() for s in run if isinstance(s.action, Schedule)]
    served = [s for s in all_of_them if s.events]
    for _ in range(PASSES):
        step = pick(chance, served)
        other = nudged(step.machine, chance)
        found.append(Step(other, step.before, step.action, step.after, step.events))
    for step in all_of_them:
        for at, e in enumerate(step.events):
            if isinstance(e, Skipped):
                reason = pick(chance, WHY_NOT)
                events = (*step.events[:at], Skipped(e.id, reason), *step.events[at + 1 :])
                found.append(Step(step.machine, step.before, step.action, step.after, events))
    return tuple(found)


class Said(TypedDict):
    """What a property says, as it is pinned."""

    runs: list[str]
    """A letter a step, a run a line."""
    nudged: list[str]
    """A letter a step, in lines that a reader can compare."""
    passes: list[str]
    """The same, of passes; only where a property is about them."""
    says: list[str]
    """The first different things that falls say."""
    hash: str
    """Of all that falls say."""


def said(name: str) -> Said:
    """All that a property says of runs under other choices, and of nudged steps."""
    asked, texts = PROPERTIES[name], list[str]()
    on_runs = ["".join(_letters(asked, run, texts)) for run in varied()]
    on_nudges = _one_by_one(asked, nudges(), texts)
    on_passes = _one_by_one(asked, passes() if name in OF_PASSES else (), texts)
    return {
        "runs": on_runs,
        "nudged": on_nudges,
        "passes": on_passes,
        "says": list(dict.fromkeys(texts))[:TO_READ],
        "hash": hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16],
    }


def _one_by_one(asked: Property, steps: tuple[Step, ...], texts: list[str]) -> list[str]:
    """A letter for each step by itself, in lines."""
    letters = "".join(x for step in steps for x in _letters(asked, (step,), texts))
    return [letters[at : at + 100] for at in range(0, len(letters), 100)]


def _letters(asked: Property, run: tuple[Step, ...], texts: list[str]) -> Iterator[str]:
    watch = Watch(run[0].machine, run[0].before, (asked,))
    tell = letter(watch, texts)
    return map(tell, run)


TOGETHER = "all of them"
"""In the file, where the names of properties stand."""
GROUP = 250
"""Steps that all properties are asked of together."""
PARTS = 8
"""Groups of passes under other sizes, or with other reasons."""


@cache
def groups() -> dict[str, tuple[Step, ...]]:
    """Some steps of each action, right ones and nudged ones."""
    found: dict[str, tuple[Step, ...]] = {}
    right = [step for run in varied() for step in run if step.events or step.before.in_flight]
    for kind in (Submit, Schedule, Complete, Discard, Abort, ResetCache):
        for name, steps in (("", right), (", nudged", nudges())):
            mine = [step for step in steps if isinstance(step.action, kind)]
            found[kind.__name__ + name] = tuple(mine[:: max(len(mine) // GROUP, 1)])[:GROUP]
    for part in range(PARTS):
        found[f"Schedule, otherwise, {part}"] = passes()[part::PARTS]
    return found


def together(name: str) -> str:
    """All that all properties say of a group of steps, as a hash: cheap, and it misses nothing."""
    asked, texts = tuple(PROPERTIES.values()), list[str]()
    for step in groups()[name]:
        watch = Watch(step.machine, step.before, asked)
        texts += [f"{fell.property.id} {fell.known} {fell.what}" for fell in watch.see_step(step)]
        texts.append(" ".join(sorted(watch.checked)))
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def main() -> None:
    found: dict[str, Said | dict[str, str]] = {name: said(name) for name in PROPERTIES}
    found[TOGETHER] = {name: together(name) for name in groups()}
    PINNED.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
