"""LIV-1 searched to the end: who is served in every fair run, who is not, and why a loop shows it.

All scopes are tiny, so each of these verdicts is about every run of them.
"""

from __future__ import annotations

import os

import networkx as nx
import pytest
from attrs import evolve

from servecheck.explore.axes import AXES, kind
from servecheck.explore.liveness import Fits, Lasso, Liveness, fitting, liveness, peeled
from servecheck.explore.scopes import ServingScope, named
from servecheck.explore.search import Ended, Limits, search
from servecheck.explore.serving import Serving
from servecheck.explore.system import Raw
from servecheck.trace.fairness import goes_on, served_after
from servecheck.trace.shrink import fall_in
from servespec.actions import Abort, Action, Complete, Discard, ResetCache, Schedule, Submit
from servespec.config import Config
from servespec.events import Preempted
from servespec.machine import Machine, fits_alone
from servespec.plan import State
from servespec.policy import (
    MINIATURE,
    RESERVED,
    STATIC,
    VLLM_0_33,
    Admission,
    Impossible,
    Policy,
    Publish,
    Sharing,
    StepMix,
    Victim,
    prioritised,
)
from servespec.request import Request, arrived


def tiny(axis: str) -> Serving:
    (scope,) = named(f"serving-tiny/{axis}")
    assert isinstance(scope, ServingScope)
    return scope.system


def run(machine: Machine, actions: tuple[Action, ...]) -> State:
    state = machine.initial()
    for action in actions:
        state = machine.apply(state, action).state
    return state


def shape(found: Liveness) -> tuple[str, int, tuple[int, int] | None]:
    """The verdict, how many starve, and how long stem and loop of the lasso are."""
    lasso = found.lasso
    ways = None if lasso is None else (len(lasso.stem), len(lasso.loop))
    return found.verdict, found.starving, ways


# --- holds, and falls ----------------------------------------------------------------------

FALLING = {
    "prefill-first": (18, (6, 6)),
    "passed-over": (3, (10, 6)),
    "deadlock": (8, (4, 2)),
    "together": (16, (4, 8)),
}
"""Scopes in which somebody starves though everybody fits alone: how many do, and the lasso."""


unless_asked = pytest.mark.skipif(
    not os.environ.get("SERVECHECK_SLOW"), reason="takes ten seconds: set SERVECHECK_SLOW to run it"
)
LARGE = dict.fromkeys(("drafts", "given-back"), (pytest.mark.slow, unless_asked))


@pytest.mark.parametrize(
    "axis",
    [pytest.param(axis, marks=LARGE.get(axis, ())) for axis in AXES if axis not in FALLING],
)
def test_everybody_is_served(axis: str) -> None:
    """Whatever arrives, in every fair run of the scope, if all fit alone."""
    assert shape(liveness(tiny(axis))) == ("holds", 0, None)


@pytest.mark.parametrize("axis", FALLING)
def test_somebody_starves(axis: str) -> None:
    found = liveness(tiny(axis))
    assert shape(found) == ("falls", *FALLING[axis])
    assert found.lasso is not None
    a_lasso(tiny(axis).machine, found.lasso)


def a_lasso(machine: Machine, lasso: Lasso) -> None:
    """The loop leads back, in concrete states; the monitor of a finite run says the same of it, on
    its last action and not before."""
    assert run(machine, lasso.stem) == run(machine, lasso.actions)
    assert fall_in(machine, "LIV-1", lasso.actions[:-1]) is None
    assert fall_in(machine, "LIV-1", lasso.actions) == (
        f"{lasso.starved} fits alone, and the loop goes round without it"
    )


def test_a_decode_starves_while_prefills_arrive() -> None:
    """Prefill goes first: `a` has one token to write, gets it, and comes again, while `b` waits."""
    system = tiny("prefill-first")
    lasso = liveness(system).lasso
    assert lasso is not None
    assert lasso.starved == "b"
    assert lasso.arrivals
    arriving = [action for action in lasso.loop if isinstance(action, Submit)]
    assert {(action.id, action.max_tokens) for action in arriving} == {("a", 1)}


