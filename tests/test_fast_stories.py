"""The fast engine beside stories that are told of the machine, and small stories of its parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve

from servecheck.engines.fast.adapters import FastCache, FastLoop
from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.pool import FastPool
from servecheck.engines.fast.refine import Refinement
from servecheck.engines.fast.trie import Names
from servespec.actions import Abort, Action, Complete, Output, ResetCache, Schedule, Submit
from servespec.chain import PUBLIC, keys
from servespec.config import Config
from servespec.errors import ActionDisabled
from servespec.events import Event
from servespec.machine import Machine
from servespec.plan import State
from servespec.policy import (
    VLLM_0_33,
    Admission,
    Lookup,
    Policy,
    Publish,
    Release,
    StepMix,
    Victim,
    prioritised,
)
from servespec.properties import step_of
from tests import test_policy, test_rules
from tests.test_bad_input import MISUSES, Misuse, complaint, machine

SMALL = Config(
    num_blocks=9, block_size=2, max_model_len=16, max_num_batched_tokens=8, max_num_seqs=4
)
Loop = test_rules.Loop | test_policy.Loop


# --- the engine goes beside a story ------------------------------------------------------------


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> list[Refinement]:
    """Whatever loops of stories do, the fast engine does with them. Who has gone along."""
    engines: dict[int, tuple[Loop, Refinement]] = {}

    def do(loop: Loop, action: Action) -> tuple[Event, ...]:
        if id(loop) not in engines:
            engines[id(loop)] = loop, Refinement(loop.machine, fresh=2)
            gone.append(engines[id(loop)][1])
        moved = loop.machine.apply(loop.state, action)
        engines[id(loop)][1].follow(step_of(loop.machine, loop.state, action, moved))
        loop.state, loop.events = moved.state, moved.events
        return moved.events

    gone: list[Refinement] = []
    monkeypatch.setattr(test_rules.Loop, "do", do)
    monkeypatch.setattr(test_policy.Loop, "do", do)
    return gone


TOLD = {
    name.removeprefix("test_"): story
    for name, story in vars(test_rules).items()
    if name.startswith(("test_rule_", "test_surprise_"))
}
OF_PARTS = {
    "rule_08_a_table_is_freed_from_its_end",
    "rule_11_a_look_up_stops_at_the_first_miss",
    "surprise_s7_a_threshold_that_cuts_the_padding_is_refused",
}
"""Stories of the pool or of sizes alone, without a loop."""
STEPS_BACK = "rule_12_an_idle_hit_costs_a_free_block"
"""A story that goes on twice from one state, which no engine does."""


@pytest.mark.parametrize("name", sorted(TOLD.keys() - {STEPS_BACK}))
def test_the_engine_goes_beside_the_story_of_a_rule(name: str, beside: list[Refinement]) -> None:
    TOLD[name]()
    assert bool(beside) == (name not in OF_PARTS)


@pytest.mark.parametrize(("story", "value"), test_policy.PLAYED)
def test_the_engine_goes_beside_the_story_of_a_choice(
    story: test_policy.Story, value: object, beside: list[Refinement]
) -> None:
    assert story.under(value) == story.outcomes[value]
    assert beside


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_the_engine_refuses_what_the_machine_refuses_in_the_same_words(misuse: Misuse) -> None:
    loop = machine(misuse.policy, num_speculative_tokens=misuse.gamma)
    engine = FastEngine(loop.config, loop.policy)
    for action in misuse.before:
        engine.apply(action)
    said = complaint(ActionDisabled, lambda: engine.apply(misuse.action))
    assert said == (misuse.where, misuse.what, misuse.remedy)


def along(machine: Machine, *actions: Action) -> tuple[State, Refinement]:
    """The state after these actions, and the engines beside the machine."""
    engines = Refinement(machine)
    return followed(engines, machine.initial(), *actions), engines


def followed(engines: Refinement, state: State, *actions: Action) -> State:
    """The state after these actions, which the engines have followed."""
    for action in actions:
        moved = engines.machine.apply(state, action)
        engines.follow(step_of(engines.machine, state, action, moved))
        state = moved.state
    return state


# --- passes ------------------------------------------------------------------------------------


def test_a_pass_that_admits_extends_nobody_however_little_it_would_cost() -> None:
    """Given one that decodes in the middle of a block, and admissions that go first; when another
    is admitted, then the first waits for the next pass."""
    first = Machine(evolve(SMALL, block_size=8), evolve(VLLM_0_33, step_mix=StepMix.PREFILL_FIRST))
    once = Submit("a", (1, 2), 9), Schedule(), Complete((Output("a", (7,)),)), Schedule()
    admits = Complete((Output("a", (8,)),)), Submit("b", (3, 4), 9), Schedule()
    state, _ = along(first, *once, *admits)
    assert [entry.id for entry in state.in_flight[0].entries] == ["b"]
    assert {r.id: r.computed for r in state.running} == {"a": 3, "b": 2}


def test_where_nobody_gives_way_each_one_is_asked() -> None:
    """Given three that decode, no free block, and no victims; when two find no room, then both are
    passed over, and the third, which needs none, goes on."""
    waits = Machine(evolve(SMALL, num_blocks=5), evolve(VLLM_0_33, victim=Victim.NONE))
    three = Submit("a", (1, 2), 9), Submit("b", (3, 4), 9), Submit("c", (5, 6, 7), 9), Schedule()
    done = Complete(tuple(Output(i, (9,)) for i in "abc"))
    state, _ = along(waits, *three, done, Schedule())
    assert [entry.id for entry in state.in_flight[0].entries] == ["c"]


def test_what_is_promised_is_promised_in_whole_blocks() -> None:
    """Given requests that may come to use three and a half blocks each, and eleven blocks; when two
    run, with two blocks each and the promise of two more, then the third finds no room: seven
    blocks are free, and it may need four."""
    whole = evolve(VLLM_0_33, admission=Admission.WHOLE_REQUEST)
    sizes = evolve(SMALL, num_blocks=12, max_model_len=7, max_num_batched_tokens=16)
    submits = [Submit(name, (at, at, at), 5) for at, name in enumerate("abc")]
    state, _ = along(Machine(sizes, whole), *submits, Schedule())
    assert [r.id for r in state.running] == ["a", "b"]
    assert len(state.pool.free) == 7


def test_who_gives_way_unscheduled_gives_no_token_back() -> None:
    """Given three tokens a pass, and a, b and c that decode, b with two drafts; when a needs a
    block and c gives way for it, then b, behind a, gets the two tokens that are left."""
    sizes = Config(4, 4, 16, 3, 4, num_speculative_tokens=2)
    three = Submit("a", (1, 1, 1, 1), 9), Submit("b", (2,), 9), Submit("c", (3,), 9)
    whole = Complete((Output("a", (7,)), Output("b", (7,), (8, 9)), Output("c", (7,))))
    state, _ = along(
        Machine(sizes, VLLM_0_33), *three, Schedule(), Complete(), Schedule(), whole, Schedule()
    )
    assert [(e.id, len(e.tokens)) for e in state.in_flight[0].entries] == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(("prompt", "counted"), [(9, True), (13, False)])
def test_who_gives_way_after_it_was_planned_gives_its_token_back(
    prompt: int, counted: bool
) -> None:
    """Given eight tokens a pass; low, of the worst priority, decodes, high needs a block, and mid
    is in its prompt. Low is planned first, with one token, in passing or, where that fills a block,
    with an entry of its own; it gives way to high, and mid gets seven tokens: all but high's."""
    policy = evolve(prioritised(VLLM_0_33), admission=Admission.STEP)
    low = Submit("low", (1,) * prompt, 9, priority=2), Schedule(), Complete(), Schedule()
    high = Submit("high", (2,) * 8, 9, priority=0), Schedule()
    mid = Submit("mid", (3,) * 20, 9, priority=1), Schedule()
    state, engines = along(
        Machine(Config(5, 8, 32, 8, 4), policy),
        *(*low, Complete((Output("low", (7,)),))),
        *(*high, Complete((Output("low", (7,)),))),
        *(*mid, Complete((Output("low", (7,)), Output("high", (7,))))),
    )
    assert {r.id: r.computed for r in state.running} == {"low": prompt + 2, "high": 8, "mid": 6}
    request = engines.old.requests["low"]
    assert (request.computed < request.steady) == counted
    state = followed(engines, state, Schedule())
    assert [(e.id, len(e.tokens)) for e in state.in_flight[0].entries] == [("high", 1), ("mid", 7)]


