"""The second reading of the choices of a policy: what each says, in small numbers."""

from __future__ import annotations

import pytest
from attrs import evolve

from servespec.chain import Namespace
from servespec.config import Config
from servespec.policy import (
    RESERVED,
    VLLM_0_33,
    Admission,
    FreeWalk,
    HitCap,
    Impossible,
    Lookup,
    Memory,
    Order,
    Policy,
    Readmission,
    Release,
    RunningCap,
    Sharing,
    Victim,
)
from servespec.properties import readings
from servespec.request import Request

CONFIG = Config(20, 2, 8, 8, 4)
DRAFTING = evolve(CONFIG, num_speculative_tokens=2, num_lookahead_tokens=1)


def request(
    id: str = "a",
    prompt: int = 3,
    output: int = 1,
    most: int = 4,
    table: tuple[int, ...] = (),
    priority: int = 0,
    arrival: int = 0,
) -> Request:
    text, grown = (1,) * prompt, (2,) * output
    return Request(
        id, Namespace(), text, most, priority, (), arrival, (), output=grown, table=table
    )


def ids(requests: list[Request]) -> str:
    return "".join(r.id for r in requests)


@pytest.mark.parametrize(
    ("length", "below_the_last", "all_full"),
    [(7, 1, 1), (8, 1, 2), (9, 2, 2), (3, 0, 0), (4, 0, 1)],
)
def test_blocks_that_can_be_shared(length: int, below_the_last: int, all_full: int) -> None:
    capped = evolve(VLLM_0_33, hit_cap=HitCap.LAST_TOKEN)
    assert readings.can_be_shared(capped, length, 4) == below_the_last
    free = evolve(VLLM_0_33, hit_cap=HitCap.NONE)
    assert readings.can_be_shared(free, length, 4) == all_full


def test_the_first_or_the_last_copy_answers() -> None:
    oldest, newest = (evolve(VLLM_0_33, lookup=lookup) for lookup in (Lookup.OLDEST, Lookup.NEWEST))
    assert readings.answering(oldest, (3, 1, 2)) == 3
    assert readings.answering(newest, (3, 1, 2)) == 2
    assert readings.answering(newest, (3, 1)) == 1
    assert readings.answering(oldest, (5,)) == readings.answering(newest, (5,)) == 5


def test_a_table_is_let_go_from_its_tail_or_from_its_head() -> None:
    tail, head = (
        evolve(VLLM_0_33, free_walk=walk) for walk in (FreeWalk.TAIL_FIRST, FreeWalk.HEAD_FIRST)
    )
    assert readings.let_go(tail, (4, 2, 3)) == (3, 2, 4)
    assert readings.let_go(head, (4, 2, 3)) == (4, 2, 3)


def test_blocks_go_back_with_a_step_where_memory_is_paged() -> None:
    assert VLLM_0_33.memory is Memory.PAGED
    assert readings.given_back(VLLM_0_33, 2) == 2
    assert readings.given_back(RESERVED, 2) == 0


def test_choices_that_are_yes_or_no() -> None:
    late = evolve(VLLM_0_33, release=Release.DEFERRED)
    assert readings.held_until_done(late)
    assert not readings.held_until_done(evolve(late, release=Release.AT_ONCE))
    assert readings.full_blocks_have_keys(VLLM_0_33)
    assert not readings.full_blocks_have_keys(evolve(VLLM_0_33, sharing=Sharing.OFF))
    strict = evolve(VLLM_0_33, impossible=Impossible.REFUSE)
    assert readings.turns_impossible_away(strict)
    assert not readings.turns_impossible_away(evolve(strict, impossible=Impossible.QUEUE))


def test_an_admission_takes_its_first_step_or_the_longest_text() -> None:
    assert readings.table_at_admission(CONFIG, VLLM_0_33, 5) == 5
    assert readings.table_at_admission(CONFIG, VLLM_0_33, 9) == 8
    assert readings.table_at_admission(CONFIG, RESERVED, 5) == 8


def test_so_many_tokens_are_computed_at_most() -> None:
    below = evolve(VLLM_0_33, running_cap=RunningCap.BELOW_MODEL_LENGTH)
    assert readings.most_computed(CONFIG, below) == 7
    assert readings.most_computed(CONFIG, evolve(below, running_cap=RunningCap.NONE)) == 8


def test_the_last_token_of_a_request_needs_no_slot_and_drafts_do() -> None:
    assert readings.comes_to(CONFIG, request(prompt=3, most=4)) == 6
    assert readings.comes_to(CONFIG, request(prompt=3, most=7)) == 8
    assert readings.comes_to(DRAFTING, request(prompt=2, most=2)) == 3 + 2 + 1
    assert readings.comes_to(DRAFTING, request(prompt=3, most=4)) == 8


@pytest.mark.parametrize(
    ("admission", "short", "long"),
    [(Admission.STEP, 0, 0), (Admission.WHOLE_TEXT, 4, 8), (Admission.WHOLE_REQUEST, 6, 8)],
)
def test_slots_that_are_looked_at_before_an_admission(
    admission: Admission, short: int, long: int
) -> None:
    policy = evolve(VLLM_0_33, admission=admission)
    assert readings.looked_at(CONFIG, policy, request(prompt=3, output=1, most=4)) == short
    assert readings.looked_at(CONFIG, policy, request(prompt=7, output=2, most=9)) == long


def test_blocks_are_spoken_for_where_whole_requests_are_promised() -> None:
    """Each comes to 6 slots, 3 blocks: a has one, b more than it needs, c none, d two."""
    running = [
        request("a", table=(1,)),
        request("b", table=(2, 3, 4, 5)),
        request("c"),
        request("d", table=(6, 7)),
    ]
    whole = evolve(VLLM_0_33, admission=Admission.WHOLE_REQUEST)
    assert readings.spoken_for(CONFIG, whole, running) == 2 + 0 + 3 + 1
    for admission in (Admission.STEP, Admission.WHOLE_TEXT):
        assert readings.spoken_for(CONFIG, evolve(whole, admission=admission), running) == 0


def test_who_gives_way() -> None:
    running = [
        request("a", arrival=1),
        request("b", priority=1, arrival=2),
        request("c", arrival=3),
    ]

    def named(victim: Victim) -> str | None:
        return readings.gives_way(evolve(VLLM_0_33, victim=victim), running)

    assert named(Victim.NONE) is None
    assert named(Victim.LAST_ADMITTED) == "c"
    assert named(Victim.WORST_PRIORITY) == "b"
    running[1:] = [request("c", arrival=2), request("d", arrival=2)]
    assert named(Victim.WORST_PRIORITY) == "c", "the first of those that are equally bad"


def test_where_a_request_waits() -> None:
    waiting = [request("b", arrival=1), request("c", priority=1, arrival=0)]

    def queue(policy: Policy, preempted: bool, came: Request) -> str:
        return ids(readings.queued(policy, waiting, came, preempted))

    fcfs = evolve(VLLM_0_33, order=Order.FCFS, readmission=Readmission.HEAD)
    late = request("a", arrival=2)
    assert queue(fcfs, False, late) == "bca"
    assert queue(fcfs, True, late) == "abc"
    assert queue(evolve(fcfs, readmission=Readmission.TAIL), True, late) == "bca"
    by_priority = evolve(fcfs, order=Order.PRIORITY)
    assert queue(by_priority, True, late) == "bac"
    assert queue(by_priority, False, request("d", arrival=1)) == "bdc"
    assert queue(by_priority, False, request("a", arrival=1)) == "abc"
    assert queue(by_priority, False, request("d", priority=1, arrival=0)) == "bcd"