def test_without_arrivals_prefill_first_serves_everybody() -> None:
    assert shape(liveness(tiny("prefill-first"), arrivals=False)) == ("holds", 0, None)
    assert shape(liveness(tiny("passed-over"), arrivals=False)) == ("holds", 0, None)


def test_each_holds_the_block_that_the_other_waits_for() -> None:
    """Nobody is preempted, and nobody progresses: two blocks, two requests, each has one."""
    found = liveness(tiny("deadlock"), arrivals=False)
    assert shape(found) == ("falls", 8, (4, 2))
    assert found.lasso is not None
    assert not found.lasso.arrivals
    assert found.lasso.loop == (Schedule(), Complete())
    state = run(tiny("deadlock").machine, found.lasso.stem)
    assert [r.table for r in state.running] == [(0,), (1,)]


def test_what_is_promised_at_admission_is_there() -> None:
    system = tiny("deadlock")
    policy = evolve(system.machine.policy, admission=Admission.WHOLE_REQUEST)
    machine = Machine(system.machine.config, policy)
    assert shape(liveness(evolve(system, machine=machine))) == ("holds", 0, None)


def test_a_search_that_was_not_ended_proves_nothing() -> None:
    found = liveness(tiny("chunks"), limits=Limits(states=100))
    assert (found.verdict, found.found.ended) == ("undetermined", Ended.STATES)
    found = liveness(tiny("prefill-first"), limits=Limits(states=1_500))
    assert found.verdict == "falls"  # a lasso is one however much is left


def test_several_processes_say_the_same() -> None:
    one, two = (liveness(tiny("prefill-first"), processes=n) for n in (1, 2))
    assert one.lasso == two.lasso
    assert one.starving == two.starving


# --- a preemption livelock -----------------------------------------------------------------

TOGETHER = tiny("together")
LIVELOCKED = TOGETHER.machine.policy
UNCUT = evolve(TOGETHER.machine.config, long_prefill_token_threshold=0, max_num_batched_tokens=6)


def with_policy(policy: Policy) -> Serving:
    """The same sizes and arrivals; prompts in one piece where they are not cut."""
    config = TOGETHER.machine.config if policy.chunked_prefill else UNCUT
    return evolve(TOGETHER, machine=Machine(config, policy))


def test_two_that_came_together_preempt_each_other_for_ever() -> None:
    """Nothing arrives, nothing is delivered, and blocks change hands all the time."""
    found = liveness(TOGETHER, arrivals=False)
    assert shape(found) == ("falls", 16, (4, 8))
    assert found.lasso is not None
    a_lasso(TOGETHER.machine, found.lasso)
    state, gave_way = run(TOGETHER.machine, found.lasso.stem), list[str]()
    for action in found.lasso.loop:
        moved = TOGETHER.machine.apply(state, action)
        gave_way += [e.id for e in moved.events if isinstance(e, Preempted)]
        state = moved.state
    assert gave_way == ["a", "b"]


@pytest.mark.parametrize(
    "policy",
    [
        VLLM_0_33,
        prioritised(VLLM_0_33),
        evolve(VLLM_0_33, sharing=Sharing.OFF),
        evolve(prioritised(VLLM_0_33), sharing=Sharing.OFF),
        MINIATURE,
        prioritised(MINIATURE),
        STATIC,
        RESERVED,
    ],
)
def test_no_profile_has_a_livelock_in_these_sizes(policy: Policy) -> None:
    if policy is RESERVED:  # which must find room for the longest text
        config = evolve(UNCUT, max_model_len=5)
        system = evolve(TOGETHER, machine=Machine(config, policy))
    else:
        system = with_policy(policy)
    assert shape(liveness(system)) == ("holds", 0, None)


