"""What a pass owes to whom, read a second time, in small numbers."""

from __future__ import annotations

import pytest
from attrs import evolve

from servespec.actions import Complete, Output, Schedule, Submit
from servespec.config import Config
from servespec.events import (
    Admitted,
    BlockRemoved,
    BlockStored,
    Event,
    Preempted,
    Reason,
    Scheduled,
    Skipped,
)
from servespec.machine import Machine
from servespec.policy import (
    STATIC,
    VLLM_0_33,
    Admission,
    HeadOfLine,
    HitCap,
    StepMix,
    Victim,
    prioritised,
)
from servespec.properties import HELD, VACUOUS, Fall, Step
from tests.test_properties import answers, run, told


def of_requests(step: Step) -> list[Event]:
    """What a step tells, but for blocks."""
    return [e for e in step.events if not isinstance(e, BlockStored | BlockRemoved)]


# --- what is due ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("longest", "pads", "tokens"),
    [(9, True, 4), (8, True, 1), (9, False, 1)],
    ids=["padded", "no room for it", "not by this policy"],
)
def test_a_first_decode_is_padded_where_policy_does_and_the_text_leaves_room(
    longest: int, pads: bool, tokens: int
) -> None:
    """Four of the five tokens are found. With three drafts the step would end at 4 + 1 + 3, and one
    place behind that must be left."""
    sizes = Config(9, 2, longest, 8, 2, num_speculative_tokens=3)
    *_, step = run(
        Machine(sizes, evolve(VLLM_0_33, pad_first_decode=pads)),
        Submit("a", (1, 2, 3, 4, 5), 1),
        Schedule(),
        Complete((Output("a", (6,)),)),
        Submit("b", (1, 2, 3, 4, 5), 1),
        Schedule(),
    )
    (scheduled,) = (e for e in step.events if isinstance(e, Scheduled))
    assert (scheduled.tokens, scheduled.drafts) == (tokens, tokens - 1)
    assert answers(step)["TOK-1"] is HELD


def test_a_first_decode_behind_one_token_that_was_found_is_padded_by_one_draft() -> None:
    *_, step = run(
        Machine(Config(9, 1, 9, 8, 2, num_speculative_tokens=1), VLLM_0_33),
        Submit("a", (1, 2), 1),
        Schedule(),
        Complete((Output("a", (3,)),)),
        Submit("b", (1, 2), 1),
        Schedule(),
    )
    assert of_requests(step)[0] == Admitted("b", 1, (1, 3, 4))
    assert of_requests(step)[1] == Scheduled("b", 2, 1, (3, 4))
    assert answers(step)["TOK-1"] is HELD


def test_who_is_alone_may_take_the_blocks_that_are_kept_from_others() -> None:
    """Four blocks can be handed out. Two are to stay free while somebody runs; nobody does."""
    machine = Machine(Config(5, 2, 8, 8, 2, watermark=0.5), VLLM_0_33)
    assert machine.config.watermark_blocks == 2
    *_, step = run(machine, Submit("a", (1, 2, 3, 4, 5, 6, 7), 1), Schedule())
    assert answers(step)["ADM-1"] is HELD
    late = told(step, Skipped("a", Reason.NO_ROOM))
    assert answers(late)["WRK-1"] == Fall("a gets nothing, and NO_ROOM is not true")


@pytest.mark.parametrize(("text", "fits"), [((7,), True), ((7, 8, 9), False)])
def test_room_is_there_beside_the_blocks_that_are_kept(text: tuple[int, ...], fits: bool) -> None:
    """Four blocks, and two are to stay free while somebody runs. a has one: b may take one, not
    two."""
    *_, step = run(
        Machine(Config(5, 2, 8, 8, 3, watermark=0.5), VLLM_0_33),
        Submit("a", (1,), 4),
        Submit("b", text, 1),
        Schedule(),
    )
    refused = Skipped("b", Reason.NO_ROOM)
    assert (refused in step.events) is not fits
    assert answers(step)["WRK-1"] is (VACUOUS if fits else HELD)
    lie = told(step, *step.events[:2], refused)
    no_reason = Fall("b gets nothing, and NO_ROOM is not true")
    assert answers(lie)["WRK-1"] == (no_reason if fits else HELD)
    comes = told(step, *step.events[:2], Admitted("b", 0, (2, 3)), Scheduled("b", 3, 0, (2, 3)))
    no_room = Fall("b is admitted, and NO_ROOM is true")
    assert answers(comes)["ADM-1"] == (HELD if fits else no_room)


