"""The fast engine refines the specification: along random programs, recordings and long prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from types import ModuleType

import pytest
from attrs import evolve, fields
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from servecheck.engines.fast import FastEngine, abstraction, from_state, log, trie
from servecheck.engines.fast.adapters import FastCache, FastLoop
from servecheck.engines.fast.log import REMOVED, events, evicted
from servecheck.engines.fast.plan import FastPlan
from servecheck.engines.fast.pool import FastPool
from servecheck.engines.fast.refine import Refinement
from servecheck.engines.fast.trie import Names
from servecheck.fuzz.machine import Tally, machine_class
from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.wander import Wanderer
from servecheck.lockstep.follow import EngineFollower, follower
from servecheck.recording import read_recording
from servecheck.recording.replay import replay
from servecheck.recording.settings import config_of, policy_of
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
from servespec.chain import PUBLIC, Namespace, Tokens, keys
from servespec.config import Config
from servespec.errors import ActionDisabled
from servespec.events import BlockRemoved, BlockStored
from servespec.machine import Machine
from servespec.plan import State
from servespec.policy import (
    MINIATURE,
    VLLM_0_33,
    Policy,
    Publish,
    Release,
    prioritised,
)
from servespec.properties import Step, step_of
from servespec.properties.reports import without_ghosts
from tests import recordings
from tests.test_recordings import SIZES

SMALL = Config(
    num_blocks=9, block_size=2, max_model_len=16, max_num_batched_tokens=8, max_num_seqs=4
)
LARGE = {"conv", "nochunk"}
"""Recordings with hundreds of blocks: comparing every state of two engines takes seconds. The
engine alone does run along them, in tests/test_recordings.py."""


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


WITH: Callable[..., Policy] = evolve


def choices(axis: str) -> list[Policy]:
    """vLLM's policy and the miniature, with each value of one axis."""
    kind = type(getattr(VLLM_0_33, axis))
    values = list(kind) if issubclass(kind, Enum) else [False, True]
    return [WITH(base, **{axis: value}) for base in (VLLM_0_33, MINIATURE) for value in values]


@pytest.mark.parametrize("axis", [axis.name for axis in fields(Policy)])
def test_ref_1_and_ref_2_where_one_choice_is_made_each_way(axis: str) -> None:
    """Walks at random meet a rare choice rarely: here each value of each axis has some."""
    for policy in choices(axis):
        for seed in range(2):
            Wanderer(seed, (), policy=policy, following=Refinement).go(30)


SIZED = {
    "chunks": evolve(SMALL, long_prefill_token_threshold=2),
    "watermark": evolve(SMALL, watermark=0.3),
    "one draft": evolve(SMALL, num_speculative_tokens=1),
    "drafts": evolve(SMALL, num_speculative_tokens=2, num_lookahead_tokens=1),
    "short texts": evolve(SMALL, max_model_len=5),
    "small passes": evolve(SMALL, max_num_batched_tokens=3),
    "one seat": evolve(SMALL, max_num_seqs=1),
    "long blocks": evolve(SMALL, block_size=5),
}


@pytest.mark.parametrize("name", SIZED)
def test_ref_1_and_ref_2_where_one_size_matters(name: str) -> None:
    late = evolve(VLLM_0_33, publish=Publish.AFTER_STEP)
    for policy in (VLLM_0_33, prioritised(VLLM_0_33), late):
        for seed in range(3):
            Wanderer(seed, (), SIZED[name], policy, Refinement).go(30)


def test_the_walks_go_by_every_short_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """What saves work is taken on the way of REF-1 and REF-2, and often: decodes that are only
    counted, tokens that are only appended, runs that grow, are split and are let go from their
    ends, names with several copies, entries that are written out because somebody leaves."""
    marks: Counter[str] = Counter()

    def counted(
        where: type[object] | ModuleType, name: str, mark: Callable[..., Iterable[str]]
    ) -> None:
        verb = getattr(where, name)

        def count(*args: object) -> object:
            marks.update(mark(*args))
            return verb(*args)

        monkeypatch.setattr(where, name, count)

    def appended(engine: FastEngine, plan: FastPlan, sampled: list[Tokens]) -> Iterator[str]:
        for request, tokens in zip(plan.requests, sampled, strict=True):
            if tokens and request.computed < request.edge:
                yield "appended"

    def grown(
        trie: trie.Trie, names: trie.Names, namespace: Namespace, text: list[int], size: int
    ) -> Iterator[str]:
        leaf = names.leaf
        if leaf is not None and len(text) // size > names.count:
            yield "grown" if leaf.ends == 1 and not leaf.children else "gone on"

    def stretched(told: list[tuple[object, ...]]) -> Iterator[str]:
        for kind, *rest in told:
            if kind is REMOVED and isinstance(rest[0], list) and len(rest[0]) > 1:
                yield "stretch"

    counted(FastPlan, "add_decodes", lambda plan, requests: ["decode"] * len(requests))
    counted(FastEngine, "_take_in", appended)
    counted(trie.Trie, "extend", grown)
    counted(trie.Trie, "_split", lambda *_: ["split"])
    counted(trie, "_leave", lambda *_: ["copy"])
    counted(log, "events", stretched)
    counted(FastPlan, "leave", lambda plan, request, _: ["left"] * (None in plan.details))
    roomy = Config(64, 8, 64, 64, 6)
    for seed in range(30):
        Wanderer(seed, (), following=Refinement).go(60)
        Wanderer(seed, (), roomy, VLLM_0_33, Refinement).go(40)
    for mark in ("decode", "appended", "grown", "gone on", "split", "copy", "stretch", "left"):
        assert marks[mark] > 3, marks


