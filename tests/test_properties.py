"""Properties answer whatever they are asked, excuse what happened and nothing else, and hold on all
that was recorded.

Steps may come from somebody's engine: here real ones are spoilt, one thing at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest
from attrs import evolve, fields
from hypothesis import example, given, settings
from hypothesis import strategies as st

from servecheck.fuzz.draw import Chance, Seeded, pick
from servecheck.fuzz.wander import Wanderer
from servecheck.recording import read_recording
from servecheck.recording.replay import replay
from servecheck.recording.settings import config_of, policy_of
from servecheck.trace.lasso import WATCHED
from servecheck.trace.read import read_trace
from servecheck.watch import Watch
from servespec.actions import Output, Submit
from servespec.chain import Namespace, chain
from servespec.config import Config
from servespec.events import (
    Admitted,
    BlockRemoved,
    BlockStored,
    Delivered,
    Event,
    Finished,
    Preempted,
    Reason,
    Scheduled,
    Skipped,
    Submitted,
)
from servespec.machine import (
    Abort,
    Action,
    Complete,
    Discard,
    Machine,
    ResetCache,
    Schedule,
    Transition,
)
from servespec.plan import Plan, Planned, State
from servespec.policy import (
    MINIATURE,
    VLLM_0_33,
    AfterPreemption,
    FreeWalk,
    Policy,
    Publish,
    StepMix,
    Unhashed,
    Victim,
    prioritised,
)
from servespec.pool import Block, Index, Pool
from servespec.properties import (
    HELD,
    PROPERTIES,
    VACUOUS,
    Fall,
    Kind,
    Monitor,
    Outcome,
    Step,
    step_of,
)
from servespec.properties.base import (
    REGISTRY,
    Answer,
    monitor_property,
    state_property,
    step_property,
)
from servespec.properties.budget import (
    drafts_before_the_left_out,
    overtaken_after_giving_way,
    overtaken_by_prefill,
    overtaken_for_want_of_blocks,
)
from servespec.properties.content import own_text, published_and_unscheduled
from servespec.properties.folded import Folded, folded, folded_property
from servespec.request import Request
from tests.recordings import prefix
from tests.test_recordings import SIZES
from tests.test_trace import FALLS

WALKS, MOVES = 12, 25


@cache
def real_steps() -> tuple[Step, ...]:
    """Every step of some walks."""
    found = []
    for seed in range(WALKS):
        walk = Wanderer(seed, ()).go(MOVES)
        state = walk.machine.initial()
        for action in walk.actions:
            step = step_of(walk.machine, state, action, walk.machine.apply(state, action))
            found.append(step)
            state = step.after
    return tuple(found)


def answers(step: Step) -> dict[str, Outcome]:
    """What each property says of one step."""
    return {
        name: asked.start(step.machine, step.before).after(step)[1]
        for name, asked in WATCHED.items()
    }


def run(machine: Machine, *actions: Action) -> list[Step]:
    """The steps of a run."""
    state, steps = machine.initial(), []
    for action in actions:
        steps.append(step_of(machine, state, action, machine.apply(state, action)))
        state = steps[-1].after
    return steps


# --- What was recorded ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIZES)
def test_on_a_recording_nothing_falls_that_is_not_known(name: str) -> None:
    recording = read_recording(prefix(name))
    machine = Machine(config_of(recording.config), policy_of(recording.config))
    watch = Watch(machine, machine.initial())
    fallen: list[str] = []

    def observe(before: State, action: Action, moved: Transition) -> None:
        fallen.extend(str(f) for f in watch.see(before, action, moved) if not f.known)

    assert replay(recording, observe).differences == ()
    assert fallen == []
    assert watch.checked.keys() >= {"TOK-1", "ADM-1", "QUE-1", "REQ-1", "PLAN-2", "PUB-1"}


# --- Steps that are none --------------------------------------------------------------------------

ALIEN = 99
Named = Submitted | Admitted | Scheduled | Skipped | Preempted | Finished | Delivered
STRAY: tuple[Named, ...] = (
    Submitted("nobody"),
    Admitted("nobody", 0, (1,)),
    Scheduled("nobody", 1, 0, (1,)),
    Skipped("nobody", Reason.NO_ROOM),
    Preempted("nobody"),
    Finished("nobody", Reason.STOP),
    Delivered("nobody", 0, (1,)),
)
OTHER_ACTIONS: tuple[Action, ...] = (
    Schedule(),
    Complete(),
    Complete((Output("nobody", (0,)),)),
    Discard(),
    Abort("nobody"),
    ResetCache(True),
    Submit("nobody", (0,), 1),
)

Spoil = Callable[[Step, Chance], Step]


def told(step: Step, *events: Event) -> Step:
    return Step(step.machine, step.before, step.action, step.after, events)


def a_stray_event(step: Step, chance: Chance) -> Step:
    """Something is told of nobody, or of somebody who was here."""
    at, event = chance.below(len(step.events) + 1), pick(chance, STRAY)
    if chance.below(2) and step.before.live:
        event = evolve(event, id=pick(chance, step.before.live).id)
    return told(step, *step.events[:at], event, *step.events[at:])


def an_event_lost_or_doubled(step: Step, chance: Chance) -> Step:
    if not step.events:
        return step
    at = chance.below(len(step.events))
    again = step.events[at : at + 1] * (2 * chance.below(2))
    return told(step, *step.events[:at], *again, *step.events[at + 1 :])


def events_in_another_order(step: Step, chance: Chance) -> Step:
    at = chance.below(len(step.events) + 1)
    return told(step, *step.events[at:], *step.events[:at])


def another_number_in_an_event(step: Step, chance: Chance) -> Step:
    if not step.events:
        return step
    at = chance.below(len(step.events))
    spoilt: Event = step.events[at]
    match spoilt:
        case Admitted():
            spoilt = evolve(spoilt, hit_tokens=ALIEN, blocks=(*spoilt.blocks[1:], ALIEN))
        case Scheduled():
            spoilt = evolve(spoilt, tokens=spoilt.tokens - 2, drafts=ALIEN, new_blocks=(ALIEN, -1))
        case BlockStored() | BlockRemoved():
            spoilt = evolve(spoilt, block=ALIEN)
        case Delivered():
            spoilt = evolve(spoilt, first_position=ALIEN, tokens=())
    return told(step, *step.events[:at], spoilt, *step.events[at + 1 :])


def another_action(step: Step, chance: Chance) -> Step:
    action = pick(chance, OTHER_ACTIONS)
    return Step(step.machine, step.before, action, step.after, step.events)


def a_spoilt_state(step: Step, chance: Chance) -> Step:
    spoil = pick(chance, STATES)
    if chance.below(2):
        before = spoil(step.before, chance)
        return Step(step.machine, before, step.action, step.after, step.events)
    after = spoil(step.after, chance)
    return Step(step.machine, step.before, step.action, after, step.events)


def another_request(state: State, chance: Chance) -> State:
    """Its books are not its own."""
    if not state.running:
        return state
    at = chance.below(len(state.running))
    r = state.running[at]
    spoilt: tuple[Request, ...] = (
        evolve(r, table=(*r.table, ALIEN)),
        evolve(r, table=(-1, *r.table)),
        evolve(r, table=r.table[:-1]),
        evolve(r, computed=r.computed + ALIEN),
        evolve(r, computed=-1),
        evolve(r, published=ALIEN),
        evolve(r, keys=r.keys[1:]),
        evolve(r, output=(*r.output, 1)),
        evolve(r, id="nobody"),
    )
    running = (*state.running[:at], pick(chance, spoilt), *state.running[at + 1 :])
    return evolve(state, running=running)


def another_queue(state: State, chance: Chance) -> State:
    queues = (
        evolve(state, running=state.running * 2),
        evolve(state, waiting=state.running),
        evolve(state, waiting=(), running=()),
        evolve(state, running=state.waiting, waiting=state.running),
    )
    return pick(chance, queues)


def another_pool(state: State, chance: Chance) -> State:
    pool = state.pool
    pools = (
        Pool(pool.blocks, (*pool.free, ALIEN), pool.index),
        Pool(pool.blocks, (*pool.free, -1), pool.index),
        Pool(pool.blocks, pool.free[1:], pool.index),
        Pool(pool.blocks, pool.free * 2, pool.index),
        Pool(pool.blocks[1:], pool.free, pool.index),
        Pool(pool.blocks, pool.free, Index()),
        Pool(pool.blocks, pool.free, Index(dict.fromkeys(pool.index.copies, (ALIEN,)))),
        Pool(pool.blocks, pool.free, Index(dict.fromkeys(pool.index.copies, ()))),
        Pool(tuple(Block(0, b.key) for b in pool.blocks), pool.free, pool.index),
        Pool(tuple(Block(b.ref_count) for b in pool.blocks), pool.free, pool.index),
    )
    return evolve(state, pool=pick(chance, pools))


def other_plans(state: State, chance: Chance) -> State:
    if not state.in_flight:
        return evolve(state, in_flight=(Plan(deferred=((ALIEN,),)),))
    entries = state.in_flight[0].entries
    plans = (
        (),
        (Plan(),),
        (Plan(entries[1:]),),
        (Plan(entries * 2),),
        (Plan(tuple(evolve(e, table=e.table[:-1]) for e in entries)),),
        (Plan(tuple(evolve(e, table=(ALIEN,)) for e in entries)),),
        (Plan(tuple(evolve(e, tokens=()) for e in entries)),),
        (Plan(tuple(evolve(e, start=e.start + ALIEN) for e in entries)),),
        (Plan(tuple(evolve(e, id="nobody") for e in entries)),),
        (Plan(tuple(evolve(e, new_blocks=ALIEN) for e in entries)),),
        (Plan(tuple(evolve(e, drafts=(1,) * 4, yields=not e.yields) for e in entries)),),
    )
    return evolve(state, in_flight=pick(chance, plans))


STATES = (another_request, another_queue, another_pool, other_plans)
SPOILS: tuple[Spoil, ...] = (
    a_stray_event,
    an_event_lost_or_doubled,
    events_in_another_order,
    another_number_in_an_event,
    another_action,
    a_spoilt_state,
)


@settings(max_examples=40)
@given(st.integers(0, 2**64), st.integers(1, 2))
@example(0, 1)
def test_every_property_answers_whatever_it_is_asked(seed: int, faults: int) -> None:
    """Each seed spoils some fifty steps."""
    chance = Seeded(seed)
    for _ in range(50):
        step = pick(chance, real_steps())
        for _ in range(faults):
            step = pick(chance, SPOILS)(step, chance)
        for name, outcome in answers(step).items():
            assert outcome in (HELD, VACUOUS) or isinstance(outcome, Fall), name
        Watch(step.machine, step.before, WATCHED.values()).see_step(step)


def test_real_steps_fall_where_they_are_known_to_and_spoilt_ones_are_noticed() -> None:
    chance, noticed, changed = Seeded(1), 0, 0
    for step in real_steps()[::3]:
        fine = {name for name, outcome in answers(step).items() if isinstance(outcome, Fall)}
        assert fine <= {"EVI-1", "BUD-2"}
        spoilt = pick(chance, SPOILS)(step, chance)
        if spoilt != step:
            changed += 1
            fell = {name for name, outcome in answers(spoilt).items() if isinstance(outcome, Fall)}
            noticed += bool(fell - fine)
    assert changed > 100
    assert noticed / changed > 0.9  # what is left: an event more of what an event says already


MALFORMED: tuple[tuple[str, Callable[[Step], Step], str], ...] = (
    (
        "victim unknown",
        lambda s: told(s, *s.events, Preempted("x")),
        "x was preempted, and does not",
    ),
    (
        "twice",
        lambda s: told(s, *s.events, Preempted("a"), Preempted("a")),
        "a was preempted, and does not stand where it must",
    ),
    (
        "no plan",
        lambda s: Step(s.machine, s.before, Schedule(), s.before, s.events),
        "Schedule with 0 plans in flight leaves 0",
    ),
    (
        "alien block",
        lambda s: Step(s.machine, s.before, s.action, alien(s.after), s.events),
        "blocks [99] are none of the pool",
    ),
    (
        "foreign event",
        lambda s: told(s, Delivered("a", 0, (1,))),
        "tells of no Schedule",
    ),
)


def alien(state: State) -> State:
    (r,) = state.running
    return evolve(state, running=(evolve(r, table=(*r.table, ALIEN)),))


@pytest.mark.parametrize(("name", "spoil", "problem"), MALFORMED, ids=[m[0] for m in MALFORMED])
def test_a_malformed_step_is_told_as_such(
    name: str, spoil: Callable[[Step], Step], problem: str
) -> None:
    step = run(Machine(Config(5, 2, 8, 16, 4), VLLM_0_33), Submit("a", (1, 2, 3), 2), Schedule())[1]
    assert not any(isinstance(outcome, Fall) for outcome in answers(step).values())
    fallen = answers(spoil(step))["LRU-3"]
    assert isinstance(fallen, Fall)
    assert problem in fallen.what


ENTRIES: tuple[tuple[str, dict[str, object], str], ...] = (
    ("no tokens", {"tokens": ()}, "a computes tokens () at 0, through the table (1, 2)"),
    (
        "before its text",
        {"start": -1},
        "a computes tokens (1, 2, 3) at -1, through the table (1, 2)",
    ),
    ("past its table", {"table": (1,)}, "a computes tokens (1, 2, 3) at 0, through the table (1,)"),
    ("no block", {"table": (1, 5)}, "blocks [5] are none of the pool"),
    ("a block below all", {"table": (-1, 1)}, "blocks [-1] are none of the pool"),
)


@pytest.mark.parametrize(("name", "wrong", "problem"), ENTRIES, ids=[e[0] for e in ENTRIES])
def test_a_plan_of_a_step_must_be_one(name: str, wrong: dict[str, object], problem: str) -> None:
    step = run(Machine(Config(5, 2, 8, 16, 4), VLLM_0_33), Submit("a", (1, 2, 3), 2), Schedule())[1]
    (plan,) = step.after.in_flight
    (entry,) = plan.entries
    after = evolve(step.after, in_flight=(Plan((remade(entry, wrong),)),))
    spoilt = Step(step.machine, step.before, step.action, after, step.events)
    assert spoilt.problem == problem
    assert folded(spoilt) == Folded(spoilt, (), (), {}, (), (), (), problem)
    for asked in WATCHED.values():
        assert asked.start(step.machine, step.before).after(spoilt)[1] == Fall(problem)


def remade(entry: Planned, other: dict[str, object]) -> Planned:
    make: Callable[..., Planned] = Planned
    return make(**{part.name: getattr(entry, part.name) for part in fields(Planned)} | other)


def test_a_step_that_fits_its_table_to_the_last_slot_is_one() -> None:
    """Three tokens in two blocks of two; a fourth would fit, and blocks 1 to 4 are there."""
    step = run(
        Machine(Config(5, 2, 8, 16, 4), VLLM_0_33), Submit("a", (1, 2, 3, 4), 2), Schedule()
    )[1]
    assert step.after.in_flight[0].entries[0].table == (1, 2)
    assert 4 in step.after.pool.free
    assert step.problem is None


@pytest.mark.parametrize(
    "wrong", [{"prompt": (1, 2, -3)}, {"prompt": ()}, {"max_tokens": 0}], ids=str
)
def test_a_request_that_nobody_could_submit_is_no_error_of_a_property(
    wrong: dict[str, object],
) -> None:
    """An engine may show any. LIV-1 asks whether it fits alone, and has an answer like the rest."""
    machine = Machine(Config(5, 2, 8, 16, 4), VLLM_0_33)
    step = run(machine, Submit("a", (1, 2, 3), 2), Schedule())[1]
    before, after = with_requests(step.before, wrong), with_requests(step.after, wrong)
    shown = Step(machine, before, step.action, after, step.events)
    for asked in WATCHED.values():
        went, outcome = asked.start(machine, before).after(shown)
        assert isinstance(outcome, Answer | Fall)
        assert isinstance(went.after(shown)[1], Answer | Fall)


def with_requests(state: State, other: dict[str, object]) -> State:
    make: Callable[..., Request] = Request
    waiting, running = (
        tuple(make(**{p.name: getattr(r, p.name) for p in fields(Request)} | other) for r in queue)
        for queue in (state.waiting, state.running)
    )
    return evolve(state, waiting=waiting, running=running)


def test_a_state_that_is_one_for_a_machine_need_not_be_one_for_another() -> None:
    """Four tokens go through two blocks, of two slots or of one: what is known of the last state
    that was looked at is known for its machine."""
    machine = Machine(Config(5, 2, 8, 16, 4), VLLM_0_33)
    steps = run(machine, Submit("a", (1, 2, 3, 4), 2), Schedule(), Complete((Output("a", (5,)),)))
    smaller = Machine(evolve(machine.config, block_size=1), machine.policy)
    assert steps[1].problem is None
    last = steps[2]
    other = Step(smaller, last.before, last.action, last.after, last.events)
    assert other.problem == "a computes tokens (1, 2, 3, 4) at 0, through the table (1, 2)"
    assert last.problem is None


def test_a_step_that_begins_with_no_state_is_none() -> None:
    """A pass leaves a state that is none, and an outcome begins with it: both are none, whatever
    was looked at before."""
    machine = Machine(Config(5, 2, 8, 16, 4), VLLM_0_33)
    steps = run(machine, Submit("a", (1, 2, 3), 2), Schedule(), Complete((Output("a", (5,)),)))
    problem = "blocks [99] are none of the pool"
    wrong, last = alien(steps[1].after), steps[2]
    for _ in range(2):
        led = Step(machine, steps[1].before, steps[1].action, wrong, steps[1].events)
        assert led.problem == problem
        assert Step(machine, wrong, last.action, last.after, last.events).problem == problem
        assert steps[1].problem is None


def test_every_plan_in_flight_is_looked_at() -> None:
    """Two are in flight, and the older one computes nothing."""
    machine = Machine(Config(5, 2, 8, 16, 4), VLLM_0_33)
    state = run(machine, Submit("a", (1, 2, 3), 2), Schedule())[-1].after
    (plan,) = state.in_flight
    empty = Plan((remade(plan.entries[0], {"tokens": ()}),))
    two = evolve(state, in_flight=(empty, plan))
    step = Step(machine, two, Abort("x"), two, ())
    assert step.problem == "a computes tokens () at 0, through the table (1, 2)"
    both = evolve(state, in_flight=(plan, plan))
    assert Step(machine, both, Abort("x"), both, ()).problem is None


def test_who_is_there_cannot_come() -> None:
    machine = Machine(Config(5, 2, 8, 16, 4), VLLM_0_33)
    *_, step = run(machine, Submit("a", (1, 2, 3), 2), Schedule())
    again = Submit("a", (1,), 1)
    came = Step(machine, step.after, again, step.after, (Submitted("a"),))
    fell = Fall("a came, and did not ask or was there")
    assert answers(came)["LRU-3"] == fell
    waits = Step(machine, step.before, again, step.before, (Submitted("a"),))
    assert answers(waits)["LRU-3"] == fell
    other = Step(machine, State(step.before.pool), again, step.before, (Submitted("b"),))
    assert answers(other)["LRU-3"] == Fall("b came, and did not ask or was there")


def test_an_admission_cannot_take_more_than_it_has() -> None:
    step = run(Machine(Config(5, 2, 8, 16, 4), VLLM_0_33), Submit("a", (1, 2, 3), 2), Schedule())[1]
    at = next(i for i, e in enumerate(step.events) if isinstance(e, Admitted))
    lie = told(step, *step.events[:at], Admitted("a", 0, (1,)), *step.events[at + 1 :])
    assert answers(lie)["LRU-3"] == Fall("a took more blocks than it has")


def test_a_worker_that_was_not_told_of_a_plan_says_so() -> None:
    machine = Machine(Config(5, 2, 8, 16, 4), VLLM_0_33)
    steps = run(machine, Submit("a", (1, 2, 3), 2), Schedule(), Complete((Output("a", (5,)),)))
    worker = PROPERTIES["PLAN-1"].start(machine, steps[0].before)
    same, fell = worker.after(steps[2])
    assert fell == Fall("the worker was told of 0 plans")
    assert same is worker


# --- What is excused ------------------------------------------------------------------------------


def seen(steps: list[Step]) -> list[list[tuple[str, bool]]]:
    """Of each step, what fell and whether that is known."""
    watch = Watch(steps[0].machine, steps[0].before, WATCHED.values())
    return [[(f.property.id, f.known) for f in watch.see_step(step)] for step in steps]


def spoilt_content(step: Step) -> Step:
    """The first block that is found holds nothing after this step."""
    pool = step.after.pool
    first = next(b for b, block in enumerate(pool.blocks) if block.key and block.content)
    there = pool.blocks[first]
    spoilt = (*pool.blocks[:first], Block(there.ref_count, there.key), *pool.blocks[first + 1 :])
    after = evolve(step.after, pool=Pool(spoilt, pool.free, pool.index))
    return Step(step.machine, step.before, step.action, after, step.events)


def test_content_is_excused_only_after_a_scheduled_victim() -> None:
    """The committed run: a pass un-schedules somebody whose blocks it had published. What is wrong
    with content before it is a fault; what is wrong after it is known."""
    trace = read_trace(FALLS / "CON-1.jsonl")
    steps = run(trace.machine, *trace.actions)
    victim = next(i for i, s in enumerate(steps) if any(isinstance(e, Preempted) for e in s.events))
    assert seen(steps)[victim] == [("CON-3", True)]
    wrong = spoilt_content(steps[victim - 1])
    assert ("CON-3", False) in seen([*steps[: victim - 1], wrong])[-1]
    after = spoilt_content(steps[victim])
    assert ("CON-3", True) in seen([*steps[:victim], after])[-1]


def test_a_victim_that_was_not_scheduled_excuses_nothing() -> None:
    """By priority, blocks published at once; the worst request is preempted before its turn."""
    machine = Machine(Config(5, 1, 6, 6, 3), prioritised(VLLM_0_33))
    steps = run(
        machine,
        Submit("a", (1, 2), 3),
        Submit("b", (3, 4), 3, priority=1),
        Schedule(),
        Complete((Output("a", (5,)), Output("b", (6,)))),
        Schedule(),
    )
    assert Preempted("b") in steps[-1].events
    assert seen(steps) == [[]] * 5
    assert ("CON-3", False) in seen([*steps[:-1], spoilt_content(steps[-1])])[-1]


def left_out(step: Step, drafts: int) -> Step:
    """The same pass told otherwise: p gets its tokens with so many drafts, d gets none."""
    plan = step.after.in_flight[-1]
    p = next(e for e in plan.entries if e.admitted)
    after = evolve(step.after, in_flight=(Plan((p,)),))
    events = (Scheduled("e", 1, drafts, ()), Skipped("d", Reason.NO_TOKENS))
    return Step(step.machine, step.before, step.action, after, events)


def test_a_decode_left_out_is_excused_by_drafts_only_if_there_were_some() -> None:
    machine = Machine(Config(9, 2, 12, 6, 3, num_speculative_tokens=1), VLLM_0_33)
    steps = run(
        machine,
        Submit("d", (1,), 4),
        Schedule(),
        Complete((Output("d", (2,)),)),
        Submit("p", (1, 2, 3, 4), 1),
        Schedule(),
    )
    assert seen(steps)[-1] == []
    for drafts, known in ((0, False), (1, True)):
        wrong = [*steps[:-1], left_out(steps[-1], drafts)]
        assert ("BUD-2", known) in seen(wrong)[-1]


def test_an_overtaken_prefill_excuses_who_overtook_it() -> None:
    """Nobody gives way: p finds no blocks, q is admitted behind it; then p takes the budget. Had p
    never lacked blocks, the same would be a fault."""
    trace = read_trace(FALLS / "BUD-2-no-victim.jsonl")
    steps = run(trace.machine, *trace.actions)
    assert seen(steps)[-1] == [("BUD-2", True)]
    assert seen(steps[-1:]) == [[("BUD-2", False)]]


def test_blocks_without_a_key_are_excused_once_one_was_let_go() -> None:
    trace = read_trace(FALLS / "EVI-1.jsonl")
    (*quiet, last) = run(trace.machine, *trace.actions)
    assert seen([*quiet, last])[-1] == [("EVI-1", True)]
    unprovoked = Step(last.machine, quiet[0].before, Abort("x"), last.after, ())
    assert ("EVI-1", False) in seen([unprovoked])[0]


SOME = Config(9, 2, 12, 6, 3)
GIVING = prioritised(VLLM_0_33)
GOES_ON = evolve(GIVING, after_preemption=AfterPreemption.GO_ON)
MAY_FALL: tuple[tuple[str, Config, Policy, str | None], ...] = (
    ("BUD-2", SOME, VLLM_0_33, None),
    ("BUD-2", evolve(SOME, num_speculative_tokens=1), VLLM_0_33, "BUD-2.jsonl"),
    ("BUD-2", SOME, evolve(VLLM_0_33, step_mix=StepMix.PREFILL_FIRST), "BUD-2-prefill-first.jsonl"),
    ("BUD-2", SOME, evolve(VLLM_0_33, victim=Victim.NONE), "BUD-2-no-victim.jsonl"),
    ("BUD-2", SOME, GOES_ON, "BUD-2-given-back.jsonl"),
    ("BUD-2", SOME, evolve(GOES_ON, after_preemption=AfterPreemption.ADMIT_NOBODY), None),
    ("BUD-2", SOME, evolve(GOES_ON, victim=Victim.LAST_ADMITTED), None),
    ("CON-1", SOME, VLLM_0_33, None),
    ("CON-1", SOME, GIVING, "CON-1.jsonl"),
    ("CON-1", SOME, evolve(GIVING, publish=Publish.AFTER_STEP), None),
    ("EVI-1", SOME, evolve(VLLM_0_33, unhashed=Unhashed.TO_HEAD), None),
    ("EVI-1", SOME, evolve(VLLM_0_33, unhashed=Unhashed.IN_PLACE), "EVI-1.jsonl"),
)


@pytest.mark.parametrize(("name", "sizes", "policy", "trace"), MAY_FALL)
def test_sizes_and_choices_say_where_a_property_may_fall(
    name: str, sizes: Config, policy: Policy, trace: str | None
) -> None:
    fall = PROPERTIES[name].expected(sizes, policy)
    assert (None if fall is None else fall.trace) == trace


NO_TOKENS, NO_BLOCKS = Reason.NO_TOKENS, Reason.NO_BLOCKS
DRAFTED, ADMITTED = Scheduled("p", 2, 1, ()), Admitted("x", 0, ())
STORED = BlockStored(1, chain(Namespace(), ((1, 2),)), None)
CAUSES: tuple[tuple[Callable[[Step], bool], tuple[Event, ...], bool], ...] = (
    (drafts_before_the_left_out, (DRAFTED, Skipped("d", NO_TOKENS)), True),
    (drafts_before_the_left_out, (ADMITTED, DRAFTED, Skipped("d", NO_TOKENS)), True),
    (drafts_before_the_left_out, (DRAFTED, ADMITTED, Skipped("d", NO_TOKENS)), True),
    (drafts_before_the_left_out, (Skipped("d", NO_TOKENS), DRAFTED), False),
    (drafts_before_the_left_out, (Scheduled("p", 2, 0, ()), Skipped("d", NO_TOKENS)), False),
    (drafts_before_the_left_out, (DRAFTED, Skipped("d", Reason.NO_ROOM)), False),
    (overtaken_by_prefill, (Skipped("d", Reason.PREFILL),), True),
    (overtaken_by_prefill, (Skipped("d", NO_TOKENS), ADMITTED), False),
    (overtaken_for_want_of_blocks, (Skipped("p", NO_BLOCKS), ADMITTED), True),
    (
        overtaken_for_want_of_blocks,
        (Skipped("p", NO_BLOCKS), Skipped("d", NO_BLOCKS), ADMITTED),
        True,
    ),
    (overtaken_for_want_of_blocks, (ADMITTED, Skipped("p", NO_BLOCKS)), False),
    (overtaken_for_want_of_blocks, (Skipped("d", NO_BLOCKS), ADMITTED), False),
    (overtaken_for_want_of_blocks, (Skipped("p", NO_TOKENS), ADMITTED), False),
    (overtaken_for_want_of_blocks, (Skipped("p", NO_BLOCKS), DRAFTED), False),
    (overtaken_after_giving_way, (DRAFTED, Preempted("p"), ADMITTED), True),
    (overtaken_after_giving_way, (DRAFTED, Preempted("p"), Preempted("d"), ADMITTED), True),
    (overtaken_after_giving_way, (Preempted("p"), ADMITTED), False),
    (overtaken_after_giving_way, (Preempted("p"), DRAFTED, ADMITTED), False),
    (overtaken_after_giving_way, (DRAFTED, Preempted("d"), ADMITTED), False),
    (overtaken_after_giving_way, (DRAFTED, Preempted("p"), Skipped("d", NO_TOKENS)), False),
    (published_and_unscheduled, (DRAFTED, STORED, Preempted("p")), True),
    (published_and_unscheduled, (DRAFTED, STORED, Preempted("d"), Preempted("p")), True),
    (published_and_unscheduled, (DRAFTED, Preempted("p")), False),
    (published_and_unscheduled, (STORED, DRAFTED, Preempted("p")), False),
    (published_and_unscheduled, (DRAFTED, STORED, Preempted("d")), False),
    (published_and_unscheduled, (Preempted("p"), DRAFTED, STORED), False),
)


@cache
def a_decode_and_a_prefill() -> Step:
    """d decodes, p is in the middle of its prompt."""
    return run(
        Machine(Config(9, 2, 12, 4, 3), VLLM_0_33),
        Submit("d", (1,), 4),
        Schedule(),
        Complete((Output("d", (2,)),)),
        Submit("p", (1, 2, 3, 4, 5, 6, 7, 8), 1),
        Schedule(),
        Complete((Output("d", (2,)),)),
        Schedule(),
    )[-1]


@pytest.mark.parametrize(("cause", "events", "true"), CAUSES)
def test_what_brings_a_known_fall_about(
    cause: Callable[[Step], bool], events: tuple[Event, ...], true: bool
) -> None:
    step = a_decode_and_a_prefill()
    assert [(r.id, r.prefilling) for r in step.before.running] == [("d", False), ("p", True)]
    assert cause(told(step, *events)) is true


@pytest.mark.parametrize("name", sorted(WATCHED))
def test_each_possible_fall_has_a_cause_that_its_trace_shows(name: str) -> None:
    for fall in WATCHED[name].falls:
        trace = read_trace(FALLS / fall.trace)
        steps = run(trace.machine, *trace.actions)
        shows = [i for i, step in enumerate(steps) if fall.cause(step)]
        assert shows
        assert fall.lasts or shows[-1] == len(steps) - 1


# --- A second reading -----------------------------------------------------------------------------


def whole(policy: Policy, config: Config, *actions: Action) -> Counter[str]:
    """How often each property was checked on a run on which none falls."""
    machine = Machine(config, policy)
    watch = Watch(machine, machine.initial())
    for step in run(machine, *actions):
        assert watch.see_step(step) == ()
    return watch.checked


def test_a_request_that_cannot_be_served_preempts_itself_for_want_of_blocks() -> None:
    """Alone in four blocks of one token, it comes to need a fifth."""
    config = Config(5, 1, 8, 8, 1)
    turns = [a for t in range(5) for a in (Schedule(), Complete((Output("a", (t,)),)))]
    checked = whole(VLLM_0_33, config, Submit("a", (1, 2), 6), *turns[:6], Schedule())
    assert checked["PRE-1"] == 1


def test_a_pass_that_reads_what_another_namespace_wrote_falls() -> None:
    """An engine that leaves the salt out shares a block of a with b: the pass of b cannot even be
    written down as one text, and that is a fall and no error."""
    outcome = Complete((Output("a", (5,)), Output("b", (5,))))
    *_, asked = run(
        Machine(Config(9, 2, 12, 12, 3), VLLM_0_33),
        Submit("a", (1, 2, 3), 3),
        Schedule(),
        Complete((Output("a", (4,)),)),
        Submit("b", (1, 2, 3), 3, Namespace(salt="s")),
        Schedule(),
        outcome,
    )
    assert answers(asked)["CON-1r"] is HELD
    (plan,) = asked.before.in_flight
    a, b = plan.entries
    b = evolve(b, start=2, tokens=b.tokens[2:], table=(a.table[0], b.table[1]))
    before = evolve(asked.before, in_flight=(Plan((a, b)),))
    fell = answers(Step(asked.machine, before, outcome, asked.after, asked.events))["CON-1r"]
    assert fell == Fall("the pass of b from position 2 read another namespace")


def reading(*at_blocks: int) -> Outcome:
    """What CON-1r says of a pass over the third token of b, in blocks of one slot, which reads the
    two before it in these blocks: 1 and 2 were written by a under a salt, 3 and 4 by b."""
    outcome = Complete((Output("b", (5,)),))
    machine = Machine(Config(9, 1, 12, 12, 3), VLLM_0_33)
    *_, asked = run(
        machine,
        Submit("a", (1, 2), 3, Namespace(salt="s")),
        Submit("b", (1, 2), 3),
        Schedule(),
        Complete((Output("a", (4,)), Output("b", (4,)))),
        Abort("a"),
        Schedule(),
        outcome,
    )
    (plan,) = asked.before.in_flight
    (b,) = plan.entries
    assert (b.start, b.table[:2]) == (2, (3, 4))
    spoilt = evolve(b, table=(*at_blocks, b.table[2]))
    before = evolve(asked.before, in_flight=(Plan((spoilt,)),))
    return answers(Step(machine, before, outcome, asked.after, asked.events))["CON-1r"]


def test_a_pass_reads_what_the_slot_before_it_was_written_with() -> None:
    """A slot holds all that was read for it. So the last one that a pass reads decides: a first
    one of somebody else, read by nobody since, does no harm."""
    assert reading(3, 4) is HELD
    assert reading(3, 2) == Fall("the pass of b from position 2 read another namespace")
    assert reading(1, 4) is HELD


def test_a_text_from_its_beginning_reads_nothing() -> None:
    """b takes two blocks, and an engine has not wiped out what somebody else wrote into the second:
    the three tokens of b are written over it, and the fourth slot is not read."""
    *_, step = run(
        Machine(Config(3, 2, 8, 8, 1), VLLM_0_33),
        Submit("b", (6, 7, 8), 1),
        Schedule(),
        Complete((Output("b", (9,)),)),
    )
    (entry,) = step.before.in_flight[0].entries
    assert (entry.start, entry.table) == (0, (1, 2))
    there, pool = own_text(Namespace(salt="s"), (1, 2)), step.before.pool
    used = Pool((*pool.blocks[:2], Block(1, content=there)), pool.free, pool.index)
    before = evolve(step.before, pool=used)
    spoilt = Step(step.machine, before, step.action, step.after, step.events)
    assert answers(spoilt)["CON-1r"] is HELD


def test_who_gave_way_is_asked_again_where_admissions_go_on() -> None:
    """Alone in four blocks of one token, it preempts itself, and is admitted again in that pass."""
    config = Config(5, 1, 8, 8, 1)
    turns = [a for t in range(3) for a in (Schedule(), Complete((Output("a", (t,)),)))]
    goes_on = evolve(VLLM_0_33, after_preemption=AfterPreemption.GO_ON)
    actions = (Submit("a", (1, 2), 6), *turns, Schedule())
    last = run(Machine(config, goes_on), *actions)[-1]
    assert {type(e) for e in last.events} == {Preempted, Skipped}
    checked = whole(goes_on, config, *actions)
    assert checked["PRE-1"] == 1
    assert checked["WRK-1"] == 1


def test_a_block_that_was_evicted_in_the_pass_goes_back_without_its_key() -> None:
    """Three blocks. z leaves a key in block 1; a takes that block, and gives way to b in the same
    pass: the block goes to the head of the queue, before the one that has a key."""
    config, policy = Config(4, 2, 8, 8, 3), evolve(GIVING, free_walk=FreeWalk.HEAD_FIRST)
    actions = (
        Submit("z", (9, 8), 1),
        Schedule(),
        Complete((Output("z", (1,)),)),
        Submit("a", (1,), 4, priority=1),
        Schedule(),
        Complete((Output("a", (2,)),)),
        Submit("b", (3, 4), 4),
        Schedule(),
        Complete((Output("a", (3,)), Output("b", (5,)))),
        Schedule(),
    )
    told_of = run(Machine(config, policy), *actions)[-1].events
    assert [type(e) for e in told_of if not isinstance(e, BlockStored)] == [
        BlockRemoved,
        Scheduled,
        Preempted,
        Scheduled,
        Skipped,
    ]
    assert [e.new_blocks for e in told_of if isinstance(e, Scheduled)] == [(1,), (1,)]
    assert whole(policy, config, *actions)["LRU-3"] > 0


def test_an_admission_that_tells_of_other_blocks_than_it_took_falls() -> None:
    """b hits block 1, and takes 3 from the head of the queue; its admission must tell of that block
    behind the hit, and of no other."""
    *_, step = run(
        Machine(Config(9, 2, 12, 12, 3), VLLM_0_33),
        Submit("a", (1, 2, 3), 3),
        Schedule(),
        Submit("b", (1, 2, 3), 3),
        Complete((Output("a", (4,)),)),
        Schedule(),
    )
    at = next(i for i, e in enumerate(step.events) if isinstance(e, Admitted))
    admitted = step.events[at]
    assert admitted == Admitted("b", 2, (1, 3))
    assert answers(step)["LRU-1"] is HELD
    lie = told(step, *step.events[:at], Admitted("b", 2, (1, 5)), *step.events[at + 1 :])
    assert answers(lie)["LRU-1"] == Fall("b took (5,), the queue was (3, 4, 5, 6, 7, 8)")


def test_ghosts_are_asked_of_the_machine_and_not_of_the_step() -> None:
    """An engine that does something else is no proof that content decides anything."""
    gone = [s for s in real_steps() if isinstance(s.action, Abort) and s.after != s.before]
    idle = [Step(s.machine, s.before, s.action, s.before, ()) for s in gone]
    asked = [answers(step) for step in idle]
    assert {outcome["GHO-1"] for outcome in asked} == {HELD, VACUOUS}
    assert all(isinstance(outcome["END-1"], Fall) for outcome in asked)


def test_nobody_may_give_way_where_nobody_does() -> None:
    policy = evolve(MINIATURE, victim=Victim.NONE)
    steps = run(
        Machine(Config(4, 1, 8, 8, 2), policy),
        Submit("a", (1, 2), 2),
        Schedule(),
        Complete((Output("a", (5,)),)),
        Schedule(),
    )
    assert answers(steps[-1])["PRE-1"] is VACUOUS
    fell = answers(told(steps[-1], Preempted("a")))["PRE-1"]
    assert fell == Fall("a is preempted, policy names nobody")


def test_a_property_is_registered_with_its_kind_and_what_it_says() -> None:
    def said(*_: object) -> Outcome:
        """It says so."""
        return HELD

    def starts(machine: Machine, state: State) -> Monitor:
        """It says so, and remembers."""
        return PROPERTIES["PLAN-1"].start(machine, state)

    asked: list[Folded] = []

    def of_fold(fold: Folded) -> Outcome:
        """It says so of a fold."""
        asked.append(fold)
        return HELD

    names = ("NEW-1", "NEW-2", "NEW-3", "NEW-4")
    fall = PROPERTIES["EVI-1"].falls[0]
    try:
        assert state_property("NEW-1")(said) is said
        assert step_property("NEW-2")(said) is said
        assert monitor_property("NEW-3")(starts) is starts
        assert folded_property("NEW-4", fall)(of_fold) is of_fold
        new = [REGISTRY[name] for name in names]
    finally:
        for name in names:
            REGISTRY.pop(name, None)
    assert [p.kind for p in new] == [Kind.S, Kind.T, Kind.M, Kind.T]
    more = ["It says so, and remembers.", "It says so of a fold."]
    assert [p.statement for p in new] == ["It says so.", "It says so.", *more]
    assert [p.falls for p in new] == [(), (), (), (fall,)]
    step = run(Machine(Config(5, 2, 8, 16, 4), VLLM_0_33), Submit("a", (1, 2, 3), 2), Schedule())[1]
    for p in new:
        assert p.start(step.machine, step.before).after(step)[1] is HELD
    assert asked == [folded(step)]
    stray = told(step, *step.events, Preempted("x"))
    fell = Fall("x was preempted, and does not stand where it must")
    assert new[3].start(step.machine, step.before).after(stray)[1] == fell
    assert len(asked) == 1, "what cannot be folded is not asked"


def test_every_property_is_registered_once_and_says_something() -> None:
    assert len({p.statement for p in PROPERTIES.values()}) == len(PROPERTIES)
    assert all(p.statement.endswith((".", ")")) for p in PROPERTIES.values())