def test_a_text_that_is_found_whole_computes_its_last_token_and_takes_no_block() -> None:
    """Without a cap on hits: b shares both blocks of its text with a, which runs and has taken the
    only other one."""
    *_, step = run(
        Machine(Config(4, 2, 8, 8, 2), evolve(VLLM_0_33, hit_cap=HitCap.NONE)),
        Submit("a", (1, 2, 3, 4), 3),
        Schedule(),
        Submit("b", (1, 2, 3, 4), 1),
        Complete((Output("a", (5,)),)),
        Schedule(),
    )
    assert of_requests(step) == [
        Scheduled("a", 1, 0, (3,)),
        Admitted("b", 3, (1, 2)),
        Scheduled("b", 1, 0, ()),
    ]
    said = answers(step)
    assert [said[name] for name in ("ADM-1", "CON-2", "TOK-1")] == [HELD] * 3


A_RUNS = Scheduled("a", 1, 0, ())
LIES: tuple[tuple[str, Victim, tuple[Event, ...], Reason], ...] = (
    ("tokens are left and due", Victim.NONE, (A_RUNS,), Reason.MODEL_LENGTH),
    ("no tokens are left", Victim.NONE, (evolve(A_RUNS, tokens=3),), Reason.MODEL_LENGTH),
    ("blocks are free", Victim.NONE, (A_RUNS,), Reason.NO_BLOCKS),
    ("tokens are left", Victim.NONE, (A_RUNS,), Reason.NO_TOKENS),
    ("others would give way", Victim.LAST_ADMITTED, (A_RUNS,), Reason.NO_BLOCKS),
)


@pytest.mark.parametrize(("name", "victim", "before", "reason"), LIES, ids=[x[0] for x in LIES])
def test_a_reason_that_is_none_falls(
    name: str, victim: Victim, before: tuple[Event, ...], reason: Reason
) -> None:
    """a decodes, b is in the middle of its prompt, the budget is three tokens."""
    *_, step = run(
        Machine(Config(9, 2, 12, 3, 2), evolve(VLLM_0_33, victim=victim)),
        Submit("a", (1,), 4),
        Submit("b", (2,) * 8, 1),
        Schedule(),
        Complete((Output("a", (3,)),)),
        Schedule(),
    )
    assert [r.id for r in step.before.running] == ["a", "b"]
    assert answers(step)["WRK-1"] is VACUOUS
    lie = told(step, *before, Skipped("b", reason))
    assert answers(lie)["WRK-1"] == Fall(f"b gets nothing, and {reason.name} is not true")


@pytest.mark.parametrize(("blocks", "free"), [(4, True), (3, False)])
def test_blocks_are_lacking_where_none_is_free_and_not_where_one_is(
    blocks: int, free: bool
) -> None:
    """Nobody gives way. a has two blocks of one slot, and its next token needs a third."""
    *_, step = run(
        Machine(Config(blocks, 1, 8, 8, 1), evolve(VLLM_0_33, victim=Victim.NONE)),
        Submit("a", (1, 2), 3),
        Schedule(),
        Complete((Output("a", (3,)),)),
        Schedule(),
    )
    lacking = Skipped("a", Reason.NO_BLOCKS)
    assert (lacking in step.events) is not free
    no_reason = Fall("a gets nothing, and NO_BLOCKS is not true")
    assert answers(told(step, lacking))["WRK-1"] == (no_reason if free else HELD)


def test_who_makes_others_give_way_has_the_tokens_that_were_left_when_its_turn_began() -> None:
    """Four tokens. v gets one, and gives way to r: r has the other three, and not all four."""
    policy = evolve(VLLM_0_33, admission=Admission.STEP, victim=Victim.WORST_PRIORITY)
    *_, step = run(
        Machine(Config(8, 1, 12, 4, 2), policy),
        Submit("v", (1,), 5, priority=1),
        Submit("r", (2,) * 8, 1),
        Schedule(),
        Complete((Output("v", (3,)),)),
        Schedule(),
    )
    assert of_requests(step)[:3] == [
        Scheduled("v", 1, 0, (5,)),
        Preempted("v"),
        Scheduled("r", 3, 0, (6, 7, 5)),
    ]
    assert answers(step)["TOK-1"] is HELD