# --- who leaves while a plan is in flight --------------------------------------------------


DEFERRED = evolve(VLLM_0_33, release=Release.DEFERRED)


@pytest.mark.parametrize("policy", [VLLM_0_33, DEFERRED])
def test_who_was_sent_back_may_leave_as_well(policy: Policy) -> None:
    """Given two in flight; when a reset sends both back, if it may, and one leaves, or who only
    waits leaves, then the step still writes through the tables that it was planned with."""
    both = Submit("a", (1, 2, 3), 9), Submit("b", (4, 5), 9), Schedule()
    waits = Submit("c", (6, 7), 9), Abort("c")
    leaves = ResetCache(True), Abort("a"), Abort("b")
    state, _ = along(Machine(SMALL, policy), *both, *waits, *leaves)
    assert [entry.table for entry in state.in_flight[0].entries] == [(1, 2), (3,)]
    assert [entry.cancelled for entry in state.in_flight[0].entries] == [True, True]
    held = 0 if policy is VLLM_0_33 else 3
    assert len(state.pool.free) == 8 - held
    done, _ = along(Machine(SMALL, policy), *both, *waits, *leaves, Complete())
    assert len(done.pool.free) == 8


# --- plans -------------------------------------------------------------------------------------


def test_a_plan_says_what_was_fed_also_when_its_output_is_there() -> None:
    """Given a token and two drafts in flight; when one draft is accepted, then the plan still says
    that three tokens were fed, though the text has grown."""
    engine = FastEngine(evolve(SMALL, num_speculative_tokens=2), VLLM_0_33)
    engine.apply(Submit("a", (1, 2, 3), 9))
    engine.schedule()
    engine.complete([Output("a", (4,), (5, 6))])
    plan = engine.schedule()
    assert [entry.tokens for entry in plan.entries] == [(4, 5, 6)]
    engine.complete([Output("a", (5, 9))])
    assert [entry.tokens for entry in plan.entries] == [(4, 5, 6)]


