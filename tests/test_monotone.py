"""What more memory, sharing or budget makes better, and the smallest streams where it does not."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from attrs import asdict, evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from servecheck.workload.chart import LEGEND, text
from servespec.actions import Submit
from servespec.chain import Namespace, link
from servespec.config import Config
from servespec.events import (
    Admitted,
    BlockRemoved,
    Event,
    Finished,
    Preempted,
    Reason,
    Refused,
    Scheduled,
)
from servespec.machine import Machine
from servespec.policy import MINIATURE, PROFILES, RESERVED, Batching, Memory, Order, Sharing
from servespec.theory.batching import (
    Twins,
    too_late,
)
from servespec.theory.monotone import (
    ANOMALIES,
    Anomaly,
    all_end_later,
    all_served,
    computes_more,
    ends_later,
    evicts_more,
    preempted_and_later,
    starts_or_ends_later,
    takes_longer,
    texts,
    worse,
)
from servespec.theory.smallest import Odd, Space, all_kinds, both, smallest
from servespec.theory.stream import (
    Arrival,
    Course,
    Events,
    Stream,
    Tally,
    begin,
    duration,
    run,
    tally,
)

DOCS = Path(__file__).resolve().parents[1] / "docs"


# --- ORD-2 -----------------------------------------------------------------------------------


def alone(name: str, usable: int, block_size: int = 1) -> Machine:
    """One request at a time; the budget is out of the way."""
    policy = PROFILES[name]
    return Machine(Config(usable + policy.first_block, block_size, 16, 64, 1), policy)


@pytest.mark.parametrize("name", ["VLLM_0_33", "MINIATURE", "STATIC"])
@pytest.mark.parametrize(("less", "more", "size"), [(3, 4, 1), (2, 3, 2)])
def test_one_at_a_time_more_blocks_are_no_worse(name: str, less: int, more: int, size: int) -> None:
    """Every stream of up to three requests, of texts over two tokens, up to the tokens' names."""
    twins = Twins(alone(name, more, size), alone(name, less, size))
    space = Space(all_kinds(texts(2, min(3, less * size - 1)), 1), most=3, last_arrival=0)
    evicted = 0
    for found in both(twins, space):
        assert all_served(found.first, found.second)
        assert worse(found.first, found.second) == (), found.stream
        evicted += tally(found.second.steps).evictions
    assert evicted


@given(st.data())
@settings(max_examples=150)
def test_one_at_a_time_more_blocks_are_no_worse_at_length(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["VLLM_0_33", "MINIATURE", "STATIC"]))
    size = data.draw(st.integers(1, 3))
    less = data.draw(st.integers(2, 5))
    more = data.draw(st.integers(less, less + 2))
    longest = min(less * size, 6)
    requests = data.draw(
        st.lists(
            st.lists(st.integers(0, 1), min_size=1, max_size=longest).flatmap(
                lambda prompt: st.tuples(
                    st.just(tuple(prompt)), st.integers(1, longest - len(prompt) + 1)
                )
            ),
            min_size=1,
            max_size=12,
        )
    )
    served = Stream(tuple(Arrival(0, Submit(f"r{i}", p, n)) for i, (p, n) in enumerate(requests)))
    first, second = run(alone(name, more, size), served), run(alone(name, less, size), served)
    if all_served(first, second):
        assert worse(first, second) == ()


@pytest.mark.parametrize("name", ["VLLM_0_33", "MINIATURE"])
def test_with_memory_out_of_the_way_sharing_computes_no_more(name: str) -> None:
    policy = PROFILES[name]
    config = Config(16, 1, 16, 64, 3)
    twins = Twins(Machine(config, policy), Machine(config, evolve(policy, sharing=Sharing.OFF)))
    saved = 0
    for found in both(twins, Space(all_kinds(texts(2, 2), 1), most=3, last_arrival=1)):
        more, less = tally(found.first.steps), tally(found.second.steps)
        assert more.preemptions == less.preemptions == 0
        assert "computed tokens" not in worse(found.first, found.second), found.stream
        saved += less.computed_tokens - more.computed_tokens
    assert saved


# --- anomalies -------------------------------------------------------------------------------

KEY = link(Namespace(), None, (0,))
EVICTED, SENT_BACK = BlockRemoved(0, KEY), Preempted("b")


def came(id: str) -> Event:
    return Admitted(id, 0, ())


def ran(id: str, tokens: int) -> Event:
    return Scheduled(id, tokens, 0, ())


def ended(id: str) -> Event:
    return Finished(id, Reason.LENGTH)


