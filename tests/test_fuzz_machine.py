"""Stories about fuzzing: the specification holds under it, it gets everywhere, and what is broken
is found, and shown on few actions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from enum import Enum
from itertools import count

import pytest
from attrs import define, evolve, field, fields
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from servecheck.cli import fuzz, summary
from servecheck.cli.terminal import Exit
from servecheck.fuzz.campaign import Progress, Summary, Verdict, campaign
from servecheck.fuzz.draw import Seeded, draw_world
from servecheck.fuzz.machine import Tally, machine_class
from servecheck.fuzz.moves import MOVES
from servecheck.fuzz.shrink import shrunk
from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.walk import Walk
from servecheck.fuzz.wander import Wanderer
from servecheck.marks import Mark
from servespec import pool as blocks
from servespec.actions import Action, Complete, Output, Schedule, Submit
from servespec.config import Config
from servespec.errors import ConfigError
from servespec.machine import Machine
from servespec.policy import (
    MINIATURE,
    NAMED,
    RESERVED,
    STATIC,
    VLLM_0_33,
    Admission,
    AfterPreemption,
    FreeWalk,
    HeadOfLine,
    Order,
    Policy,
    Publish,
    Release,
    Sharing,
    StepMix,
    Victim,
    prioritised,
)
from servespec.pool import Blocks, Moved, Pool
from servespec.properties import PROPERTIES

# --- The specification holds ----------------------------------------------------------------------

EXAMPLES = settings().max_examples
"""As the profile of the search says (tests/conftest.py)."""

SEARCH = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
    phases=[phase for phase in Phase if phase is not Phase.explain],
)


@define
class Worlds(Tally):
    """A tally that remembers worlds whole."""

    seen: set[tuple[Config, Policy]] = field(factory=set)

    def add(self, walk: Walk) -> None:
        Tally.add(self, walk)
        self.seen.add((walk.config, walk.policy))


TestAnyPolicy = machine_class().TestCase
TestAnyPolicy.settings = SEARCH


@pytest.mark.parametrize("name", NAMED)
def test_no_property_falls_under_a_profile(name: str) -> None:
    tally = Worlds()
    run_state_machine_as_test(
        machine_class(policy=NAMED[name], tally=tally),
        settings=settings(SEARCH, max_examples=EXAMPLES // 4),
    )
    assert {policy for _, policy in tally.seen} == {NAMED[name]}
    assert tally.checked["OWN-1"] == tally.steps > 0


def test_sizes_and_choices_are_given_or_drawn() -> None:
    config = Config(5, 2, 8, 16, 4, long_prefill_token_threshold=2)
    tally = Worlds()
    run_state_machine_as_test(
        machine_class(config=config, properties=(), tally=tally),
        settings=settings(SEARCH, max_examples=20),
    )
    assert {sizes for sizes, _ in tally.seen} == {config}
    assert all(policy.chunked_prefill for _, policy in tally.seen)
    assert len(tally.worlds) == len(tally.seen) > 1
    assert not tally.checked


# --- It gets everywhere ---------------------------------------------------------------------------

GROUNDS: tuple[Policy | None, ...] = (
    None,
    VLLM_0_33,
    evolve(prioritised(VLLM_0_33), after_preemption=AfterPreemption.GO_ON),
    evolve(
        prioritised(VLLM_0_33),
        publish=Publish.AFTER_STEP,
        release=Release.DEFERRED,
        head_of_line=HeadOfLine.SKIP,
    ),
    evolve(VLLM_0_33, order=Order.PRIORITY, publish=Publish.AFTER_STEP),
    evolve(VLLM_0_33, victim=Victim.NONE, free_walk=FreeWalk.HEAD_FIRST),
    evolve(MINIATURE, step_mix=StepMix.PREFILL_FIRST),
    STATIC,
    RESERVED,
)
"""Policies under which, taken together, every situation is common enough."""


def marks_of(policy: Policy, config: Config, *actions: Action) -> Counter[Mark]:
    """What a story reaches; every property is asked on the way."""
    walk = Walk(Machine(config, policy))
    for action in actions:
        walk.do(action)
    return walk.marks


def given_back() -> Counter[Mark]:
    """a decodes and fills its second block; then b, whose priority is better, needs a third block.
    a gives way though it was scheduled already, and b takes the very block that a has just
    published."""
    return marks_of(
        prioritised(VLLM_0_33),
        Config(
            num_blocks=5, block_size=2, max_model_len=8, max_num_batched_tokens=16, max_num_seqs=4
        ),
        Submit("a", (0, 0), 4, priority=1),
        Schedule(),
        Complete((Output("a", (0,)),)),
        Submit("b", (1, 1, 1, 1), 4),
        Schedule(),
        Complete((Output("a", (0,)), Output("b", (1,)))),
        Schedule(),
    )


def admitted_again() -> Counter[Mark]:
    """b is inside its prompt when a takes the last block. b gives way to itself, and the block that
    it gives back is enough to begin anew, in the same pass."""
    return marks_of(
        evolve(
            VLLM_0_33,
            sharing=Sharing.OFF,
            admission=Admission.STEP,
            after_preemption=AfterPreemption.GO_ON,
        ),
        Config(
            num_blocks=5, block_size=2, max_model_len=8, max_num_batched_tokens=3, max_num_seqs=4
        ),
        Submit("a", (0, 0, 0, 0), 4),
        Submit("b", (1, 1, 1, 1), 4),
        Schedule(),
        Complete(),
        Schedule(),
        Complete((Output("a", (0,)),)),
        Schedule(),
    )


def test_every_mark_is_reached_and_only_where_its_needs_are_met() -> None:
    reached = given_back() + admitted_again()
    for policy in GROUNDS:
        for number in range(80):
            walk = Wanderer(number, (), policy=policy).go(40)
            strange = [m for m in walk.marks if not m.needs.met(walk.config, walk.policy)]
            assert not strange, (number, policy)
            reached += walk.marks
    assert [mark for mark in Mark if not reached[mark]] == []


def test_a_victim_that_was_scheduled_gives_its_blocks_back() -> None:
    assert given_back().keys() >= {Mark.PREEMPTS_SCHEDULED, Mark.EVICTION_SAME_PASS}


def test_a_victim_may_be_admitted_again_in_the_same_pass() -> None:
    assert admitted_again().keys() >= {Mark.PREEMPTS_ITSELF, Mark.READMITTED_SAME_PASS}


def test_every_move_is_made_and_every_property_asked() -> None:
    moves: Counter[str] = Counter()
    checked: Counter[str] = Counter()
    for number in range(60):
        walk = Wanderer(number, tuple(PROPERTIES.values())).go(40)
        moves += walk.moves
        checked += walk.watch.checked
    assert moves.keys() == MOVES.keys()
    assert checked.keys() == PROPERTIES.keys()


def test_every_world_that_is_drawn_can_be_and_every_choice_is_drawn() -> None:
    drawn: dict[str, set[object]] = {axis.name: set() for axis in fields(Policy)}
    for number in range(500):
        machine = Machine(*draw_world(Seeded(number)))
        for name, values in drawn.items():
            values.add(getattr(machine.policy, name))
    for name, values in drawn.items():
        first = next(iter(values))
        assert values == set(type(first) if isinstance(first, Enum) else (True, False)), name


def test_the_simplest_world_is_the_recorded_engine() -> None:
    class Least:
        def below(self, n: int) -> int:
            return 0

    config, policy = draw_world(Least())
    assert policy == VLLM_0_33
    assert config == Config(5, 2, 8, 16, 4)


def test_a_walk_is_a_function_of_its_seed() -> None:
    one, other = (Wanderer(7, ()).go(40) for _ in range(2))
    assert one.actions == other.actions
    assert one.state == other.state
    assert one.actions != Wanderer(8, ()).go(40).actions


# --- What is broken is found ----------------------------------------------------------------------

right_release, right_acquire, right_extend = blocks.release, blocks.acquire, blocks.extend


def release_head_first(pool: Pool, policy: Policy, table: Blocks) -> Moved:
    """Lets tables go the wrong way round."""
    return right_release(pool, policy, table[::-1])


def acquire_and_stay(pool: Pool, hits: Blocks) -> Moved:
    """Leaves a hit block in the free queue."""
    moved = right_acquire(pool, hits)
    return Moved(Pool(moved.pool.blocks, pool.free, moved.pool.index), moved.blocks)


def extend_and_forget(pool: Pool, number: int) -> Moved:
    """Leaves the key of an evicted block in the index."""
    moved = right_extend(pool, number)
    stale = Pool(moved.pool.blocks, moved.pool.free, pool.index)
    return Moved(stale, moved.blocks, moved.events)


FAULTS = {
    "release": (release_head_first, {"LRU-3"}, 3),
    # What is taken out of the queue in the same pass is in two tables, and no longer in the queue.
    "acquire": (acquire_and_stay, {"OWN-1", "CON-1"}, 6),
    "extend": (extend_and_forget, {"IDX-1"}, 6),
}
"""By verb: the fault, the properties that it breaks first, the actions that are enough."""


@pytest.mark.parametrize("verb", FAULTS)
def test_hypothesis_finds_a_fault_and_it_is_made_small(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a fault, and one world; Hypothesis shrinks its own choices, which are moves of several
    actions; what is left is shrunk action by action, as a campaign does."""
    fault, properties, most = FAULTS[verb]
    monkeypatch.setattr(blocks, verb, fault)
    quick = settings(
        database=None,
        deadline=None,
        max_examples=200,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        stateful_step_count=12,
        suppress_health_check=list(HealthCheck),
    )
    machine = machine_class(Config(6, 2, 9, 8, 3), VLLM_0_33)
    with pytest.raises(PropertyFell) as caught:
        run_state_machine_as_test(seed(1)(machine), settings=quick)
    fall = shrunk(caught.value)
    print(caught.value, fall, sep="\n")
    assert fall.property_id == caught.value.property_id
    assert fall.property_id in properties
    assert len(fall.actions) <= most


