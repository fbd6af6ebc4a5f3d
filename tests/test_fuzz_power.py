"""Stories about how strong the search is: each fault that engines have had is found from a seed in
so many steps, made small, and shown; rare situations are gone back to; sizes can be kept.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from servecheck.cli import main
from servecheck.cli.terminal import Exit
from servecheck.engines.fast.adapters import FastLoop
from servecheck.fuzz.draw import Seeded
from servecheck.fuzz.guide import KEPT, Guide
from servecheck.fuzz.shrink import kind, shrunk_divergence
from servecheck.fuzz.sizes import fixed_sizes
from servecheck.fuzz.tell import PropertyFell
from servecheck.fuzz.walk import Walk
from servecheck.fuzz.wander import Wanderer
from servecheck.fuzz.worlds import Worlds
from servecheck.lockstep.subject import Parted, Subject, parted
from servecheck.lockstep.twice import twice
from servecheck.marks import Mark
from servecheck.trace.write import record
from servespec.actions import Abort, Complete, Output, Schedule, Submit
from servespec.config import Config
from servespec.errors import ConfigError
from servespec.machine import Machine
from servespec.policy import MINIATURE, VLLM_0_33
from tests import broken_engines as broken

ROOT = Path(__file__).resolve().parents[1]

MOST_STEPS = 25_000
SEEDS: dict[type[FastLoop], int] = {broken.BudgetLost: 40_000}
"""Where a walk from seed 0 does not come to it within so many steps."""


def first_divergence(fault: type[FastLoop]) -> Parted:
    """Walk until the engine parts from the specification."""
    subject, guide, steps = Subject.of(fault), Guide(), 0
    number = SEEDS.get(fault, 0)
    while steps < MOST_STEPS:
        wanderer = Wanderer(number, (), following=subject, guide=guide)
        try:
            wanderer.go(40)
        except PropertyFell as fell:
            found = parted(subject, Machine(fell.config, fell.policy), fell.actions)
            assert found is not None
            return found
        steps += len(wanderer.walk.actions)
        guide.learn(wanderer.walk)
        number += 1
    raise AssertionError(f"{fault.__name__} is not found in {MOST_STEPS} steps")


@pytest.mark.parametrize("fault", broken.FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found_from_a_seed_made_small_replayed_and_drawn(
    fault: type[FastLoop],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Given an engine with one fault; when walks go along it, then they find it, on at most ten
    actions; the trace parts the broken engine again and not the right one, and is drawn."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT))
    subject = Subject.of(fault)
    found = first_divergence(fault)
    smallest = shrunk_divergence(subject, found)
    assert len(smallest.actions) <= 10
    what_differed = {kind(difference) for difference in found.divergence.differences}
    assert kind(smallest.divergence.differences[0]) in what_differed
    assert twice(subject, smallest.machine, smallest.actions).confirms(smallest.divergence)
    record(tmp_path / "fault.jsonl", smallest.machine, smallest.actions, None)
    engine = f"tests.broken_engines:{fault.__name__}"
    assert main(["fuzz", "--engine", engine, "--program", "fault.jsonl"]) == Exit.FALLS
    assert main(["fuzz", "--engine", "fast", "--program", "fault.jsonl"]) == Exit.HOLDS
    assert main(["render", "fault.jsonl", "-o", "fault.svg"]) == Exit.HOLDS
    assert "<svg" in (tmp_path / "fault.svg").read_text(encoding="utf-8")
    capsys.readouterr()


# --- back to what is rare -------------------------------------------------------------------


def test_a_guide_goes_back_to_what_was_rare() -> None:
    """Given walks with and without a guide from the same seeds; then with it the rare ones among
    the situations are reached more often."""
    guide = Guide()
    plain: dict[Mark, int] = dict.fromkeys(Mark, 0)
    for number in range(300):
        guide.learn(Wanderer(number, (), guide=guide).go(40))
        for mark, count in Wanderer(number, ()).go(40).marks.items():
            plain[mark] += count
    rare = sorted(plain, key=lambda mark: plain[mark])[:8]
    assert sum(guide.counts[mark] for mark in rare) > sum(plain[mark] for mark in rare)


def test_what_a_guide_offers_is_a_function_of_what_it_learned() -> None:
    offers = []
    for _ in range(2):
        guide = Guide()
        for number in range(20):
            guide.learn(Wanderer(number, (), guide=guide).go(40))
        offers.append([guide.offer(Seeded(number)) for number in range(20)])
    assert offers[0] == offers[1]
    assert None not in offers[0]
    assert Guide().offer(Seeded(0)) is None


def test_a_start_is_gone_through_with_the_limits_that_its_pass_just_keeps() -> None:
    """Given a pass that makes room for two of three requests, by 5 tokens in 3 blocks; then the
    same actions are offered where the budget is 5, where there are 2 seats, where the pool has 3
    blocks, and where it has 2; but no size that is fixed is changed."""
    config = Config(9, 2, 8, 5, 4)
    assert tight_around(config) >= {(9, 5, 2), (4, 5, 4), (3, 5, 4)}
    assert tight_around(config, "num_blocks") >= {(9, 5, 2)}
    assert {blocks for blocks, _, _ in tight_around(config, "num_blocks")} == {9}


def tight_around(config: Config, *fixed: str) -> set[tuple[int, int, int]]:
    """Blocks, budget and seats of the worlds in which a start is offered with all its actions."""
    guide, walk = Guide(fixed=frozenset(fixed)), Walk(Machine(config, VLLM_0_33), ())
    for request, prompt in (("a", (0, 1, 0)), ("b", (1, 1)), ("c", (1,))):
        walk.do(Submit(request, prompt, 2))
    walk.schedule()
    guide.learn(walk)
    offers = (guide.offer(Seeded(number)) for number in range(100))
    tight = [o for o in offers if o and o.elsewhere and len(o.actions) == len(walk.actions)]
    return {
        (c.num_blocks, c.max_num_batched_tokens, c.max_num_seqs)
        for c in (offer.machine.config for offer in tight)
    }


def test_something_else_is_put_into_the_way_of_a_start() -> None:
    """Given a way on which b waits for a seat that a has; when a walk goes it with something in
    between, then who comes in between has an id of its own, and the rest of the way is gone: b
    comes, the steps are made, and what they bring is adapted to who is in them."""
    machine = Machine(Config(9, 2, 8, 8, 1), VLLM_0_33)
    way = Walk(machine, ())
    way.do(Submit("a", (0, 1, 0), 4))
    way.do(Submit("b", (1,), 4))
    for _ in range(2):
        way.complete(lambda entry, request: way.answer(entry, request, 0, 0))
    for actions in (way.actions[:1], way.actions[:2], []):
        rest = way.actions[len(actions) :]
        walk = Walk(machine, ())
        walk.replay(actions)
        walk.leave_ids_to(rest)
        walk.submit(Seeded(0), (1, 1), wanted=4)
        between = walk.actions[-1]
        walk.along(rest)
        ids = [action.id for action in walk.actions if isinstance(action, Submit)]
        assert sorted(ids) == ["a", "b", "c"]
        assert [a for a in walk.actions if a is not between][: len(actions)] == actions
        assert [type(action) for action in walk.actions if action is not between] == [
            type(action) for action in way.actions
        ]
        first = next(r for r in walk.state.live if r.id == ids[0])
        assert len(first.output) == 2


def test_what_a_walk_cannot_do_on_the_rest_of_its_way_is_left_out() -> None:
    """Given a way that aborts a; when a has left before, then all but the second submit of it and
    what brings it tokens goes on as it was."""
    machine = Machine(Config(9, 2, 8, 8, 1), VLLM_0_33)
    walk = Walk(machine, ())
    walk.do(Submit("a", (0,), 2))
    walk.schedule()
    rest = (Schedule(), Submit("a", (1,), 2), Complete((Output("a", (1,)),)), Abort("a"))
    walk.along(rest)
    assert walk.actions[2:] == list(rest[2:])


def test_a_policy_that_has_many_starts_gives_way_first() -> None:
    """Given a mark with twelve starts, one of them under another policy and older than all others;
    when one more comes, then the other policy keeps its own."""
    guide, policies = Guide(), (MINIATURE, *(VLLM_0_33,) * KEPT)
    for blocks, policy in enumerate(policies, start=5):
        walk = Walk(Machine(Config(blocks, 2, 8, 8, 1), policy), ())
        walk.do(Submit("a", (0, 1), 2))
        guide.learn(walk)
    kept = tuple(guide.starts[Mark.WHOLE_BLOCKS])
    assert len(kept) == KEPT
    assert [(m.config.num_blocks, m.policy) for m in kept[:2]] == [(5, MINIATURE), (7, VLLM_0_33)]


# --- sizes ----------------------------------------------------------------------------------


def test_sizes_that_are_given_are_kept_and_all_others_drawn() -> None:
    sizes = fixed_sizes(("num_blocks=9", "max_num_batched_tokens=2"))
    draw = Worlds.of(Subject.of(FastLoop), sizes=sizes)
    drawn = [Machine(*draw(Seeded(number))).config for number in range(100)]
    assert {(c.num_blocks, c.max_num_batched_tokens) for c in drawn} == {(9, 2)}
    assert len({c.max_num_seqs for c in drawn}) > 2
    assert {c.num_speculative_tokens for c in drawn} == {0, 1}


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("block_sise=2", "size: 'block_sise' is unknown; take one of block_size"),
        ("block_size", "size: 'block_size' is no name=value; write --size num_blocks=9"),
        ("block_size=two", "block_size: 'two' is no whole number"),
        ("block_size=0", "block_size: 0 is no whole number ≥ 1"),
        ("watermark=1", "watermark: 1.0 lies outside 0 ≤ watermark < 1"),
    ],
)
def test_a_size_that_cannot_be_is_refused(given: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fixed_sizes((given,))
    assert what in str(caught.value)


def test_an_engine_of_one_block_size_and_big_limits_is_fuzzed() -> None:
    draw = Worlds.of(Subject.of(broken.Sixteen))
    drawn = [draw(Seeded(number))[0] for number in range(20)]
    assert {config.block_size for config in drawn} == {16}
    walk = Wanderer(0, (), following=Subject.of(broken.Sixteen), draw=draw).go(40)
    assert len(walk.actions) > 20