def test_a_decode_that_is_only_counted_is_due_a_token() -> None:
    """Given one that decodes in the middle of a block; when nothing is brought for it, then that is
    refused, and the plan is still in flight."""
    engine = FastEngine(evolve(SMALL, block_size=8), VLLM_0_33)
    engine.apply(Submit("a", (1, 2), 9))
    engine.schedule()
    engine.take_in([(7,)])
    plan = engine.schedule()
    assert plan.details == [None]
    assert plan.yields == [True]
    with pytest.raises(ActionDisabled, match="request 'a' has 0 tokens"):
        engine.take_in([()])
    engine.take_in([(8,)])
    assert engine.requests["a"].text == [1, 2, 7, 8]


# --- the pool ----------------------------------------------------------------------------------


def a_pool() -> FastPool:
    """Block 1 is held and published, 2 is held without a name, 3 and 4 are free."""
    pool = FastPool(evolve(SMALL, num_blocks=5), VLLM_0_33, [])
    pool.publish(pool.extend(2), text(pool, 1, 2), 0, 1)
    return pool


def text(pool: FastPool, *tokens: int) -> Names:
    names = Names()
    pool.trie.extend(names, PUBLIC, list(tokens), 2)
    return names


def publish_what_was_let_go(pool: FastPool) -> None:
    pool.release([1])
    pool.publish([1], text(pool, 5, 6), 0, 1)


ONCE = "free or published", "publish each block once"
POOL_MISUSES: dict[str, tuple[Callable[[FastPool], object], tuple[str, str, str]]] = {
    "publish a free block": (
        lambda pool: pool.publish([3], text(pool, 5, 6), 0, 1),
        ("publish", f"block 3 is {ONCE[0]}", ONCE[1]),
    ),
    "publish a published block": (
        lambda pool: pool.publish([1], text(pool, 5, 6), 0, 1),
        ("publish", f"block 1 is {ONCE[0]}", ONCE[1]),
    ),
    "publish a block that is cached and free": (
        publish_what_was_let_go,
        ("publish", f"block 1 is {ONCE[0]}", ONCE[1]),
    ),
    "release a free block": (
        lambda pool: pool.release([3]),
        ("release", "block 3 is free", "release what a table holds"),
    ),
    "take too many": (
        lambda pool: pool.extend(3),
        ("extend", "3 blocks of 2 free ones", "ask for the demand first"),
    ),
    "clear while blocks are held": (
        lambda pool: pool.clear(),
        ("clear", "blocks are held", "release all tables first"),
    ),
}


@pytest.mark.parametrize(("ask", "said"), POOL_MISUSES.values(), ids=POOL_MISUSES)
def test_a_verb_of_the_pool_is_misused(
    ask: Callable[[FastPool], object], said: tuple[str, str, str]
) -> None:
    pool = a_pool()
    assert complaint(ActionDisabled, lambda: ask(pool)) == said


@pytest.mark.parametrize(("lookup", "found"), [(Lookup.OLDEST, [1]), (Lookup.NEWEST, [2])])
def test_policy_says_which_copy_is_found(lookup: Lookup, found: list[int]) -> None:
    pool = FastPool(SMALL, evolve(VLLM_0_33, lookup=lookup), [])
    names = text(pool, 1, 2)
    for block in pool.extend(2):
        pool.publish([block], names, 0, 1)
    assert pool.match(names, 1) == found


# --- adapters ----------------------------------------------------------------------------------


def test_a_cache_publishes_as_much_of_a_table_as_it_is_told() -> None:
    """Given a table of three blocks; when its second is published, then it alone has a name."""
    cache = FastCache(SMALL, VLLM_0_33)
    table = cache.extend(3)
    cache.publish(table, PUBLIC, (1, 2, 3, 4, 5, 6), 1, 2)
    index = cache.see_pool().index
    assert index is not None
    assert [(c.key, c.blocks) for c in index] == [(keys(PUBLIC, (1, 2, 3, 4), 2)[1], (table[1],))]


def test_a_loop_says_whether_it_was_reset() -> None:
    """Given blocks that are held; then a reset is refused, and it is not once they are let go."""
    loop = FastLoop(SMALL, evolve(VLLM_0_33, publish=Publish.AFTER_STEP))
    assert loop.submit(Submit("a", (1, 2), 2))
    assert loop.reset_cache(False)
    loop.schedule()
    assert not loop.reset_cache(False)
    loop.discard()
    assert loop.abort("a")
    assert loop.reset_cache(False)