def test_a_walk_that_falls_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "release", release_head_first)
    found: list[PropertyFell] = []
    for number in range(10):
        try:
            Wanderer(number, (PROPERTIES["LRU-3"],)).go(40)
        except PropertyFell as fall:
            found.append(fall)
    assert max(len(fall.actions) for fall in found) > 10
    small = [shrunk(fall) for fall in found]
    print(*small, sep="\n")
    # A request comes, is served, and its blocks are let go the wrong way round.
    assert {len(fall.actions) for fall in small} == {3}
    assert {fall.property_id for fall in small} == {"LRU-3"}


# --- Campaigns ------------------------------------------------------------------------------------


def ticking() -> Callable[[], float]:
    """A clock by which each run takes a second."""
    seconds = count()
    return lambda: float(next(seconds))


@pytest.fixture(scope="module")
def half_a_minute() -> Summary:
    return campaign(seconds=30, clock=ticking())


def test_a_campaign_whose_time_is_spent_holds(half_a_minute: Summary) -> None:
    assert half_a_minute.verdict is Verdict.HOLDS
    assert half_a_minute.fall is None
    assert half_a_minute.runs == 29
    assert half_a_minute.steps == half_a_minute.checked["OWN-1"] > 200
    assert half_a_minute.worlds > 3
    assert not set(half_a_minute.missed) & (set(half_a_minute.marks) | set(half_a_minute.excluded))