def beside(engine: type[FastLoop] | type[FastCache], machine: Machine) -> EngineFollower:
    return follower(engine(machine.config, machine.policy), machine)


@pytest.mark.parametrize("engine", [FastLoop, FastCache])
def test_the_adapters_follow(engine: type[FastLoop] | type[FastCache]) -> None:
    beside_it: list[EngineFollower] = []

    def followed(machine: Machine) -> EngineFollower:
        beside_it.append(beside(engine, machine))
        return beside_it[-1]

    for seed in range(25):
        Wanderer(seed, (), following=followed).go(50)
    assert [f.comparison.unseen for f in beside_it if f.comparison.unseen] == [], (
        "what an adapter does not tell is not compared: these tell everything"
    )


@pytest.mark.parametrize("name", sorted(SIZES.keys() - LARGE))
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
        Submit("a", (1, 2, 3), 4, Namespace(salt="s")),
        Submit("b", (1, 2, 5), 4),
        Schedule(),
        Abort("a"),
    ):
        state = machine.apply(state, action).state
    assert [(e.namespace.salt, e.cancelled) for e in state.in_flight[0].entries] == [
        ("s", True),
        (None, False),
    ]
    bare = without_ghosts(state)
    assert abstraction(from_state(SMALL, VLLM_0_33, bare)) == bare


def along(machine: Machine, *actions: Action) -> State:
    """The state after these actions, with the engines beside the machine."""
    engines, state = Refinement(machine, fresh=1), machine.initial()
    for action in actions:
        step = step_of(machine, state, action, machine.apply(state, action))
        engines.follow(step)
        state = step.after
    return state


DRAFTING = evolve(SMALL, num_speculative_tokens=2)


def test_what_is_brought_for_who_has_left_is_ignored() -> None:
    """Given a plan of two requests; when the first leaves, and the model answers for both, then the
    first has no output, whoever has its id by then."""
    state = along(
        Machine(SMALL, VLLM_0_33),
        Submit("a", (1, 2, 3), 4),
        Submit("b", (1, 2, 5), 4),
        Schedule(),
        Abort("a"),
        Submit("a", (1, 2, 3), 4),
        Complete((Output("a", (7,)), Output("b", (8,)))),
    )
    assert {r.id: r.output for r in state.live} == {"a": (), "b": (8,)}


def test_what_is_brought_for_who_was_sent_back_is_ignored() -> None:
    """Given a plan in flight of one that decodes; when a reset sends it back, and the model answers
    with tokens and drafts, then it waits with neither. Where its blocks are held until the step is
    done, the reset is refused, and the answer counts."""
    for release, output in ((Release.AT_ONCE, (4,)), (Release.DEFERRED, (4, 5, 6, 7))):
        state = along(
            Machine(DRAFTING, evolve(VLLM_0_33, release=release)),
            Submit("a", (1, 2, 3), 6),
            Schedule(),
            Complete((Output("a", (4,), (5, 6)),)),
            Schedule(),
            ResetCache(True),
            Complete((Output("a", (5, 6, 7), (8, 9)),)),
        )
        assert [r.output for r in state.live] == [output]


def test_a_discarded_plan_undoes_nothing_for_who_has_left() -> None:
    """Given a plan of two requests, of which the first has left, or has been sent back; when the
    plan is discarded, then the second is as before it, and for the first nothing is undone."""
    machine = Machine(SMALL, evolve(VLLM_0_33, publish=Publish.AFTER_STEP))
    both = Submit("a", (1, 2, 3), 4), Submit("b", (1, 2, 5), 4), Schedule()
    (b,) = along(machine, *both, Abort("a"), Discard()).live
    assert (b.computed, b.table) == (0, ())
    once = Complete((Output("a", (7,)), Output("b", (8,))))
    state = along(machine, *both, once, Schedule(), ResetCache(True), Discard())
    assert [(r.computed, r.table) for r in state.live] == [(0, ()), (0, ())]


