"""How far a second of fuzzing goes: `make bench`.

Three drivers go through the same world (vLLM's policy, by priority, 5 blocks of 2 tokens), with the
fast engine in lockstep and no property asked: a plain RuleBasedStateMachine as one writes it with
Hypothesis alone (an action a rule, with preconditions), our machine under Hypothesis, and our
walks. Each gets as many runs of as many moves. Counted per CPU second: effective steps, which
changed the state, and distinct states, by their canonical key (`servecheck.explore.codec`).
"""

from __future__ import annotations

from collections.abc import Callable
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
from servecheck.fuzz.guide import Guide
from servecheck.fuzz.machine import machine_class
from servecheck.fuzz.moves import NAMESPACES
from servecheck.fuzz.wander import Wanderer
from servecheck.lockstep.follow import Follower, follower
from servespec.actions import Abort, Action, Complete, Output, ResetCache, Schedule, Submit
from servespec.chain import PUBLIC
from servespec.config import Config
from servespec.machine import Machine
from servespec.plan import State
from servespec.policy import VLLM_0_33, prioritised
from servespec.properties import Step, step_of

CONFIG, POLICY = Config(6, 2, 10, 4, 3), prioritised(VLLM_0_33)
KEYS = Codec(CONFIG, POLICY, Names((PUBLIC, *NAMESPACES), ids=()))
RUNS, MOVES = 40, 40
SEARCH = settings(
    max_examples=RUNS,
    stateful_step_count=MOVES,
    phases=(Phase.generate,),
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@define
class Reached:
    """What a driver did. Looking is not counted: its CPU seconds are taken out."""

    effective: int = 0
    states: set[bytes] = field(factory=set)
    looking: float = 0.0
    """CPU seconds."""

    def see(self, before: State, after: State) -> None:
        begun = process_time()
        if after != before:
            self.effective += 1
            self.states.add(KEYS.key(after))
        self.looking += process_time() - begun


@define
class Watched:
    """The fast engine beside a machine, and what is reached."""

    inner: Follower
    reached: Reached

    def follow(self, step: Step) -> None:
        self.inner.follow(step)
        self.reached.see(step.before, step.after)

    def allows(self, machine: Machine, state: State, action: Action) -> bool:
        return self.inner.allows(machine, state, action)


def beside(reached: Reached) -> Callable[[Machine], Watched]:
    return lambda machine: Watched(
        follower(FastLoop(machine.config, machine.policy), machine), reached
    )


def bare(reached: Reached) -> None:
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


def ours(reached: Reached) -> None:
    """Our machine under Hypothesis."""
    kind = machine_class(CONFIG, POLICY, properties=(), following=beside(reached))
    run_state_machine_as_test(seed(0)(kind), settings=SEARCH)


def walks(reached: Reached) -> None:
    """Our walks, every other one back to what is rare."""
    guide = Guide(fixed=frozenset(("max_num_batched_tokens", "num_blocks", "max_num_seqs")))
    for number in range(RUNS):
        walk = Wanderer(number, (), CONFIG, POLICY, following=beside(reached), guide=guide).go(
            MOVES
        )
        guide.learn(walk)


@pytest.mark.parametrize("drive", [bare, ours, walks], ids=lambda drive: drive.__name__)
def test_fuzzing_goes_far(benchmark: Benchmark, drive: Callable[[Reached], None]) -> None:
    rates: list[tuple[float, float]] = []

    def go() -> None:
        reached, begun = Reached(), process_time()
        drive(reached)
        spent = process_time() - begun - reached.looking
        rates.append((reached.effective / spent, len(reached.states) / spent))

    benchmark.pedantic(go, rounds=3)
    effective, states = sorted(rates)[len(rates) // 2]
    benchmark.extra_info["effective steps per CPU second"] = round(effective)
    benchmark.extra_info["canonical states per CPU second"] = round(states)
    print(
        f"\n{drive.__name__}: {effective:,.0f} effective steps, {states:,.0f} states a CPU second"
    )
    assert states > 0
