"""Each choice of `servespec.policy` by itself, with numbers that can be followed by hand."""

from __future__ import annotations

import pytest
from attrs import evolve

from servespec import policy as choose
from servespec.errors import ConfigError
from servespec.policy import (
    VLLM_0_33,
    Admission,
    HitCap,
    Lookup,
    Memory,
    Order,
    Policy,
    Victim,
    prioritised,
)


class Somebody:
    """Who stands in a queue."""

    def __init__(self, id: str, priority: int = 0, arrival: int = 0) -> None:
        self.id, self.priority, self.arrival = id, priority, arrival


def test_of_three_copies_the_oldest_or_the_newest_is_found() -> None:
    for lookup, found in ((Lookup.OLDEST, 4), (Lookup.NEWEST, 6)):
        assert choose.copy_found(evolve(VLLM_0_33, lookup=lookup), (4, 5, 6)) == found


def test_a_text_of_whole_blocks_is_found_but_for_its_last_one() -> None:
    """Given texts of four and five tokens in blocks of two; then under the cap one and two blocks
    may be found, without it two and two."""
    for cap, found in ((HitCap.LAST_TOKEN, [1, 2]), (HitCap.NONE, [2, 2])):
        policy = evolve(VLLM_0_33, hit_cap=cap)
        assert [choose.hit_limit(policy, length, 2) for length in (4, 5)] == found


def test_an_admission_looks_at_its_step_its_text_or_all_to_come() -> None:
    for admission, looked_at in (
        (Admission.STEP, 0),
        (Admission.WHOLE_TEXT, 5),
        (Admission.WHOLE_REQUEST, 9),
    ):
        policy = evolve(VLLM_0_33, admission=admission)
        assert choose.slots_looked_at(policy, text=5, whole=9) == looked_at


def test_what_is_promised_counts_only_where_all_output_is_looked_at() -> None:
    for admission, promised in (
        (Admission.STEP, 0),
        (Admission.WHOLE_TEXT, 0),
        (Admission.WHOLE_REQUEST, 7),
    ):
        assert choose.promised(evolve(VLLM_0_33, admission=admission), (3, 4)) == promised


def test_a_reservation_takes_the_longest_text_at_once_and_keeps_it() -> None:
    for memory, taken, returned in ((Memory.PAGED, 3, 2), (Memory.RESERVED, 16, 0)):
        policy = evolve(VLLM_0_33, memory=memory)
        assert choose.slots_at_admission(policy, 3, 16) == taken
        assert choose.returned_blocks(policy, 2) == returned


def test_the_victim_is_the_last_the_least_urgent_or_nobody() -> None:
    """Given three who run, of whom the first two are the least urgent, and equal; then the last is
    the victim, or by priority the first of the two."""
    running = [Somebody("a", 2, 1), Somebody("b", 2, 1), Somebody("c", 1, 3)]
    for victim, index in (
        (Victim.LAST_ADMITTED, 2),
        (Victim.WORST_PRIORITY, 0),
        (Victim.NONE, None),
    ):
        assert choose.victim(evolve(VLLM_0_33, victim=victim), running) == index
    running[1].arrival = 2
    assert choose.victim(evolve(VLLM_0_33, victim=Victim.WORST_PRIORITY), running) == 1


def test_by_priority_a_request_waits_behind_its_elders_and_equals_in_order_of_id() -> None:
    waiting = [Somebody("a", 1, 1), Somebody("c", 1, 2), Somebody("d", 2, 0)]
    policy = prioritised(VLLM_0_33)
    assert policy.order is Order.PRIORITY
    for somebody, place in (
        (Somebody("b", 1, 2), 1),
        (Somebody("e", 1, 2), 2),
        (Somebody("z", 0, 9), 0),
        (Somebody("z", 3, 0), 3),
    ):
        for preempted in (False, True):
            assert choose.place_in_waiting(policy, waiting, somebody, preempted) == place


def test_a_choice_that_there_is_not_is_told_with_those_that_there_are() -> None:
    for name, wrong, what, remedy in (
        ("lookup", "OLDEST", "'OLDEST' is no Lookup", "choose of ['OLDEST', 'NEWEST']"),
        ("null_block", 1, "1 is no bool", "choose of [True, False]"),
    ):
        with pytest.raises(ConfigError) as raised:
            evolve_to(VLLM_0_33, name, wrong)
        assert (raised.value.where, raised.value.what, raised.value.remedy) == (name, what, remedy)


def evolve_to(policy: Policy, name: str, value: object) -> Policy:
    return evolve(policy, **{name: value})  # type: ignore[arg-type]