def test_what_two_victims_give_back_is_for_the_turn_behind() -> None:
    """Six tokens. v gets one, and gives way to r, which has three drafts; that does not suffice, so
    r gives way too. Its turn ends there: s has all six tokens again, not the five of r's turn."""
    policy = evolve(VLLM_0_33, admission=Admission.STEP, victim=Victim.WORST_PRIORITY)
    *_, step = run(
        Machine(Config(9, 1, 12, 6, 3, num_speculative_tokens=3), policy),
        Submit("v", (1,), 5, priority=2),
        Submit("r", (2, 3, 4), 5, priority=1),
        Submit("s", (5,) * 8, 3),
        Schedule(),
        Complete((Output("v", (2,)), Output("r", (2,), (7, 7, 7)))),
        Schedule(),
    )
    assert of_requests(step) == [
        Scheduled("v", 1, 0, (7,)),
        Preempted("v"),
        Preempted("r"),
        Scheduled("s", 6, 0, (8, 7, 1, 4, 3, 2)),
        Skipped("r", Reason.PREEMPTION),
    ]
    assert answers(step)["TOK-1"] is HELD


# --- who gets nothing ----------------------------------------------------------------------


def test_nobody_joins_a_batch_that_runs() -> None:
    """Static batches: b waits until a is done, and that is its reason; then it is none."""
    *_, during, _, after = run(
        Machine(Config(9, 2, 8, 8, 2), STATIC),
        Submit("a", (1,), 2),
        Schedule(),
        Submit("b", (2,), 2),
        Complete((Output("a", (3,)),)),
        Schedule(),
        Complete((Output("a", (4,)),)),
        Schedule(),
    )
    assert during.events[-1] == Skipped("b", Reason.BATCH)
    assert answers(during)["WRK-1"] is HELD
    admitted = [e for e in after.events if isinstance(e, Admitted | Scheduled)]
    joins = told(during, *during.events[:-1], *admitted)
    assert answers(joins)["ADM-1"] == Fall("b is admitted, and admissions are shut: BATCH")
    assert answers(after)["ADM-1"] is HELD
    late = told(after, Skipped("b", Reason.BATCH))
    assert answers(late)["WRK-1"] == Fall("b gets nothing, and BATCH is not true")


def test_who_got_nothing_and_then_gave_way_is_told_of_twice() -> None:
    """v has come to the end of what may be computed, and is told so; then it gives way to r. It
    waits now, for another reason, and that is to be told too."""
    *_, step = run(
        Machine(Config(5, 1, 4, 3, 2), prioritised(VLLM_0_33)),
        Submit("v", (1, 2, 3, 4), 1, priority=1),
        Schedule(),
        Complete(),
        Submit("r", (5,), 3),
        Schedule(),
        Complete((Output("r", (6,)),)),
        Schedule(),
    )
    both = [Skipped("v", Reason.MODEL_LENGTH), Skipped("v", Reason.PREEMPTION)]
    assert [e for e in step.events if isinstance(e, Skipped)] == both
    assert Preempted("v") in step.events
    assert answers(step)["WRK-1"] is HELD
    once = told(step, *(e for e in step.events if e != both[1]))
    assert answers(once)["WRK-1"] == Fall("['v'] get nothing, and no reason is named")


def test_who_comes_back_when_admissions_are_over_need_not_be_told_of() -> None:
    """Prefill first: w finds no room, then b gives way to a, and goes to the head of the queue. Of
    w a reason must be told, of b none."""
    *_, step = run(
        Machine(Config(5, 1, 8, 8, 3), evolve(VLLM_0_33, step_mix=StepMix.PREFILL_FIRST)),
        Submit("a", (1, 2), 3),
        Submit("b", (3, 4), 3),
        Schedule(),
        Complete((Output("a", (5,)), Output("b", (5,)))),
        Submit("w", (6,), 3),
        Schedule(),
    )
    assert of_requests(step) == [
        Skipped("w", Reason.NO_ROOM),
        Preempted("b"),
        Scheduled("a", 1, 0, (4,)),
    ]
    assert [r.id for r in step.after.waiting] == ["b", "w"]
    assert answers(step)["WRK-1"] is HELD
    silent = told(step, *step.events[1:])
    assert answers(silent)["WRK-1"] == Fall("['w'] get nothing, and no reason is named")


def test_where_refused_ones_are_passed_over_want_of_tokens_still_ends_a_pass() -> None:
    """Two tokens. a takes both, b is told that none is left; c need not be asked."""
    policy = evolve(VLLM_0_33, head_of_line=HeadOfLine.SKIP)
    *_, step = run(
        Machine(Config(9, 2, 8, 2, 3), policy),
        Submit("a", (1, 2), 2),
        Submit("b", (3,), 2),
        Submit("c", (4,), 2),
        Schedule(),
    )
    assert of_requests(step)[2:] == [Skipped("b", Reason.NO_TOKENS)]
    assert answers(step)["WRK-1"] is HELD
    silent = told(step, *(e for e in step.events if not isinstance(e, Skipped)))
    assert answers(silent)["WRK-1"] == Fall("['b'] get nothing, and no reason is named")
