"""Every transition of a scope with an engine beside it: it refines, or here is the shortest way on
which it does not. And exact policies as ways through the open machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attrs import evolve, fields, frozen

from servecheck.engines.fast.adapters import FastLoop
from servecheck.engines.fast.engine import FastEngine
from servecheck.engines.fast.plan import FastPlan
from servecheck.engines.fast.refine import Refinement
from servecheck.engines.protocol import Capabilities, Level, Verb
from servecheck.explore.axes import AFTER_STEP, kind
from servecheck.explore.opened import Chosen, Opened, Watching, contained
from servecheck.explore.refining import misused, refined
from servecheck.explore.scopes import ServingScope, named
from servecheck.explore.search import Ended, Limits, Progress, search
from servecheck.explore.serving import Serving
from servecheck.lockstep.subject import Subject, parted
from servecheck.trace.read import read_trace
from servecheck.trace.write import TraceWriter
from servespec import open as any_engine
from servespec import scheduler
from servespec.actions import Action, Schedule
from servespec.config import Config
from servespec.errors import ActionDisabled
from servespec.machine import Machine
from servespec.moves import Move, Pass, Preempt, step
from servespec.policy import RESERVED, STATIC, VLLM_0_33, Policy
from servespec.properties import PROPERTIES, Kind
from tests import broken_engines
from tests.broken_engines import FAULTS, Mortal, Nobody

TINY = tuple(s for s in named("serving-tiny") if isinstance(s, ServingScope))
SLOW = bool(os.environ.get("SERVECHECK_SLOW"))
SAMPLE = ("priority", "reserved")
"""Axes that are always gone through whole; of the others, some hundred states."""


def scope(axis: str) -> ServingScope:
    (found,) = named(f"serving-tiny/{axis}")
    assert isinstance(found, ServingScope)
    return found


# --- the fast engine -----------------------------------------------------------------------


@pytest.mark.parametrize("tiny", TINY, ids=[s.name for s in TINY])
def test_the_fast_engine_refines_the_specification(tiny: ServingScope) -> None:
    """REF-1 on every transition, REF-2 in every state; and what is not enabled is refused."""
    assert tiny.counts is not None
    whole = SLOW or tiny.name.split("/")[1] in SAMPLE or tiny.counts.states < 300
    found = refined(tiny.system, Subject(Refinement), limits=Limits(states=None if whole else 100))
    assert found.parted is None
    if whole:
        assert found.holds is True
        there = tiny.counts
        assert (found.states, found.transitions) == (there.states, there.transitions)
        assert found.depth == there.depth
        assert found.unvisited == 0
    else:
        assert found.holds is None
        assert found.ended is Ended.STATES
        assert found.states >= 100
    assert found.refusals > found.states


def test_an_engine_that_hides_something_does_not_refine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts its passes, which no state shows, and in the third one holds the null block."""
    passes = FastEngine.schedule

    def schedule(engine: FastEngine) -> FastPlan:
        hidden = vars(engine)
        hidden["made"] = hidden.get("made", 0) + (not engine.in_flight)
        engine.pool.ref[0] += hidden["made"] == 3
        return passes(engine)

    monkeypatch.setattr(FastEngine, "schedule", schedule)
    found = refined(scope("reserved").system, Subject(Refinement))
    assert found.holds is False
    assert found.parted is not None
    assert sum(isinstance(a, Schedule) for a in found.parted.actions) == 3