def test_a_log_that_holds_what_nobody_writes_is_told() -> None:
    with pytest.raises(LookupError, match="the log holds"):
        list(events([("burnt", 1)]))


def test_a_cache_that_is_cleared_counts_no_evictions() -> None:
    engine = FastEngine(SMALL, VLLM_0_33)
    engine.reset_cache(False)
    assert evicted(engine.log) == 0


def test_who_comes_with_the_last_comes_with_nobody_where_nobody_is() -> None:
    """Given an engine where nobody lives; when a request comes at the moment of the last arrival,
    then it is the first, and the next one comes behind it."""
    state = along(
        Machine(SMALL, prioritised(VLLM_0_33)),
        Submit("b", (1,), 4, with_last=True),
        Submit("a", (2,), 4, with_last=True),
        Submit("c", (3,), 4),
    )
    assert [(r.id, r.arrival) for r in state.waiting] == [("a", 0), ("b", 0), ("c", 1)]


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


def test_a_run_is_split_where_texts_part() -> None:
    """Given a text of three blocks; when another one shares two of them, then the two are a run of
    their own, and each block is found under both texts."""
    pool = FastEngine(SMALL, VLLM_0_33).pool
    first, second = Names(), Names()
    pool.trie.extend(first, PUBLIC, [1, 2, 3, 4, 5, 6], 2)
    table = pool.extend(3)
    pool.publish(table, first, 0, 3)
    assert [run.blocks for run in pool.trie.path(first)] == [table]
    pool.trie.extend(second, PUBLIC, [1, 2, 3, 4, 7, 8], 2)
    assert [run.blocks for run in pool.trie.path(first)] == [table[2:], table[:2]]
    assert pool.match(first, 3) == table
    assert pool.match(second, 3) == table[:2]
    pool.trie.drop(second)
    pool.release(table)
    pool.trie.drop(first)
    assert pool.extend(8)[-3:] == table[::-1]
    assert pool.trie.roots == {}, "nobody needs a text of which nothing is left"


def test_a_younger_copy_takes_the_place_of_an_evicted_one() -> None:
    """Given a block in two copies, of which another text shares the first block alone; when the
    older copy is evicted, then the younger is found (IDX-2)."""
    pool = FastEngine(SMALL, VLLM_0_33).pool
    names, other = Names(), Names()
    pool.trie.extend(names, PUBLIC, [1, 2, 3, 4], 2)
    older, younger = pool.extend(2), pool.extend(2)
    pool.publish(older, names, 0, 2)
    pool.publish(younger, names, 0, 2)
    pool.trie.extend(other, PUBLIC, [1, 2, 9, 9], 2)
    assert list(pool.trie.index().values()) == [(older[0], younger[0]), (older[1], younger[1])]
    pool.release(older)
    taken = pool.extend(6)
    assert taken[-2:] == older[::-1]
    assert pool.match(names, 2) == younger
    assert pool.match(other, 2) == younger[:1]


def test_what_a_log_says_stays_true_after_the_text_is_gone() -> None:
    """Given a log that tells of blocks stored and removed; when the run that they stood in has been
    trimmed, then their names still are those of the text."""
    pool = FastEngine(SMALL, VLLM_0_33).pool
    names = Names()
    pool.trie.extend(names, PUBLIC, [1, 2, 3, 4, 5, 6], 2)
    table = pool.extend(3)
    pool.publish(table, names, 0, 3)
    pool.trie.drop(names)
    pool.release(table)
    pool.extend(8)
    told = keys(PUBLIC, (1, 2, 3, 4, 5, 6), 2)
    stored = [BlockStored(b, key, key.parent) for b, key in zip(table, told, strict=True)]
    gone = [BlockRemoved(b, key) for b, key in zip(table, told, strict=True)]
    assert list(events(pool.log)) == [*stored, *reversed(gone)]
    assert evicted(pool.log) == 3


def test_a_decode_inside_its_last_block_is_only_counted() -> None:
    """Given a prompt of two tokens in blocks of two; its third token takes a block, the fourth
    fills it and is published: both have entries of their own. With blocks of eight the same tokens
    are counted, and the plan says so when it is asked, also after the request has left."""
    for size, own in ((2, [True, True, True]), (8, [True, False, False])):
        engine = FastEngine(evolve(SMALL, block_size=size), VLLM_0_33)
        engine.submit(Submit("a", (1, 2), 9))
        seen = []
        for token in (3, 4):
            plan = engine.schedule()
            seen.append(plan.details != [None])
            engine.take_in([(token,)])
        plan = engine.schedule()
        seen.append(plan.details != [None])
        assert seen == own
        engine.abort("a")
        (entry,) = plan.entries
        assert (entry.start, entry.stop, entry.tokens) == (3, 4, (4,))
        assert (entry.blocks, entry.yields, entry.admitted) == (-(-4 // size), True, False)
        assert engine.pool.free == 8