@pytest.mark.parametrize(
    "policy",
    [
        evolve(LIVELOCKED, admission=Admission.WHOLE_TEXT),  # who comes back finds room for all
        evolve(LIVELOCKED, victim=Victim.LAST_ADMITTED),  # the first of the list never gives way
        evolve(LIVELOCKED, sharing=Sharing.FULL_BLOCKS),  # what was computed is found again
        evolve(LIVELOCKED, chunked_prefill=False),  # a prompt holds all its blocks at once
    ],
)
def test_each_choice_is_needed_for_the_livelock(policy: Policy) -> None:
    assert shape(liveness(with_policy(policy))) == ("holds", 0, None)


def test_one_of_two_that_came_after_each_other_is_worse() -> None:
    alone = evolve(TOGETHER, kinds=tuple(k for k in TOGETHER.kinds if not k.with_last))
    assert shape(liveness(alone)) == ("holds", 0, None)


# --- who must fit alone --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "starving", "stem"), [("full-prompt", 2, 4), ("small-pool", 4, 2), ("uncut", 2, 2)]
)
def test_one_that_cannot_be_served_stands_before_one_that_can(
    axis: str, starving: int, stem: int
) -> None:
    """LIV-1 says nothing where not all fit alone; asked of the waiting one only, it falls."""
    assert shape(liveness(tiny(axis))) == ("holds", 0, None)
    found = liveness(tiny(axis), fits=Fits.TAGGED)
    assert shape(found) == ("falls", starving, (stem, 2))
    assert found.lasso is not None
    a_lasso(tiny(axis).machine, found.lasso)


def test_who_is_turned_away_starves_nobody() -> None:
    """And is no arrival of a loop, though it leads back at once."""
    system = tiny("small-pool")
    policy = evolve(system.machine.policy, impossible=Impossible.REFUSE)
    polite = evolve(system, machine=Machine(system.machine.config, policy))
    assert len(fitting(polite, Fits.TAGGED).kinds) == len(polite.kinds) - 1
    assert shape(liveness(polite, fits=Fits.TAGGED)) == ("holds", 0, None)


# --- what may happen for ever --------------------------------------------------------------


def request(priority: int) -> Request:
    return arrived(Submit("r", (0,), 1, priority=priority), 0, Config(4, 1, 4, 4, 2), VLLM_0_33)


@pytest.mark.parametrize(
    ("policy", "priority", "with_last", "after"),
    [
        (VLLM_0_33, 0, False, True),
        (VLLM_0_33, 0, True, True),
        (prioritised(VLLM_0_33), 2, True, True),
        (prioritised(VLLM_0_33), 1, False, True),
        (prioritised(VLLM_0_33), 1, True, False),  # its id may go first
        (prioritised(VLLM_0_33), 0, False, False),
        (evolve(VLLM_0_33, victim=Victim.WORST_PRIORITY), 0, False, False),
    ],
)
def test_who_is_served_after_one_of_priority_1(
    policy: Policy, priority: int, with_last: bool, after: bool
) -> None:
    submit = Submit("s", (0,), 1, priority=priority, with_last=with_last)
    assert served_after(policy, submit, request(1)) is after
    assert goes_on(policy, submit, request(1)) is after


def test_passes_go_on_for_ever_and_interventions_do_not() -> None:
    going_on: tuple[Action, ...] = (Schedule(), Complete())
    once: tuple[Action, ...] = (Abort("s"), Discard(), ResetCache(), ResetCache(True))
    assert all(goes_on(VLLM_0_33, action, request(0)) for action in going_on)
    assert not any(goes_on(VLLM_0_33, action, request(0)) for action in once)


