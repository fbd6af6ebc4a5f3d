"""The refinement as a checker: what it finds, in which of its three engines, and what it says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attrs import evolve

from servecheck.engines.fast.abstraction import from_state
from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.refine import PARTS, Refinement, unsound
from servecheck.engines.fast.text import Text
from servecheck.engines.fast.trie import Run
from servecheck.lockstep.compare import Difference
from servecheck.lockstep.follow import Diverged
from servespec.actions import Abort, Action, Complete, Output, Schedule, Submit
from servespec.chain import PUBLIC
from servespec.config import Config
from servespec.events import Event, Submitted
from servespec.machine import Machine
from servespec.plan import State
from servespec.policy import VLLM_0_33, Policy
from servespec.properties import step_of

SIZES = Config(
    num_blocks=9, block_size=2, max_model_len=16, max_num_batched_tokens=8, max_num_seqs=4
)
MACHINE = Machine(SIZES, VLLM_0_33)
A, B = Submit("a", (1, 2, 3), 9), Submit("b", (1, 2, 5), 9)
PROGRAM = (A, Schedule(), Complete((Output("a", (4,)),)), B, Schedule())
BOTH = Complete((Output("a", (5,)), Output("b", (6,))))


def along(engines: Refinement, state: State, *actions: Action) -> State:
    """The state after these actions, which the engines have followed."""
    for action in actions:
        step = step_of(MACHINE, state, action, MACHINE.apply(state, action))
        engines.follow(step)
        state = step.after
    return state


def found(engines: Refinement, state: State, *actions: Action) -> tuple[Difference, ...]:
    """What the engines are told to do wrong along these actions, the last of which shows it."""
    state = along(engines, state, *actions[:-1])
    with pytest.raises(Diverged) as told:
        along(engines, state, actions[-1])
    assert told.value.divergence.number == len(actions) - 1
    return told.value.divergence.differences


def test_it_counts_what_it_has_followed_and_compared() -> None:
    engines = Refinement(MACHINE)
    along(engines, MACHINE.initial(), *PROGRAM)
    assert engines.done == 5
    assert engines.comparison.compared == {
        f"{name}: {part}": 5 for name in ("REF-1", "REF-2") for part in ("events", *PARTS)
    }


def test_a_new_young_engine_is_built_every_few_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given one that builds an engine every third action; then it does before the first, the fourth
    and the seventh, from the state that is there."""
    built: list[State] = []

    def build(config: Config, policy: Policy, state: State) -> FastEngine:
        built.append(state)
        return from_state(config, policy, state)

    monkeypatch.setattr("servecheck.engines.fast.refine.from_state", build)
    engines = Refinement(MACHINE, fresh=3)
    state, after = MACHINE.initial(), []
    for action in (*PROGRAM, BOTH, Schedule()):
        state = along(engines, state, action)
        after.append(len(built))
    assert after == [1, 1, 1, 2, 2, 2, 3]
    assert [[r.id for r in there.live] for there in built] == [[], ["a"], ["a", "b"]]


def test_an_engine_that_tells_what_did_not_happen_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By each that tells; what was said, and what was told, are both named."""

    def events(engine: FastEngine) -> tuple[Event, ...]:
        engine.log.clear()
        return (Submitted("x"),)

    monkeypatch.setattr(FastEngine, "events", events)
    assert found(Refinement(MACHINE), MACHINE.initial(), A) == (
        Difference("REF-1: events", (Submitted("a"),), (Submitted("x"),)),
        Difference("REF-2: events", (Submitted("a"),), (Submitted("x"),)),
    )


def test_a_fault_of_an_engine_that_tells_little_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given an engine that forgets its seats where nobody reads its log; then the third one finds
    it, and the two that tell all are right."""
    schedule = FastEngine.schedule

    def forgets(engine: FastEngine) -> object:
        plan = schedule(engine)
        if not engine.tells:
            engine.running.clear()
        return plan

    monkeypatch.setattr(FastEngine, "schedule", forgets)
    told = found(Refinement(MACHINE), MACHINE.initial(), A, Schedule())
    assert [difference.field for difference in told] == ["REF-1, telling little: running"]


