"""Renaming blocks, tokens and ids changes nothing but names (EQV-1)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import permutations
from typing import get_args

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from servespec.actions import (
    Abort,
    Action,
    Complete,
    Discard,
    Output,
    ResetCache,
    Schedule,
    Submit,
)
from servespec.chain import Namespace, Token, link
from servespec.config import Config
from servespec.errors import ActionDisabled, SpecError
from servespec.events import (
    Admitted,
    BlockRemoved,
    BlockStored,
    CacheCleared,
    Delivered,
    Event,
    Finished,
    Preempted,
    Reason,
    Refused,
    Scheduled,
    Skipped,
    Submitted,
)
from servespec.machine import Machine, Transition, Universe
from servespec.plan import Plan, Planned, State
from servespec.policy import MINIATURE, VLLM_0_33, Order, Policy, prioritised
from servespec.pool import Block, Index, Pool, extend
from servespec.request import Request
from servespec.theory.renaming import NamesTokens, Renaming, same_token, tells_ids_apart, unequal
from tests.walks import walked

unless_asked = pytest.mark.skipif(
    not os.environ.get("SERVECHECK_SLOW"), reason="takes a minute: set SERVECHECK_SLOW to run it"
)
ANN = Namespace(salt="ann")


def transitions(machine: Machine, actions: list[Action]) -> Iterator[tuple[State, Action]]:
    state = machine.initial()
    for action in actions:
        yield state, action
        state = machine.apply(state, action).state


def swapped(namespace: Namespace, token: Token) -> Token:
    """0 and 1 change places, others go far away; in a namespace with a salt all go."""
    near = token + 50 if namespace.salt else 1 - token
    return near if token in (0, 1) else token + 100


# --- by hand -----------------------------------------------------------------------------------

ALL = Renaming({1: 2, 2: 1}, swapped, {"a": "b", "b": "a"})
"""Blocks 1 and 2 change places, and so do a and b."""
HERS = link(ANN, None, (0,))
"""Of Ann's text 0; renamed it is 50, and her 1 is 51."""
THEIRS = link(Namespace(), None, (0,))
"""Of anybody's text 0; renamed it is 1."""
ASKED = Request("a", ANN, (0, 1), 4, 0, (1, 7), 0, (HERS,), (1, 0), 3, (1, 3), 1, (0, -1), False)
BEFORE = State(
    Pool(
        (
            Block(),
            Block(1, HERS, (HERS,)),
            Block(0, THEIRS, (THEIRS, None)),
            Block(1, None, (link(ANN, HERS, (1,)),)),
        ),
        (2,),
        Index({HERS: (1,), THEIRS: (2,)}),
    ),
    waiting=(evolve(ASKED, id="b", namespace=Namespace(), keys=(THEIRS,), table=(), drafts=()),),
    running=(ASKED,),
    in_flight=(
        Plan((Planned("a", ANN, 1, (1, 0), (0,), (1, 3), 0, True, False, False),), ((2, 1),)),
    ),
)


def test_a_state_is_renamed_in_all_its_names() -> None:
    """A request of Ann's that runs, with drafts, one of which is padding, and a plan in flight that
    gives blocks back later; one of somebody's that waits; a free block with a key."""
    hers, theirs = link(ANN, None, (50,)), link(Namespace(), None, (1,))
    asked = Request(
        "b", ANN, (50, 51), 4, 0, (51, 107), 0, (hers,), (51, 50), 3, (2, 3), 1, (50, -1), False
    )
    waits = evolve(asked, id="a", namespace=Namespace(), keys=(theirs,), table=(), drafts=())
    waits = evolve(waits, prompt=(1, 0), output=(0, 1), stop=(0, 107))
    assert ALL.state(BEFORE) == State(
        Pool(
            (
                Block(),
                Block(0, theirs, (theirs, None)),
                Block(1, hers, (hers,)),
                Block(1, None, (link(ANN, hers, (51,)),)),
            ),
            (1,),
            Index({hers: (2,), theirs: (1,)}),
        ),
        waiting=(waits,),
        running=(asked,),
        in_flight=(
            Plan(
                (Planned("b", ANN, 1, (51, 50), (50,), (2, 3), 0, True, False, False),), ((1, 2),)
            ),
        ),
    )


@pytest.mark.parametrize(
    ("action", "renamed"),
    [
        (Submit("c", (0, 5), 2, stop=(1,)), Submit("c", (1, 105), 2, stop=(0,))),
        (Submit("a", (0,), 2, ANN, 1, (1,), True), Submit("b", (50,), 2, ANN, 1, (51,), True)),
        (Complete((Output("a", (0, 1), (1,)),)), Complete((Output("b", (50, 51), (51,)),))),
        (Abort("b"), Abort("a")),
        (Schedule(), Schedule()),
        (Discard(), Discard()),
        (ResetCache(True), ResetCache(True)),
    ],
    ids=["somebody's", "Ann's", "outputs", "abort", "schedule", "discard", "reset"],
)
def test_an_action_is_renamed_in_all_its_names(action: Action, renamed: Action) -> None:
    assert ALL.action(action, BEFORE) == renamed