def test_an_engine_that_does_what_is_not_enabled_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two plans in flight: the machine refuses the second."""

    def refuses(engine: Refinement, action: Action) -> bool:
        return not isinstance(action, Schedule)

    monkeypatch.setattr(Refinement, "refuses", refuses)
    found = refined(scope("reserved").system, Subject(Refinement))
    assert found.parted is not None
    assert found.parted.actions == (Schedule(), Schedule())
    machine = found.parted.machine
    with pytest.raises(ActionDisabled):
        machine.apply(machine.apply(machine.initial(), Schedule()).state, Schedule())


def test_what_a_state_does_not_offer() -> None:
    system = scope("after-step").system
    names = [type(a).__name__ for a in misused(system, system.initial())]
    assert names == ["Complete", "Discard"]


# --- engines with a fault ------------------------------------------------------------------

SHORTEST = {
    "HitStaysFree": ("after-step", 6),
    "Parentless": ("two-tenants", 4),
    "HeadFirst": ("miniature", 3),
    "StaleIndex": ("after-step", 8),
    "CopyForgotten": ("after-step", 8),
    "WholeHit": ("namespaces", 3),
    "BudgetLost": ("two-tenants", 8),
    "DraftsPublished": ("drafts", 5),
    "SaltOnce": ("two-tenants", 5),
    "ToTheTail": ("chunks", 4),
}
"""For each fault a scope that shows it, and after how many actions."""


@pytest.mark.parametrize("fault", FAULTS, ids=[f.__name__ for f in FAULTS])
def test_each_fault_is_found_on_a_shortest_way(fault: type[FastLoop]) -> None:
    axis, actions = SHORTEST[fault.__name__]
    system = scope(axis).system
    found = refined(system, Subject.of(fault), limits=Limits(depth=actions))
    assert found.holds is False
    assert found.parted is not None
    assert len(found.parted.actions) == actions
    again = parted(Subject.of(fault), system.machine, found.parted.actions)
    assert again is not None
    assert again.divergence == found.parted.divergence


def test_a_divergence_is_a_trace(tmp_path: Path) -> None:
    """What is told is a program: written, read back and driven again."""
    path = tmp_path / "refine.jsonl"
    system = scope("namespaces").system
    found = refined(system, Subject.of(broken_engines.WholeHit))
    assert found.parted is not None
    state = system.initial()
    with TraceWriter(path, system.machine) as writer:
        for action in found.parted.actions:
            moved = system.machine.apply(state, action)
            writer.action(action, moved)
            state = moved.state
    actions = tuple(line.action for line in read_trace(path).lines)
    assert actions == found.parted.actions
    assert parted(Subject.of(broken_engines.WholeHit), system.machine, actions) is not None


# --- what is not known ---------------------------------------------------------------------


class NoAborts(FastLoop):
    """It cannot abort."""

    capabilities = Capabilities("no aborts", "1", Level.STATE, frozenset({Verb.ABORT}))


def test_what_an_engine_cannot_do_is_undetermined() -> None:
    """Without aborts and resets the rest agrees, and nothing is said of the scope."""
    system = scope("reserved").system
    found = refined(system, Subject.of(NoAborts))
    assert found.parted is None
    assert found.unable.keys() == {"Abort"}
    assert found.holds is None
    able = search(evolve(system, aborts=False))
    assert (found.states, found.transitions) == (able.states, able.transitions)


def test_an_engine_that_there_is_not() -> None:
    found = refined(scope("reserved").system, Subject.of(Nobody))
    assert found.holds is None
    assert found.engine is None
    assert found.why == "policy: there is none that I take"


def test_an_engine_that_dies_has_not_diverged() -> None:
    found = refined(scope("reserved").system, Subject.of(Mortal))
    assert found.holds is None
    assert found.parted is None
    assert found.why is not None
    assert "the lights went out" in found.why


def test_an_engine_that_does_not_do_the_same_twice_is_told() -> None:
    """Every other one releases head first: one that agreed parts on the same way."""
    broken_engines.Whimsical.made = 0
    found = refined(scope("miniature").system, Subject.of(broken_engines.Whimsical))
    assert found.holds is False
    assert found.nondeterministic


def test_a_limit_leaves_it_open_and_progress_is_told() -> None:
    told: list[Progress] = []
    found = refined(
        scope("chunks").system, Subject(Refinement), limits=Limits(seconds=0), report=told.append
    )
    assert found.holds is None
    assert found.ended is Ended.SECONDS
    assert told


# --- exact policies inside the open machine ------------------------------------------------


@pytest.mark.parametrize("tiny", TINY, ids=[s.name for s in TINY])
def test_an_exact_policy_is_a_way_through_the_open_machine(tiny: ServingScope) -> None:
    """At each point of each pass over each state of a scope the exact move is permitted."""
    found = contained(tiny.system, limits=Limits(states=None if SLOW else 1_000))
    assert found.holds is (True if found.ended is Ended.EXHAUSTED else None)
    assert not found.outside
    assert found.moves > found.passes >= 5


def test_a_smaller_open_machine_contains_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the open machine preempts nobody, an exact policy that does is outside of it."""
    permitted = any_engine.permitted

    def peaceful(p: Pass) -> tuple[Move, ...]:
        return tuple(move for move in permitted(p) if not isinstance(move, Preempt))

    monkeypatch.setattr(any_engine, "permitted", peaceful)
    found = contained(scope("chunks").system)
    assert found.holds is False
    assert {type(o.move) for o in found.outside} == {Preempt}