def test_what_is_not_refused_is_told() -> None:
    """A refusal leaves the engine as it was; what it does all the same is none."""
    engines = Refinement(MACHINE)
    along(engines, MACHINE.initial(), *PROGRAM)
    assert engines.refuses(Schedule())
    assert not engines.refuses(Abort("a"))


# --- another way from here -----------------------------------------------------------------


@pytest.mark.parametrize("fresh", [1, 2, 9])
def test_a_branch_goes_another_way_and_leaves_the_engines_alone(fresh: int) -> None:
    """Given engines that have come some way, with a plan in flight; when a branch of them goes one
    way, then they still stand where they stood, and go another; and so does a branch of each."""
    engines = Refinement(MACHINE, fresh=fresh)
    state = along(engines, MACHINE.initial(), *PROGRAM)
    branch = engines.branch()
    assert branch.done == engines.done == 5
    there = along(branch, state, BOTH, Schedule())
    here = along(engines, state, Abort("b"), B, Complete((Output("a", (7,)),)), Schedule())
    assert (branch.done, engines.done) == (7, 9)
    assert [r.output for r in there.running] == [(4, 5), (6,)]
    assert [r.output for r in here.running] == [(4, 7), ()]
    along(branch.branch(), there, Abort("a"), Abort("b"))
    along(branch, there, Complete((Output("a", (8,)), Output("b", (9,)))))


def test_a_branch_copies_what_moves_and_nothing_else() -> None:
    """Sizes, choices and what they say are the same objects: there are as many branches as
    transitions."""
    engines = Refinement(MACHINE)
    along(engines, MACHINE.initial(), *PROGRAM)
    branch = engines.branch()
    for mine, theirs in (
        (engines.old, branch.old),
        (engines.young, branch.young),
        (engines.quiet, branch.quiet),
    ):
        assert theirs is not mine
        assert theirs.pool is not mine.pool
        assert theirs.config is mine.config
        assert theirs.policy is mine.policy
        assert theirs.machine is mine.machine
    assert branch.comparison is engines.comparison


def test_a_branch_does_not_copy_who_is_built_anew_anyhow() -> None:
    engines = Refinement(MACHINE, fresh=5)
    along(engines, MACHINE.initial(), *PROGRAM)
    assert engines.branch().young is engines.young


# --- places that nothing needs -------------------------------------------------------------


def kept(blocks: int, of: int) -> Iterator[Difference]:
    """What is said of a run of `of` places, of which the first are there, and nobody's text goes
    that way."""
    engine = FastEngine(evolve(SIZES, max_model_len=32), VLLM_0_33)
    trie = engine.pool.trie
    root = trie.roots[PUBLIC] = Run(None, (), Text(None, 0, PUBLIC, 2, []), 0, [])
    there = [*range(1, blocks + 1), *[-1] * (of - blocks)]
    run = Run(root, (1, 1), Text(root.text, 0, PUBLIC, 2, [1] * 2 * of), 0, there)
    root.children[run.key] = run
    for block in range(1, blocks + 1):
        trie.carried[block], trie.places[block] = run, block - 1
    return unsound(engine)


@pytest.mark.parametrize(("blocks", "most"), [(1, 2), (2, 4), (3, 6)])
def test_a_run_may_keep_as_many_empty_places_as_others(blocks: int, most: int) -> None:
    assert list(kept(blocks, blocks)) == []
    assert list(kept(blocks, most)) == []
    too_many = Difference("places that nothing needs", blocks, most + 1)
    assert list(kept(blocks, most + 1)) == [too_many]


def test_a_run_without_places_is_one_that_nothing_needs() -> None:
    assert list(kept(0, 0)) == [
        Difference("first block of a run", (1, 1), ()),
        Difference("places that nothing needs", 0, 0),
    ]