def test_a_campaign_of_a_seed_does_the_same_again(half_a_minute: Summary) -> None:
    again = campaign(seconds=30, clock=ticking())
    assert again.moves == half_a_minute.moves
    assert again.marks == half_a_minute.marks
    assert campaign(seconds=30, seed=1, clock=ticking()).moves != again.moves


def test_a_campaign_that_is_interrupted_tells_what_it_knows() -> None:
    def press_ctrl_c(progress: Progress) -> None:
        if progress.runs == 5:
            raise KeyboardInterrupt

    found = campaign(seconds=30, clock=ticking(), progress=press_ctrl_c)
    assert found.verdict is Verdict.UNDETERMINED
    assert found.interrupted
    assert found.runs == 5


def test_a_campaign_in_which_nothing_ran_is_undetermined() -> None:
    assert campaign(seconds=0, clock=ticking()).verdict is Verdict.UNDETERMINED


def test_a_campaign_keeps_to_a_profile() -> None:
    """Under STATIC nobody is admitted while a batch runs, and a block can be found only after the
    step that wrote it: a hit in the same pass is excluded, however long the search goes on."""
    found = campaign(seconds=30, clock=ticking(), profile="STATIC")
    assert found.marks[Mark.SKIPPED_BATCH]
    assert not found.marks[Mark.HIT_SAME_PASS]
    assert Mark.HIT_SAME_PASS in found.excluded
    assert {*found.marks, *found.missed, *found.excluded} == set(Mark)


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ConfigError, match="profile: 'VLLM' is unknown; take one of VLLM_0_33, "):
        campaign(profile="VLLM")


def test_a_campaign_ends_with_the_first_fall(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(blocks, "release", release_head_first)
    found = campaign(seconds=1e9, clock=ticking())
    assert found.verdict is Verdict.FALLS
    assert found.fall is not None
    assert found.fall.lines[0].startswith("LRU-3 falls: the queue is (")
    assert found.fall.lines[4].startswith("1  submit r0: prompt 0")
    assert found.fall.lines[5] == "2  schedule"
    assert len(found.fall.actions) == 3
    assert capsys.readouterr() == ("", "")


# --- The command ----------------------------------------------------------------------------------


def test_the_report_fits_into_eighty_columns(half_a_minute: Summary) -> None:
    lines = [
        "".join(part if isinstance(part, str) else part[0] for part in line)
        for line in summary.lines(half_a_minute)
    ]
    assert lines[0] == "holds: nothing fell in 31 s"
    assert max(map(len, lines)) <= 80
    assert len(lines) < 70


def test_the_command_says_how_it_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.command(seconds=0) == Exit.UNDETERMINED
    out, err = capsys.readouterr()
    assert out.startswith("undetermined: ended after ")
    assert err == ""


def test_the_command_tells_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.command(seconds=0, as_json=True) == Exit.UNDETERMINED
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "undetermined"
    assert told["fall"] is None
    assert told["runs"] == 0
