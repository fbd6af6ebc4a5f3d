"""How far a second of fuzzing goes: `make bench`. What came of it is in docs/fuzzing.md.

Drivers beside each other, with the fast engine in lockstep and no property asked: a plain
RuleBasedStateMachine as one writes it with Hypothesis alone (an action a rule, with preconditions),
our machine under Hypothesis, and our walks: without swarm (every walk has all moves), with it, and
with a guide as well. Each gets as many runs of as many moves at most, in one world (vLLM's policy,
by priority, 5 blocks of 2 tokens) and, as far as it draws worlds, in all of them. Counted per CPU
second: effective steps, which changed the state, and distinct states, by world and canonical key
(`servecheck.explore.codec`).

The panel: entries of the zoo that are hard to find, all beside one campaign of the default length
with no property asked, from ten seeds; and the same without the guide, and without swarm. Told are
the actions to the first difference of each, a function of the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import count, islice
from math import exp, log
from statistics import fmean
from time import process_time

import pytest
from attrs import define, field
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from benchmarks.test_speed import Benchmark
from servecheck.engines.fast.adapters import FastLoop
from servecheck.explore.codec import Codec, Names
from servecheck.fuzz import campaign as campaigns
from servecheck.fuzz import wander
from servecheck.fuzz.campaign import campaign
from servecheck.fuzz.draw import Chance
from servecheck.fuzz.guide import Guide, Start
from servecheck.fuzz.machine import machine_class
from servecheck.fuzz.moves import NAMESPACES
from servecheck.fuzz.walk import Walk
from servecheck.fuzz.wander import Wanderer
from servecheck.lockstep.follow import Diverged, Follower, Following, follower
from servecheck.lockstep.subject import Beside, Lost, Subject
from servecheck.zoo import ENTRIES
from servecheck.zoo.told import subject_of
from servespec.actions import Abort, Action, Complete, Output, ResetCache, Schedule, Submit
from servespec.chain import PUBLIC
from servespec.config import Config
from servespec.machine import Machine
from servespec.plan import State
from servespec.policy import VLLM_0_33, Policy, prioritised
from servespec.properties import Step, step_of

World = tuple[Config, Policy]
ONE: World = (Config(6, 2, 10, 4, 3), prioritised(VLLM_0_33))
CONFIG, POLICY = ONE
RUNS, MOVES = 40, 40
SIZES = ("max_num_batched_tokens", "num_blocks", "max_num_seqs")
"""What a guide would move."""
SEARCH = settings(
    max_examples=RUNS,
    stateful_step_count=MOVES,
    phases=(Phase.generate,),
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@cache
def keys(world: World) -> Codec:
    return Codec(*world, Names((PUBLIC, *NAMESPACES), ids=()))


@define
class Reached:
    """What a driver did. Looking is not counted: its CPU seconds are taken out."""

    effective: int = 0
    states: set[tuple[World, bytes]] = field(factory=set)
    looking: float = 0.0
    """CPU seconds."""

    def see(self, world: World, before: State, after: State) -> None:
        begun = process_time()
        if after != before:
            self.effective += 1
            self.states.add((world, keys(world).key(after)))
        self.looking += process_time() - begun


@define
class Watched:
    """The fast engine beside a machine, and what is reached."""

    inner: Follower
    reached: Reached

    def follow(self, step: Step) -> None:
        self.inner.follow(step)
        world = (step.machine.config, step.machine.policy)
        self.reached.see(world, step.before, step.after)

    def allows(self, machine: Machine, state: State, action: Action) -> bool:
        return self.inner.allows(machine, state, action)


def beside(reached: Reached) -> Callable[[Machine], Watched]:
    return lambda machine: Watched(
        follower(FastLoop(machine.config, machine.policy), machine), reached
    )


def bare(reached: Reached, world: World | None) -> None:
    """A plain machine: payloads by strategies, guards by preconditions."""
    tokens = st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple)

    class Plain(RuleBasedStateMachine):
        @initialize()
        def begin(self) -> None:
            self.machine = Machine(CONFIG, POLICY)
            self.state = self.machine.initial()
            self.beside = beside(reached)(self.machine)
            self.count = 0

        def do(self, action: Action) -> None:
            before = self.state
            moved = self.machine.apply(before, action)
            self.state = moved.state
            self.beside.follow(step_of(self.machine, before, action, moved))

        @precondition(lambda self: len(self.state.live) < 6)
        @rule(prompt=tokens, wanted=st.integers(1, 8), priority=st.integers(0, 2))
        def submit(self, prompt: tuple[int, ...], wanted: int, priority: int) -> None:
            self.do(Submit(f"r{self.count}", prompt, wanted, priority=priority))
            self.count += 1

        @precondition(lambda self: not self.state.in_flight)
        @rule()
        def schedule(self) -> None:
            self.do(Schedule())

        @precondition(lambda self: self.state.in_flight)
        @rule(data=st.data())
        def complete(self, data: st.DataObject) -> None:
            entries = self.state.in_flight[0].entries
            said = tuple(
                Output(e.id, (data.draw(st.integers(0, 1)),))
                for e in entries
                if e.yields and not e.cancelled
            )
            self.do(Complete(said))

        @precondition(lambda self: self.state.live)
        @rule(at=st.integers(0, 5))
        def abort(self, at: int) -> None:
            self.do(Abort(self.state.live[at % len(self.state.live)].id))

        @rule(preempts=st.booleans())
        def reset(self, preempts: bool) -> None:
            self.do(ResetCache(preempt_running=preempts))

    run_state_machine_as_test(seed(0)(Plain), settings=SEARCH)


def ours(reached: Reached, world: World | None) -> None:
    """Our machine under Hypothesis."""
    config, policy = world or (None, None)
    kind = machine_class(config, policy, properties=(), following=beside(reached))
    run_state_machine_as_test(seed(0)(kind), settings=SEARCH)


def _walks(following: Following, world: World | None, swarm: bool, guided: bool) -> Iterator[Walk]:
    """Walks without end."""
    config, policy = world or (None, None)
    guide = Guide(fixed=frozenset(SIZES if world else ())) if guided else None
    for number in count():
        walk = Wanderer(
            number, (), config, policy, following=following, guide=guide, swarm=swarm
        ).go(MOVES)
        if guide is not None:
            guide.learn(walk)
        yield walk


def all_moves(reached: Reached, world: World | None) -> None:
    """Our walks, each with all moves."""
    _go(_walks(beside(reached), world, swarm=False, guided=False))


def swarm(reached: Reached, world: World | None) -> None:
    """Our walks, each of which leaves some moves out."""
    _go(_walks(beside(reached), world, swarm=True, guided=False))


def guided(reached: Reached, world: World | None) -> None:
    """The same, every other one back to what is rare."""
    _go(_walks(beside(reached), world, swarm=True, guided=True))


def _go(walks: Iterator[Walk]) -> None:
    for _ in islice(walks, RUNS):
        pass


CASES = [
    (bare, ONE),
    *((drive, world) for world in (ONE, None) for drive in (ours, all_moves, swarm, guided)),
]


@pytest.mark.parametrize(
    ("drive", "world"),
    CASES,
    ids=[f"{drive.__name__}-{'one' if world else 'all'}" for drive, world in CASES],
)
def test_fuzzing_goes_far(
    benchmark: Benchmark, drive: Callable[[Reached, World | None], None], world: World | None
) -> None:
    rates: list[tuple[float, float]] = []

    def go() -> None:
        reached, begun = Reached(), process_time()
        drive(reached, world)
        spent = process_time() - begun - reached.looking
        rates.append((reached.effective / spent, len(reached.states) / spent))

    benchmark.pedantic(go, rounds=3)
    effective, states = sorted(rates)[len(rates) // 2]
    benchmark.extra_info["effective steps per CPU second"] = round(effective)
    benchmark.extra_info["canonical states per CPU second"] = round(states)
    where = "one world" if world else "all worlds"
    print(
        f"\n{drive.__name__}, {where}: {effective:,.0f} effective steps, "
        f"{states:,.0f} states a CPU second"
    )
    assert states > 0


# --- the panel -----------------------------------------------------------------------------

PANEL = (
    "abort-by-prefix",
    "budget-lost",
    "preempted-subtracted-twice",
    "room-in-tokens",
    "deferred-lost-on-failure",
    "drafts-out-of-step",
    "alone-is-an-error",
    "cursor-not-moved",
    "past-the-mismatch",
    "victim-stays-scheduled",
    "one-block-is-enough",
    "uncached-at-the-tail-without-cache",
    "stale-output-accepted",
    "without-cache-all-is-there",
    "joined-up",
    "drafts-on-a-chunk",
    "fresh-token-dropped",
    "lost-on-resume",
    "salt-left-out",
    "released-under-a-step",
    "told-in-another-order",
    "passed-over-reversed",
    "first-chunk-fits",
    "hits-told-twice",
    "refused-chunk-keeps-its-length",
    "tie-is-an-error",
    "not-chained",
    "told-without-namespace",
)
"""Of those that are hardest to find."""
BUDGET = 60_000
"""Actions: what a campaign of the default length has in the zoo."""
PER_SECOND = 1_000
"""By which actions are told as seconds."""
SEEDS = range(10)


@define
class Panel(Subject):
    """The fast engine, and beside it engines with faults, each up to its first difference."""

    left: dict[str, Subject] = field(factory=dict)
    killed: dict[str, int] = field(factory=dict)
    """After how many actions."""

    def __call__(self, machine: Machine) -> Beside:
        made = Subject.__call__(self, machine)
        faulty = {name: subject(machine) for name, subject in self.left.items()}
        return Row(self, made.inner, panel=self, faulty=faulty)


@define
class Row(Beside):
    """The engines of a panel in one world."""

    panel: Panel = field(kw_only=True)
    faulty: dict[str, Beside] = field(kw_only=True)

    def follow(self, step: Step) -> State | None:
        adopted = Beside.follow(self, step)
        panel = self.panel
        for name in [name for name in self.faulty if name in panel.left]:
            try:
                self.faulty[name].follow(step)
            except (Diverged, Lost):
                panel.killed[name] = panel.followed
                del panel.left[name]
        if not panel.left:
            raise KeyboardInterrupt
        return adopted


def kills(first: int) -> dict[str, int]:
    """Actions to the first difference of each of the panel in one campaign, as far as there was
    one."""
    left = {name: subject_of(ENTRIES[name]) for name in PANEL}
    panel = Panel(Subject.of(FastLoop).start, left=left)
    campaign(
        BUDGET / PER_SECOND,
        first,
        clock=lambda: panel.followed / PER_SECOND,
        following=panel,
        properties=(),
    )
    return panel.killed


class Aimless(Guide):
    """A guide that offers nothing."""

    def offer(self, chance: Chance) -> Start | None:
        return None


def as_it_is(patch: pytest.MonkeyPatch) -> None:
    """All that a campaign has."""


def without_guide(patch: pytest.MonkeyPatch) -> None:
    """No walk goes back."""
    patch.setattr(campaigns, "Guide", Aimless)


def without_swarm(patch: pytest.MonkeyPatch) -> None:
    """No walk leaves moves out."""
    patch.setattr(wander, "SILENT", 1)


@pytest.mark.parametrize("kind", [as_it_is, without_guide, without_swarm], ids=lambda k: k.__name__)
def test_the_panel_is_found(
    benchmark: Benchmark,
    kind: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind(monkeypatch)
    found: list[dict[str, int]] = []
    benchmark.pedantic(lambda: found.extend(map(kills, SEEDS)), rounds=1)
    steps = sorted(one.get(name, BUDGET) for one in found for name in PANEL)
    figures = {
        "geometric mean": round(exp(fmean(map(log, steps)))),
        "9 of 10 within": steps[len(steps) * 9 // 10],
        "not found": sum(name not in one for one in found for name in PANEL),
        "searches": len(steps),
    }
    benchmark.extra_info.update(figures)
    print("\n" + ", ".join(f"{name} {figure:,}" for name, figure in figures.items()))
    for name in PANEL:
        mine = [one.get(name) for one in found]
        print(f"{name}: " + ", ".join("none" if n is None else f"{n:,}" for n in mine))
    assert any(found)