BASE: tuple[Events, ...] = ((came("a"), came("b"), ran("a", 2)), (ended("a"),), (ended("b"),))
"""Two requests, of which a ends after two steps and b after three."""
MORE: dict[str, tuple[tuple[Events, ...], set[Odd]]] = {
    "an eviction": (((*BASE[0], EVICTED), *BASE[1:]), {evicts_more}),
    "a computed token": (
        ((came("a"), came("b"), ran("a", 3)), *BASE[1:]),
        {computes_more, takes_longer},
    ),
    "a step before a starts": (
        ((came("b"), ran("b", 2)), (came("a"), ended("a")), BASE[2]),
        {starts_or_ends_later},
    ),
    "a step before a ends": (
        (BASE[0], (), (ended("a"), ended("b"))),
        {ends_later, starts_or_ends_later},
    ),
    "a step before a ends, and a preemption": (
        (BASE[0], (SENT_BACK,), (ended("a"), ended("b"))),
        {ends_later, starts_or_ends_later, preempted_and_later},
    ),
    "a preemption": ((BASE[0], (SENT_BACK, ended("a")), BASE[2]), set()),
    "a step": ((*BASE, ()), {all_end_later, takes_longer}),
}
"""What a course has more of than `BASE`, and which questions are to see it."""
QUESTIONS: tuple[Odd, ...] = (
    evicts_more,
    computes_more,
    ends_later,
    all_end_later,
    takes_longer,
    starts_or_ends_later,
    preempted_and_later,
)


def written(*steps: Events) -> Course:
    """A course written by hand, in which nobody is left."""
    return evolve(begin(alone("MINIATURE", 4)), steps=steps)


@pytest.mark.parametrize("what", MORE)
def test_each_question_looks_at_one_thing(what: str) -> None:
    """And is answered with no where it is less, or as much."""
    steps, seen_by = MORE[what]
    more, base = written(*steps), written(*BASE)
    assert {odd for odd in QUESTIONS if odd(more, base)} == seen_by
    assert not [odd for odd in QUESTIONS if odd(base, more) or odd(more, more)]


@pytest.mark.parametrize("odd", QUESTIONS)
def test_only_of_streams_that_were_served_anything_is_odd(odd: Odd) -> None:
    """Whatever one course has more of than the other: if either leaves somebody behind, or has
    turned somebody away, they are not compared."""
    worst = (*BASE[0], ran("a", 9), EVICTED), (), (SENT_BACK,), (ended("a"), ended("b"))
    more, base = written(*worst), written(*BASE)
    assert odd(more, base)
    waits = more.making.machine.apply(more.state, Submit("c", (0,), 1)).state
    no = Refused("c", Reason.IMPOSSIBLE)
    for first, second in (
        (evolve(more, state=waits), base),
        (more, evolve(base, state=waits)),
        (written((*worst[0], no), *worst[1:]), base),
        (more, written((*BASE[0], no), *BASE[1:])),
    ):
        assert not odd(first, second)


def test_texts_are_all_up_to_a_length() -> None:
    assert texts(2, 2) == ((0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1))
    assert texts(1, 3) == ((0,), (0, 0), (0, 0, 0))


SMALLEST: dict[str, tuple[tuple[int, tuple[int, ...], int], ...]] = {
    "prefill first": ((0, (0,), 2), (1, (0,), 1)),
    "finite pool": ((0, (0,), 2), (1, (0,), 2), (1, (0, 0), 1)),
    "finite pool, preemption": ((0, (0,), 3), (1, (0,), 2), (1, (0, 0), 1)),
    "priority order": ((0, (0,), 2), (1, (0,), 2), (2, (0,), 1), (2, (0,), 1)),
    "more blocks, more evictions": ((0, (0,), 4), (1, (1, 0, 0), 2)),
    "more blocks, more computed tokens": ((0, (0,), 3), (1, (1, 0), 2)),
    "sharing, more computed tokens": ((0, (0, 0), 4), (1, (0, 1, 0), 2)),
    "bigger budget, later end": ((0, (0, 0, 0), 2), (0, (0,), 1)),
    "more blocks, later end": ((0, (0,), 2), (1, (1,), 2), (1, (0,), 2), (1, (0,), 1)),
    "paged memory, later end": ((0, (0,), 2), (0, (0, 0, 0), 2)),
}
"""By anomaly: arrival, prompt, tokens of output of each request."""
DIFFERENCE: dict[str, dict[str, tuple[object, object]]] = {
    "prefill first": {"batching": (Batching.CONTINUOUS, Batching.STATIC)},
    "finite pool": {"batching": (Batching.CONTINUOUS, Batching.STATIC)},
    "finite pool, preemption": {"batching": (Batching.CONTINUOUS, Batching.STATIC)},
    "priority order": {"batching": (Batching.CONTINUOUS, Batching.STATIC)},
    "more blocks, more evictions": {"num_blocks": (5 + 1, 4 + 1)},  # and the null block
    "more blocks, more computed tokens": {"num_blocks": (4 + 1, 3 + 1)},
    "sharing, more computed tokens": {"sharing": (Sharing.FULL_BLOCKS, Sharing.OFF)},
    "bigger budget, later end": {"max_num_batched_tokens": (3, 2)},
    "more blocks, later end": {"num_blocks": (3, 2)},
    "paged memory, later end": {"memory": (Memory.PAGED, Memory.RESERVED)},
}
"""By anomaly: in what the two machines differ."""


