"""vLLM itself beside the specification; and what vLLM does that no engine should.

The first part needs no vLLM: what an adapter cannot be, it says before it imports anything. The
rest drives vLLM's own pool and scheduler, and is skipped where vLLM is not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import pytest
from attrs import define, evolve, field, fields

from servecheck.engines.protocol import (
    EngineError,
    Level,
    PoolEngine,
    SeenEntry,
    SeenPlan,
    StateEngine,
    Unsupported,
    Verb,
)
from servecheck.engines.vllm import VllmLoop, VllmPool, missing
from servecheck.engines.vllm.adapters import POOL_AXES, SWITCHES, require_loop, require_pool
from servecheck.engines.vllm.walks import Tally, main, walked
from servecheck.lockstep.follow import Diverged, follower
from servecheck.marks import Mark
from servecheck.recording import read_recording
from servecheck.recording.replay import replay
from servecheck.recording.settings import config_of, policy_of
from servespec.actions import Action, Complete, Output, Schedule, Submit
from servespec.chain import Tokens
from servespec.config import Config
from servespec.machine import Machine, Transition
from servespec.plan import State
from servespec.policy import (
    VLLM_0_33,
    Admission,
    HitCap,
    Order,
    Policy,
    Publish,
    Sharing,
    Unhashed,
    Victim,
    prioritised,
)
from servespec.pool import Blocks
from servespec.properties import step_of
from tests.recordings import OWN, names_in

WHY_NOT = missing()
alive = pytest.mark.skipif(WHY_NOT is not None, reason=f"{WHY_NOT}: see `make engines`")

SMALL = Config(
    num_blocks=8, block_size=4, max_model_len=24, max_num_batched_tokens=16, max_num_seqs=4
)
BY_PRIORITY = prioritised(VLLM_0_33)

changed: Callable[..., Policy] = evolve


# --- what vLLM cannot be -------------------------------------------------------------------


def others(axis: str) -> list[object]:
    """The values of an axis for which vLLM has no switch."""
    usual: object = getattr(VLLM_0_33, axis)
    values = list(type(usual)) if isinstance(usual, Enum) else [True, False]
    has = (*SWITCHES.get(axis, ()), usual, Order.PRIORITY)
    return [value for value in values if value not in has]


IMPOSSIBLE = [(axis.name, value) for axis in fields(Policy) for value in others(axis.name)]


@pytest.mark.parametrize(("axis", "value"), IMPOSSIBLE)
def test_a_policy_that_vllm_has_not_is_refused_by_its_axis(axis: str, value: object) -> None:
    with pytest.raises(Unsupported, match=rf"^{axis}: vLLM has "):
        VllmLoop(SMALL, changed(VLLM_0_33, **{axis: value}))


@pytest.mark.parametrize(("axis", "value"), IMPOSSIBLE)
def test_a_pool_is_refused_by_the_axes_of_a_pool_alone(axis: str, value: object) -> None:
    policy = changed(VLLM_0_33, **{axis: value})
    if axis in POOL_AXES:
        with pytest.raises(Unsupported, match=rf"^{axis}: vLLM has "):
            VllmPool(SMALL, policy)
    else:
        require_pool(policy)


def test_a_refusal_says_what_vllm_has() -> None:
    def refusal(policy: Policy, config: Config = SMALL) -> str:
        with pytest.raises(Unsupported) as caught:
            VllmLoop(config, policy)
        return str(caught.value)

    assert refusal(evolve(VLLM_0_33, admission=Admission.WHOLE_REQUEST)) == (
        "admission: vLLM has whole_text or step, and this is whole_request"
    )
    assert refusal(evolve(VLLM_0_33, null_block=False)) == (
        "null_block: vLLM has True, and this is False"
    )
    assert refusal(evolve(VLLM_0_33, victim=Victim.WORST_PRIORITY)) == (
        "victim: vLLM has last_admitted with order fcfs, and this is worst_priority"
    )
    assert refusal(evolve(BY_PRIORITY, victim=Victim.LAST_ADMITTED)) == (
        "victim: vLLM has worst_priority with order priority, and this is last_admitted"
    )
    assert refusal(VLLM_0_33, evolve(SMALL, long_prefill_token_threshold=25)) == (
        "long_prefill_token_threshold: vLLM takes none above max_model_len, 24, and this is 25"
    )


@pytest.mark.parametrize("policy", [VLLM_0_33, BY_PRIORITY])
@pytest.mark.parametrize("sharing", Sharing)
@pytest.mark.parametrize("admission", [Admission.STEP, Admission.WHOLE_TEXT])
@pytest.mark.parametrize("chunked", [True, False])
def test_vllms_own_switches_are_free(
    policy: Policy, sharing: Sharing, admission: Admission, chunked: bool
) -> None:
    require_loop(
        SMALL, evolve(policy, sharing=sharing, admission=admission, chunked_prefill=chunked)
    )


@pytest.mark.skipif(WHY_NOT is None, reason="vLLM is installed")
def test_without_vllm_an_engine_says_how_to_get_it() -> None:
    with pytest.raises(EngineError, match=r"vLLM .*; `make engines` makes an environment"):
        VllmLoop(SMALL, VLLM_0_33)
    assert main(["--operations", "1"]) == 2


# --- vLLM beside the specification ---------------------------------------------------------


@alive
def test_the_adapters_are_engines_of_their_levels() -> None:
    pool, loop = VllmPool(SMALL, VLLM_0_33), VllmLoop(SMALL, VLLM_0_33)
    assert isinstance(pool, PoolEngine)
    assert isinstance(loop, StateEngine)
    assert (pool.capabilities.level, loop.capabilities.level) == (Level.POOL, Level.STATE)
    assert loop.capabilities.cannot == {Verb.DISCARD}
    with pytest.raises(EngineError, match="cannot discard"):
        loop.discard()


def run(engine: VllmPool | VllmLoop, policy: Policy, actions: tuple[Action, ...]) -> None:
    """Follow a program that the specification carries out under SMALL and this policy."""
    machine = Machine(SMALL, policy)
    beside, state = follower(engine, machine), machine.initial()
    for action in actions:
        moved = machine.apply(state, action)
        beside.follow(step_of(machine, state, action, moved))
        state = moved.state


@alive
@pytest.mark.parametrize("name", names_in(OWN))
def test_vllm_does_again_what_was_recorded_of_it(name: str) -> None:
    """What was asked of the recorded scheduler is asked of the specification, which must answer
    as recorded, and of this vLLM, which must answer as the specification."""
    recording = read_recording(OWN / name)
    machine = Machine(config_of(recording.config), policy_of(recording.config))
    beside = follower(VllmLoop(machine.config, machine.policy), machine)

    def along(before: State, action: Action, moved: Transition) -> None:
        beside.follow(step_of(machine, before, action, moved))

    assert not replay(recording, along).differences
    assert beside.done > 40
    assert not beside.comparison.unseen


@alive
@pytest.mark.parametrize("level", [Level.POOL, Level.STATE])
def test_vllm_agrees_along_walks_at_random(level: Level) -> None:
    tally = Tally(level)
    for number in range(12):
        assert walked(level, number, tally) is None
    assert tally.operations > 3_000
    assert tally.actions["Schedule"] > 1_000
    assert not tally.unseen
    wanted = {
        Mark.HIT_IDLE,
        Mark.HIT_SAME_PASS,
        Mark.EVICTION,
        Mark.EVICTION_COPY_STAYS,
        Mark.PREEMPTS_DECODE,
        Mark.PREEMPTS_ITSELF,
        Mark.RESET_PREEMPTS,
        Mark.ABORTS_IN_FLIGHT,
        Mark.ID_REUSED_IN_FLIGHT,
        Mark.DRAFTS_SOME,
        Mark.BLOCK_BY_DRAFTS,
        Mark.OVERTAKES,
        Mark.ENDS_BY_STOP,
        Mark.SAME_TOKENS_APART,
    }
    assert wanted <= tally.marks.keys()


ONE = (Submit("a", (1, 2, 3, 4, 5), 1), Schedule(), Complete((Output("a", (6,)),)))
"""A request that leaves a full block and one that is not."""


@alive
def test_a_pool_diverges_from_a_specification_that_frees_otherwise() -> None:
    with pytest.raises(Diverged, match=r"^vLLM 0.33.0 diverges at action 2: free queue"):
        run(VllmPool(SMALL, VLLM_0_33), evolve(VLLM_0_33, unhashed=Unhashed.IN_PLACE), ONE)


@alive
def test_a_loop_diverges_from_a_specification_that_publishes_otherwise() -> None:
    with pytest.raises(Diverged, match=r"^vLLM 0.33.0 diverges at action 1: index"):
        run(VllmLoop(SMALL, VLLM_0_33), evolve(VLLM_0_33, publish=Publish.AFTER_STEP), ONE)


@alive
def test_a_pool_is_asked_for_as_many_blocks_as_the_specification_may_share() -> None:
    capped, whole = VLLM_0_33, evolve(VLLM_0_33, hit_cap=HitCap.NONE)
    again = (*ONE, Submit("b", (1, 2, 3, 4), 1), Schedule())
    for policy in (capped, whole):
        run(VllmPool(SMALL, policy), policy, again)


@alive
def test_a_run_tells_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--level", "state", "--operations", "300", "--seed", "7"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("vLLM 0.33.0, level state, seed 7\noperations ")
    assert "\ndivergences      0\n" in told
    assert "\nnot seen         nothing\n" in told


# --- what no engine should do: CON-1, CON-1r and CON-3 of the properties -------------------


@define
class Worker:
    """Does what the plans say, and nothing else: it writes each scheduled token into its slot."""

    block_size: int
    slots: dict[tuple[int, int], Tokens] = field(factory=dict)
    """What each slot holds: a token, and all before it that it was computed from."""

    def runs(self, plan: SeenPlan, texts: dict[str, Tokens]) -> None:
        for entry in plan.entries:
            known = texts[entry.id]
            text = known[: entry.start + entry.tokens - len(entry.drafts or ())]
            whole = text + (entry.drafts or ())
            for position in range(entry.start, entry.start + entry.tokens):
                self.slots[self.slot(entry.table, position)] = whole[: position + 1]

    def reads(self, entry: SeenEntry, position: int) -> Tokens | None:
        """What a request finds at a position that it believes to be computed."""
        return self.slots.get(self.slot(entry.table, position))

    def slot(self, table: Blocks | None, position: int) -> tuple[int, int]:
        assert table is not None
        return table[position // self.block_size], position % self.block_size


@alive
def test_a_victim_by_priority_comes_back_to_tokens_that_were_never_scheduled() -> None:
    """vLLM's scheduler counts as computed what it has never told the worker to compute.

    Eight blocks of one token, three tokens a pass, of a long prompt two.
    """
    sizes = Config(
        num_blocks=9,
        block_size=1,
        max_model_len=8,
        max_num_batched_tokens=3,
        max_num_seqs=2,
        long_prefill_token_threshold=2,
    )
    loop, worker = VllmLoop(sizes, BY_PRIORITY), Worker(1)
    texts = {"low": (10, 11, 12, 13, 14, 15, 16), "high": (50, 51)}

    def passes(*outputs: Output) -> SeenPlan:
        plan = loop.schedule()
        worker.runs(plan, texts)
        loop.complete(outputs)
        return plan

    # Given a request of low priority inside its prompt, and one of high priority behind it,
    loop.submit(Submit("low", texts["low"], 1, priority=1))
    assert tokens_of(passes()) == {"low": range(0, 3)}
    loop.submit(Submit("high", texts["high"][:1], 2))
    assert tokens_of(passes(Output("high", (51,)))) == {"low": range(3, 5), "high": range(0, 1)}
    # when the first is given the last two blocks, and the second needs one in the same pass,
    plan = passes(Output("high", (52,)))
    assert plan.preempted == ("low",)
    assert tokens_of(plan) == {"high": range(1, 2)}
    # then the first comes back to six computed tokens: five were ever scheduled.
    plan = passes(Output("low", (17,)))
    assert tokens_of(plan) == {"low": range(6, 7)}
    (back,) = plan.entries
    assert [worker.reads(back, p) == texts["low"][: p + 1] for p in range(6)] == [True] * 5 + [
        False
    ]
    assert worker.reads(back, 5) is None


@alive
def test_a_next_turn_reads_the_kv_of_a_rejected_draft() -> None:
    """The same without a threshold: speculation is enough. Five blocks of two tokens, one draft.

    When the token that fills block 2 is scheduled, the block is published; its slot holds a draft
    that was rejected. Then "low" is un-scheduled for "high", which takes the block of its next
    draft. Later "low" computes that token in another block, but of two copies the oldest answers.
    """
    sizes = Config(
        num_blocks=6,
        block_size=2,
        max_model_len=12,
        max_num_batched_tokens=8,
        max_num_seqs=2,
        num_speculative_tokens=1,
    )
    loop, worker = VllmLoop(sizes, BY_PRIORITY), Worker(2)
    texts = {"low": (10, 11), "high": (50, 51, 52)}

    def passes(*outputs: Output) -> SeenPlan:
        plan = loop.schedule()
        worker.runs(plan, texts)
        loop.complete(outputs)
        for output in outputs:
            texts[output.id] += output.tokens
        return plan

    # Given a request of low priority whose next token will fill a block, where a draft was rejected
    loop.submit(Submit("low", texts["low"], 3, priority=1))
    passes(Output("low", (12,), (19,)))
    loop.submit(Submit("high", texts["high"], 2))
    passes(Output("low", (13,), (19,)), Output("high", (53,), (59,)))
    # when one of high priority takes the block of its next draft from it,
    plan = passes(Output("high", (54,)))
    assert plan.preempted == ("low",)
    assert tokens_of(plan) == {"high": range(3, 5)}
    # and it comes back, and ends,
    assert tokens_of(passes(Output("low", (14,)))) == {"low": range(2, 4)}
    # then the next turn of its conversation hits the block with the rejected draft.
    turn = (*texts["low"], 20)
    assert turn == (10, 11, 12, 13, 14, 20)
    loop.submit(Submit("turn", turn, 1))
    texts["turn"] = turn
    (entry,) = loop.schedule().entries
    assert entry.start == 4
    assert worker.reads(entry, 2) == (10, 11, 12)
    assert worker.reads(entry, 3) == (10, 11, 12, 19)


def tokens_of(plan: SeenPlan) -> dict[str, range]:
    """The positions that a plan computes."""
    return {e.id: range(e.start, e.start + e.tokens) for e in plan.entries}