@pytest.mark.parametrize("priority", [0, 1])
def test_better_ones_that_never_end_are_nobodys_fault(priority: int) -> None:
    """One seat, and arrivals of priority 0: one of priority 1 waits for ever, but not unfairly."""
    machine = Machine(Config(3, 1, 3, 2, 1), prioritised(VLLM_0_33))
    kinds = (kind("0", 1), kind("0", 1, priority=priority))
    assert shape(liveness(Serving(machine, kinds, live=2))) == ("holds", 0, None)


# --- the graph -----------------------------------------------------------------------------


def test_what_leads_to_no_cycle_is_peeled_off() -> None:
    """1 leads to a cycle of 2 and 3; 3 also to 4 and 5, which end; 6 leads out of the graph."""
    ways = {1: [2, 4], 2: [3], 3: [2, 4], 4: [5], 5: [], 6: [7]}
    assert peeled(ways) == {1: [2], 2: [3], 3: [2]}
    assert peeled({1: [2, 3], 2: [3], 3: []}) == {}


NAMED_SIZES = Config(3, 1, 3, 2, 2)
VARIANTS = {
    "vLLM's": (VLLM_0_33, False),
    "by priority": (prioritised(VLLM_0_33), False),
    "published after the step": (evolve(VLLM_0_33, publish=Publish.AFTER_STEP), False),
    "nobody is preempted": (evolve(VLLM_0_33, victim=Victim.NONE), True),
    "prefill first": (evolve(VLLM_0_33, step_mix=StepMix.PREFILL_FIRST), True),
    "the miniature's": (MINIATURE, False),
    "the miniature's, prefill first": (evolve(MINIATURE, step_mix=StepMix.PREFILL_FIRST), True),
}


@pytest.mark.parametrize(("policy", "falls"), VARIANTS.values(), ids=VARIANTS.keys())
def test_names_make_no_difference(policy: Policy, falls: bool) -> None:
    """Two blocks, and requests that come to use one or two."""
    machine = Machine(NAMED_SIZES, policy)
    kinds = (kind("0", 2), kind("0", 1))
    assert same_under_all_names(Serving(machine, kinds, live=2)) is falls


def test_names_make_no_difference_to_the_livelock() -> None:
    """Here ids are kept, and blocks are not."""
    assert same_under_all_names(evolve(TOGETHER, aborts=False))


def same_under_all_names(system: Serving) -> bool:
    """The same question to the graph of concrete states, in which a request is its id: it has a
    cycle exactly if the graph up to names has one, and as many requests starve, up to names. Says
    whether there is a cycle."""
    machine, policy = system.machine, system.machine.policy
    found, raw = liveness(system), search(Raw(system), edges=True)
    assert raw.exhausted
    graph: nx.DiGraph[tuple[int, str]] = nx.DiGraph()
    for number, successors in enumerate(raw.graph.edges or []):
        state = raw.graph.keys[number]
        for action, after in zip(system.enabled(state), successors, strict=True):
            for r in state.live:
                there = raw.graph.keys[after].find(r.id) is not None
                if there and fits_alone(machine, r) and goes_on(policy, action, r):
                    graph.add_edge((number, r.id), (after, r.id))
    cycles = [c for c in nx.strongly_connected_components(graph) if len(c) > 1]
    starving = set()
    for number, id in (node for cycle in cycles for node in cycle):
        state = raw.graph.keys[number]
        place = [r.id for r in state.live].index(id)
        starving.add((system.canonical(state), place))
    assert found.starving == len(starving)
    assert (found.lasso is not None) == bool(cycles)
    if found.lasso is not None:
        a_lasso(machine, found.lasso)
    return bool(cycles)


def test_ids_are_names_unless_they_order_those_who_came_together() -> None:
    assert TOGETHER.ids_matter
    assert not with_policy(VLLM_0_33).ids_matter
    assert not tiny("priority").ids_matter
    for key in search(TOGETHER).graph.keys:
        state = TOGETHER.restore(key)
        assert TOGETHER.canonical(state) == key
        assert TOGETHER.named(state)[0] == key