SLOTS = {"prefill first": 2, "finite pool": 2, "priority order": 2, "more blocks, later end": 3}
"""Of the anomalies of whose slots the page tells."""


def sizes_and_choices(machine: Machine) -> dict[str, object]:
    parts = (machine.config, machine.policy)
    return {name: value for part in parts for name, value in asdict(part, recurse=False).items()}


@pytest.mark.parametrize("anomaly", ANOMALIES, ids=lambda anomaly: anomaly.name)
def test_two_machines_that_differ_in_one_thing(anomaly: Anomaly) -> None:
    one, two = map(sizes_and_choices, (anomaly.twins.first, anomaly.twins.second))
    differ = {name: (one[name], two[name]) for name in one if one[name] != two[name]}
    assert differ == DIFFERENCE[anomaly.name]


@pytest.mark.parametrize("anomaly", ANOMALIES, ids=lambda anomaly: anomaly.name)
def test_a_counterexample_runs_as_it_is_told(anomaly: Anomaly) -> None:
    """By itself, without the search; with as many slots as the page tells. Where order is by
    priority, the second of the four is worth less than the others."""
    if slots := SLOTS.get(anomaly.name):
        page = (DOCS / "batching.md").read_text()
        story = page.partition(f"**{anomaly.name}**")[2].partition("**")[0]
        assert f"{NUMBERS[slots].capitalize()} slots" in story
        assert anomaly.twins.first.config.max_num_seqs == slots
    requests = SMALLEST[anomaly.name]
    by_priority = anomaly.twins.first.policy.order is Order.PRIORITY
    stream = Stream(
        tuple(
            Arrival(at, Submit(f"r{i}", prompt, n, priority=int(by_priority and i == 1)))
            for i, (at, prompt, n) in enumerate(requests)
        )
    )
    first, second = (run(m, stream) for m in (anomaly.twins.first, anomaly.twins.second))
    assert anomaly.odd(first, second)


def drawn(anomaly: Anomaly, first: Course, second: Course) -> str:
    """Both runs, as the docs show them."""
    width = max(len(anomaly.first), len(anomaly.second))
    return "\n".join(
        line
        for name, course in ((anomaly.first, first), (anomaly.second, second))
        for line in text(f"{name:<{width}}", course.steps)
    )


@pytest.mark.parametrize("anomaly", ANOMALIES, ids=lambda anomaly: anomaly.name)
def test_the_smallest_counterexample(anomaly: Anomaly) -> None:
    """The search goes through all smaller streams and finds nothing odd before this one; the docs
    tell of it as it is."""
    found = anomaly.find()
    assert found is not None
    requests = tuple((a.step, a.submit.prompt, a.submit.max_tokens) for a in found.stream.arrivals)
    assert requests == SMALLEST[anomaly.name]
    page = (DOCS / "batching.md").read_text()
    assert f"**{anomaly.name}**" in page
    assert (
        "\n".join(f"    {line}" for line in drawn(anomaly, found.first, found.second).split("\n"))
        in page
    )
    assert " ".join(anomaly.said.split()) in " ".join(page.split())


def told(*names: str) -> tuple[tuple[Tally, Tally], ...]:
    """What both runs of these anomalies came to."""
    every = {anomaly.name: anomaly for anomaly in ANOMALIES}
    both_runs = (every[name].find() for name in names)
    return tuple((tally(f.first.steps), tally(f.second.steps)) for f in both_runs if f)


NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def test_the_numbers_that_the_page_tells() -> None:
    """Those of the charts are in the charts; these are in the sentences beside them."""
    evicted, computed, shared, paged = told(
        "more blocks, more evictions",
        "more blocks, more computed tokens",
        "sharing, more computed tokens",
        "paged memory, later end",
    )

    def instead(what: str, of: str, pair: tuple[Tally, Tally]) -> str:
        more, less = (NUMBERS[getattr(t, of)] for t in pair)
        return f"{more} {what} instead of {less}"

    def cost(t: Tally) -> int:
        return t.steps + t.computed_tokens

    one, two = paged
    page = " ".join((DOCS / "batching.md").read_text().split())
    for said in (
        instead("evictions", "evictions", evicted),
        instead("computed tokens", "computed_tokens", computed),
        instead("computed tokens", "computed_tokens", shared),
        f"Paged: {NUMBERS[one.steps]} steps and {NUMBERS[one.computed_tokens]} tokens; reserved: "
        f"{NUMBERS[two.steps]} steps and {NUMBERS[two.computed_tokens]}.",
        f"that is {cost(one)} against {cost(two)}",
        "(10,431 streams)",  # counted in test_batching.py
        "(203,280)",
        "nothing is found among 2,394 streams",
    ):
        assert said in page


def test_what_is_worse_is_seen() -> None:
    """`worse` names both, so that it finding nothing says something."""
    found = [anomaly.find() for anomaly in ANOMALIES if anomaly.odd in (evicts_more, computes_more)]
    assert [worse(f.first, f.second) for f in found if f] == [
        ("evictions", "computed tokens"),
        ("computed tokens",),
        ("evictions", "computed tokens"),
    ]


def test_every_anomaly_is_pinned() -> None:
    assert [anomaly.name for anomaly in ANOMALIES] == list(SMALLEST)
    assert LEGEND in (DOCS / "batching.md").read_text()


def test_chunks_alone_do_not_break_the_theorem() -> None:
    """Prefill that takes several steps does no harm as long as decodes go first: nothing is found
    among 2,394 streams."""
    policy = evolve(MINIATURE, sharing=Sharing.OFF, chunked_prefill=True)
    config = Config(8, 16, 16, 2, 2)
    static = evolve(policy, batching=PROFILES["STATIC"].batching)
    twins = Twins(Machine(config, policy), Machine(config, static))
    space = Space(all_kinds(((0,), (0, 0)), 3), most=3, last_arrival=2)
    assert smallest(twins, space, lambda a, b: bool(too_late(a, b))) is None
    assert sum(1 for _ in both(twins, space)) == 2_394


# --- paged and reserved memory ---------------------------------------------------------------


def test_paged_memory_admits_at_least_as_many() -> None:
    """Every sequence of up to four prompts of 1 to 4 tokens, in five blocks of one token, of which
    a reservation takes four."""
    config = Config(5, 1, 4, 64, 4)
    more = 0
    for count in range(1, 5):
        for lengths in product(range(1, 5), repeat=count):
            arrivals = (Arrival(0, Submit(f"r{i}", (i,) * n, 1)) for i, n in enumerate(lengths))
            due = Stream(tuple(arrivals)).due(0)
            paged, reserved = (
                sum(
                    isinstance(e, Admitted)
                    for e in begin(Machine(config, policy)).step(due).steps[0]
                )
                for policy in (MINIATURE, RESERVED)
            )
            assert paged >= reserved
            more += paged > reserved
    assert more


def test_paged_memory_loses_no_step() -> None:
    """Counted in steps nobody starts or ends later; a preemption costs what is computed again."""
    policy = evolve(MINIATURE, sharing=Sharing.OFF)
    config = Config(5, 1, 4, 64, 3)
    twins = Twins(Machine(config, policy), Machine(config, evolve(policy, memory=Memory.RESERVED)))
    preempted = again = 0
    for found in both(twins, Space(all_kinds(((0,), (0, 0)), 2), most=4, last_arrival=1)):
        assert too_late(found.first, found.second) == (), found.stream
        one, two = tally(found.first.steps), tally(found.second.steps)
        preempted += one.preemptions > 0
        again += one.computed_tokens > two.computed_tokens
    assert preempted == again > 0


def test_a_preemption_that_costs_time() -> None:
    """Five blocks of one token. Paged, r1 is admitted beside r0, computes its three tokens, and is
    sent back when both need another block: three steps with 9 tokens, where reserved memory takes
    four steps with 6. If a step costs as much as a token, that is 12 against 10."""
    anomaly = next(a for a in ANOMALIES if a.name == "paged memory, later end")
    found = anomaly.find()
    assert found is not None
    paged, reserved = found.first.steps, found.second.steps
    assert (len(paged), tally(paged).computed_tokens, duration(paged)) == (3, 9, 12)
    assert (len(reserved), tally(reserved).computed_tokens, duration(reserved)) == (4, 6, 10)