def test_an_event_is_renamed_in_all_its_names() -> None:
    """One of every kind. What is delivered to a is Ann's; nobody waits under the name c, and what
    is delivered to it is nobody's."""
    longer, no = link(ANN, HERS, (1,)), Reason.NO_BLOCKS
    hers = link(ANN, None, (50,))
    renamed: dict[Event, Event] = {
        Submitted("a"): Submitted("b"),
        Admitted("a", 2, (1, 3)): Admitted("b", 2, (2, 3)),
        Scheduled("b", 1, 0, (3, 2)): Scheduled("a", 1, 0, (3, 1)),
        Skipped("a", no): Skipped("b", no),
        Preempted("b"): Preempted("a"),
        BlockStored(1, longer, HERS): BlockStored(2, link(ANN, hers, (51,)), hers),
        BlockStored(1, HERS, None): BlockStored(2, hers, None),
        BlockRemoved(2, THEIRS): BlockRemoved(1, link(Namespace(), None, (1,))),
        CacheCleared(): CacheCleared(),
        Delivered("a", 0, (0, 5)): Delivered("b", 0, (50, 105)),
        Delivered("b", 0, (0, 5)): Delivered("a", 0, (1, 105)),
        Delivered("c", 0, (0, 5)): Delivered("c", 0, (1, 105)),
        Finished("a", Reason.STOP): Finished("b", Reason.STOP),
        Refused("a", no): Refused("b", no),
    }
    assert {type(event) for event in renamed} == set(get_args(Event))
    assert ALL.events(renamed, BEFORE) == tuple(renamed.values())


class Choosy(Machine):
    """Takes no request of this name."""

    def apply(self, state: State, action: Action) -> Transition:
        if isinstance(action, Submit) and action.id == "b":
            raise ActionDisabled("Submit", "its name is b", "choose another name")
        return super().apply(state, action)


def test_what_is_offered_is_renamed_too() -> None:
    """What neither state offers is no difference; what only one of them offers is one, whichever
    it is."""
    config, swap = Config(5, 1, 4, 8, 2), Renaming(ids={"a": "b", "b": "a"})
    machine, choosy = Machine(config, VLLM_0_33), Choosy(config, VLLM_0_33)
    nobody = machine.initial()
    assert unequal(machine, nobody, Complete(), swap) is None
    assert unequal(machine, nobody, Submit("a", (0,), 1), swap) is None
    theirs = unequal(choosy, nobody, Submit("a", (0,), 1), swap)
    assert theirs is not None
    assert theirs.endswith("; renamed: is disabled")
    ours = unequal(choosy, nobody, Submit("b", (0,), 1), swap)
    assert ours is not None
    assert ": is disabled; renamed: " in ours


# --- on the machine ----------------------------------------------------------------------------


@given(st.data())
@settings(max_examples=60)
def test_renaming_commutes_with_every_action_of_a_walk(data: st.DataObject) -> None:
    walk = walked(data)
    first = walk.policy.first_block
    usable = list(range(first, walk.config.num_blocks))
    order = data.draw(st.permutations(usable))
    ids = sorted({a.id for a in walk.actions if isinstance(a, Submit)})
    others = ids if tells_ids_apart(walk.config, walk.policy) else data.draw(st.permutations(ids))
    renaming = Renaming(
        dict(zip(usable, order, strict=True)), swapped, dict(zip(ids, others, strict=True))
    )
    for state, action in transitions(walk.machine, walk.actions):
        assert unequal(walk.machine, state, action, renaming) is None


def reachable(machine: Machine, universe: Universe) -> Iterator[tuple[State, tuple[Action, ...]]]:
    """Every state of a scope with its enabled actions, breadth first."""
    seen, queue = {machine.initial()}, [machine.initial()]
    for state in queue:
        actions = tuple(machine.enabled(state, universe))
        yield state, actions
        for action in actions:
            after = machine.apply(state, action).state
            if after not in seen:
                seen.add(after)
                queue.append(after)


SCOPE = Universe(
    submits=(Submit("a", (0, 1), 2), Submit("b", (0, 0), 1, ANN, stop=(1,))),
    tokens=(0, 1),
    resets=(ResetCache(True),),
)


