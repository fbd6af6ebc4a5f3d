"""The fast engine refines the specification: along random programs, recordings and long prompts."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from servecheck.engines.fast import FastEngine, abstraction, from_state
from servecheck.engines.fast.adapters import FastCache, FastLoop
from servecheck.engines.fast.pool import FastPool
from servecheck.engines.fast.refine import Refinement
from servecheck.engines.fast.trie import Names
from servecheck.fuzz.machine import Tally, machine_class
from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.wander import Wanderer
from servecheck.lockstep.follow import Follower, follower
from servecheck.recording import read_recording
from servecheck.recording.replay import config_of, policy_of, replay
from servespec.actions import Abort, Complete, Discard, Output, Schedule, Submit
from servespec.chain import PUBLIC
from servespec.config import Config
from servespec.errors import ActionDisabled
from servespec.machine import Machine
from servespec.plan import State
from servespec.policy import VLLM_0_33
from servespec.properties import Step, step_of
from servespec.properties.reports import without_ghosts
from tests import recordings

WHOLE = ["toy_edges", "toy_giveback", "spec_tight", "spec_prio", "spec_abort", "toy_reset"]


def test_ref_1_and_ref_2_along_random_programs() -> None:
    """Hypothesis draws sizes, choices and programs; no property is asked, the engine only."""
    tally = Tally()
    kind = machine_class(properties=(), tally=tally, following=Refinement)
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert tally.steps > 1000
    assert len(tally.worlds) > 10


@pytest.mark.parametrize("seed", range(4))
def test_ref_1_and_ref_2_along_seeded_walks(seed: int) -> None:
    for walk in range(25):
        Wanderer(1000 * seed + walk, (), following=Refinement).go(50)


def beside(engine: type[FastLoop] | type[FastCache], machine: Machine) -> Follower:
    return follower(engine(machine.config, machine.policy), machine)


@pytest.mark.parametrize("engine", [FastLoop, FastCache])
def test_the_adapters_follow(engine: type[FastLoop] | type[FastCache]) -> None:
    for seed in range(25):
        Wanderer(seed, (), following=lambda machine: beside(engine, machine)).go(50)


@pytest.mark.parametrize("name", WHOLE)
def test_it_follows_the_recordings(name: str) -> None:
    recording = read_recording(recordings.prefix(name))
    machine = Machine(config_of(recording.config), policy_of(recording.config))
    engines = Refinement(machine)
    report = replay(
        recording,
        lambda before, action, moved: engines.follow(step_of(machine, before, action, moved)),
    )
    assert report.agreed == report.steps
    assert engines.done > report.steps


def test_a_broken_engine_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine whose hits stay in the free queue does not follow, and no property says so: the
    specification beside it is right."""

    def acquire(self: FastPool, hits: list[int]) -> None:
        for block in hits:
            self.ref[block] += 1

    monkeypatch.setattr(FastPool, "acquire", acquire)

    def walk() -> None:
        for seed in range(50):
            Wanderer(seed, (), following=lambda machine: beside(FastLoop, machine)).go(50)

    with pytest.raises(PropertyFell, match="LOCKSTEP"):
        walk()


# --- small stories ------------------------------------------------------------------------------

SMALL = Config(
    num_blocks=9, block_size=2, max_model_len=16, max_num_batched_tokens=8, max_num_seqs=4
)


def test_a_parent_that_was_evicted_comes_back() -> None:
    """Given a cached text of two blocks; when its first block is evicted and its text comes again,
    then the second block, which stayed, is found: a name is its content (IDX-2)."""
    pool = FastEngine(SMALL, VLLM_0_33).pool
    names = Names()
    pool.trie.extend(names, PUBLIC, [1, 2, 3, 4], 2)
    parent, child = table = pool.extend(2)
    pool.publish(table, names, 0, 2)
    pool.release(table)
    pool.trie.drop(names)
    others = [b for b in pool.queue() if b not in table]
    pool.refill([parent, *others, child])
    assert pool.extend(1) == [parent], "the parent is evicted, the child stays"
    again = Names()
    pool.trie.extend(again, PUBLIC, [1, 2, 3, 4], 2)
    assert pool.match(again, 2) == [], "a look-up ends at the first block that is not there"
    pool.publish(pool.extend(1), again, 0, 1)
    assert pool.match(again, 2)[1] == child


def test_what_the_machine_refuses_the_engine_refuses() -> None:
    machine = Machine(SMALL, VLLM_0_33)
    engines = Refinement(machine)
    state: State = machine.initial()
    for action in (Submit("a", (1, 2, 3), 2), Schedule()):
        moved = machine.apply(state, action)
        engines.follow(Step(machine, state, action, moved.state, moved.events))
        state = moved.state
    for misuse in (
        Submit("a", (1,), 1),
        Schedule(),
        Discard(),
        Complete(),
        Complete((Output("b", (1,)),)),
        Complete((Output("a", (1, 2)),)),
        Complete((Output("a", (1,), (5,)),)),
        Complete((Output("a", (1,)), Output("a", (1,)))),
    ):
        with pytest.raises(ActionDisabled):
            machine.apply(state, misuse)
        assert engines.refuses(misuse)


def test_an_engine_of_a_state_is_in_that_state() -> None:
    machine = Machine(SMALL, VLLM_0_33)
    state = machine.initial()
    for action in (
        Submit("a", (1, 2, 3), 4),
        Submit("b", (1, 2, 5), 4),
        Schedule(),
        Abort("a"),
    ):
        state = machine.apply(state, action).state
    bare = without_ghosts(state)
    assert abstraction(from_state(SMALL, VLLM_0_33, bare)) == bare


def test_a_prompt_of_131072_tokens() -> None:
    """One pass, one token, one end: per block, not per token."""
    sizes = Config(8300, 16, 140_000, 140_000, 4)
    engine = FastEngine(sizes, VLLM_0_33)
    engine.submit(Submit("long", tuple(i % 50_000 for i in range(131_072)), 1))
    plan = engine.schedule()
    assert [e.stop for e in plan.entries] == [131_072]
    engine.take_in([(7,)])
    assert engine.pool.free == 8299
    assert sum(run is not None for run in engine.pool.trie.carried) == 8192