def test_the_open_machine_reads_no_open_axis() -> None:
    """Two policies that differ in the open axes only permit the same moves; every axis is either
    kept or open."""
    axes = {axis.name for axis in fields(Policy)}
    assert axes > any_engine.KEPT
    kept = {name: getattr(VLLM_0_33, name) for name in any_engine.KEPT}
    other = evolve(STATIC, chunked_prefill=True, **kept)
    assert {n for n in axes if getattr(other, n) != getattr(VLLM_0_33, n)} <= axes - any_engine.KEPT
    system = scope("chunks").system
    asked = 0
    for key in search(system).graph.keys:
        p = scheduler.start(system.machine.config, VLLM_0_33, system.restore(key))
        while moves := scheduler.permitted(p):
            assert any_engine.permitted(p) == any_engine.permitted(evolve(p, policy=other))
            p, asked = step(p, moves[0]), asked + 1
    assert asked > 500


TWOS, ONES = Config(3, 2, 3, 2, 2), Config(3, 1, 3, 2, 2)


@frozen
class Small:
    """A scope small enough for all that any engine can choose."""

    policy: Policy
    config: Config

    def system(self) -> Opened:
        kinds = (kind("0", 2),)
        return Opened(Serving(Machine(self.config, self.policy), kinds, 2, resets=(True,)))


FELL_BY_CHOICE = {"WRK-1", "TOK-1", "ADM-1", "PRE-1", "CON-2", "BUD-2", "LRU-2"}
CONTENT = {"CON-1", "CON-1r", "CON-3"}


def fallen(small: Small) -> tuple[set[str], set[str]]:
    """What falls in the open machine, and what was asked."""
    system = small.system()
    found = search(system, Watching(system, tuple(PROPERTIES.values())))
    assert found.ended is Ended.EXHAUSTED
    assert found.states > 2 * search(system.base).states
    return {f.name for f in found.falls}, set(found.counts)


def test_whatever_is_chosen_is_safe() -> None:
    """Blocks are published after the step: what is promised holds on every transition that any
    choice makes; what falls besides was not promised."""
    fell, asked = fallen(Small(AFTER_STEP, TWOS))
    assert fell == FELL_BY_CHOICE - {"CON-2"}
    assert asked >= any_engine.PROMISED
    fell, asked = fallen(Small(RESERVED, TWOS))
    assert fell - {"EVI-1"} <= FELL_BY_CHOICE
    assert asked >= any_engine.PROMISED


def test_what_is_published_before_it_is_written_is_not_safe_whatever_is_chosen() -> None:
    """Somebody is scheduled, and sent back in the same pass: its blocks stay findable."""
    fell, _ = fallen(Small(VLLM_0_33, ONES))
    assert fell & any_engine.PROMISED == CONTENT


def test_what_is_promised_is_registered_and_the_rest_is_named() -> None:
    asked = {p.id for p in PROPERTIES.values() if p.kind is not Kind.M}
    assert asked - any_engine.PROMISED == FELL_BY_CHOICE | {"EVI-1"}
    assert asked >= any_engine.PROMISED


def test_a_chosen_pass_is_applied_as_it_was_found() -> None:
    system = Small(AFTER_STEP, TWOS).system()
    state = system.apply(system.initial(), evolve(kind("0", 2), id="a")).state
    chosen = [a for a in system.enabled(state) if isinstance(a, Chosen)]
    plans = [system.apply(state, action).state.in_flight[0].entries for action in chosen]
    assert sorted({len(entries) for entries in plans}) == [0, 1]