@pytest.mark.parametrize(
    ("policy", "states", "steps"),
    [
        (VLLM_0_33, 1_428, 5_856),
        (MINIATURE, 520, 2_144),
        pytest.param(prioritised(VLLM_0_33), 1_428, 5_856, marks=[pytest.mark.slow, unless_asked]),
    ],
)
def test_renaming_commutes_on_all_transitions_of_a_scope(
    policy: Policy, states: int, steps: int
) -> None:
    """Three blocks of one token, two requests, two tokens: every order of the blocks, with the
    names of the tokens, and of the requests where they break no tie, as they are and exchanged."""
    first = policy.first_block
    machine = Machine(Config(3 + first, 1, 4, 8, 2), policy)
    other: dict[str, str] = {} if policy.order is Order.PRIORITY else {"a": "b", "b": "a"}
    both: tuple[tuple[NamesTokens, dict[str, str]], ...] = (
        (same_token, {}),
        (lambda _, t: 1 - t, other),
    )
    usable = range(first, first + 3)
    renamings = [
        Renaming(dict(zip(usable, order, strict=True)), tokens, ids)
        for order in permutations(usable)
        for tokens, ids in both
    ]
    found = list(reachable(machine, SCOPE))
    assert (len(found), sum(len(actions) for _, actions in found)) == (states, steps)
    for state, actions in found:
        for action in actions:
            for renaming in renamings:
                assert unequal(machine, state, action, renaming) is None


def test_ids_break_ties_by_priority() -> None:
    """Where EQV-1 does not hold: two requests of one priority and one moment. The smaller id is
    served first, so if they change names another one is."""
    machine = Machine(Config(4, 2, 8, 8, 1), prioritised(VLLM_0_33))
    assert tells_ids_apart(machine.config, machine.policy)
    state = machine.apply(machine.initial(), Submit("b", (0,), 1)).state
    twin = Submit("a", (1,), 1, with_last=True)
    assert unequal(machine, state, twin, Renaming(ids={"a": "b", "b": "a"})) is not None
    assert unequal(machine, state, twin, Renaming()) is None


def test_stop_tokens_are_names_too() -> None:
    """A token that ends a request must be renamed with the others."""
    machine = Machine(Config(4, 2, 8, 8, 1), VLLM_0_33)
    state = machine.apply(machine.initial(), Submit("a", (0,), 3, stop=(1,))).state
    state = machine.apply(state, Schedule()).state
    ends = Complete((Output("a", (1,)),))
    assert unequal(machine, state, ends, Renaming(tokens=swapped)) is None
    forgot = Renaming(tokens=swapped, stops=False)
    assert "is not the renaming" in (unequal(machine, state, ends, forgot) or "")


def test_the_null_block_keeps_its_name() -> None:
    machine = Machine(Config(3, 2, 4, 4, 1), VLLM_0_33)
    swap = Renaming({0: 1, 1: 0})
    waiting = machine.apply(machine.initial(), Submit("a", (0,), 1)).state
    assert unequal(machine, waiting, Schedule(), swap) is None, "the machine itself has no number"
    assert swap.state(waiting).pool.free == (0, 2), "but block 0 would be handed out"


def test_a_merging_of_tokens_does_not_commute() -> None:
    """The map must be injective: if 0 and 1 become one, a miss becomes a hit."""
    machine = Machine(Config(8, 1, 8, 8, 2), VLLM_0_33)
    actions: list[Action] = [
        Submit("a", (0, 0), 1),
        Schedule(),
        Complete((Output("a", (5,)),)),
        Submit("b", (1, 0), 1),
        Schedule(),
    ]
    merged = Renaming(tokens=lambda _, t: 0 if t == 1 else t)
    unequals = [unequal(machine, s, a, merged) for s, a in transitions(machine, actions)]
    assert [u is None for u in unequals] == [True, True, True, True, False]


def test_a_renaming_of_blocks_is_a_permutation() -> None:
    with pytest.raises(SpecError, match=r"blocks: \{1: 2\} is no permutation"):
        Renaming({1: 2})


class Tidy(Machine):
    """Tells the blocks of an admission in order of their numbers. The states are those of the
    machine, only the events are not."""

    def apply(self, state: State, action: Action) -> Transition:
        moved = super().apply(state, action)
        told = (
            evolve(e, blocks=tuple(sorted(e.blocks))) if isinstance(e, Admitted) else e
            for e in moved.events
        )
        return Transition(moved.state, tuple(told))


def test_events_are_renamed_with_the_states() -> None:
    config = Config(5, 1, 4, 8, 2)
    swap = Renaming({1: 2, 2: 1})
    for machine, told in ((Machine(config, VLLM_0_33), False), (Tidy(config, VLLM_0_33), True)):
        state = machine.apply(machine.initial(), Submit("a", (0, 0), 1)).state
        unlike = unequal(machine, state, Schedule(), swap)
        assert (unlike is not None and "Admitted" in unlike) is told


def test_a_pool_that_hands_out_by_number_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks taken in order of their numbers, not of the queue: EQV-1 falls."""
    monkeypatch.setattr(
        "servespec.pool.extend",
        lambda pool, count: extend(evolve(pool, free=tuple(sorted(pool.free))), count),
    )
    machine = Machine(Config(5, 1, 4, 8, 2), VLLM_0_33)
    swap = Renaming({1: 2, 2: 1})
    state = machine.apply(machine.initial(), Submit("a", (0,), 1)).state
    assert "is not the renaming" in (unequal(machine, state, Schedule(), swap) or "")
