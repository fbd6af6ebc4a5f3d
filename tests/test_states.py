"""What properties of states say, each of its clauses by one state that breaks it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve, field, frozen

from servespec.actions import Action, Complete, Output, Schedule, Submit
from servespec.chain import Chain, Namespace, chain
from servespec.config import Config
from servespec.machine import Machine, Transition
from servespec.plan import State
from servespec.policy import VLLM_0_33, HitCap, Memory
from servespec.pool import Block, Index, Pool
from servespec.properties import HELD, PROPERTIES, VACUOUS, Fall, Outcome, Step, step_of
from servespec.request import Request

CONFIG = Config(7, 2, 8, 16, 4)
MACHINE = Machine(CONFIG, VLLM_0_33)


def after(machine: Machine, *actions: Action) -> State:
    state = machine.initial()
    for action in actions:
        state = machine.apply(state, action).state
    return state


def asked(name: str, state: State, machine: Machine = MACHINE) -> Outcome:
    """What a property says of a state in which nothing happens."""
    step = Step(machine, state, Submit("nobody", (1,), 1), state, ())
    return PROPERTIES[name].start(machine, state).after(step)[1]


TWO = after(
    MACHINE,
    Submit("a", (1, 2, 3), 3),
    Submit("b", (4, 5, 6), 3),
    Schedule(),
    Complete((Output("a", (7,)), Output("b", (7,)))),
)
"""Two requests that run, each with a block that has a key and one that has none."""


def tables(state: State, **other: tuple[int, ...]) -> State:
    """The same state, but for the tables of some."""
    running = tuple(evolve(r, table=other.get(r.id, r.table)) for r in state.running)
    return evolve(state, running=running)


def pool(state: State, blocks: dict[int, Block], copies: dict[Chain, tuple[int, ...]]) -> State:
    """The same state with some other blocks, and another index."""
    there = state.pool
    changed = tuple(blocks.get(b, block) for b, block in enumerate(there.blocks))
    return evolve(state, pool=Pool(changed, there.free, Index(copies)))


def test_these_two_are_as_told() -> None:
    assert [r.table for r in TWO.running] == [(1, 2), (3, 4)]
    assert [b.key is not None for b in TWO.pool.blocks] == [0, 1, 0, 1, 0, 0, 0]


def test_only_what_has_a_key_is_in_two_tables() -> None:
    assert asked("OWN-4", TWO) is HELD
    assert asked("OWN-4", tables(TWO, b=(1, 4))) is HELD
    both = Fall("blocks [2] have no key and stand in several tables")
    assert asked("OWN-4", tables(TWO, b=(3, 2))) == both
    assert asked("OWN-4", tables(TWO, a=(1,), b=(3,))) is VACUOUS


def test_a_table_is_neither_too_short_nor_too_long() -> None:
    assert asked("TAB-1", TWO) is HELD
    assert asked("TAB-1", tables(TWO, b=(3,))) == Fall("b: 1 blocks for C = 3: 2 to 2")
    assert asked("TAB-1", tables(TWO, b=(3, 4, 5))) == Fall("b: 3 blocks for C = 3: 2 to 2")
    assert asked("TAB-1", tables(TWO, b=(3, 3))) == Fall(
        "the table of b holds a block twice: (3, 3)"
    )
    assert asked("TAB-1", evolve(TWO, running=())) is VACUOUS


def test_a_hit_without_a_cap_may_hold_the_block_of_the_last_token() -> None:
    """C is 3 of 4: a table of two blocks is due, of one slot each up to four may be held."""
    of_one = Machine(Config(7, 1, 8, 16, 4), evolve(VLLM_0_33, hit_cap=HitCap.NONE))
    (r, _) = TWO.running
    for table, fell in (((1, 2, 3), False), ((1, 2, 3, 4), False), ((1, 2, 3, 4, 5), True)):
        state = evolve(TWO, running=(evolve(r, table=table),))
        assert isinstance(asked("TAB-1", state, of_one), Fall) is fell
    capped = Machine(of_one.config, VLLM_0_33)
    state = evolve(TWO, running=(evolve(r, table=(1, 2, 3, 4)),))
    assert asked("TAB-1", state, capped) == Fall("a: 4 blocks for C = 3: 3 to 3")


def test_drafts_and_look_ahead_make_a_table_longer() -> None:
    sizes = Config(7, 1, 8, 16, 4, num_speculative_tokens=1, num_lookahead_tokens=1)
    ahead = Machine(sizes, VLLM_0_33)
    (r, _) = TWO.running
    for most, fell in ((5, False), (6, True)):
        state = evolve(TWO, running=(evolve(r, table=tuple(range(1, 1 + most))),))
        assert isinstance(asked("TAB-1", state, ahead), Fall) is fell


def test_a_reserved_table_is_as_long_as_the_longest_text() -> None:
    reserved = Machine(CONFIG, evolve(VLLM_0_33, memory=Memory.RESERVED))
    (r, _) = TWO.running
    for table, fell in (((1, 2, 3, 4), False), ((1, 2, 3), True), ((1, 2, 3, 4, 5), True)):
        state = evolve(TWO, running=(evolve(r, table=table),))
        assert isinstance(asked("TAB-1", state, reserved), Fall) is fell


A, B = (r.keys[0] for r in TWO.running)
ELSEWHERE = chain(Namespace(salt="s"), ((1, 2),))
LONGER = chain(Namespace(), ((1, 2), (3, 7)))
OTHER_CUT = chain(Namespace(), ((1,), (2,)))


def keys(*given: Chain) -> State:
    """The first request knows these keys."""
    first, second = TWO.running
    return evolve(TWO, running=(evolve(first, keys=given), second))


def test_a_key_stands_for_the_text_of_its_request() -> None:
    assert (A.tokens, B.tokens) == ((1, 2), (4, 5))
    assert asked("IDX-3", TWO) is HELD
    text = Fall("the keys of a stand for other tokens than its own")
    assert asked("IDX-3", keys(B)) == text
    assert asked("IDX-3", keys(LONGER)) == text, "a link is left out"
    space = Fall(f"the keys of a stand for another namespace than {Namespace()}")
    assert asked("IDX-3", keys(ELSEWHERE)) == space
    cut = (chain(Namespace(), ((1,),)), OTHER_CUT)
    assert isinstance(asked("IDX-3", keys(*cut)), Fall)
    assert asked("IDX-3", pool(evolve(TWO, running=()), {}, {})) is VACUOUS


def test_two_keys_of_the_index_stand_for_two_texts() -> None:
    alone = evolve(TWO, running=())
    assert asked("IDX-3", pool(alone, {}, {A: (1,), B: (3,), ELSEWHERE: (5,)})) is HELD
    fell = asked("IDX-3", pool(alone, {}, {A: (1,), OTHER_CUT: (3,)}))
    assert isinstance(fell, Fall)


def test_a_key_that_an_engine_has_made_itself_stands_for_what_it_says() -> None:
    """Whoever makes a key otherwise than by `link` can name another position, go on in another
    namespace, or make one twice."""
    public, apart = Namespace(), Namespace(salt="s")
    positions = Fall("the keys of a stand for other positions than its own")
    assert asked("IDX-3", keys(Chain(public, None, A.tokens, 4))) == positions
    second = TWO.running[0].text(2, 4)
    strange = Chain(apart, A, second, 4)
    spaces = Fall(f"the keys of a stand for another namespace than {public}")
    assert asked("IDX-3", keys(A, strange)) == spaces
    alone = evolve(TWO, running=())
    for key in (strange, Chain(public, None, (1, 2), 4), Chain(public, None, (1,), 2)):
        fell = Fall(f"{key!r} stands for no full blocks of one namespace")
        assert asked("IDX-3", pool(alone, {}, {A: (1,), key: (3,)})) == fell
    twin = Chain(public, None, A.tokens, 2)
    fell = Fall("two keys stand for the same namespace and tokens")
    assert asked("IDX-3", pool(alone, {}, {A: (1,), B: (3,), twin: (5,)})) == fell
    assert asked("IDX-3", pool(alone, {}, {A: (1,), B: (3,)})) is HELD


def test_the_index_names_blocks_that_carry_the_key() -> None:
    assert asked("IDX-1", TWO) is HELD
    wrong: tuple[tuple[int, ...], ...] = ((), (1, 1), (3,), (2,))
    for copies in wrong:
        assert isinstance(asked("IDX-1", pool(TWO, {}, {A: copies})), Fall)
    assert asked("IDX-1", pool(TWO, {}, {})) is VACUOUS
    assert asked("IDX-2", pool(TWO, {}, {A: (1,)})) == Fall(
        f"{B!r}: blocks {{3}} carry it, the index has None"
    )
    assert isinstance(asked("IDX-2", pool(TWO, {}, {A: (1,), B: (3,), LONGER: (4,)})), Fall)


def test_what_waits_holds_nothing() -> None:
    waits = after(MACHINE, Submit("a", (1, 2, 3), 3))
    (r,) = waits.waiting
    assert asked("OWN-3", waits) is HELD
    wrong: tuple[Request, ...] = (
        evolve(r, table=(1,)),
        evolve(r, computed=1),
        evolve(r, published=1),
    )
    for other in wrong:
        assert isinstance(asked("OWN-3", evolve(waits, waiting=(other,))), Fall)
    assert asked("OWN-3", TWO) is VACUOUS
    assert asked("OWN-3", evolve(TWO, running=())) == Fall(
        "nobody is left, and only 2 blocks are free"
    )


# --- transitions ---------------------------------------------------------------------------


@frozen
class Peeking(Machine):
    """It tells nothing where there is content."""

    def apply(self, state: State, action: Action) -> Transition:
        moved = super().apply(state, action)
        return Transition(moved.state) if any(b.content for b in state.pool.blocks) else moved


@frozen
class Changing(Machine):
    """It forgets who waits where there is content."""

    def apply(self, state: State, action: Action) -> Transition:
        moved = super().apply(state, action)
        full = any(b.content for b in state.pool.blocks)
        return Transition(evolve(moved.state, waiting=()), moved.events) if full else moved


@pytest.mark.parametrize("make", [Peeking, Changing])
def test_content_decides_nothing(make: Callable[[Config, object], Machine]) -> None:
    arrives = Submit("c", (1,), 1)
    for machine, said in (
        (MACHINE, HELD),
        (make(CONFIG, VLLM_0_33), Fall("content changed the transition")),
    ):
        moved = machine.apply(TWO, arrives)
        told = Step(machine, TWO, arrives, moved.state, moved.events)
        for step in (step_of(machine, TWO, arrives, moved), told):
            assert PROPERTIES["GHO-1"].start(machine, TWO).after(step)[1] == said


@frozen
class Noting(Machine):
    """It notes from how many written blocks it starts."""

    began: list[int] = field(factory=list, eq=False)

    def apply(self, state: State, action: Action) -> Transition:
        self.began.append(sum(bool(b.content) for b in state.pool.blocks))
        return super().apply(state, action)


def test_what_the_machine_has_just_made_is_not_made_again() -> None:
    """Four blocks are written. Of its own step the machine makes only the one without content; of
    a step that is told, both."""
    machine, arrives = Noting(CONFIG, VLLM_0_33), Submit("c", (1,), 1)
    moved = machine.apply(TWO, arrives)
    told = Step(machine, TWO, arrives, moved.state, moved.events)
    for step, again in ((step_of(machine, TWO, arrives, moved), [0]), (told, [4, 0])):
        machine.began.clear()
        assert PROPERTIES["GHO-1"].start(machine, TWO).after(step)[1] is HELD
        assert machine.began == again
